"""Handlers that submit more than data, and callbacks after their results were accepted."""

from typing import Any, NoReturn

import pytest

from shiftwork import Client, Queue
from shiftwork.model.errors import InputError
from shiftwork.model.reports import TaskResult
from shiftwork.worker import Context, Done, Fail, Worker
from shiftwork.worker.outbox import Outbox, StoredResult, open_outbox
from shiftwork.worker.slots import RunningHandler
from tests.client.serving import served
from tests.worker.steps import at_work, knows, until

PASSES = {"validation": "json-schema", "validation_schema": {"type": "number"}}


async def test_result_text_is_stored_with_its_data(shop: Queue, store_url: str) -> None:
    worker = Worker()
    worker.handler("code")(lambda _: Done({"n": 1}, text="one"))
    task = (await shop.submit(type="code")).id
    await worker.run(store_url, until_idle=True)
    result = await shop.result(task)
    assert (result.data, result.text) == ({"n": 1}, "one")


async def test_accepted_callback_runs_only_after_acceptance(shop: Queue, store_url: str) -> None:
    worker = Worker()
    accepted: list[Any] = []

    @worker.handler("code")
    async def code(ctx: Context) -> Done:
        return Done(ctx.payload["value"], once_accepted=lambda: accepted.append(ctx.payload["value"]))

    for value in (1, "no number"):
        await shop.submit(type="code", payload={"value": value}, output=PASSES, max_attempts=1)
    await worker.run(store_url, until_idle=True)
    assert accepted == [1]


@pytest.mark.parametrize("error", [RuntimeError("boom"), SystemExit(3)])
async def test_failing_callback_costs_no_result_and_no_slot(
    shop: Queue, store_url: str, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    """The callback of the first result fails; the other results, and the next batches, are still reported."""
    worker = Worker(concurrency=6)

    def fail() -> NoReturn:
        raise error

    @worker.handler("code")
    async def code(ctx: Context) -> Done:
        if ctx.payload["n"] % 3 == 1:
            raise Fail("crash", "as it should")
        return Done(ctx.payload["n"], once_accepted=fail if ctx.payload["n"] % 3 == 0 else None)

    await shop.submit_many([{"type": "code", "payload": {"n": n}, "max_attempts": 1} for n in range(18)])
    summary = await worker.run(store_url, until_idle=True)
    assert (summary.completed, summary.failed, summary.released) == (12, 6, 0)
    assert (await shop.status()).counts == {"completed": 12, "dead_lettered": 6}
    assert caplog.text.count("the callback for the accepted result of") == 6


NO_RESULTS: dict[str, tuple[dict[str, Any], str]] = {
    "a number as text": ({"data": {"a": 1}, "text": 5}, "text"),
    "an object as text": ({"text": {"a": 1}}, "text"),
    "a number as report": ({"decision_report": 5}, "decision_report"),
    "a list as report": ({"decision_report": ["x"]}, "decision_report"),
    "a text as artifacts": ({"artifacts": "abc"}, "artifacts"),
    "a number as artifacts": ({"artifacts": 5}, "artifacts"),
    "an object as artifacts": ({"artifacts": {"a": 1}}, "artifacts"),
    "what has no JSON as artifacts": ({"artifacts": object()}, "artifacts"),
    "a number among artifacts": ({"artifacts": ["a", 5]}, "artifacts[1]"),
    "an artifact without a name": ({"artifacts": [""]}, "artifacts[0]"),
    "a number as verdict": ({"verdict": 5}, "verdict"),
}
"""What a handler may submit by mistake, and where the mistake is."""


def careless() -> Worker:
    worker = Worker()
    worker.handler("code")(lambda ctx: Done(**NO_RESULTS[ctx.payload["mistake"]][0]))
    worker.handler("good")(lambda _: Done(1, text="one", artifacts=("a", "b"), decision_report={"why": "so"}))
    return worker


async def check_mistakes_fail(queue: Queue | Client, url: str) -> None:
    await queue.settings.set("circuit_breaker", None)
    tasks = [{"type": "code", "payload": {"mistake": mistake}, "max_attempts": 1} for mistake in NO_RESULTS]
    made = await queue.submit_many([*tasks, {"type": "good"}])
    summary = await careless().run(url, until_idle=True)
    assert (summary.completed, summary.failed) == (1, len(NO_RESULTS))
    *failed, good = [await queue.get(each.id) for each in made]
    assert good.status == "completed"
    assert {task.status for task in failed} == {"dead_lettered"}
    assert {task.failure_history[0].reason for task in failed} == {"invalid_output"}
    assert len((await queue.tasks.list()).tasks) == len(made)  # all of them can be read


async def test_invalid_result_fails_the_attempt(shop: Queue, store_url: str) -> None:
    await check_mistakes_fail(shop, store_url)


async def test_invalid_result_fails_the_attempt_over_http(sqlite_url: str) -> None:
    with served(sqlite_url) as server:
        async with Client.open(server.url) as client:
            await check_mistakes_fail(client, server.url)


@pytest.mark.parametrize("mistake", NO_RESULTS)
async def test_invalid_result_is_refused_with_its_path(shop: Queue, mistake: str) -> None:
    report, where = NO_RESULTS[mistake]
    await shop.submit(type="code")
    (held,) = await shop.claim("worker", start=True)
    with pytest.raises(InputError) as refused:
        await shop.complete(held.token, **report)
    assert refused.value.where == where
    await shop.complete(held.token, 1)


async def test_unreported_task_is_released_at_the_end(shop: Queue, store_url: str) -> None:
    """This should not happen; if it does, the task need not wait for its lease. Tasks in the outbox stay claimed."""
    worker = Worker("worker")
    worker.handler("other")(lambda _: None)
    tasks = [made.id for made in await shop.submit_many([{"type": "code"}] * 2)]
    async with at_work(worker, store_url):
        await until(lambda: knows(shop, "worker"))
        (runner,) = worker._runners
        for held in [(await shop.claim(agent, start=True))[0] for agent in ("one", "two")]:
            work = RunningHandler(held, held.claim, Context(shop, held, lambda: 0.0))
            work.began = 1.0
            runner._work[work.claim] = work
        runner._delivery.keep(StoredResult(f"{tasks[1]}.1", TaskResult(1)), "a test")
    assert [(await shop.get(task)).status for task in tasks] == ["ready", "running"]


async def test_refused_outbox_result_is_dropped_and_logged(
    shop: Queue, store_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    await shop.submit(type="code")
    (claim,) = await shop.claim("worker", start=True)
    await shop.release(claim.token)
    outbox = open_outbox(None, store_url, "default")
    assert outbox.keep(StoredResult(claim.token, TaskResult(1)))
    worker = Worker()
    worker.handler("other")(lambda _: None)
    await worker.run(store_url, until_idle=True)
    assert "result rejected" in caplog.text
    assert "was submitted from the outbox" not in caplog.text
    assert list(outbox.left()) == []


async def test_result_text_survives_the_outbox(shop: Queue, store_url: str) -> None:
    task = (await shop.submit(type="code")).id
    (claim,) = await shop.claim("worker", start=True)
    outbox: Outbox = open_outbox(None, store_url, "default")
    assert outbox.keep(StoredResult(claim.token, TaskResult(1, text="one")))
    worker = Worker()
    worker.handler("code")(lambda _: None)
    await worker.run(store_url, until_idle=True)
    assert (await shop.result(task)).text == "one"
