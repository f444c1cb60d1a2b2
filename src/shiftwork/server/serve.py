"""`shiftwork serve`: opens the queue, runs the maintenance jobs, and answers until it is stopped."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from types import FrameType
from typing import Any

import uvicorn

from shiftwork import views
from shiftwork.engine.engine import log as engine_log
from shiftwork.maintenance.write_probe import ProcessHeartbeat
from shiftwork.model.errors import StoreUnavailable
from shiftwork.notifications import public_url
from shiftwork.observe.maintenance_health import SERVER
from shiftwork.queue import Queue
from shiftwork.server import otlp_metrics
from shiftwork.server.app import build
from shiftwork.server.below_minimum import BelowMinimum
from shiftwork.server.folder_watch import Watching, check_folder
from shiftwork.server.options import STOP_GRACE_SEC, Options, check_options
from shiftwork.server.rendering import LogFilter
from shiftwork.server.routes import ENDPOINTS
from shiftwork.server.sockets import WebSocketConnection
from shiftwork.server.state import MovableClock, ServerState
from shiftwork.upkeep import upkeep
from shiftwork.wire.listen_socket import address, listen
from shiftwork.wire.protocol import BoundedHttp

log = logging.getLogger("shiftwork.server")
AGAIN_SEC = 1.0
"""How long to wait before trying again to reach an unavailable database of a map."""

MAX_CONNECTIONS = 10_000
MAX_MESSAGE = 65_536
"""The maximum message of a WebSocket client, which only sends filters."""


@asynccontextmanager
async def open_server_state(options: Options) -> AsyncIterator[ServerState]:
    """Open the queue and run its maintenance jobs while the server serves."""
    clock = MovableClock() if options.test_clock else None
    async with Queue.open(
        options.store,
        profile=options.profile,
        clock=clock,
        artifacts=options.artifacts,
        snapshots=options.snapshots,
        private_sinks=options.private_sinks,
        secrets_key=options.secrets_key,
    ) as queue:
        late = [] if options.public_url is None else await _remember_address(queue, options.public_url)
        view = views.chosen(options.view or views.of_profile(options.profile))
        folders = options.claim_folders
        state = ServerState(queue, tokens=options.tokens, clock=clock, claim_folders=folders, view=view)
        background = [*_background_tasks(queue, options), *(asyncio.create_task(each) for each in late)]
        naming = None if view is None else LogFilter(view)
        if naming is not None:
            engine_log.addFilter(naming)
        try:
            yield state
        finally:
            if naming is not None:
                engine_log.removeFilter(naming)
            state.stop()
            for hub in state.hubs.values():
                hub.close()
            for task in background:
                task.cancel()
            await asyncio.gather(*background, return_exceptions=True)


async def _remember_address(queue: Queue, url: str) -> list[Coroutine[Any, Any, None]]:
    """Store the dashboard's address in every database; returns the work left for those of a map that do not answer."""
    late: list[Coroutine[Any, Any, None]] = []
    for each in queue.databases():
        try:
            await public_url.remember(each.engine, url)
        except StoreUnavailable:
            if queue.routes is None:
                raise
            late.append(_remember_later(each, url))
    return late


async def _remember_later(queue: Queue, url: str) -> None:
    while True:
        await asyncio.sleep(AGAIN_SEC)
        with suppress(StoreUnavailable):
            return await public_url.remember(queue.engine, url)


def _background_tasks(queue: Queue, options: Options) -> list[asyncio.Task[None]]:
    """Start the tasks that run in parallel with serving."""
    each_database = queue.databases()
    background = (
        upkeep(queue)
        if options.maintenance
        else [ProcessHeartbeat(each.engine, SERVER).beat_forever() for each in each_database]
    )
    if (command := options.on_below_minimum) is not None:
        background += [BelowMinimum(each, command).run_forever() for each in each_database]
    if options.maintenance and (sent := otlp_metrics.of(queue)) is not None:
        background.append(sent.report_forever())
    if options.watch is not None:
        folder = check_folder(options.watch)
        background += [Watching(each, folder).run_forever() for each in each_database]
    return [asyncio.create_task(each) for each in background]


class Server(uvicorn.Server):
    """Answers long polls and ends streams immediately when it is stopped, then waits for running calls."""

    def __init__(self, state: ServerState, listening: socket.socket) -> None:
        self.state = state
        self._listening = listening
        super().__init__(
            uvicorn.Config(
                build(state, ENDPOINTS),
                http=BoundedHttp,
                ws=WebSocketConnection,
                ws_max_size=MAX_MESSAGE,
                ws_per_message_deflate=False,  # it would compress each event again for each client
                log_config=None,
                access_log=False,
                server_header=False,
                date_header=False,
                proxy_headers=False,
                lifespan="off",
                limit_concurrency=MAX_CONNECTIONS,
                timeout_graceful_shutdown=STOP_GRACE_SEC,
            )
        )

    @property
    def url(self) -> str:
        return address(self._listening)

    async def run_until_stopped(self, announce: Callable[[str], None] = lambda _url: None) -> None:
        """Serve until SIGTERM, SIGINT or `stop`; `announce` gets the address once it accepts connections."""
        self._announce = announce
        await self.serve(sockets=[self._listening])

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._announce(self.url)

    def stop(self) -> None:
        """Stop as on SIGTERM. Call it from the serving loop."""
        self.state.stop()
        self.should_exit = True

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002  # uvicorn's signature
        """Stop without an error: uvicorn would raise the signal again. A second Ctrl-C stops without waiting."""
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.stop()


@asynccontextmanager
async def open_server(options: Options, listening: socket.socket | None = None) -> AsyncIterator[Server]:
    """Yield a listening server that is ready to run; it listens on this socket if one is passed."""
    check_options(options)
    with listening or listen(options.host, options.port) as bound:
        async with open_server_state(options) as state:
            yield Server(state, bound)


async def serve(options: Options, announce: Callable[[str], None], listening: socket.socket | None = None) -> None:
    """Serve until stopped; `announce` is called with the address."""
    async with open_server(options, listening) as server:
        await _note_profile(server.state.queue, options.profile)
        await server.run_until_stopped(announce)


async def _note_profile(queue: Queue, profile: str) -> None:
    """Warn if the workspace has another profile: the option is for new workspaces only."""
    kept = await queue.settings.profile()
    if kept != profile:
        log.warning("workspace %s has the profile %s, not %s; change it with settings", queue.workspace, kept, profile)
