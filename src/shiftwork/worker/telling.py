"""Tells the queue what is seen of a running command: its session and its cost at once, its words at a bounded rate."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

from shiftwork.core.errors import OperationTimeout, ShiftworkError, StoreError
from shiftwork.worker.context import Context
from shiftwork.worker.delivery import clean
from shiftwork.worker.output import Said, Spent, Transcript

log = logging.getLogger("shiftwork.worker")
MOST_MESSAGES = 20
"""In one go."""

LONGEST_MESSAGE = 4_000
"""Of more words the last are told: they say where the work is now."""

PAUSE_SEC = 1.0
SLOWER_EVERY = 100
"""After so many messages the pauses are twice as long."""

LONGEST_PAUSE_SEC = 60.0


class Words:
    """What is to be told next, never more than a few messages."""

    def __init__(self) -> None:
        self._waiting: list[Said] = []
        self._left_out = 0

    def add(self, said: Said) -> None:
        """Words that follow words are one message."""
        last = self._waiting[-1] if self._waiting else None
        if last is not None and last.kind == said.kind == "text" and last.data == said.data:
            self._waiting[-1] = self._shorten(Said("text", last.text + said.text, last.data))
        else:
            self._waiting.append(self._shorten(said))
        if len(self._waiting) > MOST_MESSAGES:
            self._left_out += len(self._waiting.pop(0).text)

    def _shorten(self, said: Said) -> Said:
        over = max(0, len(said.text) - LONGEST_MESSAGE)
        self._left_out += over
        return said._replace(text=said.text[over:])

    def take(self) -> list[Said]:
        taken, self._waiting = self._waiting, []
        if self._left_out:
            taken.insert(0, Said("text", f"[{self._left_out} characters are left out]"))
            self._left_out = 0
        return taken


class Teller:
    """Tells of one run. It never keeps the run waiting, and what cannot be told is told later or not at all."""

    def __init__(self, context: Context, transcript: Transcript, work_dir: str) -> None:
        self._context = context
        self._transcript = transcript
        self._work_dir = work_dir
        self._work_dir_pinned = context.task.work_dir == work_dir
        self._words = Words()
        self._news = asyncio.Event()
        self._urgent = asyncio.Event()
        self._stopped = False
        self._pinned: str | None = None
        self._booked = Spent()
        self._messages = 0

    def hear(self, data: bytes) -> None:
        """What the command printed on its standard output."""
        for said in self._transcript.feed(data):
            self._words.add(said)
        self._news.set()
        if self._transcript.session_id != self._pinned or self._transcript.spent.cost_usd > self._booked.cost_usd:
            self._urgent.set()

    def hear_aside(self, words: str) -> None:
        """What it printed on its standard error."""
        self._words.add(Said("text", words, {"stream": "stderr"}))
        self._news.set()

    def stop(self) -> None:
        """Tell what there is and end. Not by cancelling: that could lose what is being booked."""
        self._stopped = True
        self._news.set()
        self._urgent.set()

    async def tell_until_stopped(self) -> None:
        while True:
            await self._news.wait()
            if self._stopped:
                break  # what there is to tell at the end is told below, without a pause
            self._news.clear()
            self._urgent.clear()
            await self.tell()
            pause = min(LONGEST_PAUSE_SEC, PAUSE_SEC * 2 ** (self._messages // SLOWER_EVERY))
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._urgent.wait()
        await self.tell()

    async def tell(self) -> None:
        """All there is to tell now. A claim that no longer holds is the heartbeats' business."""
        try:
            await self._pin()
            await self._book()
            for said in self._words.take():
                if words := clean(said.text, LONGEST_MESSAGE).strip():
                    self._messages += 1
                    await self._context.message(said.kind, words, said.data)
        except ShiftworkError as error:
            log.info("what %s does was not told: %s", self._context.id, error)

    async def _pin(self) -> None:
        session_id = self._transcript.session_id
        if session_id != self._pinned or not self._work_dir_pinned:
            await self._context.pin_session(session_id, self._work_dir)
            self._pinned, self._work_dir_pinned = session_id, True

    async def _book(self) -> None:
        """Only what is new: an agent tells the sum of its run."""
        more = self._transcript.spent.beyond(self._booked)
        if more == Spent():
            return
        self._context.spent(*more)
        self._booked = self._booked.plus(more)
        with suppress(StoreError, OperationTimeout):
            await self._context.book_usage()
