"""An agent's own conversation: pinned, inherited by retries, retired when it cannot be resumed, fresh on a rerun."""

from typing import Any

import pytest

from shiftwork import Queue
from shiftwork.testing import MovedClock, pass_time
from tests.conformance.steps import sql, take

AT_ONCE: dict[str, Any] = {"retry": {"strategy": "immediate"}, "max_attempts": 10, "settings": {"poison": None}}


async def fail(queue: Queue, *sessions: str, reason: str = "crash") -> str | None:
    """One attempt that pins these sessions and fails; the session it was handed."""
    assignment = await take(queue)
    for session in sessions:
        await queue.pin_session(assignment.token, session)
    await queue.fail(assignment.token, reason, "it broke")
    return assignment.task().session_id


async def test_a_session_is_handed_on_until_two_attempts_that_resumed_it_have_failed(queue: Queue) -> None:
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
    told = [event.data.get("session") for event in await queue.history(task) if event.verb == "failed" and event.data]
    assert told[2] == history[2].note


async def test_a_session_that_came_with_the_task_is_resumed_by_the_first_attempt(queue: Queue) -> None:
    await queue.submit(type="code", session_id="S", **AT_ONCE)
    assert [await fail(queue), await fail(queue), await fail(queue)] == ["S", "S", None]


@pytest.mark.parametrize("reason", ["session_lost", "context_exceeded"])
async def test_a_reason_that_stands_in_the_session_retires_it_at_once(queue: Queue, reason: str) -> None:
    task = (await queue.submit(type="code", **AT_ONCE)).id
    assert [await fail(queue, "S", reason=reason), await fail(queue, "T")] == [None, None]
    assert (await queue.get(task)).session_id == "T"


async def test_a_retired_session_is_not_handed_out_again_though_an_agent_pins_it(queue: Queue) -> None:
    task = (await queue.submit(type="code", work_dir="/w", **AT_ONCE)).id
    await fail(queue, "S", reason="session_lost")
    assignment = await take(queue)
    await queue.pin_session(assignment.token, "S", "/v")
    pinned = await queue.get(task)
    assert (pinned.session_id, pinned.work_dir) == (None, "/v")
    last = (await queue.history(task))[-1].data
    assert last == {"session_id": "S", "work_dir": "/v", "retired": True}
    await queue.release(assignment.token)
    assert (await take(queue)).task().session_id is None


async def test_an_agent_that_resumes_under_a_new_name_does_not_start_to_count_again(queue: Queue) -> None:
    await queue.submit(type="code", **AT_ONCE)
    handed = [await fail(queue, "A"), await fail(queue, "B"), await fail(queue, "C"), await fail(queue, "D")]
    assert handed == [None, "A", "B", None]


async def test_sessions_of_one_attempt_follow_each_other_without_counting(queue: Queue) -> None:
    await queue.submit(type="code", **AT_ONCE)
    handed = [await fail(queue, "A", "B"), await fail(queue, "B"), await fail(queue)]
    assert handed == [None, "B", "B"]


async def test_what_costs_no_attempt_says_nothing_about_the_session(queue: Queue) -> None:
    await queue.set_setting("on_stale", "reclaim")
    await queue.submit(type="code", **AT_ONCE)
    await fail(queue, "S")
    for _ in range(3):
        assignment = await take(queue, runtime_id="r")
        assert assignment.task().session_id == "S"
        await queue.runtime_gone("r")
    assert [await fail(queue), await fail(queue), await fail(queue)] == ["S", "S", None]


@pytest.mark.parametrize(
    ("limit", "expected"), [(0, [None, None, None]), (1, [None, "S", None]), (None, [None, "S", "S"])]
)
async def test_the_setting_says_how_often_resuming_may_fail(
    queue: Queue, limit: int | None, expected: list[str | None]
) -> None:
    await queue.set_setting("session.max_failed_resumes", limit)
    await queue.submit(type="code", **AT_ONCE)
    assert [await fail(queue, "S"), await fail(queue), await fail(queue)] == expected


@pytest.mark.requirement("A-078")
async def test_a_retry_that_is_a_new_task_inherits_the_session_and_what_is_known_of_it(queue: Queue) -> None:
    await queue.set_setting("retry.mode", "new_task")
    await queue.submit(type="code", **AT_ONCE)
    assert [await fail(queue, "S"), await fail(queue), await fail(queue), await fail(queue)] == [None, "S", "S", None]


async def test_a_silent_agents_session_is_kept_for_the_next(queue: Queue, clock: MovedClock) -> None:
    await queue.submit(type="code", **AT_ONCE)
    assignment = await take(queue)
    await queue.pin_session(assignment.token, "S", "/w")
    await pass_time(queue, clock, 100)
    retry = (await take(queue)).task()
    assert (retry.session_id, retry.work_dir, retry.attempts) == ("S", "/w", 1)


@pytest.mark.requirement("A-076", "A-077")
async def test_a_rerun_begins_a_fresh_session_and_its_own_retries_resume_that(queue: Queue) -> None:
    task = (await queue.submit(type="code", session_id="S", **AT_ONCE)).id
    await queue.complete((await take(queue)).token)
    rerun = await queue.get((await queue.rerun(task)).task_id)
    assert (rerun.session_id, rerun.force_fresh_session) == (None, True)
    assert [await fail(queue, "T"), await fail(queue)] == [None, "T"]


async def test_a_task_that_wants_a_fresh_session_is_not_handed_the_one_it_names(queue: Queue) -> None:
    await queue.submit(type="code", session_id="S", force_fresh_session=True, **AT_ONCE)
    assert [await fail(queue, "T"), await fail(queue)] == [None, "T"]


async def test_what_is_known_of_sessions_goes_with_the_task(queue: Queue) -> None:
    await queue.set_setting("purge.mode", "delete")
    task = (await queue.submit(type="code", **AT_ONCE)).id
    await fail(queue, "S")
    assert await sql(queue, "select session_id from sessions") == [{"session_id": "S"}]
    await queue.cancel(task)
    assert await queue.purge({"status": ["cancelled"]}) == 1
    assert await sql(queue, "select session_id from sessions") == []
