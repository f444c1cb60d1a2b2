"""A Redis server that reports an older version and refuses newer commands."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit, urlunsplit

VERSION = "6.0.16"
UNKNOWN = frozenset({b"XAUTOCLAIM"})


@asynccontextmanager
async def older(url: str) -> AsyncIterator[str]:
    """The address of a relay to this server: all but `INFO server` and newer commands is passed on."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    assert parts.port is not None

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            upstream, to_upstream = await asyncio.open_connection(parts.hostname, parts.port)
            try:
                while True:
                    request = await _message(reader)
                    if (answer := _own_answer(request)) is None:
                        to_upstream.write(request)
                        answer = await _message(upstream)
                    writer.write(answer)
                    await writer.drain()
            finally:
                to_upstream.close()
                writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        port = server.sockets[0].getsockname()[1]
        yield urlunsplit(parts._replace(netloc=f"127.0.0.1:{port}"))
    finally:
        server.close()


def _own_answer(request: bytes) -> bytes | None:
    words = request.split(b"\r\n")[2::2]
    if words[:2] == [b"INFO", b"server"]:
        text = f"# Server\r\nredis_version:{VERSION}\r\n".encode()
        return b"$%d\r\n%s\r\n" % (len(text), text)
    if words[0].upper() in UNKNOWN:
        return b"-ERR unknown command '%s'\r\n" % words[0]
    return None


async def _message(reader: asyncio.StreamReader) -> bytes:
    """One whole message of RESP2 or RESP3, as it came."""
    line = await reader.readuntil(b"\r\n")
    kind, rest = line[:1], line[1:-2]
    if kind in b"$=!" and int(rest) >= 0:
        return line + await reader.readexactly(int(rest) + 2)
    parts = max(0, int(rest)) * (2 if kind == b"%" else 1) if kind in b"*~>%" else 0
    return line + b"".join([await _message(reader) for _ in range(parts)])
