"""HTTP/1.1 with bounds that uvicorn lacks: on all but the body, and on how long a request may take to arrive."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Iterable

import msgspec
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from shiftwork.wire.problem import MEDIA_TYPE, Problem

MAX_HEAD = 65_536
MAX_REQUEST_SEC = 60.0
"""Longer than the wait for a body, so that a slow sender gets an error before the connection is closed."""

MIN_BODY = 262_144
"""At least this many bytes of a body, or its rest, must arrive within that time."""

WHOLE = "shiftwork.whole"
"""The extension of the ASGI scope whose `send` is `send_whole`."""

_NOT_HTTP = Problem(
    type="/errors/malformed",
    title="malformed",
    status=400,
    code="malformed",
    detail="this is not HTTP/1.1",
    hint="Send requests that conform to RFC 9112.",
)
_LARGE_HEAD = Problem(
    type="/errors/too_large",
    title="too large",
    status=431,
    code="too_large",
    detail=f"the path and the headers are more than {MAX_HEAD} bytes",
    where="headers",
    hint="Send fewer and shorter headers.",
)


def refuse(transport: asyncio.Transport, problem_body: Problem) -> None:
    """Answer input that is not a valid request with a problem, and close the connection."""
    body = msgspec.json.encode(problem_body)
    head = f"content-type: {MEDIA_TYPE}\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
    transport.write(STATUS_LINE[problem_body.status] + head.encode() + body)
    transport.close()


def send_whole(cycle: RequestResponseCycle, status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> bool:
    """Send head and body in one write; uvicorn makes two, and searches each header for forbidden bytes.

    The headers must be ours and include the body's length. Returns False, and sends nothing, if that is not possible.
    """
    if cycle.response_started or cycle.disconnected or cycle.flow.write_paused or cycle.access_log:
        return False
    if cycle.scope["method"] == "HEAD":
        return False
    cycle.response_started = cycle.response_complete = True
    cycle.waiting_for_100_continue = False
    parts = [STATUS_LINE[status]]
    for name, value in (*cycle.default_headers, *headers):
        parts += (name, b": ", value, b"\r\n")
    if not cycle.keep_alive:
        parts.append(b"connection: close\r\n")
    cycle.transport.write(b"".join((*parts, b"\r\n", body)))
    cycle.message_event.set()
    if not cycle.keep_alive:
        cycle.transport.close()
    cycle.on_response()
    return True


class HeadTooLarge(Exception):
    """Stops the parser before it passes on a request that was refused."""


class BoundedHttp(HttpToolsProtocol):
    """One connection."""

    _head_bytes = 0
    """Bytes received since the last part of a body or the end of a head."""
    _body_bytes = 0
    """Bytes of the body received since the timer was last reset."""
    _timer: asyncio.TimerHandle | None = None
    _is_partial = False
    """Whether a request has arrived in part."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        self._restart_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._head_bytes += len(data)
        super().data_received(data)
        if self._is_partial and self._timer is None:  # most requests arrive whole and need no timer
            self._restart_timer()
        if self._head_bytes > MAX_HEAD and not self.transport.is_closing():
            refuse(self.transport, _LARGE_HEAD)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._stop_timer()
        self._is_partial, self._body_bytes = True, 0

    def on_headers_complete(self) -> None:
        # The bytes may include much of the body, so compute the exact size only now.
        if self._head_bytes > MAX_HEAD and self._head_size() > MAX_HEAD:
            refuse(self.transport, _LARGE_HEAD)
            raise HeadTooLarge
        self._head_bytes = 0
        super().on_headers_complete()
        self.scope["extensions"] = {WHOLE: {"send": functools.partial(send_whole, self.cycle)}}

    def on_body(self, body: bytes) -> None:
        self._head_bytes = 0
        self._body_bytes += len(body)
        if self._body_bytes >= MIN_BODY:
            self._restart_timer()  # a large body gets more time as long as it keeps arriving
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._head_bytes = 0
        self._stop_timer()
        super().on_message_complete()

    def handle_websocket_upgrade(self) -> None:
        self._stop_timer()
        super().handle_websocket_upgrade()

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002  # uvicorn has one text for every error
        if not self.transport.is_closing():
            refuse(self.transport, _NOT_HTTP)

    def _head_size(self) -> int:
        """The size of path and headers as usually written, with a colon, a space and CRLF per header."""
        return len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)

    def _restart_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._body_bytes = 0
        self._timer = self.loop.call_later(MAX_REQUEST_SEC, self.transport.close)

    def _stop_timer(self) -> None:
        self._is_partial = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
