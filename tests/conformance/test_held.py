"""Which claim a write by the task's id alone means, and what a claim that is sent again is answered with."""

from collections.abc import Awaitable, Callable

import pytest

from shiftwork import Queue
from shiftwork.core.errors import LeaseLost, NotFound, NotYourClaim, WrongState
from shiftwork.queue.engine import Once
from shiftwork.queue.face.working import Problem, Report
from shiftwork.queue.fence import Outcome
from shiftwork.testing import MovedClock, pass_time
from tests.conformance.steps import take


def with_token(queue: Queue, token_id: str) -> Queue:
    return queue.speaking_as(queue.caller._replace(holder=token_id))


def by_request(queue: Queue, request_id: str) -> Queue:
    return queue.as_caller("system", request_id)


# -- writes that name no claim -----------------------------------------------------------------------------------


async def test_the_claim_that_holds_a_task_is_meant(queue: Queue) -> None:
    await queue.submit(type="code", id="mine")
    (claim,) = await queue.claim("coder", runtime_id="r-1")
    for task_id in ("mine", claim.id, claim.id.removeprefix("task_")):
        assert await queue.current_token(task_id) == claim.token
    for named in ({"agent_id": "coder"}, {"runtime_id": "r-1"}, {"agent_id": "coder", "runtime_id": "r-1"}):
        assert await queue.current_token("mine", **named) == claim.token
    await queue.start(claim.token)
    assert await queue.current_token("mine", agent_id="coder") == claim.token


@pytest.mark.parametrize(
    "named", [{"agent_id": "other"}, {"runtime_id": "other"}, {"agent_id": "coder", "runtime_id": "other"}], ids=str
)
async def test_somebody_else_s_claim_is_not_meant(queue: Queue, named: dict[str, str]) -> None:
    await queue.submit(type="code")
    (claim,) = await queue.claim("coder", runtime_id="r-1")
    with pytest.raises(NotYourClaim) as refused:
        await queue.current_token(claim.id, **named)
    assert refused.value.facts["status"] == "claimed"


async def test_a_claim_made_with_another_token_is_not_meant(queue: Queue) -> None:
    await queue.submit(type="code")
    (claim,) = await with_token(queue, "A").claim("coder")
    assert await with_token(queue, "A").current_token(claim.id) == claim.token
    with pytest.raises(NotYourClaim):
        await with_token(queue, "B").current_token(claim.id)


async def test_a_task_that_nobody_ever_held_has_no_claim(queue: Queue) -> None:
    ready = await queue.submit(type="code")
    pending = await queue.submit(type="code", dependencies=[ready.id])
    await queue.submit(type="code", id="gone")
    await queue.cancel("gone")
    for task_id, status in ((ready.id, "ready"), (pending.id, "pending"), ("gone", "cancelled")):
        for named in ({}, {"agent_id": "coder"}):
            with pytest.raises(WrongState) as refused:
                await queue.current_token(task_id, **named)
            assert refused.value.facts["status"] == status


async def test_a_task_that_is_not_there_is_not_found(queue: Queue) -> None:
    made = await queue.submit(type="code")
    await queue.claim("coder")
    for other, task_id in ((queue, "nothing"), (queue.in_workspace("other"), made.id)):
        with pytest.raises(NotFound):
            await other.current_token(task_id)


BATCHES: dict[str, Callable[[Queue, list[str]], Awaitable[list[Outcome]]]] = {
    "start": lambda queue, tokens: queue.start_many(tokens),
    "complete": lambda queue, tokens: queue.complete_many([Report(token, 1) for token in tokens]),
    "fail": lambda queue, tokens: queue.fail_many([Problem(token, "crash") for token in tokens]),
    "release": lambda queue, tokens: queue.release_many(tokens),
}


@pytest.mark.parametrize("verb", BATCHES)
async def test_a_name_that_no_task_has_is_refused_alone(queue: Queue, verb: str) -> None:
    await queue.submit({"type": "x", "id": "job-1"})
    (claim,) = await queue.claim("ada", start=verb != "start")
    told = await BATCHES[verb](queue, ["job-9.1", f"job-1.{claim.fence}", "job-8.1"])
    assert [outcome.error and outcome.error.code for outcome in told] == ["not_found", None, "not_found"]
    assert [told[0].task_id, told[1].task_id, told[2].task_id] == ["job-9", claim.id, "job-8"]
    with pytest.raises(NotFound):
        (await BATCHES[verb](queue, ["job-9.1"]))[0].unwrap()


async def test_a_batch_sent_again_is_told_the_same_though_its_name_has_come_to_be(queue: Queue) -> None:
    await queue.submit({"type": "x", "id": "job-1"})
    await queue.claim("ada", start=True)
    caller = queue.caller._replace(once=Once("key", "same"))
    reports = [Report("job-1.1", 1), Report("job-9.1", 1)]
    first = await queue.speaking_as(caller).complete_many(reports)
    await queue.submit({"type": "x", "id": "job-9"})
    again = await queue.speaking_as(caller._replace(once=Once("key", "same"))).complete_many(reports)
    assert [(outcome.task_id, outcome.status) for outcome in again] == [(told.task_id, told.status) for told in first]


async def test_a_heartbeat_for_a_name_that_no_task_has_is_lost_alone(queue: Queue) -> None:
    await queue.submit({"type": "x", "id": "job-1"})
    (claim,) = await queue.claim("ada", runtime_id="host", start=True)
    beats = await queue.heartbeat_many([("job-9.1", None, None), ("job-1.1", None, {"cost_usd": 1})])
    assert [(beat.task_id, beat.action) for beat in beats] == [("job-9", "lost"), (claim.id, "continue")]
    assert (await queue.get(claim.id)).cost_usd == 1
    with pytest.raises(NotFound):
        await queue.heartbeat("job-9.1")
    answer = await queue.runtime_heartbeat("host", ["job-9.1", "job-1.1"])
    assert (answer.lost, answer.unnamed) == (["job-9.1"], [])


async def test_a_result_sent_again_by_the_task_s_id_is_told_as_repeated(queue: Queue) -> None:
    await queue.submit(type="code")
    claim = await take(queue, "coder", runtime_id="r-1")
    await queue.complete(await queue.current_token(claim.id, runtime_id="r-1"), 1)
    for named in ({"agent_id": "coder"}, {"runtime_id": "r-1"}, {}):
        assert (await queue.complete(await queue.current_token(claim.id, **named), 1)).repeated


async def test_a_failure_sent_again_by_the_task_s_id_is_told_as_repeated(queue: Queue) -> None:
    await queue.submit(type="code")
    claim = await take(queue, "coder")
    await queue.fail(await queue.current_token(claim.id, agent_id="coder"), "crash")
    again = await queue.fail(await queue.current_token(claim.id, agent_id="coder"), "crash")
    assert (again.status, again.repeated) == ("retrying", True)
    assert (await queue.get(claim.id)).attempts == 1


async def test_whoever_did_not_have_the_last_attempt_meets_a_task_that_nobody_holds(queue: Queue) -> None:
    await queue.submit(type="code")
    claim = await take(with_token(queue, "A"), "coder")
    await queue.complete(claim.token)
    for named in ({"agent_id": "other"}, {"runtime_id": "other"}):
        with pytest.raises(WrongState) as refused:
            await queue.current_token(claim.id, **named)
        assert refused.value.facts["status"] == "completed"
    with pytest.raises(WrongState):
        await with_token(queue, "B").current_token(claim.id)


async def test_a_write_that_comes_too_late_is_refused_by_its_own_verb(queue: Queue, clock: MovedClock) -> None:
    await queue.submit(type="code", retry={"strategy": "immediate"})
    claim = await take(queue, "coder")
    await pass_time(queue, clock, 91)
    late = await queue.current_token(claim.id, agent_id="coder")
    assert late == claim.token
    with pytest.raises(LeaseLost):
        await queue.complete(late, 1)
    await take(queue, "other")
    with pytest.raises(NotYourClaim):
        await queue.current_token(claim.id, agent_id="coder")


async def test_an_agent_whose_task_was_cancelled_hears_of_it_by_the_task_s_id(queue: Queue) -> None:
    await queue.submit(type="code")
    claim = await take(queue, "coder")
    await queue.cancel(claim.id, "unwanted")
    beat = await queue.heartbeat(await queue.current_token(claim.id, agent_id="coder"))
    assert (beat.action, beat.reason) == ("cancel", "unwanted")


async def test_a_retry_as_a_new_task_has_no_claim_of_the_old_one(queue: Queue) -> None:
    await queue.submit(type="code", retry={"mode": "new_task", "strategy": "immediate"})
    claim = await take(queue, "coder")
    await queue.fail(claim.token, "crash")
    (retry,) = (await queue.tasks(status="ready")).tasks
    with pytest.raises(WrongState):
        await queue.current_token(retry.id, agent_id="coder")
    assert (await queue.fail(await queue.current_token(claim.id, agent_id="coder"), "crash")).repeated


# -- claims that are sent again ----------------------------------------------------------------------------------


async def test_a_claim_is_found_by_its_request(queue: Queue) -> None:
    made = await queue.submit_many([{"type": "code"}] * 5)
    await queue.register_agent(id="coder", max_concurrent_tasks=5)
    first = await by_request(queue, "r-1").claim("coder", 2)
    second = await by_request(queue, "r-2").claim("coder", 2, start=True)
    await queue.claim("coder")
    tasks = await queue.claims_made("coder", "r-1")
    assert [task.id for task in tasks] == [task.id for task in made[:2]]
    assert [task.claim.assignment_id for task in tasks] == [claim.token for claim in first]
    assert tasks == [claim.task() for claim in first]
    assert [task.claim.assignment_id for task in await queue.claims_made("coder", "r-2")] == [c.token for c in second]
    for who, request_id in (("other", "r-1"), ("coder", "r-3"), ("coder", "")):
        assert await queue.claims_made(who, request_id) == []


async def test_what_is_held_no_more_is_not_told_again(queue: Queue) -> None:
    await queue.submit_many([{"type": "code"}] * 4)
    await queue.register_agent(id="coder", max_concurrent_tasks=5)
    done, failed, released, kept = await by_request(queue, "r-1").claim("coder", 4, start=True)
    await queue.complete(done.token)
    await queue.fail(failed.token, "crash")
    await queue.release(released.token)
    await by_request(queue, "r-2").claim("coder")
    assert [task.id for task in await queue.claims_made("coder", "r-1")] == [kept.id]


async def test_a_task_claimed_again_belongs_to_the_later_request(queue: Queue) -> None:
    await queue.submit(type="code")
    (first,) = await by_request(queue, "r-1").claim("coder")
    await queue.release(first.token)
    await by_request(queue, "r-2").claim("coder")
    assert await queue.claims_made("coder", "r-1") == []
    assert [task.id for task in await queue.claims_made("coder", "r-2")] == [first.id]


async def test_a_runtime_finds_what_it_claimed_for_all_its_agents(queue: Queue) -> None:
    made = await queue.submit_many([{"type": "code", "target_agent_id": name} for name in ("ada", "bob")])
    await by_request(queue, "r-1").claim_for_runtime("r", 2)
    assert {task.id for task in await queue.claims_made("r", "r-1")} == {task.id for task in made}
    assert len(await queue.claims_made("ada", "r-1")) == 1


async def test_claims_of_others_are_not_found(queue: Queue) -> None:
    await queue.submit(type="code")
    await by_request(with_token(queue, "A"), "r-1").claim("coder")
    assert len(await with_token(queue, "A").claims_made("coder", "r-1")) == 1
    assert len(await queue.claims_made("coder", "r-1")) == 1
    assert await with_token(queue, "B").claims_made("coder", "r-1") == []
    assert await queue.in_workspace("other").claims_made("coder", "r-1") == []
