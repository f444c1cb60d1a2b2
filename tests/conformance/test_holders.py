"""A worker that came with a token writes only under claims made with it; whoever needs none writes under any."""

import inspect
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from shiftwork import Problem, Queue, Report
from shiftwork.core.errors import LeaseLost, NotYourClaim
from shiftwork.queue.face.working import Working
from shiftwork.queue.fence import Outcome
from shiftwork.queue.in_hand import BeatAnswer
from shiftwork.testing import MovedClock, pass_time
from tests.conformance.steps import everything

USAGE = {"cost_usd": 2.0, "tokens_in": 9}

WRITES: dict[str, Callable[[Queue, str], Awaitable[Any]]] = {
    "start": lambda q, held: q.start(held),
    "start_many": lambda q, held: q.start_many([held]),
    "heartbeat": lambda q, held: q.heartbeat(held, {"pct": 5}, USAGE),
    "heartbeat_many": lambda q, held: q.heartbeat_many([(held, {"pct": 5}, USAGE)]),
    "progress": lambda q, held: q.progress(held, {"pct": 5}),
    "message": lambda q, held: q.message(held, "text", "hello"),
    "pin_session": lambda q, held: q.pin_session(held, "s-1"),
    "complete": lambda q, held: q.complete(held, 1, usage=USAGE),
    "complete_many": lambda q, held: q.complete_many([Report(held, 1, usage=USAGE)]),
    "verdict": lambda q, held: q.verdict(held, passed=True),
    "fail": lambda q, held: q.fail(held, "crash", usage=USAGE),
    "fail_many": lambda q, held: q.fail_many([Problem(held, "crash", usage=USAGE)]),
    "release": lambda q, held: q.release(held),
    "release_many": lambda q, held: q.release_many([held]),
    "spawn": lambda q, held: q.spawn(held, [{"type": "code"}]),
    "wait_for": lambda q, held: q.wait_for(held, ["another"]),
}
NAMES_OF_CLAIMS = {"token", "tokens", "beats", "reports", "problems"}


def with_token(queue: Queue, token_id: str | None) -> Queue:
    return queue.speaking_as(queue.caller._replace(holder=token_id))


async def held_by(queue: Queue, *, start: bool = True, **fields: Any) -> str:
    await queue.submit({"type": "code", **fields})
    return (await queue.claim("coder", start=start))[0].token


async def held_for(verb: str, queue: Queue) -> str:
    """A claim in the state that this verb needs."""
    if verb != "verdict":
        return await held_by(queue, start=not verb.startswith("start"))
    held = await held_by(queue, output={"validation": "test-pass"})
    await queue.complete(held)
    return held


async def refused(answer: Awaitable[Any]) -> str:
    """The code with which a write was refused, however its verb tells it."""
    try:
        told = await answer
    except (NotYourClaim, LeaseLost) as error:
        return error.code
    one = told[0] if isinstance(told, list) else told
    if isinstance(one, BeatAnswer):
        return one.action
    assert isinstance(one, Outcome)
    return one.error.code if one.error else "accepted"


def test_every_write_under_a_claim_is_tried_here() -> None:
    methods = inspect.getmembers(Working, inspect.iscoroutinefunction)
    public = {name: inspect.signature(method).parameters for name, method in methods if not name.startswith("_")}
    assert {name for name, parameters in public.items() if parameters.keys() & NAMES_OF_CLAIMS} == WRITES.keys()


@pytest.mark.parametrize("verb", WRITES)
async def test_nobody_writes_under_a_claim_made_with_another_token(verb: str, queue: Queue) -> None:
    held = await held_for(verb, with_token(queue, "A"))
    await queue.submit(type="code", id="another")
    before = await everything(queue)
    beats = {"heartbeat": "lost", "heartbeat_many": "lost"}
    assert await refused(WRITES[verb](with_token(queue, "B"), held)) == beats.get(verb, "not_your_claim")
    assert await everything(queue) == before


@pytest.mark.parametrize("token_id", ["A", None])
@pytest.mark.parametrize("verb", WRITES)
async def test_its_own_token_and_whoever_needs_none_write(verb: str, token_id: str | None, queue: Queue) -> None:
    held = await held_for(verb, with_token(queue, "A"))
    await queue.submit(type="code", id="another")
    before = await everything(queue)
    await WRITES[verb](with_token(queue, token_id), held)
    assert await everything(queue) != before


async def test_a_claim_made_without_a_token_is_nobody_s_who_came_with_one(queue: Queue) -> None:
    held = await held_by(queue)
    with pytest.raises(NotYourClaim):
        await with_token(queue, "A").complete(held)
    assert (await queue.complete(held)).status == "completed"


async def test_a_result_that_must_be_validated_is_refused_alike(queue: Queue) -> None:
    held = await held_by(with_token(queue, "A"), output={"validation": "json-schema", "validation_schema": {}})
    before = await everything(queue)
    with pytest.raises(NotYourClaim):
        await with_token(queue, "B").complete(held, 1, usage=USAGE)
    assert await everything(queue) == before


async def test_one_claim_of_another_refuses_no_neighbour(queue: Queue) -> None:
    await queue.register_agent(id="coder", max_concurrent_tasks=9)
    theirs = await held_by(with_token(queue, "A"))
    mine = [await held_by(with_token(queue, "B")) for _ in range(3)]
    worker = with_token(queue, "B")
    beats = await worker.heartbeat_many([(token, None, None) for token in (mine[0], theirs, mine[1])])
    assert [beat.action for beat in beats] == ["continue", "lost", "continue"]
    done = await worker.complete_many([Report(mine[0]), Report(theirs)])
    failed = await worker.fail_many([Problem(theirs), Problem(mine[1])])
    released = await worker.release_many([theirs, mine[2]])
    kinds = [type(outcome.error).__name__ for outcome in [*done, *failed, *released]]
    assert kinds == ["NoneType", "NotYourClaim", "NotYourClaim", "NoneType", "NotYourClaim", "NoneType"]


async def test_a_worker_whose_task_was_given_on_is_told_that_its_lease_is_lost(queue: Queue, clock: MovedClock) -> None:
    """And not that the claim is another's: it would look for a fault in its token."""
    zombie, next_one = with_token(queue, "A"), with_token(queue, "B")
    old = await held_by(zombie, retry={"strategy": "immediate"})
    await pass_time(queue, clock, 91)
    (new,) = await next_one.claim("other", start=True)
    with pytest.raises(LeaseLost):
        await zombie.complete(old)
    assert (await queue.get(new.id)).status == "running"
    assert (await zombie.heartbeat(old)).action == "lost"
    assert not (await next_one.complete(new.token)).repeated


async def test_what_a_worker_spent_is_booked_after_its_task_was_given_on(queue: Queue, clock: MovedClock) -> None:
    zombie = with_token(queue, "A")
    old = await held_by(zombie, retry={"strategy": "immediate"})
    await pass_time(queue, clock, 91)
    (new,) = await with_token(queue, "B").claim("other", start=True)
    with pytest.raises(LeaseLost):
        await zombie.complete(old, usage=USAGE)
    assert (await queue.get(new.id)).cost_usd == 2.0


async def test_a_result_is_told_as_repeated_to_whoever_sent_it(queue: Queue) -> None:
    held = await held_by(with_token(queue, "A"))
    await with_token(queue, "A").complete(held, 1)
    assert (await with_token(queue, "A").complete(held, 1)).repeated
    with pytest.raises(LeaseLost):
        await with_token(queue, "B").complete(held, 1)


async def test_the_next_claim_has_the_token_it_was_made_with(queue: Queue) -> None:
    first = await held_by(with_token(queue, "A"))
    await with_token(queue, "A").release(first)
    (again,) = await with_token(queue, "B").claim("coder", start=True)
    with pytest.raises(NotYourClaim):
        await with_token(queue, "A").complete(again.token)
    assert (await with_token(queue, "B").complete(again.token)).status == "completed"


async def test_a_token_stays_with_whoever_is_named_for_it(queue: Queue) -> None:
    """`as_caller` and `in_workspace` are no way around it."""
    held = await held_by(with_token(queue, "A"))
    with pytest.raises(NotYourClaim):
        await with_token(queue, "B").as_caller("agent:coder").complete(held)
    with pytest.raises(NotYourClaim):
        await with_token(queue, "B").in_workspace("default").complete(held)


# -- other workspaces --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["complete_many", "fail_many", "heartbeat_many"])
async def test_nothing_is_booked_from_another_workspace(verb: str, queue: Queue) -> None:
    await queue.in_workspace("other").submit(type="code")  # its first write records the workspace
    held = await held_by(queue)
    before = await everything(queue)
    await WRITES[verb](queue.in_workspace("other"), held)
    assert await everything(queue) == before
    await queue.fail(held, "crash", retry=False)
    ended = await everything(queue)
    await WRITES[verb](queue.in_workspace("other"), held)
    assert await everything(queue) == ended


async def test_how_a_task_of_another_workspace_failed_is_not_told(queue: Queue) -> None:
    held = await held_by(queue)
    await queue.fail(held, "crash")
    (outcome,) = await queue.in_workspace("other").fail_many([Problem(held, "crash")])
    assert (type(outcome.error).__name__, outcome.status) == ("NotFound", None)


async def test_why_a_task_of_another_workspace_was_cancelled_is_not_told(queue: Queue) -> None:
    held = await held_by(queue)
    await queue.cancel(held.partition(".")[0], "secret plans")
    answer = await queue.in_workspace("other").runtime_heartbeat("coder", [held])
    assert (answer.cancel, answer.lost) == ({}, [held])
    assert (await queue.runtime_heartbeat("coder", [held])).cancel == {held: "secret plans"}
