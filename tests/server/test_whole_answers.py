"""A complete answer is one write, so that the client wakes once."""

import asyncio

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from shiftwork.server.app import Answer
from shiftwork.wire import protocol


class Transport(asyncio.Transport):
    """Stores what is written."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)})
        self.written: list[bytes] = []
        self.is_closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written.append(bytes(data))

    def close(self) -> None:
        self.is_closed = True

    def is_closing(self) -> bool:
        return self.is_closed

    def resume_reading(self) -> None:
        """Ignore: there is no input."""

    def pause_reading(self) -> None:
        """Do nothing."""


class Line:
    """A connection to an app that answers each request after a turn of the loop."""

    def __init__(self) -> None:
        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            await asyncio.sleep(0)
            answer = Answer(b'{"n":1}', 200)
            answer.raw_headers.append((b"x-path", scope["raw_path"]))
            await answer(scope, receive, send)

        config = uvicorn.Config(app, http=protocol.BoundedHttp, log_config=None, access_log=False)
        config.load()
        self.transport = Transport()
        self.http = protocol.BoundedHttp(config, ServerState(), {})
        self.http.connection_made(self.transport)

    async def ask(self, *parts: bytes) -> list[bytes]:
        """What is written while these parts come one after the other."""
        self.transport.written.clear()
        for part in parts:
            self.http.data_received(part)
        while self.http.tasks:
            await asyncio.wait(self.http.tasks)
            await asyncio.sleep(0)
        return self.transport.written

    def has_timers(self) -> bool:
        return self.http._timer is not None


def whole(path: bytes, *headers: bytes) -> bytes:
    lines = (b"HTTP/1.1 200 OK", b"content-length: 7", b"content-type: application/json")
    return b"\r\n".join((*lines, b"x-path: " + path, *headers, b"", b'{"n":1}'))


async def test_answer_is_one_write_on_a_connection_that_is_kept() -> None:
    line = Line()
    for path in (b"/one", b"/two"):
        assert await line.ask(b"GET %s HTTP/1.1\r\nhost: a\r\n\r\n" % path) == [whole(path)]
        assert not line.transport.is_closed
    assert line.http.server_state.total_requests == 2


async def test_pipelined_requests_are_answered_in_turn() -> None:
    line = Line()
    both = b"".join(b"GET %s HTTP/1.1\r\nhost: a\r\n\r\n" % path for path in (b"/one", b"/two"))
    assert await line.ask(both) == [whole(b"/one"), whole(b"/two")]


async def test_connection_is_closed_after_the_answer_where_the_client_asks_for_it() -> None:
    line = Line()
    asked = b"GET /one HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n"
    assert await line.ask(asked) == [whole(b"/one", b"connection: close")]
    assert line.transport.is_closed


@pytest.mark.parametrize(("method", "body", "is_logged"), [(b"HEAD", b"", False), (b"GET", b'{"n":1}', True)])
async def test_answer_to_head_and_one_that_is_logged_are_left_to_uvicorn(
    method: bytes, body: bytes, *, is_logged: bool
) -> None:
    line = Line()
    line.http.access_log = is_logged
    written = b"".join(await line.ask(method + b" /one HTTP/1.1\r\nhost: a\r\n\r\n"))
    assert written == whole(b"/one").removesuffix(b'{"n":1}') + body


async def test_timer_runs_only_while_part_of_a_request_is_missing() -> None:
    line = Line()
    assert line.has_timers()  # for the first request
    await line.ask(b"GET /one HTTP/1.1\r\nhost: a\r\n\r\n")
    assert not line.has_timers()
    line.http.data_received(b"POST /two HTTP/1.1\r\nhost: a\r\ncontent-le")
    assert line.has_timers()
    await line.ask(b"ngth: 2\r\n\r\n", b"{}")
    assert not line.has_timers()
