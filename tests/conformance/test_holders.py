"""A worker with a token writes only under claims made with it; without tokens, every caller writes under any claim."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from shiftwork import Completion, Failure, Queue, Usage
from shiftwork.engine.claims_api import ClaimBatch, Claims, Spawning, WorkerVerbs
from shiftwork.model.errors import LeaseLost, NotYourClaim
from shiftwork.model.outcome import Outcome
from shiftwork.model.reports import Heartbeat, HeartbeatReply
from shiftwork.operation.declare import operation_of
from shiftwork.steering.api import Inbox
from shiftwork.task_logs.api import ClaimLogs, LogBatch
from shiftwork.testing import MovedClock, pass_time
from tests.conformance.steps import everything

USAGE = Usage(cost_usd=2.0, tokens_in=9)

WRITES: dict[str, Callable[[Queue, str], Awaitable[Any]]] = {
    "start": lambda q, held: q.start(held),
    "start_many": lambda q, held: q.batch.start([held]),
    "heartbeat": lambda q, held: q.heartbeat(held, {"pct": 5}, USAGE),
    "heartbeat_many": lambda q, held: q.batch.heartbeat([Heartbeat(held, {"pct": 5}, USAGE)]),
    "progress": lambda q, held: q.claims.progress(held, {"pct": 5}),
    "message": lambda q, held: q.claims.message(held, "text", "hello"),
    "pin_session": lambda q, held: q.claims.pin_session(held, "s-1"),
    "complete": lambda q, held: q.complete(held, 1, usage=USAGE),
    "complete_many": lambda q, held: q.batch.complete([Completion(1, usage=USAGE, token=held)]),
    "verdict": lambda q, held: q.claims.verdict(held, passed=True),
    "fail": lambda q, held: q.fail(held, "crash", usage=USAGE),
    "fail_many": lambda q, held: q.batch.fail([Failure("crash", usage=USAGE, token=held)]),
    "release": lambda q, held: q.release(held),
    "release_many": lambda q, held: q.batch.release([held]),
    "spawn": lambda q, held: q.spawn(held, [{"type": "code"}]),
    "wait_for": lambda q, held: q.waits.wait_for_tasks(held, ["another"]),
    "log": lambda q, held: q.claims.log(held, [{"text": "hello"}]),
    "inbox": lambda q, held: q.claims.inbox(held),
    "acknowledge": lambda q, held: q.claims.acknowledge(held, 1),
    "log_many": lambda q, held: q.batch.log([{"token": held, "lines": [{"text": "hello"}]}]),
}
NAMES_OF_CLAIMS = {"token", "tokens", "heartbeats", "completions", "failures", "logs"}


def with_token(queue: Queue, token_id: str | None) -> Queue:
    return queue.for_caller(queue.caller._replace(holder=token_id))


async def held_by(queue: Queue, *, start: bool = True, **fields: Any) -> str:
    await queue.submit({"type": "code", **fields})
    return (await queue.claim("coder", start=start))[0].token


async def held_for(verb: str, queue: Queue) -> str:
    """A claim in the state that this verb needs."""
    if verb != "verdict":
        held = await held_by(queue, start=not verb.startswith("start"))
        if verb in {"inbox", "acknowledge"}:
            await queue.tell(held.rpartition(".")[0], "hello")
        return held
    held = await held_by(queue, output={"validation": "test-pass"})
    await queue.complete(held)
    return held


async def refused(answer: Awaitable[Any]) -> str:
    """Return the code of a refused write, raised or returned."""
    try:
        found = await answer
    except (NotYourClaim, LeaseLost) as error:
        return error.code
    one = found[0] if isinstance(found, list) else found
    if isinstance(one, HeartbeatReply):
        return one.action
    assert isinstance(one, Outcome)
    return one.error.code if one.error else "accepted"


def test_every_write_under_a_claim_is_covered_here() -> None:
    declared = [vars(each) for each in (WorkerVerbs, Spawning, Claims, ClaimBatch, ClaimLogs, LogBatch, Inbox)]
    found = [operation_of(method) for each in declared for method in each.values() if hasattr(method, "operation")]
    under_claim = {each.name.removeprefix("claims.") for each in found if NAMES_OF_CLAIMS & {*each.parameters.names}}
    tried = {f"batch.{name.removesuffix('_many')}" if name.endswith("_many") else name for name in WRITES}
    assert under_claim == tried - {"wait_for"}


@pytest.mark.parametrize("verb", WRITES)
async def test_write_under_a_claim_of_another_token_is_refused(verb: str, queue: Queue) -> None:
    held = await held_for(verb, with_token(queue, "A"))
    await queue.submit(type="code", id="another")
    before = await everything(queue)
    beats = {"heartbeat": "lost", "heartbeat_many": "lost"}
    assert await refused(WRITES[verb](with_token(queue, "B"), held)) == beats.get(verb, "not_your_claim")
    assert await everything(queue) == before


@pytest.mark.parametrize("token_id", ["A", None])
@pytest.mark.parametrize("verb", WRITES)
async def test_write_with_own_token_or_without_token_is_accepted(verb: str, token_id: str | None, queue: Queue) -> None:
    held = await held_for(verb, with_token(queue, "A"))
    await queue.submit(type="code", id="another")
    before = await everything(queue)
    await WRITES[verb](with_token(queue, token_id), held)
    assert await everything(queue) != before


async def test_claim_made_without_token_is_refused_to_a_token_holder(queue: Queue) -> None:
    held = await held_by(queue)
    with pytest.raises(NotYourClaim):
        await with_token(queue, "A").complete(held)
    assert (await queue.complete(held)).status == "completed"


async def test_validated_result_with_another_token_is_refused(queue: Queue) -> None:
    held = await held_by(with_token(queue, "A"), output={"validation": "json-schema", "validation_schema": {}})
    before = await everything(queue)
    with pytest.raises(NotYourClaim):
        await with_token(queue, "B").complete(held, 1, usage=USAGE)
    assert await everything(queue) == before


async def test_refused_claim_in_a_batch_does_not_affect_others(queue: Queue) -> None:
    await queue.agents.register(id="coder", max_concurrent_tasks=9)
    theirs = await held_by(with_token(queue, "A"))
    mine = [await held_by(with_token(queue, "B")) for _ in range(3)]
    worker = with_token(queue, "B")
    beats = await worker.batch.heartbeat([Heartbeat(token) for token in (mine[0], theirs, mine[1])])
    assert [beat.action for beat in beats] == ["continue", "lost", "continue"]
    done = await worker.batch.complete([Completion(token=mine[0]), Completion(token=theirs)])
    failed = await worker.batch.fail([Failure(token=theirs), Failure(token=mine[1])])
    released = await worker.batch.release([theirs, mine[2]])
    kinds = [type(outcome.error).__name__ for outcome in [*done, *failed, *released]]
    assert kinds == ["NoneType", "NotYourClaim", "NotYourClaim", "NoneType", "NotYourClaim", "NoneType"]


async def test_worker_of_a_reassigned_task_gets_lease_lost(queue: Queue, clock: MovedClock) -> None:
    """Not that the claim belongs to another token: the worker would search for an error in its token."""
    zombie, next_one = with_token(queue, "A"), with_token(queue, "B")
    old = await held_by(zombie, retry={"strategy": "immediate"})
    await pass_time(queue, clock, 91)
    (new,) = await next_one.claim("other", start=True)
    with pytest.raises(LeaseLost):
        await zombie.complete(old)
    assert (await queue.get(new.id)).status == "running"
    assert (await zombie.heartbeat(old)).action == "lost"
    assert not (await next_one.complete(new.token)).repeated


async def test_usage_of_a_reassigned_task_is_still_charged(queue: Queue, clock: MovedClock) -> None:
    zombie = with_token(queue, "A")
    old = await held_by(zombie, retry={"strategy": "immediate"})
    await pass_time(queue, clock, 91)
    (new,) = await with_token(queue, "B").claim("other", start=True)
    with pytest.raises(LeaseLost):
        await zombie.complete(old, usage=USAGE)
    assert (await queue.get(new.id)).cost_usd == 2.0


async def test_repeated_result_is_recognised_only_for_its_sender(queue: Queue) -> None:
    held = await held_by(with_token(queue, "A"))
    await with_token(queue, "A").complete(held, 1)
    assert (await with_token(queue, "A").complete(held, 1)).repeated
    with pytest.raises(LeaseLost):
        await with_token(queue, "B").complete(held, 1)


async def test_next_claim_belongs_to_the_token_it_was_made_with(queue: Queue) -> None:
    first = await held_by(with_token(queue, "A"))
    await with_token(queue, "A").release(first)
    (again,) = await with_token(queue, "B").claim("coder", start=True)
    with pytest.raises(NotYourClaim):
        await with_token(queue, "A").complete(again.token)
    assert (await with_token(queue, "B").complete(again.token)).status == "completed"


async def test_as_caller_and_in_workspace_keep_the_token_check(queue: Queue) -> None:
    """`as_caller` and `in_workspace` do not bypass the check."""
    held = await held_by(with_token(queue, "A"))
    with pytest.raises(NotYourClaim):
        await with_token(queue, "B").as_caller("agent:coder").complete(held)
    with pytest.raises(NotYourClaim):
        await with_token(queue, "B").in_workspace("default").complete(held)


@pytest.mark.parametrize("verb", ["complete_many", "fail_many", "heartbeat_many"])
async def test_writes_from_another_workspace_change_nothing(verb: str, queue: Queue) -> None:
    await queue.in_workspace("other").submit(type="code")  # its first write records the workspace
    held = await held_by(queue)
    before = await everything(queue)
    await WRITES[verb](queue.in_workspace("other"), held)
    assert await everything(queue) == before
    await queue.fail(held, "crash", retry=False)
    ended = await everything(queue)
    await WRITES[verb](queue.in_workspace("other"), held)
    assert await everything(queue) == ended


async def test_failure_of_another_workspace_is_not_revealed(queue: Queue) -> None:
    held = await held_by(queue)
    await queue.fail(held, "crash")
    (outcome,) = await queue.in_workspace("other").batch.fail([Failure("crash", token=held)])
    assert (type(outcome.error).__name__, outcome.status) == ("NotFound", None)


async def test_cancel_reason_of_another_workspace_is_not_revealed(queue: Queue) -> None:
    held = await held_by(queue)
    await queue.cancel(held.partition(".")[0], "secret plans")
    answer = await queue.in_workspace("other").runtimes.heartbeat("coder", [held])
    assert (answer.cancel, answer.lost) == ({}, [held])
    assert (await queue.runtimes.heartbeat("coder", [held])).cancel == {held: "secret plans"}
