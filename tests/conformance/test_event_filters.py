"""Events filtered by task, DAG, type and verb, read and followed."""

import asyncio

import pytest

from shiftwork import Queue
from shiftwork.model.errors import InputError, NotFound
from tests.conformance.steps import finish, submit_dag


async def test_events_are_filtered_by_task_dag_type_and_verb(queue: Queue) -> None:
    mine = await queue.submit(type="mine")
    other = await queue.submit(type="other", id="named")
    dag = await submit_dag(queue, {"a": [], "b": ["a"]})
    await finish(queue)

    async def tasks(**only: str | list[str]) -> set[str | None]:
        return {event.task_id for event in (await queue.events(**only)).events}  # type: ignore[arg-type]  # filters alone

    assert await tasks(task=mine.id) == {mine.id}
    assert await tasks(task=[mine.id, "named"]) == {mine.id, other.id}
    assert await tasks(type="other") == {other.id}
    assert await tasks(dag=(await queue.get(dag["a"])).dag_id) == set(dag.values())
    (done,) = [event.task_id for event in (await queue.events(verb="completed")).events]
    assert await tasks(task=[mine.id, other.id], verb=["completed"]) == {done} & {mine.id, other.id}


async def test_page_without_matches_ends_at_the_end_of_the_log(queue: Queue) -> None:
    made = await queue.submit_many([{"type": "code"}] * 20)
    everything = await queue.events()
    page = await queue.events(limit=3, type="none")
    assert (page.events, page.next) == ([], everything.next)
    last = await queue.events(limit=3, task=made[-1].id)
    assert [event.task_id for event in last.events] == [made[-1].id]


async def test_follower_of_one_task_sees_only_its_events(queue: Queue) -> None:
    mine = await queue.submit(type="code")

    async def follow() -> list[str]:
        verbs = []
        async for event in queue.follow(task=mine.id, verb=["submitted", "cancelled"]):
            assert event.task_id == mine.id
            verbs.append(event.verb)
            if event.verb == "cancelled":
                return verbs
        return verbs

    following = asyncio.create_task(follow())
    await queue.cancel((await queue.submit(type="code")).id)
    await queue.cancel(mine.id)
    assert await following == ["submitted", "cancelled"]


async def test_filter_for_something_unknown_is_refused(queue: Queue) -> None:
    with pytest.raises(NotFound):
        await queue.events(task="nothing")
    with pytest.raises(NotFound):
        await queue.events(dag="nothing")
    with pytest.raises(InputError):
        await queue.events(task=[""])
