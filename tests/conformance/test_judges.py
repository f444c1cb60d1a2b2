"""Outputs are judged by another agent: its verdict accepts or rejects them."""

from typing import Any

import pytest

from shiftwork import Completion, Queue
from shiftwork.maintenance.loop import run_once
from shiftwork.testing import MovedClock, pass_time
from tests.conformance.steps import sql, take
from tests.conformance.test_validation import JUDGED, submit_result, task_of


async def judge(queue: Queue, answer: Any, agent: str = "critic") -> str:
    assignment = await take(queue, agent, types=["judge"], capabilities=["judge"])
    return str((await queue.complete(assignment.token, answer)).status)


@pytest.mark.requirement("F-047", "F-235")
@pytest.mark.parametrize("text", ["accept", "reject"])
async def test_judge_verdict_accepts_or_rejects_the_output(queue: Queue, text: str) -> None:
    token = await submit_result(
        queue, JUDGED, "a summary", spec={"prompt": "Summarise it"}, payload={"url": "u"}, title="Summary"
    )
    child = (await queue.submit(type="mail", dependencies=[task_of(token)], target_agent_id="mailer")).id
    task = await queue.get(task_of(token))
    assert (task.status, task.claim.agent_id) == ("validating", "ada")
    asked = await queue.get(task.judge_task_id or "")
    assert (asked.type, asked.status, asked.priority) == ("judge", "ready", task.priority)
    assert asked.payload == {
        "task_id": task.id,
        "type": "code",
        "title": "Summary",
        "prompt": "Summarise it",
        "payload": {"url": "u"},
        "criteria": JUDGED["validation_schema"],
        "output": {"data": "a summary"},
        "author": "ada",
    }
    assert await queue.claim("critic") == []  # it has not the capability
    assert await judge(queue, {"verdict": text, "reasons": ["too short"]}) == "completed"
    task = await queue.get(task.id)
    assert task.status == ("completed" if text == "accept" else "retrying")
    assert (await queue.get(child)).status == ("ready" if text == "accept" else "pending")
    (attempt,) = await queue.tasks.attempts(task.id)
    assert attempt.verdict is not None
    assert (attempt.verdict.method, attempt.verdict.by) == ("llm-judge", "agent:critic")
    assert (attempt.verdict.passed, attempt.verdict.reasons) == (text == "accept", ["too short"])
    assert attempt.verdict.evidence == {"task_id": asked.id}
    if text == "reject":
        assert (task.failure_reason, task.last_error) == ("invalid_output", "too short")


async def test_invalid_verdict_of_a_judge_is_retried(queue: Queue, clock: MovedClock) -> None:
    token = await submit_result(queue, JUDGED)
    assert await judge(queue, {"verdict": "perhaps"}) == "retrying"
    assert (await queue.get(task_of(token))).status == "validating"
    await pass_time(queue, clock, 60)
    assert await judge(queue, {"verdict": "accept"}) == "completed"
    assert (await queue.get(task_of(token))).status == "completed"


@pytest.mark.parametrize("mode", ["same_task", "new_task"])
async def test_judge_can_need_several_attempts(queue: Queue, clock: MovedClock, mode: str) -> None:
    await queue.settings.set("retry", {"mode": mode, "strategy": "immediate"})
    token = await submit_result(queue, JUDGED)
    held = await take(queue, "critic", capabilities=["judge"])
    await queue.fail(held.token, "crash")
    await run_once(queue.engine, force=True)
    assert (await queue.get(task_of(token))).status == "validating"
    assert await judge(queue, {"verdict": "accept"}) == "completed"
    assert (await queue.get(task_of(token))).status == "completed"


async def test_author_judges_its_own_output_only_without_other_judges(queue: Queue, clock: MovedClock) -> None:
    for name in ("ada", "bob"):
        await queue.agents.register(id=name, capabilities=["judge"])
    first = await submit_result(queue, JUDGED)
    assert await queue.claim("ada") == []
    held = await take(queue, "bob")
    await queue.fail(held.token, "crash")
    await pass_time(queue, clock, 20)
    for name in ("ada", "bob"):
        await queue.agents.heartbeat(name)
    assert await queue.claim("ada") == []  # who failed at it is still better than who made it
    await queue.agents.set_status("bob", "offline")
    assert await judge(queue, {"verdict": "accept"}, "ada") == "completed"
    assert (await queue.get(task_of(first))).status == "completed"


@pytest.mark.parametrize("end", ["cancelled", "dead_lettered"])
async def test_judge_ending_without_a_verdict_fails_the_attempt(queue: Queue, clock: MovedClock, end: str) -> None:
    token = await submit_result(queue, JUDGED, "a summary")
    asked = (await queue.get(task_of(token))).judge_task_id or ""
    if end == "cancelled":
        await queue.cancel(asked, "no judges today")
    else:
        held = await take(queue, "critic", capabilities=["judge"])
        await queue.fail(held.token, "crash", retry=False)
    await pass_time(queue, clock, 2)
    task = await queue.get(task_of(token))
    assert (task.status, task.failure_reason, task.attempts) == ("retrying", "resource_unavailable", 1)
    assert f"its judging task {asked} ended" in str(task.last_error)
    assert task.result is not None
    assert task.result.data == "a summary"


@pytest.mark.parametrize("claimed", [True, False])
async def test_cancelling_a_judged_task_cancels_its_judge(queue: Queue, *, claimed: bool) -> None:
    token = await submit_result(queue, JUDGED)
    asked = (await queue.get(task_of(token))).judge_task_id or ""
    held = await take(queue, "critic", capabilities=["judge"]) if claimed else None
    await queue.cancel(task_of(token))
    judging = await queue.get(asked)
    assert (judging.status, "no longer needed" in str(judging.cancel_reason)) == ("cancelled", True)
    if held is not None:
        assert (await queue.heartbeat(held.token)).action == "cancel"
    assert await sql(queue, "select * from outputs") == []


async def test_purge_of_a_judged_task_cancels_its_judge(queue: Queue) -> None:
    await queue.settings.set("purge.mode", "delete")
    await submit_result(queue, JUDGED)
    assert await queue.control.purge(status=["ready"]) == 1
    assert await queue.control.purge(status=["validating"], held=True) == 0  # what is held is not deleted
    await queue.settings.set("purge.mode", "cancel")
    assert await queue.control.purge(status=["validating"], held=True) == 1
    assert (await queue.status()).counts == {"cancelled": 1}


async def test_judge_is_not_part_of_the_dag_and_delays_its_end(queue: Queue) -> None:
    made = await queue.submit_dag({"tasks": [{"type": "code", "output": JUDGED, "target_agent_id": "ada"}]})
    dag_id = made[0].dag_id or ""
    token = (await take(queue, "ada")).token
    await queue.complete(token, "a")
    dag = await queue.dags.get(dag_id)
    assert (dag.status, dag.total, dag.counts) == ("running", 1, {"validating": 1})
    await judge(queue, {"verdict": "accept"})
    assert (await queue.dags.get(dag_id)).status == "completed"
    assert (await queue.get(task_of(token))).dag_id == dag_id


async def test_judge_is_accepted_in_a_full_queue(queue: Queue) -> None:
    await queue.submit(type="code", output=JUDGED)
    token = (await take(queue, "ada")).token
    await queue.settings.change({"max_queue_size": 1, "overflow": "reject"})
    await queue.submit(type="filler")
    assert (await queue.complete(token, "a")).status == "validating"
    assert await judge(queue, {"verdict": "accept"}) == "completed"
    assert (await queue.get(task_of(token))).status == "completed"


async def test_output_too_large_to_judge_is_invalid(queue: Queue) -> None:
    await queue.submit(type="code", output=JUDGED)
    await queue.submit(type="plain")
    await queue.agents.register(id="ada", max_concurrent_tasks=2)
    held = {each.type: each for each in await queue.claim("ada", 2, start=True)}
    reports = [Completion("x" * 2_000_000, token=held["code"].token), Completion(1, token=held["plain"].token)]
    assert [o.status for o in await queue.batch.complete(reports)] == ["retrying", "completed"]
    assert "artifact" in str((await queue.get(held["code"].id)).last_error)


async def test_judge_exceeding_the_time_limit_fails_the_attempt(queue: Queue, clock: MovedClock) -> None:
    await queue.submit(type="code", output=JUDGED, timeout_sec=100, target_agent_id="ada")
    token = (await take(queue, "ada")).token
    clock.advance(99)
    await queue.complete(token, "late")
    await pass_time(queue, clock, 99)
    assert (await queue.get(task_of(token))).status == "validating"  # the judge has as long as the work had
    asked = (await queue.get(task_of(token))).judge_task_id or ""
    await pass_time(queue, clock, 2)
    assert (await queue.get(task_of(token))).failure_reason == "timeout"
    assert (await queue.get(asked)).status == "cancelled"
