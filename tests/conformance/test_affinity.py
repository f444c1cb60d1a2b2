"""Affinity: a task goes to the waiting agent whose last task was similar; task order is kept."""

import pytest

from shiftwork import Queue
from shiftwork.testing import MovedClock
from tests.conformance.steps import finish, ids_in_order, take


async def experienced(queue: Queue, agent: str, type_: str) -> None:
    """An agent whose last task was of this type."""
    await queue.agents.register(id=agent, max_concurrent_tasks=5)
    await queue.submit(type=type_, payload={"before": agent})
    await finish(queue, agent)


async def add(queue: Queue, clock: MovedClock, *types: str, priority: float = 50) -> list[str]:
    """Tasks of these types, a second apart."""
    made = []
    for type_ in types:
        clock.advance(1)
        made.append((await queue.submit(type=type_, payload={"at": clock()}, priority=priority)).id)
    return made


@pytest.mark.requirement("C-243")
async def test_agent_gets_task_of_its_last_type_among_equal_tasks(coscientist: Queue, clock: MovedClock) -> None:
    await experienced(coscientist, "ranker", "Ranking")
    await experienced(coscientist, "critic", "Reflection")
    ranking, reflection = await add(coscientist, clock, "Ranking", "Reflection")
    assert (await take(coscientist, "critic")).id == reflection
    assert (await take(coscientist, "ranker")).id == ranking


@pytest.mark.requirement("C-244")
async def test_agent_with_more_load_than_another_has_no_preference(coscientist: Queue, clock: MovedClock) -> None:
    await experienced(coscientist, "critic", "Reflection")
    await experienced(coscientist, "ranker", "Ranking")
    await add(coscientist, clock, "Reflection")
    await take(coscientist, "critic")
    ranking, reflection, _ = await add(coscientist, clock, "Ranking", "Reflection", "Evolution")
    assert (await take(coscientist, "critic")).id == ranking
    assert (await take(coscientist, "ranker")).id == reflection


async def test_higher_priority_level_goes_before_affinity(coscientist: Queue, clock: MovedClock) -> None:
    await experienced(coscientist, "critic", "Reflection")
    await add(coscientist, clock, "Reflection", priority=50)
    (better,) = await add(coscientist, clock, "Ranking", priority=20)
    assert (await take(coscientist, "critic")).id == better


async def test_much_older_task_goes_before_affinity(coscientist: Queue, clock: MovedClock) -> None:
    await experienced(coscientist, "critic", "Reflection")
    (older,) = await add(coscientist, clock, "Ranking")
    clock.advance(60)
    await add(coscientist, clock, "Reflection")
    assert (await take(coscientist, "critic")).id == older


@pytest.mark.requirement("C-023")
async def test_single_agent_takes_tasks_of_all_types_in_order(coscientist: Queue, clock: MovedClock) -> None:
    await experienced(coscientist, "worker", "Reflection")
    added = await add(coscientist, clock, "Reflection", "Generation", "Reflection", "Evolution", "Generation")
    assert await ids_in_order(coscientist, "worker") == added


async def test_task_is_not_left_for_agent_that_does_not_claim_its_type(coscientist: Queue, clock: MovedClock) -> None:
    await experienced(coscientist, "ranker", "Ranking")
    await experienced(coscientist, "critic", "Reflection")
    clock.advance(20)
    assert await coscientist.claim("ranker", types=["Evolution"]) == []
    ranking, reflection = await add(coscientist, clock, "Ranking", "Reflection")
    assert (await take(coscientist, "critic")).id == ranking
    assert (await take(coscientist, "critic")).id == reflection


async def test_older_task_goes_first_within_its_type(coscientist: Queue, clock: MovedClock) -> None:
    await experienced(coscientist, "ranker", "Ranking")
    await experienced(coscientist, "critic", "Reflection")
    other, first, second = await add(coscientist, clock, "Ranking", "Reflection", "Reflection")
    await coscientist.agents.register(id="critic", max_concurrent_tasks=5)
    taken = [assignment.id for assignment in await coscientist.claim("critic", 3)]
    assert taken == [first, second, other]


async def test_without_affinity_setting_age_alone_decides(queue: Queue, clock: MovedClock) -> None:
    await queue.settings.set("ordering", "static")
    await experienced(queue, "critic", "Reflection")
    added = await add(queue, clock, "Ranking", "Reflection")
    assert await ids_in_order(queue, "critic") == added
