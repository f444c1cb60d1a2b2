"""Reports a running command to the queue: session and cost immediately, messages at a bounded rate."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

from shiftwork.model.errors import OperationTimeout, ShiftworkError, StoreError
from shiftwork.worker.context import Context
from shiftwork.worker.delivery import clean
from shiftwork.worker.output import AgentMessage, Spent, Transcript

log = logging.getLogger("shiftwork.worker")
MAX_MESSAGES = 20
"""In one go."""

MAX_MESSAGE_LENGTH = 4_000
"""Of more words the last are told: they say where the work is now."""

PAUSE_SEC = 1.0
SLOWER_EVERY = 100
"""After this many messages the pauses are twice as long."""

MAX_PAUSE_SEC = 60.0


class MessageBuffer:
    """What is to be told next, never more than a few messages."""

    def __init__(self) -> None:
        self._waiting: list[AgentMessage] = []
        self._left_out = 0

    def add(self, message: AgentMessage) -> None:
        """Words that follow words are one message."""
        last = self._waiting[-1] if self._waiting else None
        if last is not None and last.kind == message.kind == "text" and last.data == message.data:
            self._waiting[-1] = self._shorten(AgentMessage("text", last.text + message.text, last.data))
        else:
            self._waiting.append(self._shorten(message))
        if len(self._waiting) > MAX_MESSAGES:
            self._left_out += len(self._waiting.pop(0).text)

    def _shorten(self, message: AgentMessage) -> AgentMessage:
        over = max(0, len(message.text) - MAX_MESSAGE_LENGTH)
        self._left_out += over
        return message._replace(text=message.text[over:])

    def take(self) -> list[AgentMessage]:
        taken, self._waiting = self._waiting, []
        if self._left_out:
            taken.insert(0, AgentMessage("text", f"[{self._left_out} characters are left out]"))
            self._left_out = 0
        return taken


class ProgressReporter:
    """Tells of one run. It never keeps the run waiting, and what cannot be told is told later or not at all."""

    def __init__(self, context: Context, transcript: Transcript, work_dir: str) -> None:
        self._context = context
        self._transcript = transcript
        self._work_dir = work_dir
        self._work_dir_pinned = context.task.work_dir == work_dir
        self._words = MessageBuffer()
        self._news = asyncio.Event()
        self._urgent = asyncio.Event()
        self._stopped = False
        self._pinned: str | None = None
        self._booked = Spent()
        self._messages = 0

    def feed(self, data: bytes) -> None:
        """What the command printed on its standard output."""
        for message in self._transcript.feed(data):
            self._words.add(message)
        self._news.set()
        if self._transcript.session_id != self._pinned or self._transcript.spent.cost_usd > self._booked.cost_usd:
            self._urgent.set()

    def feed_stderr(self, words: str) -> None:
        """What it printed on its standard error."""
        self._words.add(AgentMessage("text", words, {"stream": "stderr"}))
        self._news.set()

    def stop(self) -> None:
        """Tell what there is and end. Not by cancelling: that could lose what is being booked."""
        self._stopped = True
        self._news.set()
        self._urgent.set()

    async def report_until_stopped(self) -> None:
        while True:
            await self._news.wait()
            if self._stopped:
                break  # what there is to tell at the end is told below, without a pause
            self._news.clear()
            self._urgent.clear()
            await self.report()
            pause = min(MAX_PAUSE_SEC, PAUSE_SEC * 2 ** (self._messages // SLOWER_EVERY))
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._urgent.wait()
        await self.report()

    async def report(self) -> None:
        """All there is to tell now. A claim that no longer holds is the heartbeats' business."""
        try:
            await self._pin()
            await self._book()
            for message in self._words.take():
                if words := clean(message.text, MAX_MESSAGE_LENGTH).strip():
                    self._messages += 1
                    await self._context.message(words, kind=message.kind, data=message.data)
        except ShiftworkError as error:
            log.info("could not report what %s does: %s", self._context.id, error)

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
