"""How agents come to work: claim it at once, or wait until there is some."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from shiftwork.core.errors import AgentUnavailable, AgentUnregistered, InputError, ShiftworkError
from shiftwork.queue import check, finish, replies
from shiftwork.queue.bridged.adopt import adopt, unheld
from shiftwork.queue.bridged.folder import Folder, ScriptClaim, by_agent, claim_beside_scripts
from shiftwork.queue.claim import Assignment, ClaimAnswer, claim
from shiftwork.queue.engine import StillAllowed
from shiftwork.queue.face.handle import Handle
from shiftwork.queue.lanes import Wants
from shiftwork.queue.parking import MayTake
from shiftwork.queue.pick import ClaimRequest
from shiftwork.queue.replies import Repeated

MOST_CLAIMED = 1000
LONGEST_WAIT_SEC = 25.0
SHORTEST_POLL_SEC = 0.01
CONTENDED_SEC = 0.05
"""Until a waiting claim looks again at work that somebody else had locked, who may leave it ready."""
MOST_TARGETS = 100
"""Agents with work of their own that one claim for a whole runtime looks at."""

Look = Callable[[], Awaitable[ClaimAnswer]]


class Claiming(Handle):
    """Verbs that hand work out."""

    async def claim(self, agent_id: str, count: int = 1, *, wait: float = 0, **options: Any) -> list[Assignment]:
        """Up to `count` tasks, best first; with `wait`, for up to 25 s until there is one."""
        return (await self.claim_answer(agent_id, count, wait=wait, **options)).assignments

    async def claim_answer(
        self,
        agent_id: str,
        count: int = 1,
        *,
        wait: float = 0,
        runtime_id: str | None = None,
        start: bool = False,
        types: Sequence[str] | None = None,
        capabilities: Sequence[str] = (),
        models: Sequence[str] = (),
        fifo: bool = False,
    ) -> ClaimAnswer:
        """The same, with what stood in the way when there is nothing."""
        request = ClaimRequest(
            self.workspace,
            check.name(agent_id, "agent_id"),
            check.name(runtime_id, "runtime_id") if runtime_id is not None else None,
            check.count(count, "count", MOST_CLAIMED),
            start,
            None if types is None else check.names(types, "types"),
            check.names(capabilities, "capabilities"),
            check.names(models, "models"),
            fifo,
        )
        wants = Wants(request.agent_id, _some(request.types), frozenset(), frozenset())
        answer = await self._look_or_wait(
            functools.partial(self._claim, request),
            lambda lane: self._engine.lanes.might_take(lane, self.workspace, wants),
            wait,
        )
        self._shared.note_claim(self.workspace, request.agent_id, got_work=bool(answer.assignments))
        return answer

    async def claim_for_runtime(
        self, runtime_id: str, count: int = 1, *, wait: float = 0, **options: Any
    ) -> ClaimAnswer:
        """For a runtime that hosts many agents: each task is claimed as the agent it is meant for.

        The agent whose task is first comes first; what is meant for nobody is claimed as the runtime itself.
        """
        types = options.get("types")
        kinds = _some(None if types is None else check.names(types, "types"))
        most = check.count(count, "count", MOST_CLAIMED)
        return await self._look_or_wait(
            functools.partial(self._claim_for_any, check.name(runtime_id, "runtime_id"), most, options),
            lambda lane: self._engine.lanes.might_hold(lane, self.workspace, kinds),
            wait,
        )

    async def _claim_for_any(self, runtime_id: str, count: int, options: dict[str, Any]) -> ClaimAnswer:
        targets = await self._read(lambda tx: tx.all("waiting_targets", workspace=self.workspace, count=MOST_TARGETS))
        assignments: list[Assignment] = []
        answers = [ClaimAnswer([])]
        try:
            for agent_id in [*(row["agent_id"] for row in targets), runtime_id]:
                if len(assignments) == count:
                    break
                with suppress(AgentUnavailable, AgentUnregistered):  # the others' work is not held up by it
                    left = count - len(assignments)
                    answers.append(await self.claim_answer(agent_id, left, runtime_id=runtime_id, **options))
                    assignments += answers[-1].assignments
        except (asyncio.CancelledError, ShiftworkError):
            self._shared.keep(asyncio.ensure_future(self._give_back(assignments)))
            raise
        return _together(assignments, answers)

    # -- one look --------------------------------------------------------------------------------------------------

    async def _claim(self, request: ClaimRequest) -> ClaimAnswer:
        """A claim whose caller has gone meanwhile is given back: nobody would work on it.

        Its answer is not kept for repeats, since by then others may have the tasks; `claims_made` tells what is left.
        """
        claiming = asyncio.ensure_future(self._claim_now(request))
        try:
            return await asyncio.shield(claiming)
        except asyncio.CancelledError:
            self._shared.keep(asyncio.ensure_future(self._give_back_later(claiming)))
            raise

    async def _claim_now(self, request: ClaimRequest) -> ClaimAnswer:
        settings = (await self._engine.book.get(self._engine.store, self.workspace)).settings()
        if settings.claim_folder is None:
            return await self._claim_here(request)
        folder = Folder(Path(settings.claim_folder), settings.lock_timeout_sec)
        look = functools.partial(self._claim_here, request)
        return await claim_beside_scripts(folder, self._adopt, look, self._engine.store.now)

    async def _adopt(self, claims: Sequence[ScriptClaim]) -> None:
        """Hold what scripts have claimed, so that nobody else gets it."""
        free = await self._read(lambda tx: unheld(tx, self.workspace, claims)) if claims else []
        for agent_id, theirs in by_agent(free).items():
            # Who gets nothing, or has a name that is none, holds up nobody else's claims.
            with suppress(AgentUnavailable, AgentUnregistered, InputError):
                await self._run_each_time(adopt, self.workspace, agent_id, theirs)

    async def _claim_here(self, request: ClaimRequest) -> ClaimAnswer:
        once = self.caller.once
        if once is None:
            return await self._run_each_time(claim, request)
        call = functools.partial(self._call, claim, (request,), {})
        answer = await self._engine.store.run(
            functools.partial(replies.first_time, self.workspace, once, call, lambda answer: bool(answer.assignments))
        )
        if answer.assignments:
            once.next_step()
        return answer

    async def _give_back_later(self, claiming: asyncio.Future[ClaimAnswer]) -> None:
        with suppress(ShiftworkError, Repeated):
            await self._give_back((await claiming).assignments)

    async def _give_back(self, assignments: Sequence[Assignment]) -> None:
        with suppress(ShiftworkError):
            if assignments:
                claims = [assignment.claim for assignment in assignments]
                await self._run_each_time(finish.release, claims, "whoever claimed it has gone")

    # -- waiting ---------------------------------------------------------------------------------------------------

    async def _look_or_wait(self, look: Look, may_take: MayTake, wait: float) -> ClaimAnswer:
        if not 0 <= wait <= LONGEST_WAIT_SEC:
            raise InputError(f"expected 0 to {LONGEST_WAIT_SEC:g} seconds, got {wait!r}", where="wait")
        if wait == 0:
            return await look()
        allowed = self.caller.still_allowed
        return await self._wait_and_look(look if allowed is None else _checked(look, allowed), may_take, wait)

    async def _wait_and_look(self, look: Look, may_take: MayTake, wait: float) -> ClaimAnswer:
        """Park, look, and wait until a lane that may be taken gets work; a poll mends wake-ups that were lost.

        Parked before the first look: else whoever finds nothing would have to look twice, and most claims find nothing.
        """
        settings = (await self._engine.book.get(self._engine.store, self.workspace)).settings()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait
        if settings.wakeup == "poll":
            return await _poll(look, deadline, settings.poll_interval_sec)
        async with self._shared.parking.park(may_take) as waiter:
            while True:
                waiter.woken.clear()  # before the look: what comes meanwhile is looked at again
                answer = await look()
                left = deadline - loop.time()
                if answer.assignments or left <= 0:
                    return answer
                self._shared.parking.pass_on(waiter, answer.ready)
                # Nobody announces that a full agent has room again, or that a lock is let go: it looks more often.
                pause = settings.poll_interval_sec if answer.at_capacity else settings.fallback_poll_sec
                pause = pause if answer.look_again_sec is None else min(pause, answer.look_again_sec)
                pause = CONTENDED_SEC if answer.contended or answer.unfinished else pause
                with suppress(TimeoutError):
                    # Not wait_for: before Python 3.12 it can swallow a cancellation that meets the wake-up.
                    async with asyncio.timeout(min(left, pause)):
                        await waiter.woken.wait()


def _checked(look: Look, allowed: StillAllowed) -> Look:
    """The same look; from the second on, the caller must still be allowed to: it may lose its rights while it waits."""
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
        await asyncio.sleep(min(left, max(interval, SHORTEST_POLL_SEC)))


def _together(assignments: list[Assignment], answers: Sequence[ClaimAnswer]) -> ClaimAnswer:
    """The answers to the claims of one look, as one."""
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
