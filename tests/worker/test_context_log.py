"""`ctx.log`: lines of a handler reach the task's log in batches, before its result, with any outcome."""

import asyncio
import logging
from collections.abc import Iterator

import pytest

from shiftwork import Client, Queue
from shiftwork.model.errors import InputError
from shiftwork.task_logs.model import NewLogLine
from shiftwork.worker import Context, Fail, Release, Worker
from shiftwork.worker.context import Handler
from shiftwork.worker.log_sender import MAX_WAITING, LogSender
from tests.client.serving import served
from tests.server.running import Running
from tests.worker.steps import at_work, until


@pytest.fixture
def server(store_url: str) -> Iterator[Running]:
    with served(store_url) as running:
        yield running


def worker_with(handler: Handler) -> Worker:
    worker = Worker("ada")
    worker.handler("code")(handler)
    return worker


async def logged(queue: Queue | Client, task_id: str) -> list[tuple[str, str]]:
    return [(line.level, line.text) for line in (await queue.tasks.logs(task_id)).lines]


async def test_lines_arrive_before_the_result(shop: Queue, store_url: str) -> None:
    async def code(ctx: Context) -> None:
        for number in range(50):
            ctx.log(f"line {number}")
        ctx.log("last", "warning")

    made = await shop.submit(type="code")
    await worker_with(code).run(store_url, until_idle=True)
    assert await logged(shop, made.id) == [*(("info", f"line {n}") for n in range(50)), ("warning", "last")]
    verbs = [event.verb for event in (await shop.tasks.history(made.id)).events]
    assert verbs.count("message") == 1, "lines cost no call each"
    assert verbs.index("message") < verbs.index("completed")


async def test_lines_arrive_over_http(server: Running) -> None:
    async def code(ctx: Context) -> None:
        ctx.log("over HTTP")

    async with Client.open(server.url) as client:
        made = await client.submit(type="code")
        await worker_with(code).run(server.url, until_idle=True)
        assert await logged(client, made.id) == [("info", "over HTTP")]
        assert [line.text async for line in client.tasks.follow_logs(made.id)] == ["over HTTP"]


async def test_plain_function_logs_from_its_thread(shop: Queue, store_url: str) -> None:
    def code(ctx: Context) -> None:
        ctx.log("from a thread")

    made = await shop.submit(type="code")
    await worker_with(code).run(store_url, until_idle=True)
    assert await logged(shop, made.id) == [("info", "from a thread")]


async def test_lines_arrive_while_the_handler_runs(shop: Queue, store_url: str) -> None:
    go = asyncio.Event()

    async def code(ctx: Context) -> None:
        ctx.log("begun")
        await go.wait()

    made = await shop.submit(type="code")

    async def seen() -> bool:
        return await logged(shop, made.id) == [("info", "begun")]

    async with at_work(worker_with(code), store_url):
        await until(seen)
        go.set()


@pytest.mark.parametrize("end", ["fail", "crash", "release", "wait"])
async def test_lines_are_kept_however_the_attempt_ends(shop: Queue, store_url: str, end: str) -> None:
    async def code(ctx: Context) -> None:
        ctx.log("before the end")
        if end == "wait":
            await ctx.ask("where", "Where to?")
        raise {"fail": Fail("broken"), "crash": ValueError("no"), "release": Release("later")}[end]

    made = await shop.submit(type="code", settings={"max_attempts": 1})
    await worker_with(code).run(store_url, max_tasks=1)
    assert await logged(shop, made.id) == [("info", "before the end")]


async def test_lines_are_logged_by_the_worker_as_well(
    shop: Queue, store_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "shiftwork.task")

    async def code(ctx: Context) -> None:
        ctx.log("too fine", "debug")
        ctx.log("careful", "warning")

    made = await shop.submit(type="code")
    await worker_with(code).run(store_url, until_idle=True)
    told = [(record.levelno, record.getMessage()) for record in caplog.records if record.name == "shiftwork.task"]
    assert told == [(logging.WARNING, f"{made.id} (code): careful")]


async def test_unknown_level_fails_the_attempt(shop: Queue, store_url: str) -> None:
    seen: list[InputError] = []

    async def code(ctx: Context) -> None:
        try:
            ctx.log("x", "loud")  # type: ignore[arg-type]  # the mistake
        except InputError as error:
            seen.append(error)
        ctx.log(None)
        ctx.log("\0\ud800" + "x" * 20_000)

    made = await shop.submit(type="code")
    assert (await worker_with(code).run(store_url, until_idle=True)).completed == 1
    assert [(error.where, error.hint) for error in seen] == [("level", "One of debug, info, warning, error.")]
    empty, long = await logged(shop, made.id)
    assert (empty[1], long[1]) == ("", "?" + "x" * 9_999)


async def test_lines_logged_too_fast_are_counted(shop: Queue) -> None:
    made = await shop.submit(type="code")
    (held,) = await shop.claim("ada", start=True)
    sender = LogSender(shop, lambda coroutine: coroutine.close())
    for number in range(MAX_WAITING + 7):
        sender.add(held.token, NewLogLine(str(number)))
    await sender.send()
    found = await logged(shop, made.id)
    assert len(found) == MAX_WAITING + 1
    assert found[-1] == ("warning", "[7 lines were logged too fast and left out]")
    assert sender.is_empty
