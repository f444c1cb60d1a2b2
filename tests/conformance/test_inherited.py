"""A task that waits again shares the fate of what it waits for, also where that ended while it did not wait."""

import pytest

from shiftwork import Queue
from shiftwork.testing import MovedClock, pass_time
from tests.conformance.steps import events_named, finish, submit_dag, take


async def displaced_child(queue: Queue, **settings: object) -> tuple[str, str, str]:
    """A task that is running, one that depends on it and had to make room, and the claim of the first."""
    values = {"max_queue_size": 2, "overflow": "displace_to_dlq", "max_attempts": 1, **settings}
    for key, value in values.items():
        await queue.set_setting(key, value)
    parent = (await queue.submit(type="code", priority=50)).id
    held = await take(queue)
    child = (await queue.submit(type="code", priority=80, dependencies=[parent])).id
    await queue.submit_many([{"type": "urgent", "priority": 10}] * 2)
    assert (await queue.get(child)).failure_reason == "displaced"
    return parent, child, held.token


async def make_room(queue: Queue, clock: MovedClock) -> None:
    await queue.purge(type="urgent")
    await pass_time(queue, clock, 4000)


async def test_displaced_work_comes_back_to_a_dependency_that_was_cancelled(queue: Queue, clock: MovedClock) -> None:
    parent, child, _ = await displaced_child(queue)
    await queue.cancel(parent)
    await make_room(queue, clock)
    assert (await queue.get(child)).status == "cancelled"


async def test_displaced_work_comes_back_to_a_dependency_that_failed(queue: Queue, clock: MovedClock) -> None:
    parent, child, token = await displaced_child(queue, on_dependency_failed="cancel")
    await queue.fail(token, "crash")
    assert (await queue.get(parent)).status == "dead_lettered"
    await make_room(queue, clock)
    assert (await queue.get(child)).status == "cancelled"


async def test_displaced_work_comes_back_to_a_dependency_that_goes_on(queue: Queue) -> None:
    _, child, token = await displaced_child(queue)
    await queue.purge(type="urgent")
    await queue.review(child, "retry")
    assert (await queue.get(child)).status == "pending"
    await queue.complete(token)
    assert (await queue.get(child)).status == "ready"


async def test_a_rerun_whose_dependency_was_cancelled_is_cancelled_as_a_new_task_is(queue: Queue) -> None:
    parent = (await queue.submit(type="code")).id
    child = (await queue.submit(type="code", dependencies=[parent])).id
    await queue.cancel(parent)
    again = await queue.rerun(child)
    assert (await queue.get(again.task_id)).status == "cancelled"
    assert (await queue.submit(type="code", dependencies=[parent])).status == "cancelled"


async def test_a_retry_of_later_that_must_wait_shares_the_fate_too(queue: Queue, clock: MovedClock) -> None:
    parent, child, _ = await displaced_child(queue)
    await queue.purge(type="urgent")
    await queue.review(child, "retry_later", at=clock() + 60)
    await queue.cancel(parent)
    await pass_time(queue, clock, 61)
    assert (await queue.get(child)).status == "cancelled"


async def test_a_parent_may_wait_again_for_a_subtask_that_runs_once_more(queue: Queue) -> None:
    await queue.submit(type="parent")
    held = await take(queue, "lead", types=["parent"])
    (subtask,) = await queue.spawn(held.token, [{"type": "part"}], wait=True)
    await finish(queue)
    held = await take(queue, "lead", types=["parent"])
    again = await queue.rerun(subtask.id)
    assert await queue.wait_for(held.token, [subtask.id]) == "pending"
    part = await take(queue, "worker", types=["part"])
    assert part.id == again.task_id
    await queue.complete(part.token)
    assert (await queue.get(held.id)).status == "ready"


@pytest.mark.parametrize("wait", [{"until": 1e10}, {"signal": "s"}])
async def test_a_dag_with_a_member_that_waits_has_not_failed(queue: Queue, wait: dict[str, object]) -> None:
    await queue.set_setting("max_attempts", 1)
    made = await submit_dag(queue, {"a": [], "b": []})
    first, second = await take(queue, "one"), await take(queue, "two")
    await queue.fail(first.token, "crash")
    await queue.wait(second.token, "w", **wait)  # type: ignore[arg-type]  # one of its kinds each
    assert (await queue.dag((await queue.get(made["a"])).dag_id)).status == "running"
    assert await events_named(queue, "dag.failed") == []


async def test_a_cancelled_dag_whose_task_is_run_again_completes(queue: Queue) -> None:
    made = await submit_dag(queue, {"a": [], "b": ["a"]})
    dag_id = (await queue.get(made["a"])).dag_id
    await finish(queue)
    await queue.cancel_dag(dag_id)
    assert (await queue.dag(dag_id)).status == "cancelled"
    await queue.rerun(made["b"])
    await finish(queue)
    assert (await queue.dag(dag_id)).status == "completed"
    assert len(await events_named(queue, "dag.cancelled")) == 1


async def test_retries_as_new_tasks_fall_back_and_change_priority_as_others_do(queue: Queue) -> None:
    await queue.change_settings({"retry.mode": "new_task", "retry.strategy": "immediate", "poison": None})
    await queue.set_setting("retry.priority_delta", 5)
    constraints = {"model_preferences": ["big"], "fallback_models": ["small"]}
    await queue.submit(type="code", priority=50, max_attempts=5, spec={"constraints": constraints})
    for agent in ("one", "two"):
        held = await take(queue, agent, models=["big"])
        await queue.fail(held.token, "crash")
    third = await take(queue, "three", models=["small"])
    assert (third.model, third.task().priority) == ("small", 60)


@pytest.mark.parametrize("mode", ["same_task", "new_task"])
async def test_poison_is_found_in_the_whole_lineage(queue: Queue, mode: str) -> None:
    await queue.change_settings({"retry.mode": mode, "retry.strategy": "immediate"})
    await queue.submit(type="code", max_attempts=9)
    for agent in ("one", "two", "three"):
        held = await take(queue, agent)
        await queue.fail(held.token, "crash")
    (letter,) = await queue.dead_letters()
    assert letter.poison_pill


async def test_explain_leads_from_a_failed_row_to_the_one_that_was_tried_again(queue: Queue) -> None:
    await queue.change_settings({"retry.mode": "new_task", "retry.strategy": "immediate"})
    first = (await queue.submit(type="code")).id
    held = await take(queue)
    await queue.fail(held.token, "crash")
    second = await take(queue, "other")
    (hold,) = (await queue.explain(first)).holds
    assert (hold.kind, hold.tasks) == ("superseded", [second.id])


async def test_displaced_work_that_a_person_gives_up_gives_up_its_key(queue: Queue) -> None:
    await queue.change_settings({"max_queue_size": 1, "overflow": "displace_to_dlq"})
    first = await queue.submit(type="code", priority=80, idempotency_key="k")
    await queue.submit(type="urgent", priority=10)
    assert (await queue.get(first.id)).failure_reason == "displaced"
    await queue.review(first.id, "abandon")
    await queue.purge(type="urgent")
    again = await queue.submit(type="code", priority=80, idempotency_key="k")
    assert (again.duplicate, again.id == first.id) == (False, False)
