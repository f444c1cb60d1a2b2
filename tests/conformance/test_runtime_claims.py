"""Claims of a runtime that hosts many agents: each task is claimed as its target agent."""

import asyncio
from typing import Any

import pytest

from shiftwork import Queue
from shiftwork.engine import claim_requests
from shiftwork.engine.claim import ClaimAnswer
from shiftwork.model.errors import InputError, StoreLocked
from shiftwork.testing import MovedClock


async def meant_for(queue: Queue, clock: MovedClock, *agents: str | None) -> list[str]:
    """Submit a task targeted at each of these agents, a second apart."""
    made = []
    for agent in agents:
        made.append((await queue.submit(type="code", target_agent_id=agent)).id)
        clock.advance(1)
    return made


async def test_runtime_claims_each_task_as_its_agent_oldest_first(aegis: Queue, clock: MovedClock) -> None:
    made = await meant_for(aegis, clock, "a", "b", "a", "c")
    claimed = [(await aegis.claims.for_runtime("r")).assignments[0].task() for _ in made]
    assert [task.id for task in claimed] == made
    assert [task.claim.agent_id for task in claimed] == ["a", "b", "a", "c"]
    assert {task.claim.runtime_id for task in claimed} == {"r"}
    assert (await aegis.claims.for_runtime("r")).assignments == []


async def test_untargeted_task_is_claimed_as_the_runtime(queue: Queue, clock: MovedClock) -> None:
    (made,) = await meant_for(queue, clock, None)
    (claimed,) = (await queue.claims.for_runtime("r")).assignments
    assert (claimed.id, claimed.task().claim.agent_id) == (made, "r")


async def test_runtime_claim_takes_at_most_count_tasks_agent_by_agent(aegis: Queue, clock: MovedClock) -> None:
    first, _, third, _ = await meant_for(aegis, clock, "a", "b", "a", None)
    answer = await aegis.claims.for_runtime("r", 2, start=True)
    assert [each.id for each in answer.assignments] == [first, third]
    assert {each.task().status for each in answer.assignments} == {"running"}
    assert len((await aegis.claims.for_runtime("r", 1000)).assignments) == 2


async def test_agent_without_capacity_does_not_block_other_agents(queue: Queue, clock: MovedClock) -> None:
    for agent in ("draining", "full"):
        await queue.agents.register(id=agent, max_concurrent_tasks=1)
    await meant_for(queue, clock, "full")
    await queue.claim("full")
    await queue.agents.set_status("draining", "draining")
    *_, free = await meant_for(queue, clock, "draining", "full", "free")
    answer = await queue.claims.for_runtime("r", 10)
    assert [each.id for each in answer.assignments] == [free]
    assert answer.at_capacity


async def test_runtime_claims_only_for_registered_agents_when_required(queue: Queue, clock: MovedClock) -> None:
    await queue.settings.set("require_registration", value=True)
    await queue.agents.register(id="known")
    _, known = await meant_for(queue, clock, "unknown", "known")
    assert [each.id for each in (await queue.claims.for_runtime("r", 10)).assignments] == [known]


async def test_runtime_claim_takes_only_requested_types(aegis: Queue, clock: MovedClock) -> None:
    await meant_for(aegis, clock, "a")
    wanted = await aegis.submit(type="review", target_agent_id="a")
    answer = await aegis.claims.for_runtime("r", 10, types=["review"])
    assert [each.id for each in answer.assignments] == [wanted.id]


@pytest.mark.parametrize("count", [0, 1001])
async def test_runtime_claim_with_invalid_count_is_refused(aegis: Queue, count: int) -> None:
    with pytest.raises(InputError):
        await aegis.claims.for_runtime("r", count)


@pytest.mark.parametrize("end", [asyncio.CancelledError, StoreLocked], ids=["gone", "locked"])
async def test_interrupted_runtime_claim_releases_its_tasks(
    aegis: Queue, clock: MovedClock, monkeypatch: pytest.MonkeyPatch, end: type[BaseException]
) -> None:
    made = await meant_for(aegis, clock, "a", "b", "c")
    claim, claims = claim_requests.for_agent, iter([True, True, False])

    async def break_off_at_the_third(*given: Any) -> ClaimAnswer:
        if next(claims):
            return await claim(*given)
        raise end("it broke off")

    monkeypatch.setattr(claim_requests, "for_agent", break_off_at_the_third)
    with pytest.raises(end):
        await aegis.claims.for_runtime("r", len(made))
    await aegis.executor.shared.drain()
    assert (await aegis.status()).counts == {"ready": len(made)}
    assert [event.verb for event in (await aegis.tasks.history(made[1])).events] == ["submitted", "claimed", "released"]
