"""Sends calls over HTTP, retries them while the server is unreachable, and raises its errors."""

from __future__ import annotations

import asyncio
import functools
import io
import logging
import random
import time
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, TypeVar, cast
from urllib.parse import urlsplit

import msgspec

from shiftwork import tracing
from shiftwork.model.errors import (
    ArtifactDamaged,
    InputError,
    ShiftworkError,
    StoreClosed,
    StoreUnavailable,
    StoreUnsuitable,
)
from shiftwork.wire.problem import decode, error_of

if TYPE_CHECKING:
    import aiohttp

T = TypeVar("T")
log = logging.getLogger("shiftwork.client")
CONNECT_SEC = 5.0
MAX_CONNECTIONS = 256
KEEP_CONNECTION_SEC = 4.0
"""Shorter than servers keep an idle connection, so that we rarely write to one that is being closed."""

PAUSE_SEC = (0.05, 2.0)
"""First and maximum delay between attempts, with jitter so that a fleet does not retry all at once."""

MIN_UPLOAD_RATE = 65_536
"""The slowest upload allowed for when computing a timeout, in bytes per second."""

AWAY = frozenset({429, 502, 503, 504})
"""Statuses of a server or proxy that is temporarily unable to serve."""


class Call(NamedTuple):
    """One request. Each can be repeated: it reads, is idempotent by itself, or carries an idempotency key."""

    method: str
    path: str
    body: bytes | Path | None = None
    """A file is streamed."""
    headers: dict[str, str] = {}
    wait_sec: float = 0.0
    """How long the server was asked to wait before it answers (long polling)."""


class Transport:
    """A pool of connections to one server, shared by all handles of a client."""

    def __init__(self, url: str, token: str | None, *, timeout_sec: float, patience_sec: float) -> None:
        self.url = check_address(url)
        self.ahead_sec = 0.0
        """How far the server's clock is ahead of ours."""
        self._timeout_sec = timeout_sec
        self._patience_sec = patience_sec
        self._session = _open_session(token)
        self._closed = False
        self._under_way: set[asyncio.Task[None]] = set()

    def keep(self, work: Coroutine[Any, Any, None]) -> None:
        """Keep a background task alive until it ends."""
        task = asyncio.create_task(work)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def close(self) -> None:
        if self._under_way:
            await asyncio.gather(*self._under_way, return_exceptions=True)
        self._closed = True
        await self._session.close()

    async def call(self, call: Call, kind: type[T]) -> T:
        """Send the call and decode its answer. An error is raised as the same class a local queue would raise."""
        raw = await self._until_answered(call)
        try:
            return cast(T, _decoder(cast(Any, kind)).decode(raw))
        except msgspec.DecodeError as error:
            raise StoreUnsuitable(f"{self.url} answers, but is not a Shiftwork server: {error}", hint=_HINT) from error

    async def fetch(self, call: Call) -> bytes:
        """Send the call and return the raw answer."""
        return await self._until_answered(call)

    async def _until_answered(self, call: Call) -> bytes:
        deadline: float | None = None
        pause = PAUSE_SEC[0]
        while True:
            answer = await self._attempt(call)
            if isinstance(answer, bytes):
                return answer
            now = time.monotonic()
            deadline = deadline or now + max(self._patience_sec, call.wait_sec)
            wait = max(answer.after_sec, pause * random.uniform(0.5, 1.0))
            if now + wait > deadline:
                raise answer.error
            log.info("%s; retrying in %.2f s", answer.error.what, wait)
            await asyncio.sleep(wait)
            pause = min(2 * pause, PAUSE_SEC[1])

    async def _attempt(self, call: Call) -> bytes | _ServerUnavailable:
        if self._closed:
            raise StoreClosed("the client was closed", hint="Open it again.")
        try:
            status, headers, raw = await self._send(call)
        except TimeoutError:
            return _ServerUnavailable(StoreUnavailable(f"{self.url} does not answer", hint=_AWAY_HINT))
        except _failures() as error:
            what = str(error) or type(error).__name__
            return _ServerUnavailable(StoreUnavailable(f"{self.url} cannot be reached: {what}", hint=_AWAY_HINT))
        if 200 <= status < 300:
            return raw or b"null"
        refusal = _refusal(self.url, status, headers, raw)
        if status in AWAY and not isinstance(refusal, ArtifactDamaged):
            return _ServerUnavailable(refusal, _seconds(headers.get("retry-after")))
        raise refusal

    async def _send(self, call: Call) -> tuple[int, Any, bytes]:
        import aiohttp  # noqa: PLC0415  # an extra
        from yarl import URL  # noqa: PLC0415  # comes with it

        patience = self._timeout_sec + call.wait_sec
        traceparent = tracing.current()
        headers = call.headers if traceparent is None else {**call.headers, "traceparent": traceparent}
        with _open_body(call.body) as (body, size):
            limits = aiohttp.ClientTimeout(sock_connect=CONNECT_SEC, sock_read=patience + size / MIN_UPLOAD_RATE)
            async with self._session.request(
                call.method,
                URL(self.url + call.path, encoded=True),
                data=body,
                headers=headers,
                timeout=limits,
                allow_redirects=False,
            ) as answer:
                return answer.status, answer.headers, await answer.read()


@contextmanager
def _open_body(body: bytes | Path | None) -> Iterator[tuple[BinaryIO | None, int]]:
    """Open the body; yields it with the size of a file, or 0 for the few bytes of any other call."""
    if isinstance(body, Path):
        with body.open("rb") as file:
            yield file, body.stat().st_size
    else:
        yield None if body is None else io.BytesIO(body), 0


class _ServerUnavailable(NamedTuple):
    """The server could not serve: the error to raise if that lasts, and the delay it asked for."""

    error: ShiftworkError
    after_sec: float = 0.0


_HINT = "Check the address, and that server and client have the same version."
_AWAY_HINT = "Check that the server is running there, and try again. Acknowledged work is safe."


def check_address(url: str) -> str:
    """Return the address without a trailing slash; refuse an invalid one, or one that contains a secret."""
    if "@" in url.partition("//")[2].partition("/")[0]:
        raise InputError(
            "the address must not contain a secret", where="url", hint="Give the token as `token` or SHIFTWORK_TOKEN."
        )
    if not _is_address(url):
        raise InputError(f"{url!r} is not the address of a server", where="url", hint="Write http://host:port.")
    return url.rstrip("/")


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        place = parts.hostname and parts.port != 0
    except ValueError:  # a port that is not a number
        return False
    return bool(place) and parts.scheme in {"http", "https"} and not parts.query and not parts.fragment


def _open_session(token: str | None) -> aiohttp.ClientSession:
    try:
        import aiohttp  # noqa: PLC0415  # an extra
    except ImportError as error:
        raise StoreUnsuitable("the HTTP client is not installed", hint="pip install 'shiftwork[client]'") from error
    headers = {"Content-Type": "application/json", "Accept": "application/json"}
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    pool = aiohttp.TCPConnector(limit=MAX_CONNECTIONS, keepalive_timeout=KEEP_CONNECTION_SEC)
    return aiohttp.ClientSession(connector=pool, headers=headers)


def _failures() -> tuple[type[Exception], ...]:
    """The exceptions of an unreachable server or network."""
    import aiohttp  # noqa: PLC0415  # an extra

    return aiohttp.ClientError, OSError


def _refusal(url: str, status: int, headers: Any, raw: bytes) -> ShiftworkError:
    """Convert a refusal to an error; a proxy in front of the server does not answer with problem+json."""
    try:
        problem = msgspec.json.decode(raw, type=dict[str, Any])
    except msgspec.DecodeError:
        problem = {}
    if "code" in problem:
        return error_of(problem)
    if status in AWAY:
        return StoreUnavailable(f"{url} answers {status}", hint=_AWAY_HINT)
    elsewhere = f" and redirects to {headers['location']}" if "location" in headers else ""
    return StoreUnsuitable(f"{url} answers {status}{elsewhere}, but is not a Shiftwork server", hint=_HINT)


def _seconds(header: str | None) -> float:
    return float(header) if header is not None and header.isdecimal() else 0.0


@functools.cache
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind, dec_hook=decode)
