"""The lifecycle of one task: states, heartbeats, the cost of silence, validation and retries."""

from typing import Any

import pytest

from shiftwork import Queue
from shiftwork.model.errors import LeaseLost, WrongState
from shiftwork.testing import MovedClock, pass_time
from tests.conformance.steps import finish, states, take, viewed

URL_SCHEMA = {"type": "object", "required": ["url"], "properties": {"url": {"type": "string"}}}
PLAIN = {"jitter": False}


@pytest.mark.requirement("F-025", "F-026", "F-027", "F-053", "F-054", "F-061", "F-128", "F-129", "F-130")
@pytest.mark.requirement("F-049", "F-072", "F-073", "F-095")
async def test_task_is_claimed_started_and_completed(queue: Queue, clock: MovedClock) -> None:
    task_id = (await queue.submit(type="code")).id
    assert (await queue.get(task_id)).status == "ready"
    clock.advance(1)
    (assignment,) = await queue.claim("agent_coder_01")
    task = await queue.get(task_id)
    assert (task.status, task.started_at) == ("claimed", None)
    assert (task.claim.agent_id, task.claim.claimed_at) == ("agent_coder_01", clock())
    clock.advance(1)
    await queue.start(assignment.token)
    task = await queue.get(task_id)
    assert (task.status, task.started_at, task.completed_at) == ("running", clock(), None)
    clock.advance(1)
    await queue.complete(assignment.token, {"answer": 42})
    task = await queue.get(task_id)
    assert (task.status, task.completed_at) == ("completed", clock())
    assert task.output == {
        "type": None,
        "validation": "none",
        "validation_schema": None,
        "data": {"answer": 42},
        "artifacts": [],
    }
    assert (task.claim.agent_id, task.claim.claimed_at) == (None, None)


@pytest.mark.requirement("F-058", "F-070", "F-071", "F-074", "F-075", "F-227", "F-232", "F-237")
async def test_history_shows_every_state_passed(queue: Queue) -> None:
    task_id = (await queue.submit(type="code")).id
    await finish(queue)
    passed = ["created", "pending", "ready", "claimed", "running", "validating", "completed"]
    assert await states(queue, task_id) == passed


@pytest.mark.requirement("F-073")
async def test_start_without_a_claim_is_refused(queue: Queue) -> None:
    task_id = (await queue.submit(type="code")).id
    with pytest.raises(LeaseLost):
        await queue.start(f"{task_id}.1")
    assert (await queue.get(task_id)).status == "ready"


@pytest.mark.requirement("F-068", "F-082")
async def test_pending_task_can_be_cancelled(queue: Queue) -> None:
    await queue.submit(type="code", id="first")
    waiting = await queue.submit(type="code", dependencies=["first"])
    await queue.cancel(waiting.id, "not needed")
    task = await queue.get(waiting.id)
    assert (task.status, task.cancel_reason) == ("cancelled", "not needed")
    assert await states(queue, waiting.id) == ["created", "pending", "cancelled"]
    with pytest.raises(WrongState):
        await queue.cancel(waiting.id)


async def test_heartbeat_of_a_cancelled_run_says_cancel(queue: Queue) -> None:
    await queue.submit(type="code")
    token = (await take(queue)).token
    await queue.cancel(token.partition(".")[0], "not needed")
    answer = await queue.heartbeat(token)
    assert (answer.action, answer.reason) == ("cancel", "not needed")
    with pytest.raises(LeaseLost):
        await queue.complete(token)


@pytest.mark.requirement("F-055", "F-056", "F-263")
async def test_costs_and_tokens_add_up_over_heartbeats_and_attempts(queue: Queue, clock: MovedClock) -> None:
    task_id = (await queue.submit(type="code", retry=PLAIN)).id
    token = (await take(queue)).token
    await queue.heartbeat(token, usage={"cost_usd": 0.10, "tokens_in": 100, "tokens_out": 10})
    await queue.fail(token, "crash", usage={"cost_usd": 0.05, "tokens_in": 1})
    await pass_time(queue, clock, 10)
    await queue.complete((await take(queue)).token, usage={"cost_usd": 0.20, "tokens_out": 5})
    task = await queue.get(task_id)
    assert (task.cost_usd, task.tokens_used) == (0.35, {"input": 101, "output": 15})


@pytest.mark.requirement("F-050")
async def test_submitted_artifacts_are_read_back(queue: Queue) -> None:
    task_id = (await queue.submit(type="code")).id
    kept = (await queue.artifacts.put(b"patch")).id
    await queue.complete((await take(queue)).token, artifacts=[kept, "branch:fix-cors"])
    output = (await queue.get(task_id)).output
    assert output is not None
    assert output["artifacts"] == [kept, "branch:fix-cors"]


@pytest.mark.requirement("F-030", "F-065", "F-066", "F-067", "F-077", "F-078", "F-081", "F-199")
async def test_three_failures_make_a_dead_letter(queue: Queue, clock: MovedClock) -> None:
    task_id = (await queue.submit(type="code", retry=PLAIN)).id
    for attempt in (1, 2):
        await queue.fail((await take(queue)).token, "crash")
        task = await queue.get(task_id)
        assert (task.status, task.attempts, task.available_at) == (
            "retrying",
            attempt,
            clock() + 10 * attempt,
        )
        assert [failure.agent for failure in task.failure_history] == ["worker"] * attempt
        assert await queue.claim("worker") == []
        await pass_time(queue, clock, 10 * attempt)
        assert (await queue.get(task_id)).status == "ready"
    await queue.fail((await take(queue)).token, "crash")
    assert (await queue.get(task_id)).status == "dead_lettered"
    attempts = ["claimed", "running", "failed", "retrying", "ready"] * 2
    assert (await states(queue, task_id))[3:] == [*attempts, "claimed", "running", "failed", "dead_lettered"]


@pytest.mark.requirement("F-156", "F-230")
async def test_factory_view_shows_text_of_the_last_failure(queue: Queue, clock: MovedClock) -> None:
    task_id = (await queue.submit(type="code", retry=PLAIN)).id
    await queue.fail((await take(queue)).token, error="boom")
    task = await viewed(queue, "factory", task_id)
    assert (task["failure_reason"], task["attempts"], task["status"]) == ("boom", 1, "RETRYING")
    assert (await states(queue, task_id))[-2:] == ["failed", "retrying"]
    await pass_time(queue, clock, 10)
    await take(queue)
    await pass_time(queue, clock, 90)
    task = await viewed(queue, "factory", task_id)
    assert task["failure_reason"] == "heartbeat_timeout"


@pytest.mark.parametrize(
    "reason",
    [
        pytest.param("timeout", marks=pytest.mark.requirement("F-038")),
        pytest.param("crash", marks=pytest.mark.requirement("F-039")),
        pytest.param("rate_limit", marks=pytest.mark.requirement("F-040")),
        pytest.param("words of the agent's own"),
    ],
)
async def test_retryable_reasons_are_retried(queue: Queue, reason: str) -> None:
    await queue.submit(type="code")
    assert (await queue.fail((await take(queue)).token, reason)).status == "retrying"


@pytest.mark.parametrize(
    "reason",
    [
        pytest.param("auth_failure", marks=pytest.mark.requirement("F-043")),
        pytest.param("budget_exceeded", marks=pytest.mark.requirement("F-044")),
        pytest.param("cancelled", marks=pytest.mark.requirement("F-045")),
    ],
)
async def test_final_reasons_are_never_retried(queue: Queue, clock: MovedClock, reason: str) -> None:
    task_id = (await queue.submit(type="code")).id
    await queue.fail((await take(queue)).token, reason)
    await pass_time(queue, clock, 3600)
    assert (await states(queue, task_id))[-2:] == ["failed", "dead_lettered"]
    assert await queue.claim("worker") == []


@pytest.mark.parametrize(
    ("retry", "delays"),
    [
        pytest.param({"jitter": False}, [10, 20, 40], marks=pytest.mark.requirement("F-033", "F-034", "F-036")),
        pytest.param(
            {"jitter": False, "initial_delay_sec": 200},
            [200, 300, 300],
            marks=pytest.mark.requirement("F-035"),
        ),
        pytest.param({"jitter": False, "strategy": "fixed"}, [10, 10, 10]),
        pytest.param({"jitter": False, "strategy": "immediate"}, [0, 0, 0]),
    ],
)
@pytest.mark.requirement("F-032")
async def test_retry_delays_follow_the_strategy(
    queue: Queue, clock: MovedClock, retry: dict[str, Any], delays: list[int]
) -> None:
    task_id = (await queue.submit(type="code", max_attempts=4, retry=retry)).id
    waited = []
    for _ in delays:
        await queue.fail((await take(queue)).token, "crash")
        waited.append(((await queue.get(task_id)).available_at or clock()) - clock())
        await pass_time(queue, clock, waited[-1])
    assert waited == delays


@pytest.mark.requirement("F-019")
async def test_fallback_models_apply_from_the_second_failure(queue: Queue, clock: MovedClock) -> None:
    models = {"model_preferences": ["claude-sonnet-4"], "fallback_models": ["claude-haiku"]}
    task_id = (await queue.submit(type="code", spec={"constraints": models}, retry=PLAIN)).id
    for expected in ("claude-sonnet-4", "claude-haiku"):
        await queue.fail((await take(queue, models=["claude-sonnet-4"])).token, "crash")
        await pass_time(queue, clock, 20)
        spec = (await queue.get(task_id)).spec
        assert spec is not None
        assert spec["constraints"]["model_preferences"] == [expected]
    assert (await take(queue, "small", models=["claude-haiku"])).id == task_id


@pytest.mark.requirement("F-062", "F-079", "F-153", "F-154", "F-155", "F-157", "F-158")
async def test_silent_run_is_reclaimed_after_90_seconds(queue: Queue, clock: MovedClock) -> None:
    task_id = (await queue.submit(type="code")).id
    token = (await take(queue)).token
    await pass_time(queue, clock, 89)
    task = await queue.get(task_id)
    assert (task.status, task.attempts) == ("running", 0)
    await pass_time(queue, clock, 1)
    task = await queue.get(task_id)
    assert (task.status, task.attempts, task.failure_reason) == ("retrying", 1, "heartbeat_timeout")
    assert (await states(queue, task_id))[-3:] == ["running", "failed", "retrying"]
    with pytest.raises(LeaseLost):
        await queue.complete(token)


@pytest.mark.requirement("F-028", "F-151", "F-152")
async def test_heartbeat_keeps_the_run_and_carries_progress(queue: Queue, clock: MovedClock) -> None:
    task_id = (await queue.submit(type="code")).id
    (assignment,) = await queue.claim("worker")
    assert (await queue.get(task_id)).claim.heartbeat_at is None
    await queue.start(assignment.token)
    await pass_time(queue, clock, 80)
    assert (await queue.heartbeat(assignment.token, {"pct": 40})).action == "continue"
    heartbeat_at = clock()
    await pass_time(queue, clock, 89)
    task = await queue.get(task_id)
    assert (task.status, task.claim.heartbeat_at, task.progress) == ("running", heartbeat_at, {"pct": 40})
    await queue.heartbeat(assignment.token)
    task = await queue.get(task_id)
    assert (task.claim.heartbeat_at, task.progress) == (clock(), {"pct": 40})


@pytest.mark.requirement("F-080", "F-149")
async def test_claim_not_started_within_60_seconds_expires(queue: Queue, clock: MovedClock) -> None:
    task_id = (await queue.submit(type="code")).id
    (assignment,) = await queue.claim("worker")
    assert assignment.ack_required_by == clock() + 60
    await pass_time(queue, clock, 59)
    assert (await queue.get(task_id)).status == "claimed"
    await pass_time(queue, clock, 1)
    task = await queue.get(task_id)
    assert (task.status, task.failure_reason) == ("retrying", "claim_expired")
    assert (await states(queue, task_id))[-3:] == ["claimed", "failed", "retrying"]


@pytest.mark.requirement("F-149")
async def test_start_after_59_seconds_is_accepted(queue: Queue, clock: MovedClock) -> None:
    await queue.submit(type="code")
    (assignment,) = await queue.claim("worker")
    await pass_time(queue, clock, 59)
    assert (await queue.start(assignment.token)).status == "running"


@pytest.mark.requirement("F-016")
async def test_run_over_its_time_limit_fails_despite_heartbeats(queue: Queue, clock: MovedClock) -> None:
    spec = {"constraints": {"max_duration_sec": 300}}
    task_id = (await queue.submit(type="code", spec=spec)).id
    assignment = await take(queue)
    assert assignment.execution_deadline == clock() + 300
    for _ in range(5):
        await pass_time(queue, clock, 59.9)
        await queue.heartbeat(assignment.token)
    assert (await queue.get(task_id)).status == "running"
    await pass_time(queue, clock, 0.5)
    task = await queue.get(task_id)
    assert (task.status, task.failure_reason, task.last_error) == ("retrying", "timeout", "Timeout after 300s")


@pytest.mark.requirement("F-233", "F-228")
async def test_output_matching_its_schema_is_accepted(queue: Queue, clock: MovedClock) -> None:
    output = {"type": "json", "validation": "json-schema", "validation_schema": URL_SCHEMA}
    first = await queue.submit(type="research", output=output)
    then = await queue.submit(type="code", dependencies=[first.id])
    await queue.complete((await take(queue)).token, {"url": "https://example.org"})
    task = await queue.get(first.id)
    assert (task.status, task.completed_at) == ("completed", clock())
    assert task.output == {**output, "data": {"url": "https://example.org"}, "artifacts": []}
    assert (await queue.get(then.id)).status == "ready"


@pytest.mark.requirement("F-041", "F-063", "F-076", "F-229", "F-233")
async def test_output_violating_its_schema_fails_the_attempt(queue: Queue, clock: MovedClock) -> None:
    output = {"validation": "json-schema", "validation_schema": URL_SCHEMA}
    task_id = (await queue.submit(type="research", output=output, retry=PLAIN)).id
    answer = await queue.complete((await take(queue)).token, {"link": "https://example.org"})
    assert answer.status == "retrying"
    task = await queue.get(task_id)
    assert (task.status, task.attempts, task.failure_reason) == ("retrying", 1, "invalid_output")
    assert task.last_error == 'output: "url" is a required property'
    assert (await viewed(queue, "factory", task_id))["failure_reason"] == task.last_error
    assert (await states(queue, task_id))[-4:] == ["running", "validating", "failed", "retrying"]
    await pass_time(queue, clock, 10)
    await queue.complete((await take(queue)).token, {"url": "https://example.org"})
    assert (await queue.get(task_id)).status == "completed"


async def test_repeated_result_is_accepted_once(queue: Queue) -> None:
    task_id = (await queue.submit(type="code")).id
    token = (await take(queue)).token
    await queue.complete(token, {"n": 1})
    again = await queue.complete(token, {"n": 2})
    assert (again.status, again.repeated) == ("completed", True)
    assert (await queue.result(task_id)).data == {"n": 1}


@pytest.mark.requirement("C-111")
async def test_silent_at_most_once_task_is_never_started_again(queue: Queue, clock: MovedClock) -> None:
    task_id = (await queue.submit(type="code", delivery="at_most_once")).id
    await take(queue)
    await pass_time(queue, clock, 90)
    task = await queue.get(task_id)
    assert (task.status, task.failure_reason) == ("dead_lettered", "delivery_unknown")
    await pass_time(queue, clock, 3600)
    assert await queue.claim("worker") == []


@pytest.mark.requirement("C-111")
@pytest.mark.parametrize("end", ["fail", "release", "runtime_gone"])
async def test_started_at_most_once_task_is_not_started_again(queue: Queue, end: str) -> None:
    await queue.settings.set("delivery", "at_most_once", type="email")
    task_id = (await queue.submit(type="email")).id
    token = (await take(queue)).token
    if end == "fail":
        await queue.fail(token, "crash")
    elif end == "release":
        await queue.release(token)
    else:
        await queue.runtimes.report_gone("worker")
    assert (await queue.get(task_id)).status == "dead_lettered"
    assert await queue.claim("worker") == []


async def test_unstarted_at_most_once_task_is_retried(queue: Queue, clock: MovedClock) -> None:
    task_id = (await queue.submit(type="email", delivery="at_most_once", retry=PLAIN)).id
    await queue.claim("worker")
    await pass_time(queue, clock, 60)
    await pass_time(queue, clock, 10)
    assert (await take(queue)).id == task_id
