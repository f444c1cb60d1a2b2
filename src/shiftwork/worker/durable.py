"""Durable steps, which later attempts do not repeat, and once-only effects."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, TypeVar

from shiftwork import tracing
from shiftwork.engine.assignment import Assignment
from shiftwork.model import check
from shiftwork.model.errors import (
    EffectInFlight,
    EffectUnknown,
    InputError,
    LeaseLost,
    OperationTimeout,
    Overloaded,
    StoreClosed,
    StoreError,
)
from shiftwork.model.task import Usage
from shiftwork.operation.interface import AnyQueue
from shiftwork.steps.model import Effect, Step
from shiftwork.worker import threads, usage_scope

T = TypeVar("T")
log = logging.getLogger("shiftwork.worker")
PAGE = 100
RETRY_SEC = (0.2, 5.0)
"""First and maximum delay between attempts to store something while the queue is unreachable."""


class Happened(NamedTuple):
    """Returned by `verify`: the effect did happen, with this result."""

    result: Any = None


class NotHappened(Exception):
    """Raised by the function of an effect that certainly did nothing: it may be retried."""


class Durable:
    """One attempt's steps and effects."""

    _queue: AnyQueue
    _assignment: Assignment
    _noted: usage_scope.UsageTotal | None = None
    """The attempt's recorded usage; most record none."""

    @property
    def _usage_total(self) -> usage_scope.UsageTotal:
        if self._noted is None:
            self._noted = usage_scope.UsageTotal()
        return self._noted

    @functools.cached_property
    def _called(self) -> dict[str, int]:
        return defaultdict(int)

    @functools.cached_property
    def _tried(self) -> set[str]:
        """Keys of effects whose function was called in this attempt."""
        return set()

    @functools.cached_property
    def _stored(self) -> _Stored:
        return _Stored(self._queue, self._assignment.id)

    async def step(self, name: str, function: Callable[..., Any], *args: Any) -> Any:
        """Return the function's result: stored by an earlier attempt, or computed now and stored for later ones.

        A repeated name is another step: `plan`, `plan#2`, in the order of the calls. Usage recorded inside with `spent`
        is booked with the step.
        """
        numbered = self._numbered(name)
        if (stored := await self._stored.find(numbered)) is not None:
            return await self._result_of(stored)
        spent = usage_scope.UsageTotal()
        with tracing.span(f"step {numbered}", task_id=self._assignment.id, step=numbered):
            try:
                with usage_scope.collecting_into(spent):
                    result = await threads.call(function, *args, name=numbered)
            except BaseException:
                self._record(spent.empty())
                raise
            return (await self._complete(numbered, result, spent.empty())).result

    async def _result_of(self, step: Step) -> Any:
        """Read a large result, which pages of steps leave out."""
        if step.artifact is None:
            return step.result
        return (await persist(lambda: self._queue.steps.begin(self._assignment.token, step.name))).result

    async def begin_step(self, name: str) -> Step:
        """Begin the next step of this name: done, with its result, or in progress from now on."""
        numbered = self._numbered(name)
        return await persist(lambda: self._queue.steps.begin(self._assignment.token, numbered))

    async def complete_step(self, step: Step, result: Any) -> Any:
        """Store the result of a begun step, with the usage recorded so far; returns it as stored."""
        return (await self._complete(step.name, result, self._usage_total.empty())).result

    async def record_step(self, name: str, result: Any) -> Any:
        """Store a result under exactly this name, with the usage recorded so far; returns it as stored.

        The first result under a name wins. For logs whose entries have their own names.
        """
        return (await self._complete(check.name(name, "name"), result, self._usage_total.empty())).result

    async def read_steps(self, prefix: str) -> list[Step]:
        """The finished steps whose names begin with this, in order of creation, with their results."""
        token, found = self._assignment.token, list[Step]()
        after: int | None = 0
        while after is not None:
            page = await persist(
                functools.partial(self._queue.steps.list, self._assignment.id, after=after, limit=PAGE)
            )
            found += [step for step in page if step.status == "done" and step.name.startswith(prefix)]
            after = page[-1].place if len(page) == PAGE else None
        for place, step in enumerate(found):
            if step.artifact is not None:  # a page leaves out large results
                found[place] = await persist(functools.partial(self._queue.steps.begin, token, step.name))
        return found

    async def _complete(self, name: str, result: Any, used: Usage) -> Step:
        try:
            return await persist(lambda: self._queue.steps.complete(self._assignment.token, name, result, used))
        except LeaseLost:
            raise  # whose step has booked it
        except BaseException:
            self._record(used)
            raise

    def _numbered(self, name: str) -> str:
        self._called[check.name(name, "name")] += 1
        count = self._called[name]
        return name if count == 1 else self._numbered(f"{name}#{count}")

    def _record(self, used: Usage) -> None:
        """Add usage to the current step, or to the attempt outside of steps."""
        (usage_scope.current() or self._usage_total).add(used)

    async def effect(
        self,
        name: str | None,
        function: Callable[[Effect], Any],
        *,
        key: str | None = None,
        verify: Callable[[Effect], Any] | None = None,
    ) -> Any:
        """Perform an outside action once, despite crashes; returns the function's result, from now or an earlier
        attempt.

        The function gets the effect, whose `key` and `token` it should pass to the outside system. If an earlier
        attempt may have acted, `verify` checks and returns `Happened(result)` or None; without it, a person is asked.
        """
        effect = await self._begin_effect(name, key)
        if effect.status == "done":
            return effect.result
        if effect.status == "in_flight":
            raise EffectInFlight(f"effect {effect.key!r} is being performed by task {effect.task_id}", key=effect.key)
        if effect.status == "unknown" and (known := await self._poll(effect, verify)) is not None:
            return (await self._finish_effect(effect, known.result)).result
        self._tried.add(effect.key)
        try:
            with tracing.span(f"effect {name or effect.key}", task_id=self._assignment.id, effect=effect.key):
                result = await threads.call(function, effect, name=effect.key)
        except NotHappened:
            await self._finish_effect(effect, None, happened=False)
            raise
        return (await self._finish_effect(effect, result)).result

    async def _begin_effect(self, name: str | None, key: str | None) -> Effect:
        asked = 0

        async def ask() -> Effect:
            nonlocal asked
            asked += 1
            return await self._queue.effects.begin(self._assignment.token, name, key=key)

        effect = await persist(ask)
        if asked > 1 and effect.begun_by == self._assignment.token and effect.key not in self._tried:
            return _as_new(effect)  # begun by a call whose answer was lost
        return effect

    async def _poll(self, effect: Effect, verify: Callable[[Effect], Any] | None) -> Happened | None:
        if verify is None:
            raise EffectUnknown(
                f"effect {effect.key!r} was begun by {effect.begun_by}, and it is unknown whether it happened",
                key=effect.key,
            )
        found = await threads.call(verify, effect, name=effect.key)
        if found is not None and not isinstance(found, Happened):
            raise TypeError(f"verify of {effect.key!r} must return Happened(result) or None, not {found!r}")
        return found

    async def _finish_effect(self, effect: Effect, result: Any, *, happened: bool = True) -> Effect:
        token = self._assignment.token
        try:
            return await persist(lambda: self._queue.effects.finish(token, effect.key, result, happened=happened))
        except InputError:  # its result cannot be stored; that it happened must be
            await persist(lambda: self._queue.effects.finish(token, effect.key))
            raise


def _as_new(effect: Effect) -> Effect:
    return Effect(effect.key, "new", effect.task_id, effect.fence, effect.begun_by, effect.began_at)


class _Stored:
    """Finished steps of earlier attempts, read on demand: usually in order of creation."""

    def __init__(self, queue: AnyQueue, task_id: str) -> None:
        self._queue = queue
        self._task_id = task_id
        self._known: dict[str, Step] = {}
        self._after: int | None = 0
        self._reading = asyncio.Lock()

    async def find(self, name: str) -> Step | None:
        async with self._reading:
            while name not in self._known and self._after is not None:
                await self._read_on(self._after)
        return self._known.pop(name, None)

    async def _read_on(self, after: int) -> None:
        page = await persist(lambda: self._queue.steps.list(self._task_id, after=after, limit=PAGE))
        self._known |= {step.name: step for step in page if step.status == "done"}
        self._after = page[-1].place if len(page) == PAGE else None


async def persist(call: Callable[[], Awaitable[T]]) -> T:
    """Call until the queue answers, so that an outage does not lose paid work. The end of the lease ends this."""
    wait = RETRY_SEC[0]
    while True:
        try:
            return await call()
        except StoreClosed:
            raise
        except (StoreError, OperationTimeout, Overloaded) as error:
            log.info("retrying in %g s: %s", wait, error)
        await asyncio.sleep(wait)
        wait = min(wait * 2, RETRY_SEC[1])
