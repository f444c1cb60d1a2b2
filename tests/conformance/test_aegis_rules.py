"""The Aegis profile: six states, one retry as a new task, timeouts, orphans, pinned sessions and manual reruns."""

from typing import Any

import pytest

from shiftwork import Queue
from shiftwork.model.errors import NotFound, ShiftworkError
from shiftwork.model.task import Task
from shiftwork.testing import MovedClock, pass_time
from tests.conformance.steps import sql, viewed

RUNTIME = "daemon-1"


async def queued(aegis: Queue, **fields: Any) -> str:
    made = await aegis.submit({"type": "agent", "target_agent_id": "coder", "issue_id": "issue-1", **fields})
    return made.id


async def dispatch(aegis: Queue, *, start: bool = False, runtime: str = RUNTIME) -> str:
    (assignment,) = await aegis.claim("coder", runtime_id=runtime, start=start)
    return assignment.token


async def row(aegis: Queue, task_id: str) -> dict[str, Any]:
    """The task as the document's own table shows it."""
    uuid = (await viewed(aegis, "aegis", task_id))["id"]
    (found,) = await sql(aegis, f"select * from agent_task_queue where id = '{uuid}'")
    return found


async def status(aegis: Queue, task_id: str) -> str:
    return str((await row(aegis, task_id))["status"])


async def rows_of_issue(aegis: Queue) -> list[Task]:
    return (await aegis.tasks.list(issue="issue-1")).tasks


async def keep_alive(aegis: Queue, clock: MovedClock, seconds: float) -> None:
    """Let time pass while the daemon sends heartbeats."""
    while seconds > 0:
        await aegis.runtimes.heartbeat(RUNTIME)
        await pass_time(aegis, clock, min(60, seconds))
        seconds -= 60


LEGAL = {
    ("queued", "claim"): "dispatched",
    ("queued", "cancel"): "cancelled",
    ("dispatched", "start"): "running",
    ("dispatched", "fail"): "failed",
    ("dispatched", "cancel"): "cancelled",
    ("running", "complete"): "completed",
    ("running", "fail"): "failed",
    ("running", "cancel"): "cancelled",
    ("failed", "cancel"): "cancelled",
}
STATES = ["queued", "dispatched", "running", "completed", "failed", "cancelled"]
VERBS = ["claim", "start", "complete", "fail", "cancel"]


async def bring_to(aegis: Queue, state: str) -> tuple[str, str]:
    """A task in this state, and the token its daemon has or would have."""
    task_id = await queued(aegis)
    if state == "queued":
        return task_id, f"{task_id}.1"
    token = await dispatch(aegis, start=state in {"running", "completed", "failed"})
    if state == "completed":
        await aegis.complete(token)
    elif state == "failed":
        await aegis.fail(token, "agent_error")
    elif state == "cancelled":
        await aegis.cancel(task_id)
    return task_id, token


async def attempt(aegis: Queue, verb: str, task_id: str, token: str) -> None:
    if verb == "claim":
        await aegis.claim("coder", runtime_id=RUNTIME)
    elif verb == "cancel":
        await aegis.cancel(task_id)
    elif verb == "fail":
        await aegis.fail(token, "agent_error")
    else:
        await (aegis.start if verb == "start" else aegis.complete)(token)


@pytest.mark.requirement("A-006", "A-007", "A-008", "A-009", "A-010", "A-012", "A-018", "A-024", "A-042", "A-096")
@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("state", STATES)
async def test_each_verb_makes_only_the_documented_transition_from_every_state(
    aegis: Queue, state: str, verb: str
) -> None:
    task_id, token = await bring_to(aegis, state)
    assert await status(aegis, task_id) == state
    refused = False
    try:
        await attempt(aegis, verb, task_id, token)
    except ShiftworkError:
        refused = True
    expected = LEGAL.get((state, verb))
    assert await status(aegis, task_id) == (expected or state)
    assert not (refused and expected)
    assert len(await rows_of_issue(aegis)) == 1
    if expected == "cancelled":
        assert (await row(aegis, task_id))["failure_reason"] == "cancelled"


@pytest.mark.requirement(
    "A-013", "A-014", "A-015", "A-016", "A-035", "A-036", "A-037", "A-044", "A-045", "A-046", "A-047", "A-048",
    "A-106", "A-107", "A-108",
)  # fmt: skip
async def test_each_state_change_sets_its_timestamp(aegis: Queue, clock: MovedClock) -> None:
    task_id = await queued(aegis)
    created = await viewed(aegis, "aegis", task_id)
    assert (created["status"], created["attempt"], created["max_attempts"]) == ("queued", 1, 2)
    assert [created[name] for name in ("claimed_at", "started_at", "completed_at")] == [None, None, None]
    assert created["created_at"] == created["updated_at"] is not None
    clock.advance(1)
    token = await dispatch(aegis)
    dispatched = await row(aegis, task_id)
    assert (dispatched["status"], dispatched["started_at"]) == ("dispatched", None)
    clock.advance(1)
    await aegis.start(token)
    running = await row(aegis, task_id)
    assert (running["status"], running["completed_at"]) == ("running", None)
    clock.advance(1)
    await aegis.complete(token, "all done")
    done = await row(aegis, task_id)
    assert (done["status"], done["output"]) == ("completed", "all done")
    times = [done[name] for name in ("created_at", "claimed_at", "started_at", "completed_at")]
    assert times == sorted(set(times))
    assert done["updated_at"] == done["completed_at"]


@pytest.mark.requirement("A-020", "A-023", "A-025", "A-031")
@pytest.mark.parametrize("trigger", ["assignment", "mention", "chat", "autopilot", "manual_rerun"])
async def test_task_keeps_trigger_issue_session_and_work_dir(aegis: Queue, trigger: str) -> None:
    task_id = await queued(aegis, trigger_type=trigger, trigger_comment_id="comment-7", session_id="s", work_dir="/w")
    chat = await row(aegis, await queued(aegis, issue_id=None))
    kept = await row(aegis, task_id)
    assert (kept["trigger_type"], kept["trigger_comment_id"]) == (trigger, "comment-7")
    assert (kept["agent_id"], kept["issue_id"], kept["workspace_id"]) == ("coder", "issue-1", "default")
    assert (kept["session_id"], kept["work_dir"]) == ("s", "/w")
    assert (chat["issue_id"], chat["trigger_comment_id"], chat["output"]) == (None, None, None)


@pytest.mark.requirement("A-032")
async def test_long_trigger_summary_is_shortened_to_200_characters(aegis: Queue) -> None:
    task_id = await queued(aegis, trigger_summary="x" * 1000)
    assert (await aegis.get(task_id)).trigger_summary == "x" * 199 + "…"


@pytest.mark.requirement("A-053")
async def test_three_tasks_are_each_claimed_once_in_order(aegis: Queue) -> None:
    submitted = [await queued(aegis) for _ in range(3)]
    claimed = [(await dispatch(aegis)).partition(".")[0] for _ in range(3)]
    assert claimed == submitted
    assert await aegis.claim("coder", runtime_id=RUNTIME) == []


@pytest.mark.requirement("A-062", "A-063", "A-064")
async def test_tasks_are_listed_by_agent_issue_and_status(aegis: Queue) -> None:
    mine, done = await queued(aegis), await queued(aegis, issue_id="issue-2")
    others = await queued(aegis, target_agent_id="reviewer")
    await aegis.cancel(done)

    async def found(**filters: Any) -> set[str]:
        return {task.id for task in (await aegis.tasks.list(**filters)).tasks}

    assert await found() == {mine, done, others}
    assert await found(agent="coder") == {mine, done}
    assert await found(issue="issue-1") == {mine, others}
    assert await found(status="cancelled") == {done}
    with pytest.raises(NotFound):
        await aegis.get("00000000-0000-7000-8000-000000000000")


@pytest.mark.requirement("A-011", "A-043", "A-077", "A-078", "A-110", "A-072", "A-098", "A-112")
async def test_retryable_failure_creates_one_new_task_with_the_old_session(aegis: Queue) -> None:
    first = await queued(aegis)
    token = await dispatch(aegis, start=True)
    await aegis.claims.pin_session(token, "session-9", "/srv/9")
    await aegis.fail(token, "timeout", "took too long")
    failed, retry = await rows_of_issue(aegis)
    assert (failed.id, failed.status, failed.superseded_by) == (first, "failed", retry.id)
    shown = await row(aegis, retry.id)
    assert (shown["status"], shown["attempt"]) == ("queued", 2)
    assert str(shown["parent_task_id"]) == (await viewed(aegis, "aegis", first))["id"]
    assert (shown["session_id"], shown["work_dir"]) == ("session-9", "/srv/9")
    assert (retry.retry_of, retry.force_fresh_session) == (first, False)
    await aegis.fail(await dispatch(aegis, start=True), "timeout")
    assert [task.status for task in await rows_of_issue(aegis)] == ["failed", "failed"]
    assert [(await row(aegis, task_id))["attempt"] for task_id in (first, retry.id)] == [1, 2]
    assert await aegis.claim("coder", runtime_id=RUNTIME) == []
    assert await aegis.dead_letters.list() == []


@pytest.mark.requirement("A-038", "A-041", "A-070", "A-073", "A-074", "A-111")
@pytest.mark.parametrize(
    ("reason", "error", "rows"),
    [
        ("timeout", None, 2),
        ("runtime_offline", None, 2),
        ("agent_error", "HTTP 500", 1),
        ("agent_error", "quota exceeded", 1),
        (None, "429 too many requests", 1),
        ("a reason of its own", None, 1),
    ],
)
async def test_only_timeouts_and_offline_runtimes_are_retried(
    aegis: Queue, reason: str | None, error: str | None, rows: int
) -> None:
    task_id = await queued(aegis)
    await aegis.fail(await dispatch(aegis, start=True), reason, error)
    assert len(await rows_of_issue(aegis)) == rows
    failed = await aegis.get(task_id)
    assert (failed.status, failed.failure_reason) == ("failed", reason or "agent_error")


@pytest.mark.requirement("A-075")
async def test_autopilot_work_is_never_retried(aegis: Queue, clock: MovedClock) -> None:
    task_id = await queued(aegis, trigger_type="autopilot")
    await dispatch(aegis)
    await pass_time(aegis, clock, 300)
    assert [(task.id, task.status) for task in await rows_of_issue(aegis)] == [(task_id, "failed")]


async def test_dependent_waits_for_the_automatic_retry(aegis: Queue) -> None:
    task_id = await queued(aegis)
    waiting = await queued(aegis, dependencies=[task_id], issue_id="issue-2")
    await aegis.fail(await dispatch(aegis, start=True), "timeout")
    assert (await aegis.get(waiting)).status == "pending"
    await aegis.complete(await dispatch(aegis, start=True))
    assert (await aegis.get(waiting)).status == "ready"


@pytest.mark.requirement("A-040", "A-068", "A-103", "A-115")
async def test_task_dispatched_for_five_minutes_fails_with_timeout(aegis: Queue, clock: MovedClock) -> None:
    task_id = await queued(aegis)
    await dispatch(aegis)
    await keep_alive(aegis, clock, 299)
    assert await status(aegis, task_id) == "dispatched"
    await pass_time(aegis, clock, 1)
    failed = await row(aegis, task_id)
    assert (failed["status"], failed["failure_reason"]) == ("failed", "timeout")
    assert [task.status for task in await rows_of_issue(aegis)] == ["failed", "ready"]


@pytest.mark.requirement("A-069", "A-084", "A-115", "A-017")
async def test_task_running_for_two_and_a_half_hours_fails_with_timeout(aegis: Queue, clock: MovedClock) -> None:
    task_id = await queued(aegis)
    await dispatch(aegis, start=True)
    await keep_alive(aegis, clock, 8999)
    assert await status(aegis, task_id) == "running"
    await pass_time(aegis, clock, 1)
    failed = await row(aegis, task_id)
    assert (failed["status"], failed["failure_reason"]) == ("failed", "timeout")
    assert [task.status for task in await rows_of_issue(aegis)] == ["failed", "ready"]


@pytest.mark.requirement("A-039", "A-071", "A-084", "A-017")
@pytest.mark.parametrize("state", ["dispatched", "running"])
async def test_runtime_silent_for_75_seconds_is_offline(
    aegis: Queue,
    clock: MovedClock,
    state: str,
) -> None:
    task_id = await queued(aegis)
    await dispatch(aegis, start=state == "running")
    await pass_time(aegis, clock, 40)
    await aegis.runtimes.heartbeat(RUNTIME)
    await pass_time(aegis, clock, 74)
    assert await status(aegis, task_id) == state
    assert [runtime.status for runtime in await aegis.runtimes.list()] == ["active"]
    await pass_time(aegis, clock, 1)
    failed = await row(aegis, task_id)
    assert (failed["status"], failed["failure_reason"]) == ("failed", "runtime_offline")
    assert [task.status for task in await rows_of_issue(aegis)] == ["failed", "ready"]
    assert [runtime.status for runtime in await aegis.runtimes.list()] == ["offline"]


@pytest.mark.requirement("A-080", "A-081", "A-082", "A-083", "A-100", "A-114")
async def test_restarted_daemon_has_its_tasks_failed_and_retried_at_once(aegis: Queue) -> None:
    dispatched, running = await queued(aegis), await queued(aegis)
    autopilot = await queued(aegis, trigger_type="autopilot")
    elsewhere, waiting = await queued(aegis), await queued(aegis)
    await dispatch(aegis)
    for _ in range(2):
        await dispatch(aegis, start=True)
    await dispatch(aegis, runtime="daemon-2")
    outcomes = await aegis.runtimes.recover(RUNTIME)
    assert sorted(outcome.task_id for outcome in outcomes) == sorted([dispatched, running, autopilot])
    for task_id in (dispatched, running, autopilot):
        failed = await row(aegis, task_id)
        assert (failed["status"], failed["failure_reason"]) == ("failed", "runtime_offline")
    assert (await status(aegis, elsewhere), await status(aegis, waiting)) == ("dispatched", "queued")
    retries = [task.retry_of for task in await rows_of_issue(aegis) if task.retry_of]
    assert sorted(retries) == sorted([dispatched, running])
    assert await aegis.runtimes.recover(RUNTIME) == []


async def test_all_501_orphans_are_recovered_in_one_call(aegis: Queue) -> None:
    await aegis.submit_many([{"type": "agent", "target_agent_id": "coder"}] * 501)
    assert len(await aegis.claim("coder", 1000, runtime_id=RUNTIME)) == 501
    assert len(await aegis.runtimes.recover(RUNTIME)) == 501
    assert (await aegis.status()).counts == {"failed": 501, "ready": 501}


async def test_all_501_tasks_of_a_dead_runtime_are_retried_in_one_call(aegis: Queue) -> None:
    await aegis.submit_many([{"type": "agent", "target_agent_id": "coder"}] * 501)
    await aegis.claim("coder", 1000, runtime_id=RUNTIME)
    assert len(await aegis.runtimes.report_gone(RUNTIME)) == 501
    assert (await aegis.status()).counts == {"failed": 501, "ready": 501}


@pytest.mark.requirement("A-082")
async def test_an_orphan_of_the_second_attempt_stays_failed(aegis: Queue) -> None:
    await queued(aegis)
    for _ in range(2):
        await dispatch(aegis, start=True)
        await aegis.runtimes.recover(RUNTIME)
    assert [task.status for task in await rows_of_issue(aegis)] == ["failed", "failed"]


@pytest.mark.requirement("A-004", "A-033", "A-034", "A-086", "A-087", "A-101")
async def test_pinned_session_is_passed_on_to_the_retry(aegis: Queue) -> None:
    task_id = await queued(aegis)
    token = await dispatch(aegis, start=True)
    await aegis.claims.pin_session(token, session_id="S")
    await aegis.claims.pin_session(token, work_dir="/srv")
    pinned = await row(aegis, task_id)
    assert (pinned["session_id"], pinned["work_dir"], pinned["status"]) == ("S", "/srv", "running")
    await aegis.runtimes.recover(RUNTIME)
    retry = (await rows_of_issue(aegis))[-1]
    assert (retry.session_id, retry.work_dir) == ("S", "/srv")


@pytest.mark.requirement("A-030", "A-076", "A-077", "A-099", "A-113")
async def test_manual_rerun_is_a_new_task_with_a_fresh_session(aegis: Queue) -> None:
    task_id = await queued(aegis, payload={"prompt": "fix it"})
    token = await dispatch(aegis, start=True)
    await aegis.claims.pin_session(token, "S", "/srv")
    await aegis.complete(token)
    outcome = await aegis.tasks.rerun_issue("issue-1")
    rerun = await aegis.get(outcome.task_id)
    assert rerun.id != task_id
    assert (rerun.rerun_of, rerun.trigger_type, rerun.issue_id) == (task_id, "manual_rerun", "issue-1")
    assert (rerun.session_id, rerun.work_dir, rerun.force_fresh_session) == (None, None, True)
    assert (rerun.payload, rerun.attempts) == ({"prompt": "fix it"}, 0)
    assert (await row(aegis, rerun.id))["attempt"] == 1
    assert await status(aegis, rerun.id) == "queued"


@pytest.mark.requirement("A-067")
async def test_rerun_can_name_an_older_task(aegis: Queue) -> None:
    older = await queued(aegis, payload={"n": 1})
    await queued(aegis, payload={"n": 2})
    for _ in range(2):
        await aegis.complete(await dispatch(aegis, start=True))
    rerun = await aegis.get((await aegis.tasks.rerun_issue("issue-1", older)).task_id)
    assert (rerun.payload, rerun.rerun_of) == ({"n": 1}, older)


async def test_rerun_is_refused_for_task_of_another_issue(aegis: Queue) -> None:
    await queued(aegis)
    other = await queued(aegis, issue_id="issue-2")
    await aegis.cancel(other)
    with pytest.raises(NotFound):
        await aegis.tasks.rerun_issue("issue-1", other)
    with pytest.raises(NotFound):
        await aegis.tasks.rerun_issue("issue-3")


async def test_manual_rerun_cancels_pending_automatic_retry(aegis: Queue) -> None:
    task_id = await queued(aegis)
    await aegis.fail(await dispatch(aegis, start=True), "timeout")
    await aegis.tasks.rerun(task_id)
    failed, retry, rerun = await rows_of_issue(aegis)
    assert (failed.status, retry.status, rerun.status) == ("failed", "cancelled", "ready")
    assert retry.cancel_reason == "superseded by a manual rerun"
    await aegis.complete(await dispatch(aegis, start=True))
    assert await aegis.claim("coder", runtime_id=RUNTIME) == []


async def test_rerun_is_refused_while_task_is_queued_or_dispatched(aegis: Queue) -> None:
    task_id = await queued(aegis)
    for step in (None, False):
        if step is not None:
            await dispatch(aegis)
        with pytest.raises(ShiftworkError):
            await aegis.tasks.rerun(task_id)
    assert len(await rows_of_issue(aegis)) == 1


async def test_explain_of_failed_task_suggests_a_rerun(aegis: Queue) -> None:
    task_id = await queued(aegis)
    await aegis.fail(await dispatch(aegis, start=True), "agent_error")
    (hold,) = (await aegis.explain(task_id)).holds
    assert (hold.kind, hold.lifts) == ("failed", "rerun it")
