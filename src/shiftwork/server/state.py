"""State shared by the whole server: the open queue, authentication, and shutdown."""

from __future__ import annotations

import asyncio
import itertools
import secrets
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shiftwork import views
from shiftwork.access.authenticator import Authenticator
from shiftwork.queue import Queue
from shiftwork.server.hub import Hub
from shiftwork.server.prometheus import Latencies
from shiftwork.server.stream_limits import StreamLimit
from shiftwork.views.view import View

MAX_WAITING = 8000
"""The maximum number of waiting claims: each holds a connection, and other calls need some, too."""


class MovableClock:
    """Real time plus the time by which a test has advanced it."""

    def __init__(self) -> None:
        self.ahead_sec = 0.0
        self.moves: dict[str, tuple[str, Any]] = {}
        """Requests and their answers, by Idempotency-Key."""

    def __call__(self) -> float:
        return time.time() + self.ahead_sec

    def advance(self, seconds: float) -> None:
        self.ahead_sec += seconds


class ServerState:
    """The state of one running server."""

    def __init__(
        self,
        queue: Queue,
        *,
        tokens: bool = False,
        clock: MovableClock | None = None,
        claim_folders: Sequence[str] = (),
        view: View | None = None,
    ) -> None:
        self.queue = queue
        self.view = view
        """The view of answers to callers that name none; None for our own names."""
        self.claim_folders = frozenset(Path(folder).resolve() for folder in claim_folders)
        """The folders that callers may name in the setting `claim_folder`: this process writes into them."""
        self.authenticator = Authenticator(queue.find_token, tokens=tokens)
        self.clock = clock
        """The test clock; None if time is real."""
        self.stopping = asyncio.Event()
        """Set when the server stops: long polls are then answered, and streams end."""
        self.reads: set[asyncio.Timeout] = set()
        """The timeouts of request bodies that have not arrived yet."""
        self.hubs = {each.engine.store: Hub(each.engine.store, self.stopping) for each in queue.databases()}
        self.waits = StreamLimit("waiting calls", MAX_WAITING)
        self.latencies = Latencies()
        self._name = secrets.token_hex(4)
        self._numbers = itertools.count(1)

    @property
    def hub(self) -> Hub:
        """The reader of the log in the database of the server's own workspace."""
        return self.hubs[self.queue.engine.store]

    def hub_of(self, workspace: str | None) -> Hub:
        """The same for another workspace; None for calls about all of them."""
        return self.hub if workspace is None else self.hubs[self.queue.in_workspace(workspace).engine.store]

    def nudge(self) -> None:
        """Make all hubs poll now, because events were just written."""
        for hub in self.hubs.values():
            hub.nudge()

    def new_request_id(self) -> str:
        """A request id from this server's name and a counter: a random one would cost a system call."""
        return f"{self._name}{next(self._numbers):08x}"

    def view_for(self, named: str | None) -> View | None:
        """The view that a call names, otherwise the server's own."""
        return self.view if named is None else views.chosen(named)

    def stop(self) -> None:
        """End all waiting. Call it from the serving loop; a signal handler may do so, too."""
        self.stopping.set()
        # A signal may arrive while the loop sorts its timers, so change them in a callback of the loop.
        asyncio.get_running_loop().call_soon_threadsafe(self._end_reads)

    def _end_reads(self) -> None:
        now = asyncio.get_running_loop().time()
        for limit in self.reads:
            if not limit.expired():
                limit.reschedule(now)
