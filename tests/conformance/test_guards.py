"""Guards: tasks that need approval before they run, and which work an approval covers."""

from typing import Any

import pytest

from shiftwork import Queue
from shiftwork.model.errors import InputError, NotFound, RevisionChanged, VersionConflict, WrongState
from shiftwork.testing import MovedClock, pass_time
from tests.conformance.steps import dead_letter, events_named, everything, finish, sql, states, submit_dag, take, viewed

DEPLOYS = [{"type": "deploy"}]


async def guard(queue: Queue, *rules: dict[str, Any]) -> None:
    await queue.settings.set("guards", list(rules) or DEPLOYS)


async def stopped(queue: Queue, **fields: Any) -> str:
    """A task that a guard has stopped."""
    await guard(queue)
    made = await queue.submit({"type": "deploy", "payload": {"to": "prod"}, **fields})
    assert made.status == "waiting_approval"
    return made.id


async def status(queue: Queue, task_id: str) -> str:
    return (await queue.get(task_id)).status


async def logged(queue: Queue, task_id: str) -> list[str]:
    """Return the rows of the table event_log about a task."""
    rows = await sql(queue, f"select event_type from event_log where task_id = '{task_id}' order by id, part")
    return [row["event_type"] for row in rows]


@pytest.mark.requirement("R-011", "R-054")
async def test_guarded_task_waits_for_approval(streams: Queue) -> None:
    task_id = await stopped(streams, idempotency_key="d-1")
    assert (await viewed(streams, "redis", task_id))["status"] == "waiting_approval"
    assert await streams.claim("worker") == []
    assert await states(streams, task_id) == ["created", "pending", "waiting_approval"]
    assert await events_named(streams, "approval.requested") == [task_id]
    assert await logged(streams, task_id) == ["task.created", "approval.requested"]


@pytest.mark.requirement("R-011", "R-055")
async def test_approved_task_becomes_ready_and_runs(streams: Queue) -> None:
    task_id = await stopped(streams, idempotency_key="d-1")
    events = await streams.as_caller("human:ada").approvals.approve(task_id, note="looks fine")
    assert (events.task_id, events.status) == (task_id, "ready")
    (approved,) = [
        event for event in (await streams.tasks.history(task_id)).events if "approval.approved" in event.names
    ]
    assert (approved.actor, approved.data and approved.data["note"]) == ("human:ada", "looks fine")
    assert await finish(streams) == task_id
    assert await logged(streams, task_id) == [
        *("task.created", "approval.requested", "approval.approved", "task.claimed", "task.succeeded")
    ]


@pytest.mark.requirement("R-011", "R-056")
async def test_rejected_task_is_cancelled_and_does_not_run(streams: Queue) -> None:
    task_id = await stopped(streams, idempotency_key="d-1")
    events = await streams.as_caller("human:ada").approvals.reject(task_id, note="not today")
    assert events.status == "cancelled"
    task = await streams.get(task_id)
    assert (task.cancel_reason, task.failure_reason) == ("approval_rejected", "approval_rejected")
    assert (await viewed(streams, "redis", task_id))["status"] == "failed"
    (rejected,) = [
        event for event in (await streams.tasks.history(task_id)).events if "approval.rejected" in event.names
    ]
    assert (rejected.actor, rejected.reason) == ("human:ada", "approval_rejected")
    assert await logged(streams, task_id) == ["task.created", "approval.requested", "approval.rejected", "task.failed"]
    assert await streams.claim("worker") == []


async def test_pending_approval_is_listed_with_rule_and_revision(queue: Queue, clock: MovedClock) -> None:
    rule = {"tag": "prod", "min_cost_usd": 5.0, "expire_after_sec": 60.0, "on_expire": "approve"}
    await guard(queue, rule)
    fields = {"title": "Ship", "tags": ["prod"], "estimated_cost_usd": 9.0, "created_by": "agent:bob"}
    made = await queue.submit({"type": "deploy", "payload": {"to": "prod"}, **fields})
    (asked,) = await queue.approvals.list()
    assert (asked.task_id, asked.kind, asked.title, asked.created_by) == (made.id, "approval", "Ship", "agent:bob")
    assert (asked.payload, asked.tags, asked.estimated_cost_usd) == ({"to": "prod"}, ["prod"], 9.0)
    assert (asked.rule, asked.expires_at, asked.version) == (rule, clock() + 60, 1)
    (hold,) = (await queue.explain(made.id)).holds
    assert (hold.kind, hold.until) == ("approval", clock() + 60)
    assert asked.revision is not None
    assert asked.revision in hold.what
    assert "tag prod" in hold.what
    assert "approved when no one does" in hold.lifts


@pytest.mark.parametrize(
    ("rule", "meets", "passes"),
    [
        ({"type": "deploy"}, {"type": "deploy"}, {"type": "docs"}),
        ({"tool_name": "shell"}, {"tool_name": "shell"}, {"tool_name": "browser"}),
        ({"tag": "prod"}, {"tags": ["web", "prod"]}, {"tags": ["web"]}),
        ({"created_by": "agent:bob"}, {"created_by": "agent:bob"}, {"created_by": "human:ada"}),
        ({"trigger_type": "mention"}, {"trigger_type": "mention"}, {"trigger_type": "assignment"}),
        ({"min_cost_usd": 5}, {"estimated_cost_usd": 5}, {"estimated_cost_usd": 4.99}),
        ({"min_cost_usd": 5}, {"spec": {"constraints": {"max_cost_usd": 6}}}, {}),
        ({"type": "deploy", "tag": "prod"}, {"type": "deploy", "tags": ["prod"]}, {"type": "deploy"}),
        ({}, {}, None),
    ],
)
async def test_guard_rule_stops_tasks_meeting_all_conditions(
    queue: Queue, rule: dict[str, Any], meets: dict[str, Any], passes: dict[str, Any] | None
) -> None:
    await guard(queue, {"type": "never"}, rule)
    assert (await queue.submit({"type": "code", **meets})).status == "waiting_approval"
    if passes is not None:
        assert (await queue.submit({"type": "code", **passes})).status == "ready"


async def test_without_guard_rules_no_task_is_stopped(queue: Queue) -> None:
    assert (await queue.submit(type="deploy")).status == "ready"
    assert (await everything(queue))["approvals"] == []


async def test_task_cannot_override_its_own_guard(queue: Queue) -> None:
    await guard(queue)
    with pytest.raises(InputError):
        await queue.submit(type="deploy", settings={"guards": []})


async def test_guard_is_checked_when_dependencies_are_met(queue: Queue) -> None:
    await guard(queue)
    first = await queue.submit(type="code")
    second = await queue.submit(type="deploy", dependencies=[first.id])
    assert second.status == "pending"
    assert await queue.approvals.list() == []
    await finish(queue)
    assert await status(queue, second.id) == "waiting_approval"
    assert [asked.task_id for asked in await queue.approvals.list()] == [second.id]
    await queue.approvals.approve(second.id)
    assert await finish(queue) == second.id


async def test_guard_is_checked_for_subtasks(queue: Queue) -> None:
    await guard(queue, {"created_by": "agent:worker"})
    await queue.submit(type="code", id="parent")
    token = (await take(queue)).token
    (child,) = await queue.spawn(token, [{"type": "code"}], wait=True)
    assert child.status == "waiting_approval"
    assert await status(queue, "parent") == "pending"
    await queue.approvals.approve(child.id)
    assert await finish(queue) == child.id
    assert await status(queue, "parent") == "ready"


async def test_guard_is_checked_when_a_retry_is_due(queue: Queue, clock: MovedClock) -> None:
    task = await queue.submit(type="deploy")
    await queue.fail((await take(queue)).token, "crash")
    await guard(queue)
    await pass_time(queue, clock, 3600)
    assert await status(queue, task.id) == "waiting_approval"
    assert (await states(queue, task.id))[-3:] == ["retrying", "pending", "waiting_approval"]


async def test_guard_is_checked_when_a_dead_letter_is_retried(queue: Queue) -> None:
    task_id = await dead_letter(queue, type="deploy")
    await guard(queue)
    assert (await queue.dead_letters.review(task_id, "retry")).status == "waiting_approval"
    assert await events_named(queue, "approval.requested") == [task_id]


async def test_guard_is_checked_for_a_rerun(queue: Queue) -> None:
    task = await queue.submit(type="deploy")
    await finish(queue)
    await guard(queue)
    assert (await queue.tasks.rerun(task.id)).status == "waiting_approval"


async def test_guard_is_checked_for_a_retry_as_new_task(aegis: Queue) -> None:
    task = await aegis.submit(type="deploy")
    await aegis.settings.set("retry.strategy", "immediate")
    token = (await take(aegis)).token
    await guard(aegis)
    await aegis.fail(token, "timeout")
    (asked,) = await aegis.approvals.list()
    assert asked.task_id == (await aegis.get(task.id)).superseded_by


async def test_guard_is_checked_after_waiting_for_a_signal(queue: Queue) -> None:
    task = await queue.submit(type="deploy")
    await queue.waits.wait((await take(queue)).token, "go", signal="go")
    await guard(queue)
    await queue.waits.signal("go")
    assert await status(queue, task.id) == "waiting_approval"


async def test_guard_is_checked_for_tags_merged_by_a_duplicate(queue: Queue) -> None:
    await queue.settings.set("idempotency.on_duplicate", "merge")
    await guard(queue, {"tag": "prod"})
    task = await queue.submit(type="deploy", idempotency_key="k")
    assert task.status == "ready"
    await queue.submit(type="deploy", idempotency_key="k", tags=["prod"])
    assert await status(queue, task.id) == "waiting_approval"


async def test_approval_covers_retries_and_reruns_of_same_work(queue: Queue, clock: MovedClock) -> None:
    task_id = await stopped(queue, max_attempts=2)
    await queue.approvals.approve(task_id)
    await queue.fail((await take(queue)).token, "crash")
    await pass_time(queue, clock, 3600)
    assert await status(queue, task_id) == "ready"
    await queue.fail((await take(queue)).token, "crash")
    assert (await queue.dead_letters.review(task_id, "retry")).status == "ready"
    await finish(queue)
    assert (await queue.tasks.rerun(task_id)).status == "ready"


async def test_retry_as_new_task_keeps_its_approval(aegis: Queue) -> None:
    await aegis.settings.set("retry.strategy", "immediate")
    task_id = await stopped(aegis)
    await aegis.approvals.approve(task_id)
    await aegis.fail((await take(aegis)).token, "timeout")
    assert (await take(aegis)).id == (await aegis.get(task_id)).superseded_by


async def test_task_modified_on_review_needs_a_new_approval(queue: Queue) -> None:
    task_id = await stopped(queue, max_attempts=1)
    await queue.approvals.approve(task_id)
    await queue.fail((await take(queue)).token, "crash")
    outcome = await queue.dead_letters.review(task_id, "modify_and_retry", change={"payload": {"to": "staging"}})
    assert outcome.status == "waiting_approval"
    (asked,) = await queue.approvals.list()
    assert asked.payload == {"to": "staging"}


async def test_changed_priority_keeps_the_approval(queue: Queue) -> None:
    task_id = await stopped(queue)
    (before,) = await queue.approvals.list()
    await queue.tasks.update(task_id, {"priority": 1, "deadline": 1_900_000_000.0})
    (asked,) = await queue.approvals.list()
    assert (asked.revision, asked.version) == (before.revision, before.version + 1)
    await queue.approvals.approve(task_id, revision=before.revision)
    await queue.tasks.update(task_id, {"priority": 2})
    assert await status(queue, task_id) == "ready"


async def test_approval_of_an_outdated_revision_is_refused(queue: Queue) -> None:
    task_id = await stopped(queue)
    (before,) = await queue.approvals.list()
    await queue.tasks.update(task_id, {"estimated_cost_usd": 500})
    (asked,) = await queue.approvals.list()
    assert asked.revision != before.revision
    for decide in (queue.approvals.approve, queue.approvals.reject):
        with pytest.raises(RevisionChanged) as refused:
            await decide(task_id, revision=before.revision)
        assert refused.value.facts["revision"] == asked.revision
    assert await status(queue, task_id) == "waiting_approval"
    assert (await queue.approvals.approve(task_id, revision=asked.revision)).status == "ready"
    assert await events_named(queue, "approval.requested") == [task_id, task_id]


async def test_changing_an_approved_task_requires_approval_again(queue: Queue) -> None:
    task_id = await stopped(queue)
    await queue.approvals.approve(task_id)
    await queue.tasks.update(task_id, {"tags": ["other"]})
    assert await status(queue, task_id) == "waiting_approval"
    assert (await states(queue, task_id))[-3:] == ["ready", "pending", "waiting_approval"]
    await queue.tasks.update(task_id, {"tags": []})
    assert await status(queue, task_id) == "ready"  # what was approved before


async def test_change_that_matches_no_rule_releases_the_task(queue: Queue) -> None:
    await guard(queue, {"tag": "prod"})
    task = await queue.submit(type="deploy", tags=["prod"])
    await queue.tasks.update(task.id, {"tags": ["staging"]})
    assert await status(queue, task.id) == "ready"
    assert await queue.approvals.list() == []


async def test_approval_with_outdated_version_is_refused(queue: Queue) -> None:
    task_id = await stopped(queue)
    await queue.tasks.update(task_id, {"priority": 1})
    with pytest.raises(VersionConflict):
        await queue.approvals.approve(task_id, version=1)
    assert (await queue.approvals.approve(task_id, version=2)).status == "ready"


async def test_rerun_of_rejected_task_needs_approval_again(queue: Queue) -> None:
    task_id = await stopped(queue)
    await queue.approvals.reject(task_id)
    assert (await queue.tasks.rerun(task_id)).status == "waiting_approval"


async def test_new_dependencies_are_awaited_before_the_guard(queue: Queue) -> None:
    task_id = await stopped(queue)
    other = await queue.submit(type="code")
    await queue.tasks.update(task_id, {"dependencies": [other.id]})
    assert await status(queue, task_id) == "pending"
    assert await queue.approvals.list() == []
    await finish(queue)
    assert await status(queue, task_id) == "waiting_approval"
    assert len(await queue.approvals.list()) == 1


@pytest.mark.parametrize(("on_expire", "end"), [("reject", "cancelled"), ("approve", "ready")])
async def test_expired_approval_is_decided_by_its_rule(
    queue: Queue, clock: MovedClock, on_expire: str, end: str
) -> None:
    await guard(queue, {"type": "deploy", "expire_after_sec": 60, "on_expire": on_expire})
    task = await queue.submit(type="deploy")
    await guard(queue, {"type": "deploy"})  # what was asked stays as it was asked
    assert "approvals" not in await pass_time(queue, clock, 59)
    assert (await pass_time(queue, clock, 1))["approvals"] == {"decided": 1}
    assert await status(queue, task.id) == end
    last = (await queue.tasks.history(task.id)).events[-1]
    assert (last.actor, last.data and last.data["note"]) == ("maintenance:approvals", "no decision in time")


async def test_decision_after_expiry_is_refused(queue: Queue, clock: MovedClock) -> None:
    await guard(queue, {"type": "deploy", "expire_after_sec": 60})
    task = await queue.submit(type="deploy")
    clock.advance(60)
    with pytest.raises(WrongState):
        await queue.approvals.approve(task.id)
    await pass_time(queue, clock, 0)
    assert await status(queue, task.id) == "cancelled"


async def test_many_approvals_expire_in_batches(
    queue: Queue, clock: MovedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shiftwork.waits.maintenance.BATCH", 2)
    monkeypatch.setattr("shiftwork.maintenance.loop.BATCH", 2)
    await guard(queue, {"expire_after_sec": 60})
    await queue.submit_many([{"type": "deploy"}] * 5)
    assert (await pass_time(queue, clock, 60))["approvals"] == {"decided": 5}
    assert (await queue.status()).counts == {"cancelled": 5}


async def test_dag_stays_open_while_a_task_waits_for_approval(queue: Queue) -> None:
    await guard(queue, {"type": "code"})
    ids = await submit_dag(queue, {"a": [], "b": ["a"]})
    dag_id = (await queue.get(ids["a"])).dag_id
    await queue.approvals.approve(ids["a"])
    await finish(queue)
    dag = await queue.dags.get(dag_id)
    assert (dag.status, dag.counts) == ("running", {"completed": 1, "waiting_approval": 1})
    await queue.approvals.reject(ids["b"])
    assert (await queue.dags.get(dag_id)).status == "completed"


async def test_rejected_task_cancels_its_dependents(queue: Queue) -> None:
    task_id = await stopped(queue)
    after = await queue.submit(type="code", dependencies=[task_id])
    await queue.approvals.reject(task_id)
    assert (await queue.get(after.id)).cancel_reason == f"Parent {task_id} cancelled"


async def test_cancelling_a_task_withdraws_its_approval_request(queue: Queue, clock: MovedClock) -> None:
    await guard(queue, {"expire_after_sec": 60})
    task = await queue.submit(type="deploy")
    await queue.cancel(task.id)
    assert await queue.approvals.list() == []
    assert "approvals" not in await pass_time(queue, clock, 60)
    with pytest.raises(WrongState):
        await queue.approvals.approve(task.id)


async def test_purge_deletes_approvals_of_its_tasks(queue: Queue) -> None:
    await queue.settings.set("purge.mode", "delete")
    await stopped(queue)
    assert await queue.control.purge(type="deploy") == 1
    assert (await everything(queue))["approvals"] == []


async def test_decision_without_a_pending_approval_is_refused(queue: Queue) -> None:
    task = await queue.submit(type="code")
    for decide in (queue.approvals.approve, queue.approvals.reject):
        with pytest.raises(WrongState):
            await decide(task.id)
        with pytest.raises(NotFound):
            await decide("nobody")
    task_id = await stopped(queue)
    with pytest.raises(NotFound):
        await queue.in_workspace("other").approvals.approve(task_id)
    await queue.approvals.approve(task_id)
    with pytest.raises(WrongState):
        await queue.approvals.approve(task_id)


async def test_unknown_approval_kind_is_refused(queue: Queue) -> None:
    with pytest.raises(InputError):
        await queue.approvals.list(kind="wishes")  # type: ignore[arg-type]  # on purpose
