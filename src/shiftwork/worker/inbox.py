"""What people and programs say to a handler while it works."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable

from shiftwork.model.errors import OperationTimeout, StoreError
from shiftwork.model.reports import Instruction
from shiftwork.operation.interface import AnyQueue

log = logging.getLogger("shiftwork.worker")


class Inbox:
    """The instructions of one attempt: those of the task so far, then those that heartbeats bring.

    Each is handed out once, in order, and acknowledged as it is. A later attempt gets all of them again; those that an
    earlier one has had say so in `acknowledged_at`.
    """

    def __init__(self, queue: AnyQueue, token: str) -> None:
        self._queue = queue
        self._token = token
        self._waiting: dict[int, Instruction] = {}
        self._taken = 0
        self._owes = False
        """Whether something that was handed out is not yet acknowledged."""
        self._has_asked = False
        self._arrived = asyncio.Event()

    async def take(self) -> list[Instruction]:
        """Return what has come since the last call, in order; does not wait.

        The first call asks the queue for all there are. Raises `LeaseLost` where the claim no longer holds.
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
        """What came with a heartbeat; until it is acknowledged it comes with every one."""
        new = {each.seq: each for each in instructions if each.seq > self._taken}
        self._waiting |= new
        if new or self._owes:
            self._arrived.set()

    async def _ask(self) -> None:
        if not self._has_asked:
            self.receive(await self._queue.claims.inbox(self._token))
            self._has_asked = True

    async def _hand_out(self, instructions: list[Instruction]) -> None:
        """An acknowledgement that does not get through goes with the next one: the handler has them all the same."""
        self._taken = max([self._taken, *(each.seq for each in instructions)])
        self._owes = self._owes or any(each.acknowledged_at is None for each in instructions)
        if not self._owes:
            return
        try:
            await self._queue.claims.acknowledge(self._token, self._taken)
            self._owes = False
        except (StoreError, OperationTimeout) as error:
            log.info("could not acknowledge the instructions of %s: %s", self._token, error)
