"""Which claim a write by task id refers to, and how a repeated claim is answered."""

from collections.abc import Awaitable, Callable

import pytest

from shiftwork import Queue, Usage
from shiftwork.engine.engine import IdempotentRequest
from shiftwork.model.errors import LeaseLost, NotFound, NotYourClaim, WrongState
from shiftwork.model.outcome import Outcome
from shiftwork.model.reports import Completion, Failure, Heartbeat
from shiftwork.testing import MovedClock, pass_time
from tests.conformance.steps import take


def with_token(queue: Queue, token_id: str) -> Queue:
    return queue.for_caller(queue.caller._replace(holder=token_id))


def by_request(queue: Queue, request_id: str) -> Queue:
    return queue.as_caller("system", request_id)


async def test_task_id_resolves_to_the_current_claim(queue: Queue) -> None:
    await queue.submit(type="code", id="mine")
    (claim,) = await queue.claim("coder", runtime_id="r-1")
    for task_id in ("mine", claim.id, claim.id.removeprefix("task_")):
        assert await queue.claims.current_token(task_id) == claim.token
    for named in ({"agent_id": "coder"}, {"runtime_id": "r-1"}, {"agent_id": "coder", "runtime_id": "r-1"}):
        assert await queue.claims.current_token("mine", **named) == claim.token
    await queue.start(claim.token)
    assert await queue.claims.current_token("mine", agent_id="coder") == claim.token


@pytest.mark.parametrize(
    "named", [{"agent_id": "other"}, {"runtime_id": "other"}, {"agent_id": "coder", "runtime_id": "other"}], ids=str
)
async def test_claim_of_another_agent_is_refused_by_task_id(queue: Queue, named: dict[str, str]) -> None:
    await queue.submit(type="code")
    (claim,) = await queue.claim("coder", runtime_id="r-1")
    with pytest.raises(NotYourClaim) as refused:
        await queue.claims.current_token(claim.id, **named)
    assert refused.value.facts["status"] == "claimed"


async def test_claim_made_with_another_token_is_refused_by_task_id(queue: Queue) -> None:
    await queue.submit(type="code")
    (claim,) = await with_token(queue, "A").claim("coder")
    assert await with_token(queue, "A").claims.current_token(claim.id) == claim.token
    with pytest.raises(NotYourClaim):
        await with_token(queue, "B").claims.current_token(claim.id)


async def test_task_never_claimed_has_no_current_token(queue: Queue) -> None:
    ready = await queue.submit(type="code")
    pending = await queue.submit(type="code", dependencies=[ready.id])
    await queue.submit(type="code", id="gone")
    await queue.cancel("gone")
    for task_id, status in ((ready.id, "ready"), (pending.id, "pending"), ("gone", "cancelled")):
        for named in ({}, {"agent_id": "coder"}):
            with pytest.raises(WrongState) as refused:
                await queue.claims.current_token(task_id, **named)
            assert refused.value.facts["status"] == status


async def test_current_token_of_unknown_task_is_not_found(queue: Queue) -> None:
    made = await queue.submit(type="code")
    await queue.claim("coder")
    for other, task_id in ((queue, "nothing"), (queue.in_workspace("other"), made.id)):
        with pytest.raises(NotFound):
            await other.claims.current_token(task_id)


BATCHES: dict[str, Callable[[Queue, list[str]], Awaitable[list[Outcome]]]] = {
    "start": lambda queue, tokens: queue.batch.start(tokens),
    "complete": lambda queue, tokens: queue.batch.complete([Completion(1, token=token) for token in tokens]),
    "fail": lambda queue, tokens: queue.batch.fail([Failure("crash", token=token) for token in tokens]),
    "release": lambda queue, tokens: queue.batch.release(tokens),
}


@pytest.mark.parametrize("verb", BATCHES)
async def test_unknown_task_in_a_batch_is_refused_alone(queue: Queue, verb: str) -> None:
    await queue.submit({"type": "x", "id": "job-1"})
    (claim,) = await queue.claim("ada", start=verb != "start")
    messages = await BATCHES[verb](queue, ["job-9.1", f"job-1.{claim.fence}", "job-8.1"])
    assert [outcome.error and outcome.error.code for outcome in messages] == ["not_found", None, "not_found"]
    assert [messages[0].task_id, messages[1].task_id, messages[2].task_id] == ["job-9", claim.id, "job-8"]
    with pytest.raises(NotFound):
        (await BATCHES[verb](queue, ["job-9.1"]))[0].unwrap()


async def test_repeated_batch_gets_same_answer_after_its_name_exists(queue: Queue) -> None:
    await queue.submit({"type": "x", "id": "job-1"})
    await queue.claim("ada", start=True)
    caller = queue.caller._replace(idempotency=IdempotentRequest("key", "same"))
    reports = [Completion(1, token="job-1.1"), Completion(1, token="job-9.1")]
    first = await queue.for_caller(caller).batch.complete(reports)
    await queue.submit({"type": "x", "id": "job-9"})
    again = await queue.for_caller(caller._replace(idempotency=IdempotentRequest("key", "same"))).batch.complete(
        reports
    )
    assert [(outcome.task_id, outcome.status) for outcome in again] == [
        (result.task_id, result.status) for result in first
    ]


async def test_heartbeat_for_unknown_task_is_lost_alone(queue: Queue) -> None:
    await queue.submit({"type": "x", "id": "job-1"})
    (claim,) = await queue.claim("ada", runtime_id="host", start=True)
    beats = await queue.batch.heartbeat([Heartbeat("job-9.1"), Heartbeat("job-1.1", None, Usage(cost_usd=1))])
    assert [(beat.task_id, beat.action) for beat in beats] == [("job-9", "lost"), (claim.id, "continue")]
    assert (await queue.get(claim.id)).cost_usd == 1
    with pytest.raises(NotFound):
        await queue.heartbeat("job-9.1")
    answer = await queue.runtimes.heartbeat("host", ["job-9.1", "job-1.1"])
    assert (answer.lost, answer.unnamed) == (["job-9.1"], [])


async def test_result_repeated_by_task_id_is_marked_repeated(queue: Queue) -> None:
    await queue.submit(type="code")
    claim = await take(queue, "coder", runtime_id="r-1")
    await queue.complete(await queue.claims.current_token(claim.id, runtime_id="r-1"), 1)
    for named in ({"agent_id": "coder"}, {"runtime_id": "r-1"}, {}):
        assert (await queue.complete(await queue.claims.current_token(claim.id, **named), 1)).repeated


async def test_failure_repeated_by_task_id_is_marked_repeated(queue: Queue) -> None:
    await queue.submit(type="code")
    claim = await take(queue, "coder")
    await queue.fail(await queue.claims.current_token(claim.id, agent_id="coder"), "crash")
    again = await queue.fail(await queue.claims.current_token(claim.id, agent_id="coder"), "crash")
    assert (again.status, again.repeated) == ("retrying", True)
    assert (await queue.get(claim.id)).attempts == 1


async def test_ended_task_is_refused_for_agents_without_last_attempt(queue: Queue) -> None:
    await queue.submit(type="code")
    claim = await take(with_token(queue, "A"), "coder")
    await queue.complete(claim.token)
    for named in ({"agent_id": "other"}, {"runtime_id": "other"}):
        with pytest.raises(WrongState) as refused:
            await queue.claims.current_token(claim.id, **named)
        assert refused.value.facts["status"] == "completed"
    with pytest.raises(WrongState):
        await with_token(queue, "B").claims.current_token(claim.id)


async def test_late_write_by_task_id_is_refused_with_lease_lost(queue: Queue, clock: MovedClock) -> None:
    await queue.submit(type="code", retry={"strategy": "immediate"})
    claim = await take(queue, "coder")
    await pass_time(queue, clock, 91)
    late = await queue.claims.current_token(claim.id, agent_id="coder")
    assert late == claim.token
    with pytest.raises(LeaseLost):
        await queue.complete(late, 1)
    await take(queue, "other")
    with pytest.raises(NotYourClaim):
        await queue.claims.current_token(claim.id, agent_id="coder")


async def test_heartbeat_by_task_id_reports_a_cancelled_task(queue: Queue) -> None:
    await queue.submit(type="code")
    claim = await take(queue, "coder")
    await queue.cancel(claim.id, "unwanted")
    beat = await queue.heartbeat(await queue.claims.current_token(claim.id, agent_id="coder"))
    assert (beat.action, beat.reason) == ("cancel", "unwanted")


async def test_retry_as_new_task_does_not_inherit_the_old_claim(queue: Queue) -> None:
    await queue.submit(type="code", retry={"mode": "new_task", "strategy": "immediate"})
    claim = await take(queue, "coder")
    await queue.fail(claim.token, "crash")
    (retry,) = (await queue.tasks.list(status="ready")).tasks
    with pytest.raises(WrongState):
        await queue.claims.current_token(retry.id, agent_id="coder")
    assert (await queue.fail(await queue.claims.current_token(claim.id, agent_id="coder"), "crash")).repeated


async def test_claims_are_found_by_request_id(queue: Queue) -> None:
    made = await queue.submit_many([{"type": "code"}] * 5)
    await queue.agents.register(id="coder", max_concurrent_tasks=5)
    first = await by_request(queue, "r-1").claim("coder", 2)
    second = await by_request(queue, "r-2").claim("coder", 2, start=True)
    await queue.claim("coder")
    tasks = await queue.claims.made_by_request("coder", "r-1")
    assert [task.id for task in tasks] == [task.id for task in made[:2]]
    assert [task.claim.assignment_id for task in tasks] == [claim.token for claim in first]
    assert tasks == [claim.task() for claim in first]
    assert [task.claim.assignment_id for task in await queue.claims.made_by_request("coder", "r-2")] == [
        c.token for c in second
    ]
    for who, request_id in (("other", "r-1"), ("coder", "r-3"), ("coder", "")):
        assert await queue.claims.made_by_request(who, request_id) == []


async def test_ended_claims_are_not_found_by_request_id(queue: Queue) -> None:
    await queue.submit_many([{"type": "code"}] * 4)
    await queue.agents.register(id="coder", max_concurrent_tasks=5)
    done, failed, released, kept = await by_request(queue, "r-1").claim("coder", 4, start=True)
    await queue.complete(done.token)
    await queue.fail(failed.token, "crash")
    await queue.release(released.token)
    await by_request(queue, "r-2").claim("coder")
    assert [task.id for task in await queue.claims.made_by_request("coder", "r-1")] == [kept.id]


async def test_reclaimed_task_belongs_to_the_later_request(queue: Queue) -> None:
    await queue.submit(type="code")
    (first,) = await by_request(queue, "r-1").claim("coder")
    await queue.release(first.token)
    await by_request(queue, "r-2").claim("coder")
    assert await queue.claims.made_by_request("coder", "r-1") == []
    assert [task.id for task in await queue.claims.made_by_request("coder", "r-2")] == [first.id]


async def test_runtime_finds_its_claims_for_all_agents(queue: Queue) -> None:
    made = await queue.submit_many([{"type": "code", "target_agent_id": name} for name in ("ada", "bob")])
    await by_request(queue, "r-1").claims.for_runtime("r", 2)
    assert {task.id for task in await queue.claims.made_by_request("r", "r-1")} == {task.id for task in made}
    assert len(await queue.claims.made_by_request("ada", "r-1")) == 1


async def test_claims_of_other_tokens_and_workspaces_are_not_found(queue: Queue) -> None:
    await queue.submit(type="code")
    await by_request(with_token(queue, "A"), "r-1").claim("coder")
    assert len(await with_token(queue, "A").claims.made_by_request("coder", "r-1")) == 1
    assert len(await queue.claims.made_by_request("coder", "r-1")) == 1
    assert await with_token(queue, "B").claims.made_by_request("coder", "r-1") == []
    assert await queue.in_workspace("other").claims.made_by_request("coder", "r-1") == []
