"""Task, assignment and result of the co-scientist, with the names of its document."""

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from shiftwork import Queue, views
from shiftwork.model.errors import InputError
from shiftwork.testing import MovedClock, pass_time
from tests.conformance.steps import finish, states, take, viewed

VIEW = views.get("coscientist")


def iso(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


async def enqueue(queue: Queue, **fields: Any) -> str:
    task = {"agent_type": "Ranking", "priority": "Medium", "payload": {}, **fields}
    return (await queue.submit(VIEW.task_in(task))).id


async def status(queue: Queue, task_id: str) -> str:
    return str((await viewed(queue, "coscientist", task_id))["status"])


@pytest.mark.requirement("C-005", "C-006", "C-007", "C-008", "C-011", "C-012", "C-013", "C-080", "C-241")
async def test_task_passes_pending_assigned_executing_and_completed(coscientist: Queue) -> None:
    task_id = await enqueue(coscientist)
    seen = [await status(coscientist, task_id)]
    (assignment,) = await coscientist.claim("worker")
    assigned = await viewed(coscientist, "coscientist", task_id)
    assert (assigned["status"], assigned["worker_id"]) == ("Assigned", "worker")
    await coscientist.start(assignment.assignment_id)
    seen.append(await status(coscientist, task_id))
    await coscientist.complete(assignment.token)
    seen.append(await status(coscientist, task_id))
    assert seen == ["Pending", "Executing", "Completed"]
    passed = VIEW.history_out(await states(coscientist, task_id))  # type: ignore[arg-type]  # states are words
    assert passed == ["Pending", "Assigned", "Executing", "Completed"]


@pytest.mark.requirement("C-009", "C-010", "C-160")
async def test_failed_task_shows_next_step_and_reason(coscientist: Queue, clock: MovedClock) -> None:
    task_id = await enqueue(coscientist)
    outcome = await coscientist.fail((await take(coscientist)).token, "network", "connection reset")
    assert outcome.data == {"reason": "network", "why": "retry"}
    assert await status(coscientist, task_id) == "Retrying"
    assert await coscientist.claim("worker") == []
    await pass_time(coscientist, clock, 8)
    outcome = await coscientist.fail((await take(coscientist)).token, "safety_violation", "refused")
    assert (outcome.data or {})["reason"] == "safety_violation"
    assert await status(coscientist, task_id) == "Failed"


@pytest.mark.requirement("C-039", "C-042", "C-043", "C-045", "C-046")
async def test_submitted_task_is_returned_as_sent(coscientist: Queue, clock: MovedClock) -> None:
    await enqueue(coscientist, id="match-1")
    nested = {"pair": [{"id": 1}, {"id": 2}]}
    task_id = await enqueue(coscientist, id="match-2", payload=nested, timeout=100, dependencies=["match-1"])
    task = await viewed(coscientist, "coscientist", "match-2")
    assert (task["id"], task["payload"], task["timeout"]) == ("match-2", nested, 100)
    assert task["created_at"] == iso(clock())
    assert len(task["dependencies"]) == 1
    await finish(coscientist)
    assignment = await take(coscientist)
    assert (assignment.id, assignment.payload) == (task_id, nested)
    with pytest.raises(Exception, match="id_in_use"):
        await enqueue(coscientist, id="match-2", payload={"other": 1})


@pytest.mark.requirement("C-040")
@pytest.mark.parametrize("agent_type", ["Generation", "Reflection", "Ranking", "Evolution", "Proximity", "MetaReview"])
async def test_every_agent_type_is_accepted_and_shown(coscientist: Queue, agent_type: str) -> None:
    task_id = await enqueue(coscientist, agent_type=agent_type)
    assert (await viewed(coscientist, "coscientist", task_id))["agent_type"] == agent_type


@pytest.mark.requirement("C-041", "C-076")
async def test_priority_is_high_medium_or_low(coscientist: Queue) -> None:
    for number, level in enumerate(("High", "Medium", "Low")):
        task_id = await enqueue(coscientist, priority=level, payload={"n": number})
        assert (await viewed(coscientist, "coscientist", task_id))["priority"] == level
    depth = (await coscientist.status()).depth
    assert (depth["high"], depth["medium"], depth["low"]) == (1, 1, 1)
    with pytest.raises(InputError):
        await enqueue(coscientist, priority="Urgent")


@pytest.mark.requirement("C-074")
@pytest.mark.parametrize("wrong", [{"payload": "text"}, {"timeout": -1}, {"agent_type": ""}, {"colour": "red"}])
async def test_malformed_task_is_refused(coscientist: Queue, wrong: dict[str, object]) -> None:
    with pytest.raises(InputError):
        await enqueue(coscientist, **wrong)
    assert (await coscientist.tasks.list()).tasks == []


@pytest.mark.requirement("C-057", "C-058", "C-059", "C-060")
async def test_assignment_contains_task_and_deadlines(coscientist: Queue, clock: MovedClock) -> None:
    task_id = await enqueue(coscientist, payload={"n": 1}, timeout=100, priority="High")
    first = await take(coscientist)
    shown = VIEW.assignment_out(msgspec.to_builtins(await coscientist.get(task_id)))
    assert (shown["assignment_id"], shown["deadline"]) == (first.assignment_id, iso(clock() + 120))
    assert (shown["task"]["payload"], shown["task"]["priority"]) == ({"n": 1}, "High")
    await coscientist.release(first.token)
    (second,) = await coscientist.claim("worker")
    assert second.ack_required_by == clock() + 5
    assert second.assignment_id != first.assignment_id


@pytest.mark.requirement("C-049", "C-067", "C-068", "C-069", "C-071", "C-072", "C-073", "C-138")
async def test_completed_result_has_documented_fields(coscientist: Queue, clock: MovedClock) -> None:
    task_id = await enqueue(coscientist)
    token = (await take(coscientist, "worker-7")).token
    clock.advance(2)
    await coscientist.complete(token, {"winner": 1})
    result = VIEW.result_out(msgspec.to_builtins(await coscientist.result(task_id)))
    assert result == {
        "task_id": task_id,
        "status": "Completed",
        "result": {"winner": 1},
        "error": None,
        "execution_time": 2,
        "worker_id": "worker-7",
        "completed_at": iso(clock()),
    }


@pytest.mark.requirement("C-050", "C-068", "C-070", "C-263")
async def test_failed_result_has_status_and_error(coscientist: Queue) -> None:
    task_id = await enqueue(coscientist)
    await coscientist.fail((await take(coscientist)).token, "invalid_input", "no hypothesis 12")
    result = VIEW.result_out(msgspec.to_builtins((await coscientist.get(task_id)).result))
    assert (result["status"], result["error"]) == ("Failed", "no hypothesis 12")
    (failure,) = (await coscientist.get(task_id)).failure_history
    assert (failure.reason, failure.error) == ("invalid_input", "no hypothesis 12")


@pytest.mark.requirement("C-097")
async def test_partial_progress_is_kept_for_the_next_attempt(coscientist: Queue, clock: MovedClock) -> None:
    task_id = await enqueue(coscientist)
    await coscientist.claims.progress((await take(coscientist)).token, {"done": 3, "of": 10})
    await pass_time(coscientist, clock, 90)
    await take(coscientist)
    assert (await coscientist.get(task_id)).progress == {"done": 3, "of": 10}


@pytest.mark.requirement("C-171")
async def test_next_worker_gets_the_failure_history(coscientist: Queue, clock: MovedClock) -> None:
    await enqueue(coscientist)
    await coscientist.fail((await take(coscientist, "first")).token, "network", "connection reset")
    await pass_time(coscientist, clock, 8)
    assignment = await take(coscientist, "second")
    shown = VIEW.assignment_out(msgspec.to_builtins(await coscientist.get(assignment.id)))
    (failure,) = shown["task"]["failure_history"]
    assert (failure["agent"], failure["error"]) == ("first", "connection reset")


@pytest.mark.requirement("C-262")
async def test_transient_failures_end_in_success(coscientist: Queue, clock: MovedClock) -> None:
    task_id = await enqueue(coscientist)
    for reason in ("network", "transient_api"):
        await coscientist.fail((await take(coscientist)).token, reason)
        await pass_time(coscientist, clock, 45)
    assert await finish(coscientist) == task_id


@pytest.mark.requirement("C-144", "C-145", "C-146", "C-147", "C-037", "C-061", "C-003", "C-132", "C-137")
async def test_fifty_generation_tasks_complete_over_five_workers(coscientist: Queue) -> None:
    tasks = [VIEW.task_in({"agent_type": "Generation", "priority": "Medium", "payload": {"n": n}}) for n in range(50)]
    submitted = [made.id for made in await coscientist.submit_many(tasks)]
    assert (await coscientist.status()).depth["medium"] == 50
    done: list[str] = []
    while len(done) < 50:
        held = [await take(coscientist, f"worker-{n}") for n in range(5)]
        for assignment in held:
            await coscientist.complete(assignment.token)
            done.append(assignment.id)
    assert sorted(done) == sorted(submitted)
    assert (await coscientist.status()).counts == {"completed": 50}
