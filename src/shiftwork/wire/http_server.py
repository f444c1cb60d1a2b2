"""A small HTTP server of its own process: it says where it serves, and ends without noise when it is stopped."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import uvicorn

from shiftwork.wire.listening import address
from shiftwork.wire.protocol import BoundedHttp

STOP_GRACE_SEC = 5
MAX_CONNECTIONS = 10_000


class HttpServer(uvicorn.Server):
    """Announces its address with `path`, once it can be asked."""

    def __init__(self, app: Any, listening: socket.socket, path: str, announce: Callable[[str], None]) -> None:
        self._url = address(listening) + path
        self._announce = announce
        super().__init__(
            uvicorn.Config(
                app,
                http=BoundedHttp,
                ws="none",
                lifespan="on",
                log_config=None,
                access_log=False,
                server_header=False,
                date_header=False,
                proxy_headers=False,
                limit_concurrency=MAX_CONNECTIONS,
                timeout_graceful_shutdown=STOP_GRACE_SEC,
            )
        )

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._announce(self._url)

    def handle_exit(self, sig: int, frame: Any) -> None:  # noqa: ARG002  # uvicorn's signature
        """A stop that was asked for is not a failure."""
        self.should_exit = True
