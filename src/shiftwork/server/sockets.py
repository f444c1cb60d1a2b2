"""WebSocket connections that send frames encoded once for many clients, and end in bounded time if the peer stalls."""

from __future__ import annotations

import logging
from typing import Any

from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame, Opcode

log = logging.getLogger("shiftwork.server.sockets")
log.setLevel(logging.WARNING)  # at INFO, uvicorn logs each URL with its query, which may contain a token

BAD_DATA = 1007
LINGER_SEC = 2.0
"""How long a peer has to read the rest after a connection is closed."""


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def frame(text: bytes) -> bytes:
    """Encode a text message as a frame, which is the same for every client."""
    return Frame(Opcode.TEXT, text).serialize(mask=False)


class WebSocketConnection(WebSocketsSansIOProtocol):
    """Also sends encoded `frames`: encoding an event for each of 500 clients would cost 20 us each."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.logger = self.conn.logger = log
        self.conn.debug = False

    def send_receive_event_to_app(self) -> None:
        if self.curr_msg_data_type == "text" and not _is_utf8(b"".join(self.frames)):
            self.frames = []
            self.conn.send_close(BAD_DATA)
            self.handle_parser_exception()  # uvicorn would log a traceback for each
            return
        super().send_receive_event_to_app()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.handshake_exc is not None and not self.handshake_initiated:
            self.close_sent = True  # uvicorn would leave it open, and fail when the server stops
            self.transport.write(b"".join(self.conn.data_to_send()))
            self.transport.close()

    async def send(self, message: Any) -> None:
        await self.writable.wait()
        if self.handshake_complete and (self.close_sent or self.transport.is_closing()):
            raise ClientDisconnected  # uvicorn would raise a usage error, but the peer may have just closed
        if "frames" in message:
            self.transport.write(message["frames"])
        else:
            await super().send(message)

    async def run_asgi(self) -> None:
        await super().run_asgi()
        if not self.disconnected:
            self.loop.call_later(self.close_timeout + LINGER_SEC, self.transport.abort)

    def keepalive_timeout(self) -> None:
        super().keepalive_timeout()
        self.transport.abort()

    def shutdown(self) -> None:
        super().shutdown()
        self.loop.call_later(LINGER_SEC, self.transport.abort)
