"""Duplicates lose no task, no id and no dependency."""

from typing import Any

import pytest

from shiftwork import Queue
from shiftwork.model.errors import CircularDependency, IdInUse, NotFound
from shiftwork.testing import MovedClock
from tests.conformance.steps import finish, statuses, take


@pytest.mark.requirement("C-249")
async def test_batch_of_tasks_with_own_ids_is_never_deduplicated(coscientist: Queue) -> None:
    batch = [{"id": f"g{n}", "type": "Generation", "payload": {"goal": "one"}} for n in range(50)]
    made = await coscientist.submit_many(batch)
    assert len({task.id for task in made}) == 50
    assert not any(task.duplicate for task in made)
    assert [(await coscientist.get(f"g{n}")).external_id for n in range(50)] == [f"g{n}" for n in range(50)]


async def test_tasks_with_different_dependencies_are_not_duplicates(coscientist: Queue) -> None:
    await coscientist.submit_many([{"id": name, "type": "Generation"} for name in ("g1", "g2")])
    first = await coscientist.submit(type="Review", payload={"n": 1}, dependencies=["g1"])
    other = await coscientist.submit(type="Review", payload={"n": 1}, dependencies=["g2"])
    free = await coscientist.submit(type="Review", payload={"n": 1})
    same = await coscientist.submit(type="Review", payload={"n": 1}, dependencies=["g1"])
    assert len({first.id, other.id, free.id}) == 3
    assert (same.id, same.duplicate) == (first.id, True)
    assert await statuses(coscientist, {"first": first.id, "other": other.id, "free": free.id}) == {
        "first": "pending",
        "other": "pending",
        "free": "ready",
    }


async def test_dag_submitted_twice_is_one_and_a_similar_one_is_separate(coscientist: Queue) -> None:
    def dag(goal: str) -> dict[str, object]:
        return {
            "tasks": [
                {"key": "generate", "type": "Generation", "payload": {"goal": goal}},
                {"key": "review", "type": "Review", "dependencies": ["generate"]},
            ]
        }

    first = await coscientist.submit_dag(dag("a"))
    again = await coscientist.submit_dag(dag("a"))
    other = await coscientist.submit_dag(dag("b"))
    assert [task.id for task in again] == [task.id for task in first]
    assert not {task.id for task in other} & {task.id for task in first}
    generated, reviewed = other
    assert (await coscientist.get(reviewed.id)).dependencies == [generated.id]


async def test_task_equal_to_completed_work_is_run_again(coscientist: Queue, clock: MovedClock) -> None:
    first = await coscientist.submit(type="Ranking", payload={"n": 1})
    assert await finish(coscientist) == first.id
    clock.advance(600)
    second = await coscientist.submit(type="Ranking", payload={"n": 1})
    assert (second.id != first.id, second.duplicate) == (True, False)
    assert (await coscientist.submit(type="Ranking", payload={"n": 1})).id == second.id
    assert await finish(coscientist) == second.id


async def test_given_key_returns_the_completed_task(coscientist: Queue) -> None:
    first = await coscientist.submit(type="Ranking", idempotency_key="k")
    await finish(coscientist)
    again = await coscientist.submit(type="Ranking", idempotency_key="k")
    assert (again.id, again.duplicate, again.status) == (first.id, True, "completed")


UUID = "01890a5d-ac96-774b-bcce-b302099a8057"


@pytest.mark.parametrize("alias", ["d2", UUID], ids=["name", "uuid"])
@pytest.mark.parametrize("profile", ["standard", "coscientist", "loki"])
async def test_id_of_a_duplicate_names_the_existing_task(queue: Queue, profile: str, alias: str) -> None:
    await queue.settings.use_profile(profile)
    fields: dict[str, Any] = {"type": "code", "payload": {"n": 1}, "idempotency_key": "k"}
    kept = await queue.submit(id="d1", **fields)
    assert (await queue.submit(id=alias, **fields)).id == kept.id
    assert (await queue.submit(id=alias, **fields)).id == kept.id, "sent once more"
    task = await queue.get(alias)
    assert (task.id, task.external_id) == (kept.id, "d1")
    assert [name.replace("task_", "")[:2] for name in task.merged_ids] == ["d2" if alias == "d2" else "01"]
    assert (await queue.explain(alias)).task_id == kept.id
    dependent = await queue.submit(type="docs", dependencies=[alias])
    assert (await queue.get(dependent.id)).dependencies == [kept.id]
    await queue.tasks.update(alias, {"priority": 7})
    assert (await queue.get(kept.id)).priority == 7
    with pytest.raises(IdInUse):
        await queue.submit(id=alias, type="other", payload={"n": 2})
    await queue.cancel(alias)
    assert (await queue.get(kept.id)).status == "cancelled"
    assert [event.verb for event in (await queue.tasks.history(alias)).events][-1] == "cancelled"


@pytest.mark.requirement("C-249")
@pytest.mark.parametrize("done", [False, True], ids=["waiting", "completed"])
async def test_task_depending_on_id_of_a_duplicate_runs(
    queue: Queue,
    done: bool,  # noqa: FBT001  # a parameter of the test
) -> None:
    kept = await queue.submit(type="code", idempotency_key="k")
    if done:
        await finish(queue)
    early = await queue.submit(type="docs", dependencies=["d2"])
    await queue.submit(type="code", id="d2", idempotency_key="k")
    late = await queue.submit(type="docs", dependencies=["d2"])
    if not done:
        assert (await queue.get(early.id)).blocked_by == [kept.id]
        assert await finish(queue) == kept.id
    assert {await finish(queue), await finish(queue)} == {early.id, late.id}


async def test_duplicates_within_a_batch_keep_ids_and_dependencies(coscientist: Queue) -> None:
    waiting = await coscientist.submit(type="Review", dependencies=["d2"])
    above = await coscientist.submit(type="Generation")
    task = {"type": "Ranking", "idempotency_key": "k"}
    first, second = await coscientist.submit_many(
        [
            {**task, "id": "d1", "priority": 70, "tags": ["a"]},
            {**task, "id": "d2", "dependencies": [above.id], "tags": ["b"]},
        ]
    )
    assert (second.id, second.duplicate) == (first.id, True)
    kept = await coscientist.get("d2")
    assert (kept.id, kept.status, kept.dependencies, kept.priority) == (first.id, "pending", [above.id], 50)
    assert sorted(kept.tags) == ["a", "b"]
    assert [await finish(coscientist) for _ in range(3)] == [above.id, first.id, waiting.id]


@pytest.mark.requirement("C-233")
async def test_merged_task_waits_for_dependencies_of_its_duplicate(coscientist: Queue) -> None:
    one, two = await coscientist.submit_many([{"type": "Generation", "payload": {"n": n}} for n in range(2)])
    kept = await coscientist.submit(type="Review", idempotency_key="k", dependencies=[one.id])
    ready = await coscientist.submit(type="Review", idempotency_key="r")
    for key in ("k", "r"):
        again = await coscientist.submit(type="Review", idempotency_key=key, dependencies=[two.id])
        assert (again.duplicate, again.status) == (True, "pending")
    assert sorted((await coscientist.get(kept.id)).blocked_by) == sorted([one.id, two.id])
    assert (await coscientist.get(ready.id)).blocked_by == [two.id]
    assert {await finish(coscientist), await finish(coscientist)} == {one.id, two.id}
    assert await statuses(coscientist, {"k": kept.id, "r": ready.id}) == {"k": "ready", "r": "ready"}


async def test_claimed_task_gets_no_dependencies_by_merge(coscientist: Queue) -> None:
    kept = await coscientist.submit(type="Review", idempotency_key="k")
    held = await take(coscientist)
    above = await coscientist.submit(type="Generation")
    again = await coscientist.submit(type="Review", idempotency_key="k", dependencies=[above.id])
    assert (again.id, (await coscientist.get(kept.id)).dependencies) == (kept.id, [])
    assert (await coscientist.complete(held.token)).status == "completed"


async def test_merge_that_would_close_a_cycle_is_refused(coscientist: Queue) -> None:
    kept = await coscientist.submit(type="Review", idempotency_key="k")
    below = await coscientist.submit(type="Ranking", dependencies=[kept.id])
    with pytest.raises(CircularDependency):
        await coscientist.submit(type="Review", idempotency_key="k", dependencies=[below.id])
    with pytest.raises(CircularDependency):
        await coscientist.submit_many(
            [
                {"key": "new", "type": "Evolution", "dependencies": [kept.id]},
                {"key": "again", "type": "Review", "idempotency_key": "k", "dependencies": ["new"]},
            ]
        )
    assert (await coscientist.get(kept.id)).status == "ready"


async def test_id_that_would_close_a_cycle_is_refused(queue: Queue) -> None:
    above = await queue.submit(type="code", dependencies=["d2"])
    await queue.submit(type="code", idempotency_key="k", dependencies=[above.id])
    with pytest.raises(CircularDependency):
        await queue.submit(type="code", id="d2", idempotency_key="k")
    with pytest.raises(NotFound):
        await queue.get("d2")


@pytest.mark.parametrize("alias", ["d2", UUID], ids=["name", "uuid"])
async def test_id_of_a_duplicate_does_not_pass_to_another_task(queue: Queue, alias: str) -> None:
    first = await queue.submit(type="code", idempotency_key="k")
    await queue.submit(type="code", id=alias, idempotency_key="k")
    await queue.cancel(first.id)
    await queue.submit(type="code", idempotency_key="k")
    with pytest.raises(IdInUse):
        await queue.submit(type="code", id=alias, idempotency_key="k")
    assert (await queue.get(alias)).id == first.id


@pytest.mark.parametrize("alias", ["d2", UUID], ids=["name", "uuid"])
async def test_two_tasks_of_a_batch_cannot_share_an_id(queue: Queue, alias: str) -> None:
    await queue.submit(type="code", idempotency_key="k")
    with pytest.raises(IdInUse):
        await queue.submit_many([{"type": "docs", "id": alias}, {"type": "code", "id": alias, "idempotency_key": "k"}])
    with pytest.raises(NotFound):
        await queue.get(alias)


async def test_id_of_a_duplicate_is_freed_by_a_purge(queue: Queue) -> None:
    await queue.settings.set("purge.mode", "delete")
    for name in ("d1", "d2"):
        await queue.submit(type="code", id=name, idempotency_key="k")
    await queue.control.purge(status=["ready"])
    with pytest.raises(NotFound):
        await queue.get("d2")
    assert not (await queue.submit(type="code", id="d2")).duplicate
