"""Instructions of people and programs to a running handler."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable

from shiftwork.model.errors import OperationTimeout, StoreError
from shiftwork.model.reports import Instruction
from shiftwork.operation.interface import AnyQueue

log = logging.getLogger("shiftwork.worker")


class Inbox:
    """The instructions of one attempt: the task's so far, then those brought by heartbeats.

    Each is delivered once, in order, and acknowledged then. A later attempt gets all of them again; `acknowledged_at`
    marks those that an earlier one has had.
    """

    def __init__(self, queue: AnyQueue, token: str) -> None:
        self._queue = queue
        self._token = token
        self._waiting: dict[int, Instruction] = {}
        self._taken = 0
        self._owes = False
        """Whether a delivered instruction is not yet acknowledged."""
        self._has_asked = False
        self._arrived = asyncio.Event()

    async def take(self) -> list[Instruction]:
        """Return the instructions since the last call, in order; does not wait.

        The first call reads all from the queue. Raises `LeaseLost` if the claim no longer holds.
        """
        await self._ask()
        new = sorted(self._waiting.values(), key=lambda each: each.seq)
        self._waiting.clear()
        self._arrived.clear()
        await self._hand_out(new)
        return new

    async def __aiter__(self) -> AsyncIterator[Instruction]:
        """Yield each instruction as it comes, as long as the attempt lasts."""
        await self._ask()
        while True:
            while self._waiting:
                first = self._waiting.pop(min(self._waiting))
                await self._hand_out([first])
                yield first
            if self._owes:
                await self._hand_out([])
            self._arrived.clear()
            await self._arrived.wait()

    def receive(self, instructions: Iterable[Instruction]) -> None:
        """Take the instructions of a heartbeat; each heartbeat repeats them until they are acknowledged."""
        new = {each.seq: each for each in instructions if each.seq > self._taken}
        self._waiting |= new
        if new or self._owes:
            self._arrived.set()

    async def _ask(self) -> None:
        if not self._has_asked:
            self.receive(await self._queue.claims.inbox(self._token))
            self._has_asked = True

    async def _hand_out(self, instructions: list[Instruction]) -> None:
        """A failed acknowledgement is sent with the next one: the handler has the instructions anyway."""
        self._taken = max([self._taken, *(each.seq for each in instructions)])
        self._owes = self._owes or any(each.acknowledged_at is None for each in instructions)
        if not self._owes:
            return
        try:
            await self._queue.claims.acknowledge(self._token, self._taken)
            self._owes = False
        except (StoreError, OperationTimeout) as error:
            log.info("could not acknowledge the instructions of %s: %s", self._token, error)
