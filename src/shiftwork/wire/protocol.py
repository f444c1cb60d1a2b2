"""HTTP/1.1 with bounds that uvicorn does not set: on all that is not body, and on how long a request takes to come."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Iterable

import msgspec
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from shiftwork.wire.problem import MEDIA_TYPE, Problem

MAX_HEAD = 65_536
MAX_REQUEST_SEC = 60.0
"""Longer than a body is waited for, so that a slow sender gets an error before the connection ends."""

MIN_BODY = 262_144
"""This much of a body must arrive in that time, or the rest of it."""

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
    """Say what was wrong with something that is not even a request, and hang up."""
    body = msgspec.json.encode(problem_body)
    head = f"content-type: {MEDIA_TYPE}\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
    transport.write(STATUS_LINE[problem_body.status] + head.encode() + body)
    transport.close()


def send_whole(cycle: RequestResponseCycle, status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> bool:
    """Send head and body in one write, where uvicorn makes two and looks for forbidden bytes in each header.

    The headers must be ours, with the length of the body. False where that is not possible: then nothing is sent.
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
    """Stops the parser before the request is handed on; it has been refused."""


class BoundedHttp(HttpToolsProtocol):
    """One connection."""

    _beside = 0
    """Bytes since the last that were body, or the end of a head."""
    _come = 0
    """Bytes of the body since the patience was last renewed."""
    _patience: asyncio.TimerHandle | None = None
    _begun = False
    """Whether a part of a request is here, and not all of it."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        self._expect()

    def connection_lost(self, exc: Exception | None) -> None:
        self._has_come()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._beside += len(data)
        super().data_received(data)
        if self._begun and self._patience is None:  # mostly all of it comes at once, and no timer is needed
            self._expect()
        if self._beside > MAX_HEAD and not self.transport.is_closing():
            refuse(self.transport, _LARGE_HEAD)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._has_come()
        self._begun, self._come = True, 0

    def on_headers_complete(self) -> None:
        # What came at once may be the head and much of the body: only then it is worth counting.
        if self._beside > MAX_HEAD and self._head_size() > MAX_HEAD:
            refuse(self.transport, _LARGE_HEAD)
            raise HeadTooLarge
        self._beside = 0
        super().on_headers_complete()
        self.scope["extensions"] = {WHOLE: {"send": functools.partial(send_whole, self.cycle)}}

    def on_body(self, body: bytes) -> None:
        self._beside = 0
        self._come += len(body)
        if self._come >= MIN_BODY:
            self._expect()  # a large one may take its time
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._beside = 0
        self._has_come()
        super().on_message_complete()

    def handle_websocket_upgrade(self) -> None:
        self._has_come()
        super().handle_websocket_upgrade()

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002  # uvicorn has one text for whatever is wrong
        if not self.transport.is_closing():
            refuse(self.transport, _NOT_HTTP)

    def _head_size(self) -> int:
        """Path and headers as they are usually written: a colon, a space and the end of the line for each."""
        return len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)

    def _expect(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
        self._come = 0
        self._patience = self.loop.call_later(MAX_REQUEST_SEC, self.transport.close)

    def _has_come(self) -> None:
        self._begun = False
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
