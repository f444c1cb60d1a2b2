"""A handler that hands in more than data, and what it is told of its result."""

from typing import Any

from shiftwork import Queue
from shiftwork.worker import Context, Done, Worker
from shiftwork.worker.outbox import Kept, Outbox, open_outbox

PASSES = {"validation": "json-schema", "validation_schema": {"type": "number"}}


async def test_a_result_in_words_stands_beside_its_data(shop: Queue, store_url: str) -> None:
    worker = Worker()
    worker.handler("code")(lambda _: Done({"n": 1}, text="one"))
    task = (await shop.submit(type="code")).id
    await worker.run(store_url, until_idle=True)
    result = await shop.result(task)
    assert (result.data, result.text) == ({"n": 1}, "one")


async def test_a_handler_is_told_when_its_result_was_accepted_and_only_then(shop: Queue, store_url: str) -> None:
    worker = Worker()
    accepted: list[Any] = []

    @worker.handler("code")
    async def code(ctx: Context) -> Done:
        return Done(ctx.payload["value"], once_accepted=lambda: accepted.append(ctx.payload["value"]))

    for value in (1, "no number"):
        await shop.submit(type="code", payload={"value": value}, output=PASSES, max_attempts=1)
    await worker.run(store_url, until_idle=True)
    assert accepted == [1]


async def test_words_survive_the_outbox(shop: Queue, store_url: str) -> None:
    task = (await shop.submit(type="code")).id
    (claim,) = await shop.claim("worker", start=True)
    outbox: Outbox = open_outbox(None, store_url, "default")
    assert outbox.keep(Kept(claim.token, done=True, data=1, text="one"))
    worker = Worker()
    worker.handler("code")(lambda _: None)
    await worker.run(store_url, until_idle=True)
    assert (await shop.result(task)).text == "one"
