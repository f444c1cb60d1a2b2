"""Agent sessions: pinned, inherited by retries, retired when they cannot be resumed, fresh on a rerun."""

from typing import Any

import pytest

from shiftwork import Queue
from shiftwork.testing import MovedClock, pass_time
from tests.conformance.steps import sql, take

AT_ONCE: dict[str, Any] = {"retry": {"strategy": "immediate"}, "max_attempts": 10, "settings": {"poison": None}}


async def fail(queue: Queue, *sessions: str, reason: str = "crash") -> str | None:
    """Run one attempt that pins these sessions and fails; return the session it was given."""
    assignment = await take(queue)
    for session in sessions:
        await queue.claims.pin_session(assignment.token, session)
    await queue.fail(assignment.token, reason, "it broke")
    return assignment.task().session_id


async def test_session_is_resumed_until_two_resumed_attempts_failed(queue: Queue) -> None:
    task = (await queue.submit(type="code", **AT_ONCE)).id
    handed = [await fail(queue, "S"), await fail(queue, "S"), await fail(queue, "S"), await fail(queue)]
    assert handed == [None, "S", "S", None]
    history = (await queue.get(task)).failure_history
    assert [failure.note for failure in history] == [
        None,
        None,
        "session S is retired: 2 attempts that resumed it have failed",
        None,
    ]
    events = [
        event.data.get("session")
        for event in (await queue.tasks.history(task)).events
        if event.verb == "failed" and event.data
    ]
    assert events[2] == history[2].note


async def test_submitted_session_is_resumed_by_the_first_attempt(queue: Queue) -> None:
    await queue.submit(type="code", session_id="S", **AT_ONCE)
    assert [await fail(queue), await fail(queue), await fail(queue)] == ["S", "S", None]


@pytest.mark.parametrize("reason", ["session_lost", "context_exceeded"])
async def test_session_related_failure_retires_the_session_at_once(queue: Queue, reason: str) -> None:
    task = (await queue.submit(type="code", **AT_ONCE)).id
    assert [await fail(queue, "S", reason=reason), await fail(queue, "T")] == [None, None]
    assert (await queue.get(task)).session_id == "T"


async def test_retired_session_is_not_resumed_even_when_pinned(queue: Queue) -> None:
    task = (await queue.submit(type="code", work_dir="/w", **AT_ONCE)).id
    await fail(queue, "S", reason="session_lost")
    assignment = await take(queue)
    await queue.claims.pin_session(assignment.token, "S", "/v")
    pinned = await queue.get(task)
    assert (pinned.session_id, pinned.work_dir) == (None, "/v")
    last = (await queue.tasks.history(task)).events[-1].data
    assert last == {"session_id": "S", "work_dir": "/v", "retired": True}
    await queue.release(assignment.token)
    assert (await take(queue)).task().session_id is None


async def test_renamed_resumed_session_keeps_its_failure_count(queue: Queue) -> None:
    await queue.submit(type="code", **AT_ONCE)
    handed = [await fail(queue, "A"), await fail(queue, "B"), await fail(queue, "C"), await fail(queue, "D")]
    assert handed == [None, "A", "B", None]


async def test_session_renamed_within_an_attempt_is_not_counted(queue: Queue) -> None:
    await queue.submit(type="code", **AT_ONCE)
    handed = [await fail(queue, "A", "B"), await fail(queue, "B"), await fail(queue)]
    assert handed == [None, "B", "B"]


async def test_reclaim_without_cost_does_not_count_against_the_session(queue: Queue) -> None:
    await queue.settings.set("on_stale", "reclaim")
    await queue.submit(type="code", **AT_ONCE)
    await fail(queue, "S")
    for _ in range(3):
        assignment = await take(queue, runtime_id="r")
        assert assignment.task().session_id == "S"
        await queue.runtimes.report_gone("r")
    assert [await fail(queue), await fail(queue), await fail(queue)] == ["S", "S", None]


@pytest.mark.parametrize(
    ("limit", "expected"), [(0, [None, None, None]), (1, [None, "S", None]), (None, [None, "S", "S"])]
)
async def test_max_failed_resumes_setting_limits_resuming(
    queue: Queue, limit: int | None, expected: list[str | None]
) -> None:
    await queue.settings.set("session.max_failed_resumes", limit)
    await queue.submit(type="code", **AT_ONCE)
    assert [await fail(queue, "S"), await fail(queue), await fail(queue)] == expected


@pytest.mark.requirement("A-078")
async def test_retry_as_new_task_inherits_session_and_its_failures(queue: Queue) -> None:
    await queue.settings.set("retry.mode", "new_task")
    await queue.submit(type="code", **AT_ONCE)
    assert [await fail(queue, "S"), await fail(queue), await fail(queue), await fail(queue)] == [None, "S", "S", None]


async def test_session_of_a_silent_agent_is_kept_for_the_retry(queue: Queue, clock: MovedClock) -> None:
    await queue.submit(type="code", **AT_ONCE)
    assignment = await take(queue)
    await queue.claims.pin_session(assignment.token, "S", "/w")
    await pass_time(queue, clock, 100)
    retry = (await take(queue)).task()
    assert (retry.session_id, retry.work_dir, retry.attempts) == ("S", "/w", 1)


@pytest.mark.requirement("A-076", "A-077")
async def test_rerun_starts_a_fresh_session_and_its_retries_resume_it(queue: Queue) -> None:
    task = (await queue.submit(type="code", session_id="S", **AT_ONCE)).id
    await queue.complete((await take(queue)).token)
    rerun = await queue.get((await queue.tasks.rerun(task)).task_id)
    assert (rerun.session_id, rerun.force_fresh_session) == (None, True)
    assert [await fail(queue, "T"), await fail(queue)] == [None, "T"]


async def test_force_fresh_session_ignores_the_submitted_session(queue: Queue) -> None:
    await queue.submit(type="code", session_id="S", force_fresh_session=True, **AT_ONCE)
    assert [await fail(queue, "T"), await fail(queue)] == [None, "T"]


async def test_session_records_are_purged_with_the_task(queue: Queue) -> None:
    await queue.settings.set("purge.mode", "delete")
    task = (await queue.submit(type="code", **AT_ONCE)).id
    await fail(queue, "S")
    assert await sql(queue, "select session_id from sessions") == [{"session_id": "S"}]
    await queue.cancel(task)
    assert await queue.control.purge(status=["cancelled"]) == 1
    assert await sql(queue, "select session_id from sessions") == []
