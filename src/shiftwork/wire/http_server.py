"""A small HTTP server for commands that serve one protocol, such as MCP or A2A."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import uvicorn

from shiftwork.wire.listen_socket import address
from shiftwork.wire.protocol import BoundedHttp

STOP_GRACE_SEC = 5
MAX_CONNECTIONS = 10_000


class HttpServer(uvicorn.Server):
    """Announces its address with `path` once it accepts connections."""

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
        """Stop without an error: uvicorn would raise the signal again."""
        self.should_exit = True
