"""Calls over HTTP: sent again while the server cannot be reached, and answered as its verbs would answer."""

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
"""Less than servers keep one that no one uses, so that we seldom write to one that is being closed."""

PAUSE_SEC = (0.05, 2.0)
"""Between attempts: first and longest, each shortened by chance so that a fleet does not come back as one."""

MIN_UPLOAD_RATE = 65_536
"""Bytes in a second, at which a file that is being sent may go."""

AWAY = frozenset({429, 502, 503, 504})
"""Answers of a server, or of what is before it, that cannot serve now."""


class Call(NamedTuple):
    """One request. All can be sent twice: they read, say the same again, or carry a key by which they are known."""

    method: str
    path: str
    body: bytes | Path | None = None
    """A file is read while it is sent."""
    headers: dict[str, str] = {}
    wait_sec: float = 0.0
    """How long the server may wait before it answers, because it was asked to."""


class Transport:
    """A pool of connections to one server, shared by all handles of a client."""

    def __init__(self, url: str, token: str | None, *, timeout_sec: float, patience_sec: float) -> None:
        self.url = check_address(url)
        self.ahead_sec = 0.0
        """By how much the server's clock is ahead of ours."""
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
        """The answer as a record of this kind; a refusal is raised as the queue's own verb would raise it."""
        raw = await self._until_answered(call)
        try:
            return cast(T, _decoder(cast(Any, kind)).decode(raw))
        except msgspec.DecodeError as error:
            raise StoreUnsuitable(f"{self.url} answers, but not as a Shiftwork server: {error}", hint=_HINT) from error

    async def fetch(self, call: Call) -> bytes:
        """The answer as it is."""
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
            log.info("%s; trying again in %.2f s", answer.error.what, wait)
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
    """What is sent, and how much of it there is besides the few bytes of a call."""
    if isinstance(body, Path):
        with body.open("rb") as file:
            yield file, body.stat().st_size
    else:
        yield None if body is None else io.BytesIO(body), 0


class _ServerUnavailable(NamedTuple):
    """The server did not serve: what to raise if that lasts, and when it wants to be asked again."""

    error: ShiftworkError
    after_sec: float = 0.0


_HINT = "Check the address, and that the server has this client's version."
_AWAY_HINT = "Is the server running there? Acknowledged work is safe; try again."


def check_address(url: str) -> str:
    """The address without a slash at its end; what is not one, or holds a secret, is refused."""
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
    """What a call meets when the server or the way to it is not there."""
    import aiohttp  # noqa: PLC0415  # an extra

    return aiohttp.ClientError, OSError


def _refusal(url: str, status: int, headers: Any, raw: bytes) -> ShiftworkError:
    """The error a server answered with; what is before a server has its own words."""
    try:
        problem = msgspec.json.decode(raw, type=dict[str, Any])
    except msgspec.DecodeError:
        problem = {}
    if "code" in problem:
        return error_of(problem)
    if status in AWAY:
        return StoreUnavailable(f"{url} answers {status}", hint=_AWAY_HINT)
    elsewhere = f" and sends us to {headers['location']}" if "location" in headers else ""
    return StoreUnsuitable(f"{url} answers {status}{elsewhere}, not as a Shiftwork server", hint=_HINT)


def _seconds(header: str | None) -> float:
    return float(header) if header is not None and header.isdecimal() else 0.0


@functools.cache
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind, dec_hook=decode)
