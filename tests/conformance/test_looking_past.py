"""A claim scans past any number of tasks that do not fit, a bounded number of rows at a time."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from shiftwork import Queue
from shiftwork.engine import lanes
from shiftwork.engine.claim_requests import Wanted, for_agent
from shiftwork.engine.lane_scan import CHUNK, MAX_ROWS
from shiftwork.store.store import Row, Verb
from shiftwork.testing import MovedClock
from tests.conformance.test_unused import Heard

MAX_READ = MAX_ROWS + CHUNK
"""Rows of tasks that one claim may read."""


def costs(usd: float, count: int = 1, **fields: Any) -> list[dict[str, Any]]:
    return [{"type": "code", "estimated_cost_usd": usd, **fields} for _ in range(count)]


def needs(*skills: str, **fields: Any) -> dict[str, Any]:
    return {"type": "code", "spec": {"constraints": {"required_capabilities": list(skills)}}, **fields}


class Counting(Heard):
    """A real transaction that counts the rows it returns, by statement."""

    rows: Counter[str]

    async def all(self, name: str, /, **parameters: Any) -> Sequence[Row]:
        found = await super().all(name, **parameters)
        self.rows[name] += len(found)
        return found


async def claim_counting(url: str, clock: MovedClock, agent: str, **options: Any) -> tuple[list[str], Counter[str]]:
    """Make one claim in a new process; return its tasks and the rows read, by statement."""
    rows: Counter[str] = Counter()
    async with Queue.open(url, clock=clock, seed=7) as process:
        run = process.engine.store.run

        async def count(verb: Verb[Any], /) -> Any:
            def counted(tx: Any) -> Any:
                counting = Counting(tx, [])
                counting.rows = rows
                return verb(counting)

            return await run(counted)

        process.engine.store.run = count  # type: ignore[method-assign]  # listened to
        return [assignment.id for assignment in await process.claim(agent, **options)], rows


async def claims_until(url: str, clock: MovedClock, agent: str, wanted: str, most: int, **options: Any) -> int:
    """Return how many claims of new processes it takes to get this task."""
    for number in range(1, most + 1):
        taken, rows = await claim_counting(url, clock, agent, **options)
        assert rows["scan_lanes"] + rows["oldest_ready"] <= MAX_READ
        assert rows["take_from_lane"] + rows["take_chosen"] <= 10
        if taken:
            assert taken == [wanted]
            return number
    return 0


@pytest.mark.requirement("F-133")
@pytest.mark.parametrize(("ahead", "most"), [(300, 1), (3_000, 2)])
@pytest.mark.parametrize("fifo", [False, True])
async def test_agent_finds_affordable_task_behind_any_number_of_others(
    factory: Queue, store_url: str, clock: MovedClock, ahead: int, most: int, *, fifo: bool
) -> None:
    await factory.agents.register(id="poor", budget_remaining_usd=0.10)
    await factory.submit_many(costs(0.50, ahead, priority=10))
    clock.advance(1)
    (cheap,) = await factory.submit_many(costs(0.05, priority=90))
    assert await claims_until(store_url, clock, "poor", cheap.id, most, fifo=fifo) == most


async def test_new_urgent_task_is_found_while_scan_position_is_far_behind(
    factory: Queue, store_url: str, clock: MovedClock
) -> None:
    await factory.agents.register(id="poor", budget_remaining_usd=0.10)
    await factory.submit_many(costs(0.50, 2 * MAX_ROWS, priority=10))
    assert (await claim_counting(store_url, clock, "poor"))[0] == []
    (urgent,) = await factory.submit_many(costs(0.05, priority=0))
    assert await claims_until(store_url, clock, "poor", urgent.id, 1) == 1


async def test_task_that_fits_after_being_skipped_is_found_next_round(
    factory: Queue, store_url: str, clock: MovedClock
) -> None:
    await factory.agents.register(id="poor", budget_remaining_usd=0.10)
    made = await factory.submit_many(costs(0.50, 2 * MAX_ROWS, priority=10))
    await claim_counting(store_url, clock, "poor")
    await factory.tasks.update(made[MAX_ROWS // 2].id, {"estimated_cost_usd": 0.05})
    assert await claims_until(store_url, clock, "poor", made[MAX_ROWS // 2].id, 4) > 1


async def test_agents_skip_different_tasks_of_one_lane(factory: Queue, store_url: str, clock: MovedClock) -> None:
    await factory.agents.register(id="poor", budget_remaining_usd=0.10)
    await factory.agents.register(id="rich", budget_remaining_usd=100)
    made = await factory.submit_many(costs(0.50, 3_000, priority=10))
    assert (await claim_counting(store_url, clock, "poor"))[0] == []
    assert (await claim_counting(store_url, clock, "rich"))[0] == [made[0].id]


async def test_batch_claim_takes_fitting_tasks_in_order(factory: Queue, clock: MovedClock) -> None:
    await factory.agents.register(id="poor", budget_remaining_usd=0.12, max_concurrent_tasks=10)
    made = []
    for usd in (0.50, 0.05, 0.50, 0.05, 0.05):
        made += await factory.submit_many(costs(usd))
        clock.advance(1)
    assert [held.id for held in await factory.claim("poor", 10)] == [made[1].id, made[3].id]


@pytest.mark.requirement("F-132")
async def test_agent_finds_task_behind_hundreds_of_capability_sets(
    factory: Queue, store_url: str, clock: MovedClock
) -> None:
    await factory.submit_many([needs(f"skill-{number}", priority=10) for number in range(600)])
    (git,) = await factory.submit_many([needs("git", "skill-1", priority=90)])
    await factory.agents.register(id="ada", capabilities=["git", "skill-1", "testing"])
    (first,) = await factory.claim("ada", start=True)
    await factory.complete(first.token)
    assert await claims_until(store_url, clock, "ada", git.id, 2) in {1, 2}


async def test_agent_finds_task_in_a_mixed_lane_of_thousands(
    factory: Queue, store_url: str, clock: MovedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lanes, "SHARED_LIMIT", 0)
    await factory.submit_many([needs(f"skill-{number % 50}", priority=10) for number in range(3_000)])
    (git,) = await factory.submit_many([needs("git", priority=90)])
    await factory.agents.register(id="ada", capabilities=["git"])
    assert await claims_until(store_url, clock, "ada", git.id, 10) > 1


async def test_explain_shows_needs_of_a_task_in_a_mixed_lane(factory: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "SHARED_LIMIT", 0)
    (git,) = await factory.submit_many([needs("git")])
    await factory.agents.register(id="ada", capabilities=["python"])
    answer = await factory.explain(git.id)
    assert answer.able_agents == []
    assert [hold.kind for hold in answer.holds] == ["no_agent"]
    assert "capability git" in answer.summary
    await factory.agents.register(id="bob", capabilities=["git"])
    assert (await factory.explain(git.id)).able_agents == ["bob"]


async def test_scanned_lanes_wait_for_the_other_lanes(factory: Queue, store_url: str, clock: MovedClock) -> None:
    """Two lanes of tasks that are too expensive, one entirely before the other: the second is scanned too."""
    await factory.agents.register(id="poor", budget_remaining_usd=0.10)
    await factory.submit_many(costs(0.50, 3_000, priority=10))
    await factory.submit_many([{**task, "type": "docs"} for task in costs(0.50, 3_000, priority=50)])
    clock.advance(1)
    (cheap,) = await factory.submit_many([{**costs(0.05, priority=90)[0], "type": "docs"}])
    assert await claims_until(store_url, clock, "poor", cheap.id, 6) > 2


async def test_claim_reports_whether_its_scan_was_complete(factory: Queue) -> None:
    await factory.agents.register(id="poor", budget_remaining_usd=0.10)
    await factory.submit_many(costs(0.50, MAX_ROWS + 500))
    seen = [await for_agent(factory.executor, "poor", None, Wanted(1)) for _ in range(3)]
    assert [answer.unfinished for answer in seen] == [True, False, True]
    assert seen[0].no_fit == MAX_ROWS


async def test_scan_stops_at_the_first_fitting_task(factory: Queue, store_url: str, clock: MovedClock) -> None:
    await factory.agents.register(id="poor", budget_remaining_usd=0.10)
    await factory.submit_many(costs(0.50, 5, priority=10))
    await factory.submit_many(costs(0.50, 3_000, priority=90))
    (cheap,) = await factory.submit_many(costs(0.05, priority=50))
    taken, rows = await claim_counting(store_url, clock, "poor")
    assert (taken, rows["scan_lanes"]) == ([cheap.id], CHUNK)


async def test_plain_claim_reads_one_row(factory: Queue, store_url: str, clock: MovedClock) -> None:
    await factory.agents.register(id="rich", budget_remaining_usd=10)
    await factory.submit_many(costs(0.50, 300))
    _, rows = await claim_counting(store_url, clock, "rich")
    assert (rows["take_from_lane"], rows["scan_lanes"]) == (1, 0)
