"""A task that continues once its subtasks or dependencies have ended, with any outcome, and sees each failure."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from shiftwork import Queue
from shiftwork.model.errors import InputError, NotFound
from shiftwork.testing import MovedClock, pass_time
from tests.conformance.steps import events_named, finish, submit_dag, take

PARTS = [{"type": "part", "payload": {"n": n}, "max_attempts": 1} for n in range(3)]


async def waiting_parent(queue: Queue, tasks: list[dict[str, Any]] | None = None) -> list[str]:
    """A task called `parent` that waits for the end of its subtasks; their ids."""
    await queue.submit(type="code", id="parent")
    token = (await take(queue)).token
    made = await queue.spawn(token, tasks or PARTS, wait=True, failures="return", name="parts")
    assert (await queue.get("parent")).status == "pending"
    return [each.id for each in made]


async def fail_part(queue: Queue, error: str = "no such file") -> None:
    await queue.fail((await take(queue, types=["part"])).token, "crash", error)


async def complete_part(queue: Queue, data: Any = None) -> None:
    await queue.complete((await take(queue, "another", types=["part"])).token, data)


async def test_parent_continues_with_the_results_of_the_others(queue: Queue) -> None:
    first, second, third = await waiting_parent(queue)
    await complete_part(queue, {"n": 0})
    await fail_part(queue)
    assert (await queue.get("parent")).status == "pending"
    await complete_part(queue, {"n": 2})
    again = await take(queue, types=["code"])
    (failed,) = again.task().failed_dependencies
    assert (failed.task_id, failed.status, failed.reason) == (second, "dead_lettered", "crash")
    assert failed.error == "no such file"
    by_task = {each.id: each for each in again.inputs}
    assert [by_task[each].data for each in (first, second, third)] == [{"n": 0}, None, {"n": 2}]
    assert (by_task[second].status, by_task[second].reason, by_task[second].error) == (
        "dead_lettered",
        "crash",
        "no such file",
    )
    answer = await queue.spawn(again.token, PARTS, wait=True, failures="return", name="parts")
    assert [(each.id, each.status) for each in answer] == [
        (first, "completed"),
        (second, "dead_lettered"),
        (third, "completed"),
    ]
    assert (await queue.get("parent")).status == "running"


async def test_parent_waits_for_a_failed_subtask_unless_it_says_otherwise(queue: Queue) -> None:
    await queue.submit(type="code", id="parent")
    await queue.spawn((await take(queue)).token, PARTS[:1], wait=True)
    await fail_part(queue)
    parent = await queue.get("parent")
    assert (parent.status, parent.failed_dependencies) == ("pending", [])


async def test_parent_survives_a_setting_that_would_cancel_it(queue: Queue) -> None:
    await queue.settings.set("on_dependency_failed", "cancel")
    await waiting_parent(queue, PARTS[:1])
    await fail_part(queue)
    assert (await queue.get("parent")).status == "ready"


async def test_setting_continue_does_not_change_a_wait_for_subtasks(queue: Queue) -> None:
    """A handler that did not request failures would treat the subtask as completed."""
    await queue.settings.set("on_dependency_failed", "continue")
    await queue.submit(type="code", id="parent")
    await queue.spawn((await take(queue)).token, PARTS[:1], wait=True)
    await fail_part(queue)
    assert (await queue.get("parent")).status == "pending"


async def lose(queue: Queue, task: str, clock: MovedClock) -> None:
    await take(queue, types=["part"])
    await pass_time(queue, clock, 3600)


async def reject(queue: Queue, task: str, clock: MovedClock) -> None:
    await queue.approvals.reject(task)


async def cancel(queue: Queue, task: str, clock: MovedClock) -> None:
    await queue.cancel(task, "not wanted")


async def purge(queue: Queue, task: str, clock: MovedClock) -> None:
    await queue.control.purge(type="part")


async def delete(queue: Queue, task: str, clock: MovedClock) -> None:
    await queue.settings.set("purge.mode", "delete")
    await queue.control.purge(type="part")


async def miss_deadline(queue: Queue, task: str, clock: MovedClock) -> None:
    await queue.tasks.update(task, {"deadline": queue.now() + 10})
    await pass_time(queue, clock, 60)


async def displace(queue: Queue, task: str, clock: MovedClock) -> None:
    await queue.settings.set("overflow", "drop_oldest_low")
    await queue.settings.set("max_queue_size", 1)
    await queue.submit(type="urgent", priority=1)


async def fail(queue: Queue, task: str, clock: MovedClock) -> None:
    await fail_part(queue)


async def rest(queue: Queue, task: str, clock: MovedClock) -> None:
    await queue.settings.set("on_exhausted", "stay_failed")
    await fail_part(queue)


ENDS: dict[str, tuple[Callable[[Queue, str, MovedClock], Awaitable[None]], str, str]] = {
    "failed": (fail, "dead_lettered", "crash"),
    "resting failed": (rest, "failed", "crash"),
    "agent lost": (lose, "dead_lettered", "heartbeat_timeout"),
    "cancelled": (cancel, "cancelled", "cancelled"),
    "purged": (purge, "cancelled", "cancelled"),
    "deleted": (delete, "cancelled", "cancelled"),
    "past its deadline": (miss_deadline, "cancelled", "cancelled"),
    "dropped from a full queue": (displace, "cancelled", "cancelled"),
    "rejected": (reject, "cancelled", "approval_rejected"),
}


@pytest.mark.parametrize("end", ENDS)
async def test_every_end_of_a_subtask_frees_its_parent_once(queue: Queue, clock: MovedClock, end: str) -> None:
    act, status, reason = ENDS[end]
    if end == "rejected":
        await queue.settings.set("guards", [{"type": "part"}], type="part")
    if end == "past its deadline":
        await queue.settings.set("deadline.on_passed", "cancel")
    (part,) = await waiting_parent(queue, PARTS[:1])
    await act(queue, part, clock)
    parent = await queue.get("parent")
    (failed,) = parent.failed_dependencies
    assert (parent.status, failed.task_id, failed.status, failed.reason) == ("ready", part, status, reason)
    freed = [event.verb for event in (await queue.tasks.history("parent")).events if event.path[-1:] == ["ready"]]
    assert freed[1:] == ["unblocked"]
    again = await take(queue, types=["code"])
    answer = await queue.spawn(again.token, PARTS[:1], wait=True, failures="return", name="parts")
    assert [(each.id, each.status) for each in answer] == [(part, status)]


async def test_retried_dead_letter_changes_nothing_for_a_parent_that_continued(queue: Queue) -> None:
    (part,) = await waiting_parent(queue, PARTS[:1])
    await fail_part(queue)
    again = await take(queue, types=["code"])
    await queue.dead_letters.review(part, "retry")
    answer = await queue.spawn(again.token, PARTS[:1], wait=True, failures="return", name="parts")
    assert [each.status for each in answer] == ["dead_lettered"]
    assert (await queue.waits.request(again.token, tasks=[part], failures="return")).failed[0].error == "no such file"
    await complete_part(queue, {"late": True})
    parent = await queue.get("parent")
    assert (parent.status, parent.failed_dependencies[0].task_id) == ("running", part)
    await queue.release(again.token)
    (given,) = [each for each in (await take(queue, types=["code"])).inputs if each.id == part]
    assert (given.status, given.inline, given.reason) == ("dead_lettered", False, "crash")


async def test_retried_parent_sees_new_outcomes_of_its_subtasks(queue: Queue) -> None:
    """After the subtask was completed on a retry, a retry of the parent must see its result."""
    (part,) = await waiting_parent(queue, PARTS[:1])
    await fail_part(queue)
    await queue.fail((await take(queue, types=["code"])).token, "subtasks_failed", retry=False)
    await queue.dead_letters.review(part, "retry")
    await complete_part(queue, {"n": 0})
    await queue.dead_letters.review("parent", "retry")
    again = await take(queue, types=["code"])
    assert again.task().failed_dependencies == []
    answer = await queue.spawn(again.token, PARTS[:1], wait=True, failures="return", name="parts")
    assert [each.status for each in answer] == ["completed"]


async def test_wait_for_tasks_that_have_ended_keeps_the_slot(queue: Queue) -> None:
    done, lost = [(await queue.submit(each)).id for each in PARTS[:2]]
    await complete_part(queue)
    await fail_part(queue)
    await queue.submit(type="code", id="parent")
    token = (await take(queue, types=["code"])).token
    found = await queue.waits.request(token, tasks=[lost, done], failures="return")
    assert (found.status, [each.task_id for each in found.failed]) == ("running", [lost])
    assert await queue.waits.wait_for_tasks(token, [done, lost], failures="return") == "running"


async def test_wait_for_tasks_ends_with_the_last_task(queue: Queue) -> None:
    first, second = [(await queue.submit(each)).id for each in PARTS[:2]]
    await queue.submit(type="code", id="parent")
    token = (await take(queue, types=["code"])).token
    assert await queue.waits.wait_for_tasks(token, [first, second], failures="return") == "pending"
    await queue.cancel(first)
    assert (await queue.get("parent")).status == "pending"
    await complete_part(queue)
    parent = await queue.get("parent")
    assert (parent.status, [each.task_id for each in parent.failed_dependencies]) == ("ready", [first])


async def test_displaced_subtask_has_not_ended(queue: Queue) -> None:
    """It returns by itself when there is room."""
    await waiting_parent(queue, [{**PARTS[0], "priority": 80}])
    await queue.settings.set("overflow", "displace_to_dlq")
    await queue.settings.set("max_queue_size", 1)
    await queue.submit(type="urgent", priority=10)
    assert (await queue.status()).counts["dead_lettered"] == 1
    assert (await queue.get("parent")).status == "pending"


async def test_unknown_value_of_failures_is_refused(queue: Queue) -> None:
    await queue.submit(type="code")
    token = (await take(queue)).token
    with pytest.raises(InputError, match="failures"):
        await queue.spawn(token, PARTS, wait=True, failures="ignore")  # type: ignore[arg-type]  # that is the test
    with pytest.raises(NotFound, match="no task 'nope'"):
        await queue.waits.wait_for_tasks(token, ["nope"], failures="return")
    assert (await queue.status()).counts == {"running": 1}


async def test_dependent_continues_when_all_dependencies_have_ended(queue: Queue) -> None:
    ids = await submit_dag(queue, {"a": [], "b": [], "c": ["a", "b"]})
    await queue.settings.set("on_dependency_failed", "continue")
    await queue.fail((await take(queue)).token, "invalid_input", "the source is gone", retry=False)
    assert (await queue.get(ids["c"])).status == "pending"
    await finish(queue)
    assignment = await take(queue)
    assert assignment.id == ids["c"]
    (failed,) = assignment.task().failed_dependencies
    assert (failed.task_id, failed.status, failed.reason) == (ids["a"], "dead_lettered", "invalid_input")
    assert failed.error == "the source is gone"
    assert (await queue.get(ids["c"])).failed_dependencies == [failed]
    assert len(await events_named(queue, "task.dependency_failed")) == 1
    assert not [alert for alert in await queue.alerts.list() if alert.kind == "dependency_failed"]


async def test_task_may_set_continue_for_itself(queue: Queue) -> None:
    first = (await queue.submit(type="code", max_attempts=1)).id
    bold = await queue.submit(type="code", dependencies=[first], settings={"on_dependency_failed": "continue"})
    meek = await queue.submit(type="code", dependencies=[first])
    await queue.fail((await take(queue)).token, "crash")
    assert (await queue.get(bold.id)).status == "ready"
    assert (await queue.get(meek.id)).status == "pending"


async def test_dependent_that_continues_survives_a_cancelled_dependency(queue: Queue) -> None:
    await queue.settings.set("on_dependency_failed", "continue")
    ids = await submit_dag(queue, {"a": [], "b": ["a"]})
    await queue.cancel(ids["a"], "not wanted")
    task = await queue.get(ids["b"])
    (failed,) = task.failed_dependencies
    assert (task.status, failed.status, failed.error) == ("ready", "cancelled", "not wanted")


async def test_dependent_submitted_after_the_failure_continues_at_once(queue: Queue) -> None:
    await queue.settings.set("on_dependency_failed", "continue")
    first = (await queue.submit(type="code", max_attempts=1)).id
    await queue.fail((await take(queue)).token, "crash", "it broke")
    second = await queue.submit(type="code", dependencies=[first])
    assert second.status == "ready"
    assert (await queue.get(second.id)).failed_dependencies[0].error == "it broke"


async def test_reference_to_the_output_of_a_failed_dependency_says_why_there_is_none(queue: Queue) -> None:
    await queue.settings.set("on_dependency_failed", "continue")
    await queue.submit(type="code", id="plan", max_attempts=1)
    await queue.submit(type="code", dependencies=["plan"], spec={"context_refs": ["task:plan:output"]})
    await queue.fail((await take(queue)).token, "crash", "it broke")
    (given,) = (await take(queue)).inputs
    assert (given.status, given.inline, given.reason, given.error) == ("dead_lettered", False, "crash", "it broke")


async def test_dag_whose_failures_were_survived_is_completed(queue: Queue) -> None:
    await queue.settings.set("on_dependency_failed", "continue")
    ids = await submit_dag(queue, {"a": [], "b": ["a"]})
    dag = (await queue.get(ids["a"])).dag_id
    await queue.fail((await take(queue)).token, "invalid_input", retry=False)
    assert (await queue.dags.get(dag)).status == "running"
    await finish(queue)
    assert (await queue.dags.get(dag)).status == "completed"
    assert await events_named(queue, "dag.completed") == [dag]


async def test_dag_with_a_failure_that_nothing_depends_on_fails(queue: Queue) -> None:
    await queue.settings.set("on_dependency_failed", "continue")
    ids = await submit_dag(queue, {"a": [], "b": []})
    dag = (await queue.get(ids["a"])).dag_id
    await queue.fail((await take(queue)).token, "invalid_input", retry=False)
    await finish(queue)
    assert (await queue.dags.get(dag)).status == "failed"


async def test_explain_says_that_any_outcome_suffices(queue: Queue) -> None:
    await queue.settings.set("on_dependency_failed", "continue")
    ids = await submit_dag(queue, {"a": [], "b": ["a"]})
    (hold,) = (await queue.explain(ids["b"])).holds
    assert hold.lifts == "that task ends, whatever its outcome"
    await queue.fail((await take(queue)).token, "invalid_input", "the source is gone", retry=False)
    found = await queue.explain(ids["b"])
    assert [each.error for each in found.failed_dependencies] == ["the source is gone"]


async def test_explain_of_a_waiting_parent_says_that_any_outcome_suffices(queue: Queue) -> None:
    await waiting_parent(queue, PARTS[:1])
    (hold,) = (await queue.explain("parent")).holds
    assert (hold.kind, hold.lifts) == ("subtask", "that task ends, whatever its outcome")
