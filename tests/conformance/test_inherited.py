"""A task that waits again follows the outcome of its dependency, even if that ended in the meantime."""

import pytest

from shiftwork import Queue
from shiftwork.testing import MovedClock, pass_time
from tests.conformance.steps import events_named, finish, submit_dag, take


async def displaced_child(queue: Queue, **settings: object) -> tuple[str, str, str]:
    """Create a running task and a displaced task that depends on it; return both and the claim of the first."""
    values = {"max_queue_size": 2, "overflow": "displace_to_dlq", "max_attempts": 1, **settings}
    for key, value in values.items():
        await queue.settings.set(key, value)
    parent = (await queue.submit(type="code", priority=50)).id
    held = await take(queue)
    child = (await queue.submit(type="code", priority=80, dependencies=[parent])).id
    await queue.submit_many([{"type": "urgent", "priority": 10}] * 2)
    assert (await queue.get(child)).failure_reason == "displaced"
    return parent, child, held.token


async def make_room(queue: Queue, clock: MovedClock) -> None:
    await queue.control.purge(type="urgent")
    await pass_time(queue, clock, 4000)


async def test_displaced_task_returns_cancelled_after_its_dependency_was(queue: Queue, clock: MovedClock) -> None:
    parent, child, _ = await displaced_child(queue)
    await queue.cancel(parent)
    await make_room(queue, clock)
    assert (await queue.get(child)).status == "cancelled"


async def test_displaced_task_returns_cancelled_after_its_dependency_failed(queue: Queue, clock: MovedClock) -> None:
    parent, child, token = await displaced_child(queue, on_dependency_failed="cancel")
    await queue.fail(token, "crash")
    assert (await queue.get(parent)).status == "dead_lettered"
    await make_room(queue, clock)
    assert (await queue.get(child)).status == "cancelled"


async def test_displaced_task_returns_pending_while_dependency_runs(queue: Queue) -> None:
    _, child, token = await displaced_child(queue)
    await queue.control.purge(type="urgent")
    await queue.dead_letters.review(child, "retry")
    assert (await queue.get(child)).status == "pending"
    await queue.complete(token)
    assert (await queue.get(child)).status == "ready"


async def test_rerun_with_a_cancelled_dependency_is_cancelled(queue: Queue) -> None:
    parent = (await queue.submit(type="code")).id
    child = (await queue.submit(type="code", dependencies=[parent])).id
    await queue.cancel(parent)
    again = await queue.tasks.rerun(child)
    assert (await queue.get(again.task_id)).status == "cancelled"
    assert (await queue.submit(type="code", dependencies=[parent])).status == "cancelled"


async def test_scheduled_retry_with_cancelled_dependency_is_cancelled(queue: Queue, clock: MovedClock) -> None:
    parent, child, _ = await displaced_child(queue)
    await queue.control.purge(type="urgent")
    await queue.dead_letters.review(child, "retry_later", at=clock() + 60)
    await queue.cancel(parent)
    await pass_time(queue, clock, 61)
    assert (await queue.get(child)).status == "cancelled"


async def test_parent_can_wait_again_for_a_rerun_subtask(queue: Queue) -> None:
    await queue.submit(type="parent")
    held = await take(queue, "lead", types=["parent"])
    (subtask,) = await queue.spawn(held.token, [{"type": "part"}], wait=True)
    await finish(queue)
    held = await take(queue, "lead", types=["parent"])
    again = await queue.tasks.rerun(subtask.id)
    assert await queue.waits.wait_for_tasks(held.token, [subtask.id]) == "pending"
    part = await take(queue, "worker", types=["part"])
    assert part.id == again.task_id
    await queue.complete(part.token)
    assert (await queue.get(held.id)).status == "ready"


@pytest.mark.parametrize("wait", [{"until": 1e10}, {"signal": "s"}])
async def test_dag_with_a_waiting_member_has_not_failed(queue: Queue, wait: dict[str, object]) -> None:
    await queue.settings.set("max_attempts", 1)
    made = await submit_dag(queue, {"a": [], "b": []})
    first, second = await take(queue, "one"), await take(queue, "two")
    await queue.fail(first.token, "crash")
    await queue.waits.wait(second.token, "w", **wait)  # type: ignore[arg-type]  # one of its kinds each
    assert (await queue.dags.get((await queue.get(made["a"])).dag_id)).status == "running"
    assert await events_named(queue, "dag.failed") == []


async def test_cancelled_dag_completes_after_its_task_is_rerun(queue: Queue) -> None:
    made = await submit_dag(queue, {"a": [], "b": ["a"]})
    dag_id = (await queue.get(made["a"])).dag_id
    await finish(queue)
    await queue.dags.cancel(dag_id)
    assert (await queue.dags.get(dag_id)).status == "cancelled"
    await queue.tasks.rerun(made["b"])
    await finish(queue)
    assert (await queue.dags.get(dag_id)).status == "completed"
    assert len(await events_named(queue, "dag.cancelled")) == 1


async def test_retries_as_new_tasks_use_fallback_models_and_priority_change(queue: Queue) -> None:
    await queue.settings.change({"retry.mode": "new_task", "retry.strategy": "immediate", "poison": None})
    await queue.settings.set("retry.priority_delta", 5)
    constraints = {"model_preferences": ["big"], "fallback_models": ["small"]}
    await queue.submit(type="code", priority=50, max_attempts=5, spec={"constraints": constraints})
    for agent in ("one", "two"):
        held = await take(queue, agent, models=["big"])
        await queue.fail(held.token, "crash")
    third = await take(queue, "three", models=["small"])
    assert (third.model, third.task().priority) == ("small", 60)


@pytest.mark.parametrize("mode", ["same_task", "new_task"])
async def test_poison_pill_is_detected_across_the_lineage(queue: Queue, mode: str) -> None:
    await queue.settings.change({"retry.mode": mode, "retry.strategy": "immediate"})
    await queue.submit(type="code", max_attempts=9)
    for agent in ("one", "two", "three"):
        held = await take(queue, agent)
        await queue.fail(held.token, "crash")
    (letter,) = await queue.dead_letters.list()
    assert letter.poison_pill


async def test_explain_of_failed_task_names_its_retry(queue: Queue) -> None:
    await queue.settings.change({"retry.mode": "new_task", "retry.strategy": "immediate"})
    first = (await queue.submit(type="code")).id
    held = await take(queue)
    await queue.fail(held.token, "crash")
    second = await take(queue, "other")
    (hold,) = (await queue.explain(first)).holds
    assert (hold.kind, hold.tasks) == ("superseded", [second.id])


async def test_abandoned_displaced_task_frees_its_key(queue: Queue) -> None:
    await queue.settings.change({"max_queue_size": 1, "overflow": "displace_to_dlq"})
    first = await queue.submit(type="code", priority=80, idempotency_key="k")
    await queue.submit(type="urgent", priority=10)
    assert (await queue.get(first.id)).failure_reason == "displaced"
    await queue.dead_letters.review(first.id, "abandon")
    await queue.control.purge(type="urgent")
    again = await queue.submit(type="code", priority=80, idempotency_key="k")
    assert (again.duplicate, again.id == first.id) == (False, False)
