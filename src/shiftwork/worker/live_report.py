"""Reports the progress of a running command: session and cost immediately, messages at a bounded rate."""

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
from shiftwork.worker.output import AgentMessage, RunUsage, Transcript

log = logging.getLogger("shiftwork.worker")
MAX_MESSAGES = 20
"""Messages per report."""

MAX_MESSAGE_LENGTH = 4_000
"""Only the end of longer texts is reported: it shows the current state."""

PAUSE_SEC = 1.0
SLOWER_EVERY = 100
"""After this many messages, the pauses double."""

MAX_PAUSE_SEC = 60.0


class MessageBuffer:
    """The next report, limited to a few messages."""

    def __init__(self) -> None:
        self._waiting: list[AgentMessage] = []
        self._left_out = 0

    def add(self, message: AgentMessage) -> None:
        """Consecutive text messages are joined."""
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
            taken.insert(0, AgentMessage("text", f"[{self._left_out} characters left out]"))
            self._left_out = 0
        return taken


class Use(NamedTuple):
    """The provider and account the agent uses, if its worker was given them."""

    provider: str | None = None
    account: str | None = None
    model: str | None = None
    """Used if the agent does not report a model itself."""


class ProgressReporter:
    """Reports on one run. It never delays the run; what cannot be sent is retried later or dropped."""

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
        self._booked = RunUsage()
        self._use = use or Use()
        self._windows: dict[str, WindowState] = {}
        """The windows already reported."""
        self._messages = 0

    def feed(self, data: bytes) -> None:
        """Feed the command's standard output."""
        self.add_messages(self._transcript.feed(data))

    def add_messages(self, messages: Iterable[AgentMessage]) -> None:
        """Queue messages, and other facts that the transcript found."""
        for message in messages:
            self._words.add(message)
        self._news.set()
        if self._transcript.session_id != self._pinned or self._transcript.spent.cost_usd > self._booked.cost_usd:
            self._urgent.set()

    def feed_stderr(self, words: str) -> None:
        """Feed the command's standard error."""
        self._words.add(AgentMessage("text", words, {"stream": "stderr"}))
        self._news.set()

    def stop(self) -> None:
        """Send the final report and end. Does not cancel: that could lose usage being booked."""
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
        """Send everything queued. Heartbeats handle a lost claim."""
        try:
            await self._pin()
            await self._book()
            self._report_windows()
            for message in self._words.take():
                if words := clean(message.text, MAX_MESSAGE_LENGTH).strip():
                    self._messages += 1
                    await self._context.message(words, kind=message.kind, data=message.data)
        except ShiftworkError as error:
            log.info("could not report the progress of %s: %s", self._context.id, error)

    async def _pin(self) -> None:
        session_id = self._transcript.session_id
        if session_id != self._pinned or not self._work_dir_pinned:
            await self._context.pin_session(session_id, self._work_dir)
            self._pinned, self._work_dir_pinned = session_id, True

    def _report_windows(self) -> None:
        """Report the use of the account's windows, if it has changed."""
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
        """Book only the difference: an agent reports the sum of its run."""
        more = self._transcript.spent.since(self._booked)
        if more == RunUsage():
            return
        cost = more.cost_usd if self._transcript.reports_cost else None
        model = self._transcript.model or self._use.model
        self._context.spent(cost, more.tokens_in, more.tokens_out, model, tokens_cached=more.tokens_cached)
        self._booked = self._booked.plus(more)
        with suppress(StoreError, OperationTimeout):
            await self._context.book_usage()
