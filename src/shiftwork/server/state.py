"""What the whole server shares: the open queue, who is let in, and the end of its life."""

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
from shiftwork.server.exposition import Latencies
from shiftwork.server.hub import Hub
from shiftwork.server.shares import Shares
from shiftwork.views.view import View

MAX_WAITING = 8000
"""Claims that wait for work: each holds a connection, and some are left for all other calls."""


class MovableClock:
    """Real time, and whatever an observer has moved it on by."""

    def __init__(self) -> None:
        self.ahead_sec = 0.0
        self.moves: dict[str, tuple[str, Any]] = {}
        """By their Idempotency-Key: what was asked, and what was answered."""

    def __call__(self) -> float:
        return time.time() + self.ahead_sec

    def advance(self, seconds: float) -> None:
        self.ahead_sec += seconds


class ServerState:
    """One running server."""

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
        """In whose names callers are answered who name no view; None for our own."""
        self.claim_folders = frozenset(Path(folder).resolve() for folder in claim_folders)
        """Those that callers may name in the setting `claim_folder`: this process writes into them."""
        self.authenticator = Authenticator(queue.find_token, tokens=tokens)
        self.clock = clock
        """Moved by anyone who tests against this server; None where time is real."""
        self.stopping = asyncio.Event()
        """Long polls are answered and streams end once it is set."""
        self.reads: set[asyncio.Timeout] = set()
        """How long each body is waited for that has not come yet."""
        self.hubs = {each.engine.store: Hub(each.engine.store, self.stopping) for each in queue.databases()}
        self.waits = Shares("waiting calls", MAX_WAITING)
        self.latencies = Latencies()
        self._name = secrets.token_hex(4)
        self._numbers = itertools.count(1)

    @property
    def hub(self) -> Hub:
        """Who reads the log of the database that the server's own workspace is in."""
        return self.hubs[self.queue.engine.store]

    def hub_of(self, workspace: str | None) -> Hub:
        """The same for another workspace; None for calls about all of them."""
        return self.hub if workspace is None else self.hubs[self.queue.in_workspace(workspace).engine.store]

    def nudge(self) -> None:
        """Something was written just now: all listeners hear of it at once."""
        for hub in self.hubs.values():
            hub.nudge()

    def new_request_id(self) -> str:
        """This server's name and a number: a random one each took a system call."""
        return f"{self._name}{next(self._numbers):08x}"

    def view_for(self, named: str | None) -> View | None:
        """The view that a call names, or else the server's own."""
        return self.view if named is None else views.chosen(named)

    def stop(self) -> None:
        """No one is waited for any longer. Called from the loop that serves, also by the handler of a signal."""
        self.stopping.set()
        # A signal may come while the loop sorts its timers: they are touched in the loop's own time.
        asyncio.get_running_loop().call_soon_threadsafe(self._end_reads)

    def _end_reads(self) -> None:
        now = asyncio.get_running_loop().time()
        for limit in self.reads:
            if not limit.expired():
                limit.reschedule(now)
