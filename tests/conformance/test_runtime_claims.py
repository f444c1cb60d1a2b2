"""Claims of a runtime that hosts many agents: each task is claimed as the agent it is meant for."""

import asyncio
from typing import Any

import pytest

from shiftwork import Queue
from shiftwork.core.errors import InputError, StoreLocked
from shiftwork.queue.claim import ClaimAnswer
from shiftwork.testing import MovedClock


async def meant_for(queue: Queue, clock: MovedClock, *agents: str | None) -> list[str]:
    """A task for each of these, a second apart."""
    made = []
    for agent in agents:
        made.append((await queue.submit(type="code", target_agent_id=agent)).id)
        clock.advance(1)
    return made


async def test_each_task_is_claimed_as_its_agent_and_the_oldest_first(aegis: Queue, clock: MovedClock) -> None:
    made = await meant_for(aegis, clock, "a", "b", "a", "c")
    claimed = [(await aegis.claim_for_runtime("r")).assignments[0].task() for _ in made]
    assert [task.id for task in claimed] == made
    assert [task.claim.agent_id for task in claimed] == ["a", "b", "a", "c"]
    assert {task.claim.runtime_id for task in claimed} == {"r"}
    assert (await aegis.claim_for_runtime("r")).assignments == []


async def test_work_meant_for_nobody_is_claimed_as_the_runtime(queue: Queue, clock: MovedClock) -> None:
    (made,) = await meant_for(queue, clock, None)
    (claimed,) = (await queue.claim_for_runtime("r")).assignments
    assert (claimed.id, claimed.task().claim.agent_id) == (made, "r")


async def test_several_are_claimed_agent_by_agent_and_no_more_than_asked_for(aegis: Queue, clock: MovedClock) -> None:
    first, _, third, _ = await meant_for(aegis, clock, "a", "b", "a", None)
    answer = await aegis.claim_for_runtime("r", 2, start=True)
    assert [each.id for each in answer.assignments] == [first, third]
    assert {each.task().status for each in answer.assignments} == {"running"}
    assert len((await aegis.claim_for_runtime("r", 1000)).assignments) == 2


async def test_an_agent_that_takes_no_work_does_not_hold_up_the_others(queue: Queue, clock: MovedClock) -> None:
    for agent in ("draining", "full"):
        await queue.register_agent(id=agent, max_concurrent_tasks=1)
    await meant_for(queue, clock, "full")
    await queue.claim("full")
    await queue.set_agent_status("draining", "draining")
    *_, free = await meant_for(queue, clock, "draining", "full", "free")
    answer = await queue.claim_for_runtime("r", 10)
    assert [each.id for each in answer.assignments] == [free]
    assert answer.at_capacity


async def test_where_agents_must_register_a_runtime_claims_for_those_that_have(queue: Queue, clock: MovedClock) -> None:
    await queue.set_setting("require_registration", value=True)
    await queue.register_agent(id="known")
    _, known = await meant_for(queue, clock, "unknown", "known")
    assert [each.id for each in (await queue.claim_for_runtime("r", 10)).assignments] == [known]


async def test_a_runtime_takes_only_the_types_it_asks_for(aegis: Queue, clock: MovedClock) -> None:
    await meant_for(aegis, clock, "a")
    wanted = await aegis.submit(type="review", target_agent_id="a")
    answer = await aegis.claim_for_runtime("r", 10, types=["review"])
    assert [each.id for each in answer.assignments] == [wanted.id]


@pytest.mark.parametrize("count", [0, 1001])
async def test_a_count_out_of_range_is_refused(aegis: Queue, count: int) -> None:
    with pytest.raises(InputError):
        await aegis.claim_for_runtime("r", count)


@pytest.mark.parametrize("end", [asyncio.CancelledError, StoreLocked], ids=["gone", "locked"])
async def test_what_was_claimed_before_the_call_broke_off_is_given_back(
    aegis: Queue, clock: MovedClock, monkeypatch: pytest.MonkeyPatch, end: type[BaseException]
) -> None:
    made = await meant_for(aegis, clock, "a", "b", "c")
    claim, claims = aegis.claim_answer, iter([True, True, False])

    async def break_off_at_the_third(agent_id: str, count: int, **options: Any) -> ClaimAnswer:
        if next(claims):
            return await claim(agent_id, count, **options)
        raise end("it broke off")

    monkeypatch.setattr(aegis, "claim_answer", break_off_at_the_third)
    with pytest.raises(end):
        await aegis.claim_for_runtime("r", len(made))
    await aegis._shared.settle()
    assert (await aegis.status()).counts == {"ready": len(made)}
    assert [event.verb for event in await aegis.history(made[1])] == ["submitted", "claimed", "released"]
