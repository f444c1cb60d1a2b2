"""Claiming: immediately, or waiting until there is work."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from shiftwork.engine import claim_hooks, finish, idempotency, lost_claim
from shiftwork.engine.assignment import Assignment
from shiftwork.engine.claim import ClaimAnswer, claim
from shiftwork.engine.claim_hooks import Look
from shiftwork.engine.claim_waiters import MayTake
from shiftwork.engine.coalesce import Coalescer
from shiftwork.engine.engine import Caller, StillAllowed
from shiftwork.engine.idempotency import Repeated
from shiftwork.engine.joint_claim import Asked, claim_together
from shiftwork.engine.lanes import ClaimFilter
from shiftwork.engine.pick import ClaimRequest
from shiftwork.engine.plain_claim import claim_one
from shiftwork.model.errors import (
    AgentUnavailable,
    AgentUnregistered,
    OperationTimeout,
    ShiftworkError,
    StoreUnavailable,
)
from shiftwork.operation.local import Call
from shiftwork.store.deadline import ends_at

MIN_POLL_SEC = 0.01
CONTENDED_SEC = 0.05
"""Delay before a waiting claim looks again at work that another transaction had locked and may leave ready."""
OVERLAP_SEC = 0.05
"""The longest that a claim waiting for a lock can delay the claims queued behind it."""
APART_SEC = 1.0
"""After a batch without a plain claim, the workspace's claims run one by one for this long."""
MAX_TARGETS = 100
"""The most agents with targeted work that one claim for a whole runtime considers."""


class Wanted(NamedTuple):
    """What a claim asks for, without the caller."""

    most: int
    start: bool = False
    types: tuple[str, ...] | None = None
    capabilities: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    fifo: bool = False
    ahead: int = 0


async def for_agent(call: Call, agent_id: str, runtime_id: str | None, wanted: Wanted, wait: float = 0) -> ClaimAnswer:
    request = ClaimRequest(call.workspace, agent_id, runtime_id, *wanted)
    claim_filter = ClaimFilter(agent_id, _some(wanted.types), frozenset(), frozenset())
    answer = await _look_or_wait(
        call,
        functools.partial(_claim, call, request),
        lambda lane: call.engine.lanes.might_take(lane, call.workspace, claim_filter),
        wait,
    )
    call.shared.record_claim(call.workspace, agent_id, got_work=bool(answer.assignments))
    return answer


async def for_runtime(call: Call, runtime_id: str, wanted: Wanted, wait: float) -> ClaimAnswer:
    kinds = _some(wanted.types)
    return await _look_or_wait(
        call,
        functools.partial(_claim_for_any, call, runtime_id, wanted),
        lambda lane: call.engine.lanes.might_hold(lane, call.workspace, kinds),
        wait,
    )


async def _claim_for_any(call: Call, runtime_id: str, wanted: Wanted) -> ClaimAnswer:
    targets = await call.read(lambda tx: tx.all("waiting_targets", workspace=call.workspace, count=MAX_TARGETS))
    assignments: list[Assignment] = []
    answers = [ClaimAnswer([])]
    try:
        for agent_id in [*(row["agent_id"] for row in targets), runtime_id]:
            if len(assignments) == wanted.most:
                break
            with suppress(AgentUnavailable, AgentUnregistered):  # does not delay the other agents' work
                left = wanted._replace(most=wanted.most - len(assignments))
                answers.append(await for_agent(call, agent_id, runtime_id, left))
                assignments += answers[-1].assignments
    except (asyncio.CancelledError, ShiftworkError):
        call.shared.keep(asyncio.ensure_future(_release(call, assignments)))
        raise
    return _together(assignments, answers)


async def _claim(call: Call, request: ClaimRequest) -> ClaimAnswer:
    """Release a claim whose caller has disconnected: no one would work on it.

    Its answer is not stored for repeats, since others may have the tasks by then; `claims.made_by_request` returns what
    is still held.
    """
    claiming = asyncio.ensure_future(_claim_now(call, request))
    try:
        return await asyncio.shield(claiming)
    except asyncio.CancelledError:
        call.shared.keep(asyncio.ensure_future(_release_later(call, claiming)))
        raise


async def _claim_now(call: Call, request: ClaimRequest) -> ClaimAnswer:
    settings = (await call.engine.settings_cache.get(call.engine.store, call.workspace)).settings()
    return await claim_hooks.run(call, settings, functools.partial(_claim_here, call, request))


async def _claim_here(call: Call, request: ClaimRequest) -> ClaimAnswer:
    """Claim; if the connection breaks during the commit, undo what may have been claimed, and claim once more.

    No one has the tokens of such a claim, so its tasks and the agent's slots would be blocked until it expires.
    """
    began = asyncio.get_running_loop().time()
    try:
        return await _claim_once(call, request)
    except StoreUnavailable as error:
        if error.transaction_at is None:
            raise
        with ends_at(began + call.engine.store.operation_max_sec):
            try:
                return await _claim_again(call, request, error.transaction_at)
            except (StoreUnavailable, OperationTimeout):
                raise error from error.__cause__  # the first outcome is still unknown


async def _claim_again(call: Call, request: ClaimRequest, lost_at: float) -> ClaimAnswer:
    if call.caller.idempotency is not None:
        return await _claim_once(call, request)  # under its key, it finds what was claimed before
    await call.run_each_time(lost_claim.release, request, lost_at)
    return await call.run_each_time(claim, request)


async def _claim_once(call: Call, request: ClaimRequest) -> ClaimAnswer:
    idempotent = call.caller.idempotency
    if idempotent is None:
        return await _claim_jointly(call, request)
    verb = functools.partial(call.in_transaction, claim, (request,), {})
    answer = await call.engine.store.run(
        functools.partial(
            idempotency.record_first, call.workspace, idempotent, verb, lambda answer: bool(answer.assignments)
        )
    )
    if answer.assignments:
        idempotent.next_step()
    return answer


async def _claim_jointly(call: Call, request: ClaimRequest) -> ClaimAnswer:
    """Claim together with concurrent claims, if all of them are plain."""
    if asyncio.get_running_loop().time() < call.shared.claims_apart_until.get(call.workspace, 0.0):
        return await call.run_each_time(claim_one, request)
    answer: ClaimAnswer | None = await _joint_claims(call).call(Asked(request, call.caller))
    return await call.run_each_time(claim, request) if answer is None else answer


def _joint_claims(call: Call) -> Coalescer[Asked, ClaimAnswer | None]:
    """The coalescer of a workspace's claims, for all callers: each claim carries its own."""
    key = (claim_together, call.workspace)
    found = call.shared.coalescers.get(key)
    if found is None:
        joined = type(call)(call.shared, call.workspace, Caller())
        found = call.shared.coalescers[key] = Coalescer(
            functools.partial(_claim_batch, joined), lambda: call.engine.store.operation_max_sec, OVERLAP_SEC
        )
    return found


async def _claim_batch(call: Call, asked: Sequence[Asked]) -> list[ClaimAnswer | None]:
    if len(asked) == 1:
        alone = type(call)(call.shared, call.workspace, asked[0].caller)
        return [await alone.run_each_time(claim_one, asked[0].request)]
    answers = await call.run_each_time(claim_together, call.workspace, asked)
    if not any(answers):
        call.shared.claims_apart_until[call.workspace] = asyncio.get_running_loop().time() + APART_SEC
    return answers


async def _release_later(call: Call, claiming: asyncio.Future[ClaimAnswer]) -> None:
    with suppress(ShiftworkError, Repeated):
        await _release(call, (await claiming).assignments)


async def _release(call: Call, assignments: Sequence[Assignment]) -> None:
    with suppress(ShiftworkError):
        if assignments:
            claims = [assignment.claim for assignment in assignments]
            await call.run_each_time(finish.release, claims, "the caller disconnected")


async def _look_or_wait(call: Call, look: Look, may_take: MayTake, wait: float) -> ClaimAnswer:
    if wait == 0:
        return await look()
    allowed = call.caller.still_allowed
    return await _wait_and_look(call, look if allowed is None else _checked(look, allowed), may_take, wait)


async def _wait_and_look(call: Call, look: Look, may_take: MayTake, wait: float) -> ClaimAnswer:
    """Park, look, and wait until an eligible lane gets work; a poll makes up for lost wake-ups.

    Park before the first look: otherwise a claim that finds nothing would have to look twice, and most find nothing.
    """
    settings = (await call.engine.settings_cache.get(call.engine.store, call.workspace)).settings()
    loop = asyncio.get_running_loop()
    deadline = loop.time() + wait
    if settings.wakeup == "poll":
        return await _poll(look, deadline, settings.poll_interval_sec)
    async with call.shared.claim_waiters.waiting(may_take) as waiter:
        while True:
            waiter.woken.clear()  # before the look: work that arrives during it triggers another
            waiter.looking = True
            answer = await look()
            waiter.looking = False
            waiter.ready, waiter.plenty = answer.ready, answer.plenty
            left = deadline - loop.time()
            if answer.assignments or left <= 0:
                return answer
            call.shared.claim_waiters.pass_on(waiter)
            # Free slots and released locks are not announced, so poll more often.
            pause = settings.poll_interval_sec if answer.at_capacity else settings.fallback_poll_sec
            pause = pause if answer.look_again_sec is None else min(pause, answer.look_again_sec)
            pause = CONTENDED_SEC if answer.contended or answer.unfinished else pause
            with suppress(TimeoutError):
                # Not wait_for: before Python 3.12 it can swallow a cancellation that meets the wake-up.
                async with asyncio.timeout(min(left, pause)):
                    await waiter.woken.wait()


def _checked(look: Look, allowed: StillAllowed) -> Look:
    """Look again; from the second time on, check the caller's access first: it may be revoked while it waits."""
    looked = False

    async def checked() -> ClaimAnswer:
        nonlocal looked
        if looked:
            await allowed()
        looked = True
        return await look()

    return checked


async def _poll(look: Look, deadline: float, interval: float) -> ClaimAnswer:
    loop = asyncio.get_running_loop()
    while True:
        answer = await look()
        left = deadline - loop.time()
        if answer.assignments or left <= 0:
            return answer
        await asyncio.sleep(min(left, max(interval, MIN_POLL_SEC)))


def _together(assignments: list[Assignment], answers: Sequence[ClaimAnswer]) -> ClaimAnswer:
    """Combine the answers to the claims of one look."""
    return ClaimAnswer(
        assignments,
        answers[-1].closed,
        sum(answer.no_fit for answer in answers),
        any(answer.at_capacity for answer in answers),
        contended=any(answer.contended for answer in answers),
        unfinished=any(answer.unfinished for answer in answers),
        look_again_sec=min((a.look_again_sec for a in answers if a.look_again_sec is not None), default=None),
        slow_down_sec=answers[-1].slow_down_sec,
    )


def _some(names: Sequence[str] | None) -> frozenset[str] | None:
    return None if names is None else frozenset(names)
