"""Claiming ahead: a worker with short handlers holds more than it has slots, and no task waits long because of it."""

import asyncio
import contextvars
from typing import Any

import pytest

from shiftwork import Queue
from shiftwork.worker import Context, Worker, slots
from shiftwork.worker.prefetch import BEGIN_WITHIN_SEC, LATE_SEC, MAX_HELD, ClaimAhead
from tests.worker.steps import at_work, beat_fast, until, verbs

WARM = 60
"""Handlers that are short, before a test looks: by then a worker claims ahead."""


def measured(*seconds: float, slots: int = 10) -> ClaimAhead:
    ahead = ClaimAhead(slots, allowed=True)
    for each in seconds:
        ahead.ended(each)
    return ahead


def test_nothing_is_claimed_ahead_before_handlers_are_known_to_be_short() -> None:
    assert measured().most == 0
    assert measured(*[0.0] * 20).most == 0
    assert measured(*[0.0] * 60).most > 0


def test_tasks_claimed_ahead_would_begin_within_a_tenth_of_a_second() -> None:
    assert measured(*[0.01] * 200).most == pytest.approx(10 * BEGIN_WITHIN_SEC / 0.01, abs=1)
    assert measured(*[0.02] * 200, slots=1).most == pytest.approx(BEGIN_WITHIN_SEC / 0.02, abs=1)
    assert measured(*[0.06] * 200).most == 0


def test_number_of_tasks_claimed_ahead_is_bounded() -> None:
    assert measured(*[0.0] * 200).most == MAX_HELD - 10
    assert measured(*[0.0] * 200, slots=MAX_HELD).most == 0
    assert measured(*[0.0] * 200, slots=5000).most == 0


def test_one_long_handler_stops_claiming_ahead_until_a_dozen_short_ones() -> None:
    ahead = measured(*[0.0] * 200)
    ahead.ended(3600)
    assert ahead.most == 0
    for _ in range(12):
        ahead.ended(0.0)
    assert ahead.most > 0
    ahead.was_late()
    assert ahead.most == 0


class Line:
    """A handler whose first tasks are short; the next one reports its start and waits."""

    def __init__(self) -> None:
        self.ran = list[int]()
        self.begun = asyncio.Event()
        self.open = asyncio.Event()

    async def __call__(self, ctx: Context) -> int:
        place: int = ctx.payload["n"]
        self.ran.append(place)
        if place == WARM:
            self.begun.set()
            await self.open.wait()
        return place


async def lined_up(shop: Queue, **options: Any) -> tuple[Worker, Line, list[str]]:
    """A worker with one slot, and the tasks it will take in this order."""
    worker, line = Worker("worker", concurrency=1, **options), Line()
    worker.handler("short")(line)
    made = await shop.submit_many([{"type": "short", "payload": {"n": n}} for n in range(WARM + 20)])
    return worker, line, [each.id for each in made]


async def held(shop: Queue) -> int:
    return (await shop.agents.get("worker")).current_tasks


async def statuses(shop: Queue, ids: list[str]) -> set[str]:
    return {(await shop.get(id_)).status for id_ in ids}


async def test_worker_with_short_handlers_holds_more_than_its_slots(shop: Queue, store_url: str) -> None:
    worker, line, made = await lined_up(shop)
    async with at_work(worker, store_url):
        await line.begun.wait()
        assert await held(shop) > 1
        assert line.ran == list(range(WARM + 1))  # one at a time, in the order of the queue
        assert (await shop.agents.get("worker")).max_concurrent_tasks == 1
        line.open.set()
        await until(lambda: _all_completed(shop, made))
    assert line.ran == list(range(WARM + 20))


async def _all_completed(shop: Queue, made: list[str]) -> bool:
    return await statuses(shop, made[-20:]) == {"completed"}


async def test_stop_releases_tasks_that_have_not_begun(shop: Queue, store_url: str) -> None:
    worker, line, made = await lined_up(shop)
    async with at_work(worker, store_url):
        await line.begun.wait()
        worker.stop()
        await until(lambda: _are_ready(shop, made))  # while the last handler still runs
        line.open.set()
    assert line.ran == list(range(WARM + 1))
    assert (await shop.get(made[WARM])).status == "completed"
    task = await shop.get(made[-1])
    assert (task.status, task.attempts) == ("ready", 0)


async def _are_ready(shop: Queue, made: list[str]) -> bool:
    return await statuses(shop, made[WARM + 1 :]) == {"ready"}


async def test_task_that_waits_too_long_is_released_while_the_handler_runs(
    shop: Queue, store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slots, "LATE_SEC", 0.2)
    worker, line, made = await lined_up(shop)
    async with at_work(worker, store_url):
        await line.begun.wait()
        await until(lambda: _are_ready(shop, made))
        assert await held(shop) == 1  # and nothing more is claimed ahead
        assert "released" in await verbs(shop, made[WARM + 1])
        line.open.set()
        await until(lambda: _all_completed(shop, made))
    assert sorted(line.ran) == list(range(WARM + 20))


async def test_task_cancelled_before_its_start_never_runs(
    shop: Queue, store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slots, "LATE_SEC", 60)
    await beat_fast(shop, 2)
    worker, line, made = await lined_up(shop)
    async with at_work(worker, store_url):
        await line.begun.wait()
        await shop.cancel(made[WARM + 1])
        await until(lambda: _hears(worker, made[WARM + 1]))
        assert await held(shop) == 19  # the one that runs, and the others that wait
        line.open.set()
        await until(lambda: len(line.ran) == WARM + 19)
    assert WARM + 1 not in line.ran


async def _hears(worker: Worker, task_id: str) -> bool:
    """Return whether the worker has dropped the task's claim."""
    (runner,) = worker._runners
    return not any(token.startswith(task_id) for token in runner.tokens())


@pytest.mark.parametrize("how", ["off", "at_most_once", "setting"])
async def test_nothing_is_claimed_ahead_if_that_would_be_wrong(shop: Queue, store_url: str, how: str) -> None:
    if how == "at_most_once":
        await shop.settings.set("delivery", "at_most_once", type="short")
    if how == "setting":
        await shop.settings.set("max_concurrent_tasks", 1)
    worker, line, _ = await lined_up(shop, claim_ahead=how != "off")
    if how == "setting":
        worker.concurrency = None
    async with at_work(worker, store_url):
        await line.begun.wait()
        assert await held(shop) == 1
        line.open.set()


async def test_claim_may_exceed_the_slots_by_its_parameter(shop: Queue) -> None:
    await shop.agents.register(id="worker", max_concurrent_tasks=2)
    await shop.submit_many([{"type": "short"}] * 9)
    first = await shop.claims.request("worker", 9, ahead=3)
    assert len(first.assignments) == 5
    second = await shop.claims.request("worker", 9, ahead=3)
    assert (second.assignments, second.at_capacity) == ([], True)
    two = await asyncio.gather(*(shop.claims.request("worker", 9, ahead=ahead) for ahead in (4, 4)))
    assert sum(len(each.assignments) for each in two) == 1  # also where claims are joined


VARIABLE = contextvars.ContextVar("variable", default="as it was")


async def test_handlers_that_share_an_asyncio_task_do_not_interfere(shop: Queue, store_url: str) -> None:
    """A handler that never waits leaves no context variable or cancellation behind for the next."""
    worker, seen = Worker("worker", concurrency=1), list[str]()

    @worker.handler("short")
    async def short(ctx: Context) -> None:
        seen.append(VARIABLE.get())
        VARIABLE.set("changed")
        us = asyncio.current_task()
        assert us is not None
        if ctx.payload["n"] % 2:
            us.cancel()  # and it returns before that can reach it
        else:
            async with asyncio.timeout(60), asyncio.TaskGroup() as group:
                group.create_task(asyncio.sleep(0))

    await shop.submit_many([{"type": "short", "payload": {"n": n}} for n in range(20)])
    summary = await worker.run(store_url, until_idle=True)
    assert (summary.completed, summary.failed) == (20, 0)
    assert seen == ["as it was"] * 20


async def test_handler_is_timed_out_by_its_own_asyncio_task(shop: Queue, store_url: str) -> None:
    worker = Worker("worker", concurrency=1)

    @worker.handler("slow")
    async def slow(_: Context) -> str:
        try:
            async with asyncio.timeout(0.01):
                await asyncio.Event().wait()
        except TimeoutError:
            return "timed out"
        return "never"

    made = await shop.submit_many([{"type": "slow"}] * 3)
    await worker.run(store_url, until_idle=True)
    assert {(await shop.result(each.id)).data for each in made} == {"timed out"}


def test_lateness_limit_is_far_above_the_time_claimed_ahead() -> None:
    assert LATE_SEC >= 10 * BEGIN_WITHIN_SEC
