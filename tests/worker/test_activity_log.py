"""A worker's log: its start, a line for each task or one per second for many, and a summary."""

import asyncio
import logging
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shiftwork import Queue
from shiftwork.model.errors import InputError
from shiftwork.model.text import dollars, duration, without_secrets
from shiftwork.worker import Context, Worker
from shiftwork.worker.activity_log import MAX_LINES, TaskLog
from shiftwork.worker.delivery import Summary
from tests.worker.steps import at_work, until, until_status

OWN_PROGRAM = """
import asyncio, sys
from shiftwork import Worker

worker = Worker("own")

@worker.handler("code")
async def code(ctx):
    return {}["missing"]

asyncio.run(worker.run(sys.argv[1], max_tasks=1))
"""


def a_worker(**fields: Any) -> Worker:
    worker = Worker("ada", **fields)

    @worker.handler("code")
    async def code(ctx: Context) -> int:
        ctx.spent(cost_usd=0.25)
        return 1

    @worker.handler("hard")
    async def hard(ctx: Context) -> int:
        raise KeyError("missing")

    return worker


def lines(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.name == "shiftwork.worker" and record.levelname == "INFO"]


async def test_worker_logs_its_start_each_task_and_a_summary(
    shop: Queue, store_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "shiftwork.worker")
    done = await shop.submit(type="code")
    hard = await shop.submit(type="hard", settings={"max_attempts": 1})
    await a_worker(concurrency=3).run(store_url, until_idle=True)
    first, *middle, last = [record.getMessage() for record in lines(caplog)]
    assert first.startswith("shiftwork 0.1.0: agent ada works on ")
    assert first.endswith("; types: code, hard; up to 3 tasks at once")
    assert without_secrets(store_url) in first
    (completed,) = [line for line in middle if done.id in line]
    assert completed.startswith(f"{done.id} (code): completed; took ")
    assert completed.endswith(", $0.25")
    assert any(line.startswith(f"{hard.id} (hard): failed, dead_lettered; took ") for line in middle)
    assert last.startswith("stopped: 1 completed, 1 failed in ")
    assert last.endswith(", $0.25")


async def test_line_of_a_task_has_fields_for_machines(
    shop: Queue, store_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "shiftwork.worker")
    made = await shop.submit(type="code")
    await a_worker().run(store_url, until_idle=True)
    (line,) = [record for record in lines(caplog) if hasattr(record, "outcome")]
    facts = {name: getattr(line, name) for name in ("task_id", "type", "outcome", "cost_usd")}
    assert facts == {"task_id": made.id, "type": "code", "outcome": "completed", "cost_usd": 0.25}
    assert line.seconds >= 0  # type: ignore[attr-defined]  # given as extra


async def test_cancelled_and_waiting_tasks_have_lines_of_their_own(
    shop: Queue, store_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "shiftwork.worker")
    worker, begun = Worker("ada"), asyncio.Event()

    @worker.handler("long")
    async def long(ctx: Context) -> None:
        begun.set()
        await asyncio.Event().wait()

    @worker.handler("asks")
    async def asks(ctx: Context) -> None:
        await ctx.ask("where", "Where to?")

    cancelled, asking = await shop.submit(type="long"), await shop.submit(type="asks")
    async with at_work(worker, store_url) as running:
        await begun.wait()
        await shop.cancel(cancelled.id)
        await until_status(shop, asking.id, "pending")
        await until(lambda: len([record for record in lines(caplog) if hasattr(record, "outcome")]) == 2)
    outcomes = {record.task_id: record.outcome for record in lines(caplog) if hasattr(record, "outcome")}  # type: ignore[attr-defined]  # given as extra
    assert outcomes == {cancelled.id: "cancelled", asking.id: "waiting"}
    assert (running.result().cancelled, running.result().lost, running.result().parked) == (1, 0, 1)


async def test_nothing_is_kept_for_lines_that_no_one_reads(
    shop: Queue, store_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("WARNING", "shiftwork.worker")
    monkeypatch.setattr(TaskLog, "__init__", lambda _: pytest.fail("a log was made"))
    await shop.submit(type="code")
    assert (await a_worker().run(store_url, until_idle=True)).completed == 1
    assert lines(caplog) == []


class Loop:
    """A loop whose time a test moves."""

    def __init__(self) -> None:
        self.now = 100.0
        self._calls: list[tuple[float, Callable[[], None]]] = []

    def time(self) -> float:
        return self.now

    def call_at(self, at: float, call: Callable[[], None]) -> None:
        self._calls.append((at, call))

    def advance(self, seconds: float) -> None:
        self.now += seconds
        due, self._calls = self._calls, []
        for _, call in due:
            call()


def work(task_id: str, began: float, cost: float = 0.0) -> Any:
    """What the log reads of a task that has ended."""
    held, context = SimpleNamespace(id=task_id, type="code"), SimpleNamespace(cost_usd=cost)
    return SimpleNamespace(assignment=held, context=context, began=began)


def test_many_tasks_of_a_second_share_one_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "shiftwork.worker")
    loop = Loop()
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: loop)
    log = TaskLog()
    log.ended([work("task_0", 99.5, 0.001)], "completed")
    log.ended([work(f"task_{number}", 99.5, 0.001) for number in range(1, 999)], "completed")
    log.ended([work("task_999", 99.5, 0.001)], "failed, retrying")
    assert len(caplog.records) == MAX_LINES
    loop.advance(1.0)
    more = "980 more tasks ended within a second: 979 completed, 1 failed, retrying; $0.98"
    assert caplog.messages[-1] == more
    for _ in range(100):
        log.ended([work("task_x", 100.5)] * 10, "completed")
    assert len(caplog.records) == MAX_LINES + 1, "the rate is still high: no line for single tasks"
    loop.advance(1.0)
    assert caplog.messages[-1] == "1,000 tasks ended within a second: 1,000 completed"
    log.ended([work("task_y", 101.5)], "completed")
    loop.advance(1.0)
    assert caplog.messages[-1] == "1 task ended within a second: 1 completed"
    log.ended([work("task_z", 102.5)], "completed")
    assert caplog.messages[-1] == "task_z (code): completed; took 500 ms", "few tasks have lines again"


def test_counts_of_the_last_second_are_logged_at_the_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "shiftwork.worker")
    monkeypatch.setattr(asyncio, "get_running_loop", Loop)
    log = TaskLog()
    log.ended([work(f"task_{number}", 99.0) for number in range(MAX_LINES + 5)], "completed")
    log.close()
    log.close()
    assert caplog.messages[MAX_LINES:] == ["5 more tasks ended within a second: 5 completed"]


def test_traceback_of_a_handler_is_printed_without_logging_set_up(store_url: str, tmp_path: Path) -> None:
    """In a program that does not configure logging."""
    (tmp_path / "own.py").write_text(OWN_PROGRAM)

    async def submit() -> str:
        async with Queue.open(store_url) as queue:
            return (await queue.submit(type="code")).id

    task_id = asyncio.run(submit())
    run = subprocess.run(
        [sys.executable, "own.py", store_url], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60
    )
    assert run.stdout == ""
    first, *rest = run.stderr.splitlines()
    assert first == f"{task_id} (code) failed: KeyError: 'missing'"
    assert rest[0] == "Traceback (most recent call last):"
    assert any('own.py", line 9, in code' in line for line in rest)
    assert rest[-1] == "KeyError: 'missing'", "nothing is printed but the error"


async def test_worker_claims_no_more_than_max_tasks(shop: Queue, store_url: str) -> None:
    made = [await shop.submit(type="code") for _ in range(5)]
    summary = await a_worker(concurrency=10).run(store_url, max_tasks=2)
    assert summary.completed == 2
    statuses = [(await shop.get(each.id)).status for each in made]
    assert sorted(statuses) == ["completed", "completed", "ready", "ready", "ready"]


async def test_max_tasks_counts_tasks_across_claims(shop: Queue, store_url: str) -> None:
    for _ in range(5):
        await shop.submit(type="code")
    summary = await a_worker(concurrency=1).run(store_url, max_tasks=3)
    assert summary.completed == 3
    assert (await shop.status(fresh=True)).counts == {"completed": 3, "ready": 2}


async def test_max_tasks_lets_its_last_task_finish(shop: Queue, store_url: str) -> None:
    worker, go = Worker("ada", stop_grace_sec=0, cancel_grace_sec=0), asyncio.Event()

    @worker.handler("code")
    async def code(ctx: Context) -> None:
        await go.wait()

    made = await shop.submit(type="code")
    running = asyncio.create_task(worker.run(store_url, max_tasks=1))
    await until_status(shop, made.id, "running")
    go.set()
    assert (await running).completed == 1


@pytest.mark.parametrize("count", [0, -1])
async def test_max_tasks_below_one_is_refused(store_url: str, count: int) -> None:
    with pytest.raises(InputError, match=f"expected at least one task, got {count}"):
        await a_worker().run(store_url, max_tasks=count)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "0 ms"), (0.9994, "999 ms"), (1, "1.0 s"), (59.9, "59.9 s"), (60, "1 min 0 s"), (3725, "1 h 2 min")],
)
def test_duration_is_formatted_for_people(seconds: float, words: str) -> None:
    assert duration(seconds) == words


@pytest.mark.parametrize(("amount", "words"), [(0, "$0.00"), (0.0042, "$0.0042"), (1.5, "$1.50"), (12.3456, "$12.35")])
def test_dollars_have_the_places_they_need(amount: float, words: str) -> None:
    assert dollars(amount) == words


def test_summary_without_tasks_says_so() -> None:
    assert str(Summary(took_sec=2)) == "no task was done in 2.0 s"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("sqlite:///work.db", "sqlite:///work.db"),
        ("postgresql://me:secret@db:5432/q", "postgresql://me@db:5432/q"),
        ("postgresql://me:se@cret@db/q?password=x&schema=mine", "postgresql://me@db/q?schema=mine"),
        ("postgresql://db/q?password=x", "postgresql://db/q"),
        ("https://ada:pw@queue.example.com", "https://ada@queue.example.com"),
    ],
)
def test_address_is_shown_without_secrets(url: str, shown: str) -> None:
    assert without_secrets(url) == shown
