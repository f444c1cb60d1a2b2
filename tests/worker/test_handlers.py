"""Whatever a handler does, its task ends in the right state and the worker continues."""

import asyncio
import functools
import math
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from http import HTTPStatus
from pathlib import Path
from typing import Any, NoReturn
from uuid import UUID

import apsw
import msgspec
import pytest

from shiftwork import Queue
from shiftwork.engine.claims_api import ClaimBatch
from shiftwork.model.errors import StoreDamaged
from shiftwork.worker import Context, Fail, Release, Worker, heartbeat
from tests.worker.steps import at_work, beat_fast, until, until_status, verbs


@dataclass
class Point:
    x: int
    y: int


class Indescribable(Exception):
    def __str__(self) -> str:
        raise ValueError


ANYTHING: dict[str, tuple[Callable[[], BaseException], str]] = {
    "an exception": (lambda: RuntimeError("boom"), "RuntimeError: boom"),
    "one without words": (TimeoutError, "TimeoutError"),
    "one that cannot be told": (Indescribable, "Indescribable"),
    "one with text no store holds": (lambda: RuntimeError("a\0b\ud800"), "RuntimeError: ab?"),
    "exit": (lambda: SystemExit(3), "SystemExit: 3"),
    "an interrupt": (KeyboardInterrupt, "KeyboardInterrupt"),
    "a cancellation of its own": (asyncio.CancelledError, "CancelledError"),
    "the end of an iterator": (StopIteration, "RuntimeError: coroutine raised StopIteration"),
}


def _error(what: str) -> BaseException:
    return ANYTHING[what][0]()


class Unfinished(Fail):
    """An exception class whose author forgot to call the base constructor."""

    def __init__(self) -> None:
        pass


class Unsaid(Release):
    def __str__(self) -> str:
        raise ValueError


async def test_failure_with_undescribable_text_ends_the_attempt(shop: Queue, store_url: str) -> None:
    worker = Worker()
    words: Any = Indescribable()
    raised = {"error": lambda: Fail("teapot", words), "reason": lambda: Fail(words), "unfinished": Unfinished}
    for type_, make in raised.items():
        worker.handler(type_)(functools.partial(_raise, make))
    made = await shop.submit_many([{"type": type_, "max_attempts": 1} for type_ in raised])
    assert (await worker.run(store_url, until_idle=True)).failed == len(raised)
    ended = [await shop.get(each.id) for each in made]
    assert [task.status for task in ended] == ["dead_lettered"] * len(raised)
    assert [task.failure_history[0].reason for task in ended] == ["teapot", "Indescribable", "crash"]
    assert ended[0].last_error == "Indescribable"


@pytest.mark.parametrize("given_back", [Unsaid, functools.partial(Release, "a\0b")])
async def test_release_with_undescribable_text_releases_the_task(
    shop: Queue, store_url: str, given_back: Callable[[], BaseException]
) -> None:
    worker = Worker()
    worker.handler("code")(functools.partial(_raise, given_back))
    task = (await shop.submit(type="code", max_attempts=1)).id
    async with at_work(worker, store_url):
        await until(lambda: _was(shop, task, "released"))
        await shop.cancel(task)


def _raise(make: Callable[[], BaseException], _: Context) -> NoReturn:
    raise make()


async def _was(queue: Queue, task_id: str, verb: str) -> bool:
    return verb in await verbs(queue, task_id)


async def test_failures_between_successes_do_not_open_a_breaker(shop: Queue, store_url: str) -> None:
    """Results are submitted by batches; that two in five failed must not look like twenty failures in a row."""
    worker = Worker(concurrency=50)

    @worker.handler("flaky")
    async def flaky(ctx: Context) -> None:
        if ctx.payload["n"] % 5 in {1, 3}:
            raise Fail("crash", "connection reset by peer")

    await shop.submit_many([{"type": "flaky", "payload": {"n": n}, "max_attempts": 1} for n in range(50)])
    summary = await worker.run(store_url, until_idle=True)
    assert (summary.completed, summary.failed) == (30, 20)
    events = (await shop.events()).events
    assert [event.verb for event in events if "breaker" in event.verb] == []


@pytest.mark.requirement("F-226", "F-274")
async def test_ten_tasks_are_completed_by_async_and_plain_handlers(shop: Queue, store_url: str) -> None:
    worker = Worker()

    @worker.handler("research")
    async def research(ctx: Context) -> Any:
        assert ctx.task.spec is not None
        return {"prompt": ctx.task.spec["prompt"], "topic": ctx.payload["topic"]}

    @worker.handler("count")
    def count(ctx: Context) -> int:
        return len(ctx.payload["words"])

    made = await shop.submit_many(
        [{"type": "research", "payload": {"topic": n}, "spec": {"prompt": "look"}} for n in range(5)]
        + [{"type": "count", "payload": {"words": ["a", "b"]}}] * 5
    )
    summary = await worker.run(store_url, until_idle=True)
    assert summary.completed == 10
    results = [(await shop.result(task.id)).data for task in made]
    assert results == [{"prompt": "look", "topic": n} for n in range(5)] + [2] * 5


@pytest.mark.requirement("F-230")
@pytest.mark.parametrize("plain", [False, True], ids=["async", "plain"])
async def test_any_exception_fails_the_attempt_and_worker_continues(
    shop: Queue, store_url: str, *, plain: bool
) -> None:
    worker = Worker(concurrency=1)

    async def raising(ctx: Context) -> None:
        raise _error(ctx.payload["what"])

    def raising_plainly(ctx: Context) -> None:
        raise _error(ctx.payload["what"])

    worker.handler("raise")(raising_plainly if plain else raising)
    await shop.settings.change({"retry.initial_delay_sec": 3600, "retry.max_delay_sec": 3600, "circuit_breaker": None})
    made = {what: await shop.submit(type="raise", payload={"what": what}) for what in ANYTHING}
    summary = await worker.run(store_url, until_idle=True)
    assert summary.failed == len(ANYTHING)
    for what, (_, text) in ANYTHING.items():
        task = await shop.get(made[what].id)
        assert (task.status, task.attempts, task.failure_reason) == ("retrying", 1, "crash"), what
        assert task.failure_history[0].error == text


class Unreadable(Fail):
    """An exception class without the attributes of its base class."""

    def __init__(self, words: str) -> None:
        Exception.__init__(self, words)


@pytest.mark.parametrize("error", [ValueError, Unreadable])
@pytest.mark.parametrize(("words", "before"), [(10_000_000, 0), (5, 10_000_000)])
async def test_very_long_error_does_not_fill_the_log(
    sqlite_url: str, caplog: pytest.LogCaptureFixture, error: type[Exception], words: int, before: int
) -> None:
    caplog.set_level("INFO")
    worker = Worker()

    @worker.handler("code")
    async def wordy(ctx: Context) -> None:
        raise error("x" * words) from ValueError("x" * before)

    async with Queue.open(sqlite_url) as queue:
        task = await queue.submit(type="code", max_attempts=1)
        await worker.run(sqlite_url, until_idle=True)
        assert (await queue.get(task.id)).failure_reason == "crash"
    assert len(caplog.text) < 100_000
    assert f"{task.id} (code) failed" in caplog.text
    assert "in wordy" in caplog.text or error is Unreadable


async def test_error_with_invalid_characters_is_logged_readably(
    sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    worker = Worker()

    @worker.handler("code")
    async def code(ctx: Context) -> None:
        raise ValueError("half a character: \ud800")

    async with Queue.open(sqlite_url) as queue:
        await queue.submit(type="code", max_attempts=1)
        await worker.run(sqlite_url, until_idle=True)
    assert caplog.text.encode()  # as a file would
    assert "ValueError: half a character: ?" in caplog.text
    assert "in code" in caplog.text


async def test_program_without_logging_setup_sees_handler_tracebacks(sqlite_url: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(
        "import asyncio, sys\nfrom shiftwork.worker import Worker\nworker = Worker()\n\n"
        "@worker.handler('code')\nasync def code(ctx):\n    raise TypeError('my own mistake')\n\n"
        "asyncio.run(worker.run(sys.argv[1], until_idle=True))\n"
    )
    async with Queue.open(sqlite_url) as queue:
        task = await queue.submit(type="code", max_attempts=1)
    line = [sys.executable, "program.py", sqlite_url]
    done = await asyncio.to_thread(subprocess.run, line, cwd=tmp_path, capture_output=True, text=True)
    assert f"{task.id} (code) failed: TypeError: my own mistake" in done.stderr
    assert "in code" in done.stderr
    assert done.stderr.count("Traceback") == 1


async def test_failure_has_the_reason_given_by_its_handler(shop: Queue, store_url: str) -> None:
    worker = Worker()

    @worker.handler("call")
    async def call(ctx: Context) -> None:
        raise Fail("network", "the provider hung up")

    @worker.handler("judge")
    def judge(ctx: Context) -> None:
        raise Fail("invalid_input", "there is no such page", retry=False)

    @worker.handler("ramble")
    def ramble(ctx: Context) -> None:
        raise Fail("x" * 300, "y" * 100_000)

    again, never, long = [await shop.submit(type=t) for t in ("call", "judge", "ramble")]
    await worker.run(store_url, until_idle=True)
    assert (await shop.get(again.id)).status == "retrying"
    assert (await shop.get(again.id)).failure_history[0].reason == "network"
    assert (await shop.get(never.id)).status == "dead_lettered"
    assert (await shop.get(never.id)).last_error == "there is no such page"
    assert (await shop.get(long.id)).failure_reason == "x" * 255


async def test_released_task_is_completed_later_without_cost(shop: Queue, store_url: str) -> None:
    worker = Worker()
    runs: list[str] = []

    @worker.handler("shy")
    async def shy(ctx: Context) -> str:
        runs.append(ctx.token)
        ctx.spent(cost_usd=0.25)
        if len(runs) == 1:
            raise Release("not now")
        return "done"

    made = await shop.submit(type="shy")
    summary = await worker.run(store_url, until_idle=True)
    task = await shop.get(made.id)
    assert (task.status, task.attempts, task.cost_usd) == ("completed", 0, 0.5)
    assert await verbs(shop, made.id) == ["submitted", "claimed", "released", "claimed", "completed"]
    assert (summary.released, summary.completed) == (1, 1)


@pytest.mark.parametrize(
    "output",
    [object(), math.nan, "a\0b", "\ud800", "x" * 9_000_000, msgspec.json.decode("[" * 99 + "]" * 99)],
    ids=["object", "nan", "nul", "surrogate", "large", "deep"],
)
async def test_unserialisable_output_is_invalid(shop: Queue, store_url: str, output: Any) -> None:
    worker = Worker()

    @worker.handler("odd")
    async def odd(ctx: Context) -> Any:
        ctx.spent(cost_usd=0.5)
        return output

    made = await shop.submit(type="odd")
    await worker.run(store_url, until_idle=True)
    task = await shop.get(made.id)
    assert (task.status, task.failure_reason, task.cost_usd) == ("retrying", "invalid_output", 0.5)


@pytest.mark.parametrize(
    ("output", "kept"),
    [
        ((1, 2), [1, 2]),
        ({7}, [7]),
        (b"ab", "YWI="),
        (Decimal("1.5"), "1.5"),
        (date(2030, 1, 31), "2030-01-31"),
        (HTTPStatus.OK, 200),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (Point(1, 2), {"x": 1, "y": 2}),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_output_with_a_json_form_is_stored_in_it(shop: Queue, store_url: str, output: Any, kept: Any) -> None:
    worker = Worker()

    @worker.handler("odd")
    async def odd(ctx: Context) -> Any:
        return output

    made = await shop.submit(type="odd")
    await worker.run(store_url, until_idle=True)
    result = (await shop.get(made.id)).result
    assert result is not None
    assert result.data == kept


@pytest.mark.requirement("F-229")
async def test_output_violating_its_schema_fails_with_details(shop: Queue, store_url: str) -> None:
    worker = Worker()

    @worker.handler("form")
    def form(ctx: Context) -> Any:
        return {"title": 7}

    schema = {"type": "object", "properties": {"title": {"type": "string"}}}
    made = await shop.submit(type="form", output={"validation": "json-schema", "validation_schema": schema})
    summary = await worker.run(store_url, until_idle=True)
    task = await shop.get(made.id)
    assert (task.status, task.failure_reason, summary.failed) == ("retrying", "invalid_output", 1)
    assert "7 is not of type" in (task.last_error or "")


async def test_invalid_usage_fails_the_attempt(shop: Queue, store_url: str) -> None:
    worker = Worker()

    @worker.handler("odd")
    async def odd(ctx: Context) -> None:
        ctx.spent(cost_usd=float(ctx.payload["cost"]))

    for cost in (-1, "NaN"):
        await shop.submit(type="odd", payload={"cost": cost})
    assert (await worker.run(store_url, until_idle=True)).failed == 2


async def test_type_without_a_handler_is_never_claimed_and_explained(shop: Queue, store_url: str) -> None:
    worker = Worker()
    worker.handler("code")(lambda _: None)
    known, unknown = await shop.submit(type="code"), await shop.submit(type="cooking")
    assert (await worker.run(store_url, until_idle=True)).completed == 1
    assert await verbs(shop, unknown.id) == ["submitted"]
    explanation = await shop.explain(unknown.id)
    assert explanation.summary == "no registered agent can take it: it needs type cooking"
    assert (await shop.get(known.id)).status == "completed"


async def test_handler_blocking_the_loop_keeps_its_lease_and_is_logged(
    shop: Queue, store_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(heartbeat, "BLOCKED_AFTER_SEC", 0.2)
    monkeypatch.setattr(heartbeat, "LOOK_EVERY_SEC", 0.05)
    await beat_fast(shop, 1.5)
    worker = Worker()

    @worker.handler("blocking")
    async def sit_on_the_loop(ctx: Context) -> str:
        time.sleep(3)  # noqa: ASYNC251  # what must not be done, done
        return "done"

    made = await shop.submit(type="blocking")
    await worker.run(store_url, until_idle=True)
    assert await verbs(shop, made.id) == ["submitted", "claimed", "completed"]
    assert "a handler blocks the event loop" in caplog.text
    assert "in sit_on_the_loop" in caplog.text


async def test_handler_ignoring_cancellation_occupies_no_slot(
    shop: Queue, store_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    await beat_fast(shop, 0.4)
    worker = Worker(concurrency=1, cancel_grace_sec=0.1)
    started, end = asyncio.Event(), asyncio.Event()

    @worker.handler("deaf")
    async def deaf(ctx: Context) -> str:
        ctx.spent(cost_usd=0.5)
        started.set()
        while not end.is_set():
            try:
                await end.wait()
            except asyncio.CancelledError:
                continue
        return "too late"

    worker.handler("next")(lambda _: "done")
    made = await shop.submit(type="deaf", priority=0)
    async with at_work(worker, store_url) as running:
        await started.wait()
        following = await shop.submit(type="next")
        await shop.cancel(made.id)
        await until_status(shop, following.id, "completed")
        end.set()
        await until(lambda: _spent(shop, made.id, 0.5))
    assert "ignores its cancellation" in caplog.text
    assert (await shop.get(made.id)).status == "cancelled"
    assert running.result().cancelled == 1


async def _spent(queue: Queue, task_id: str, cost: float) -> bool:
    return (await queue.get(task_id)).cost_usd == cost


async def test_plain_handlers_run_concurrently_up_to_concurrency(shop: Queue, store_url: str) -> None:
    """More than the default thread pool of Python on a small machine."""
    worker = Worker(concurrency=40)
    everybody = threading.Barrier(40, timeout=30)

    @worker.handler("meet")
    def meet(ctx: Context) -> None:
        everybody.wait()

    await shop.submit_many([{"type": "meet"}] * 40)
    assert (await worker.run(store_url, until_idle=True)).completed == 40


async def test_unserialisable_result_fails_alone_in_its_batch(shop: Queue, store_url: str) -> None:
    worker = Worker("batch", concurrency=50)

    @worker.handler("mixed")
    async def mixed(ctx: Context) -> object:
        return object() if ctx.payload["bad"] else {"ok": True}

    made = await shop.submit_many([{"type": "mixed", "payload": {"bad": n == 7}, "max_attempts": 1} for n in range(50)])
    async with at_work(worker, store_url):
        for task in made:
            await until_status(shop, task.id, "dead_lettered" if task is made[7] else "completed")
    assert (await shop.get(made[7].id)).failure_reason == "invalid_output"


async def test_results_refused_as_a_batch_are_sent_one_by_one(
    shop: Queue, store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = Worker("batch", concurrency=5)

    @worker.handler("easy")
    async def easy(ctx: Context) -> int:
        return 1

    async def broken(*_: object) -> NoReturn:
        raise RuntimeError("a mistake of ours")

    made = await shop.submit_many([{"type": "easy"}] * 5)
    monkeypatch.setattr(ClaimBatch, "complete", broken)
    assert (await worker.run(store_url, until_idle=True)).completed == 5
    assert [(await shop.result(task.id)).data for task in made] == [1] * 5


async def test_worker_with_a_damaged_store_ends_with_error(sqlite_url: str) -> None:
    async with Queue.open(sqlite_url) as queue:
        await queue.submit(type="code")
    connection = apsw.Connection(sqlite_url.removeprefix("sqlite:///"))
    connection.execute("update bodies set body = cast(x'7b22ff' as text)")
    connection.close()
    worker = Worker("ada")

    @worker.handler("code")
    async def code(_context: Context) -> None: ...

    with pytest.raises(StoreDamaged):
        await asyncio.wait_for(worker.run(sqlite_url, until_idle=True), 30)
