"""Reports a running command to the queue: session and cost immediately, messages at a bounded rate."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

import msgspec

from shiftwork.model.errors import OperationTimeout, ShiftworkError, StoreError
from shiftwork.providers.limit_signal import PROVIDER_WINDOW, WindowState
from shiftwork.worker.context import Context
from shiftwork.worker.error_text import clean
from shiftwork.worker.output import AgentMessage, Spent, Transcript

log = logging.getLogger("shiftwork.worker")
MAX_MESSAGES = 20
"""In one go."""

MAX_MESSAGE_LENGTH = 4_000
"""Of a longer text the end is reported: it says where the work is now."""

PAUSE_SEC = 1.0
SLOWER_EVERY = 100
"""After this many messages the pauses are twice as long."""

MAX_PAUSE_SEC = 60.0


class MessageBuffer:
    """What is reported next, never more than a few messages."""

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


class Use(NamedTuple):
    """What the agent works with, as far as its worker was given it."""

    provider: str | None = None
    account: str | None = None
    model: str | None = None
    """Where the agent does not name it itself."""


class ProgressReporter:
    """Reports on one run. It never delays the run; what cannot be sent now is sent later or dropped."""

    def __init__(self, context: Context, transcript: Transcript, work_dir: str, use: Use | None = None) -> None:
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
        self._use = use or Use()
        self._windows: dict[str, WindowState] = {}
        """Those that were reported."""
        self._messages = 0

    def feed(self, data: bytes) -> None:
        """What the command printed on its standard output."""
        self.say(self._transcript.feed(data))

    def say(self, messages: Iterable[AgentMessage]) -> None:
        """What there is to tell, and whatever else the transcript has learned."""
        for message in messages:
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
                break  # the last report is sent below, without a pause
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
            self._tell_windows()
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

    def _tell_windows(self) -> None:
        """How far the account's windows are used, where that has changed."""
        use = self._use
        for window, found in self._transcript.windows.items():
            if self._windows.get(window) == found:
                continue
            self._windows[window] = found
            model = self._transcript.model or use.model
            state = msgspec.structs.replace(found, provider=use.provider, account=use.account, model=model)
            used = "" if found.utilization is None else f", {found.utilization:.0%} used"
            data = {PROVIDER_WINDOW: msgspec.to_builtins(state)}
            self._words.add(AgentMessage("text", f"the {window} window of the account: {found.status}{used}", data))

    async def _book(self) -> None:
        """Only what is new: an agent tells the sum of its run."""
        more = self._transcript.spent.beyond(self._booked)
        if more == Spent():
            return
        cost = more.cost_usd if self._transcript.tells_cost else None
        model = self._transcript.model or self._use.model
        self._context.spent(cost, more.tokens_in, more.tokens_out, model, tokens_cached=more.tokens_cached)
        self._booked = self._booked.plus(more)
        with suppress(StoreError, OperationTimeout):
            await self._context.book_usage()
