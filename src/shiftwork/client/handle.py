"""What all parts of a client's public face share: the connections, the workspace spoken of, and who speaks."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from shiftwork.client.transport import Call, Transport
from shiftwork.core import ids
from shiftwork.core.errors import InputError
from shiftwork.core.settings import Bounds
from shiftwork.queue import check
from shiftwork.queue.fence import Outcome, Token, parse_token
from shiftwork.wire.problem import error_of
from shiftwork.wire.shapes import MOST_IN_BATCH, OutcomeReply

T = TypeVar("T")
LARGEST_BODY = 16 * 1024 * 1024
_BOUNDS = Bounds(depth=100)
"""A field may be as deep as the server says; here it only must be possible to write it."""

PRINTABLE = "".join(map(chr, range(ord(" "), ord("~") + 1)))
_HEADER = re.compile(r"[!-~](?:[ -~]{0,253}[!-~])?")


class Speaker(msgspec.Struct, frozen=True):
    """Who speaks, to which workspace; None for the token's own."""

    actor: str = "system"
    request_id: str | None = None
    workspace: str | None = None


class Handle:
    """A server's queue as one caller sees it, in one workspace."""

    def __init__(self, transport: Transport, workspace: str, speaker: Speaker) -> None:
        self._transport = transport
        self._speaker = speaker
        self.workspace = workspace

    async def _get(self, path: str, kind: type[T], /, *, wait_sec: float = 0.0, **query: Any) -> T:
        asked = {**query, "wait_sec": wait_sec} if wait_sec else query
        call = Call("GET", self._path(path, asked), headers=self._headers(), wait_sec=wait_sec)
        return await self._transport.call(call, kind)

    async def _post(self, path: str, kind: type[T], body: Any = None, *, key: str | None = None) -> T:
        """Say something that may be said twice: because it changes nothing then, or by its key."""
        return await self._send("POST", path, kind, body, key=key)

    async def _once(self, path: str, kind: type[T], body: Any = None, *, where: str = "body") -> T:
        """Say something whose effect must come once, however often it has to be sent."""
        return await self._send("POST", path, kind, body, key=new_key(), where=where)

    async def _send(
        self,
        method: str,
        path: str,
        kind: type[T],
        body: Any = None,
        *,
        key: str | None = None,
        wait_sec: float = 0.0,
        query: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        where: str = "body",
    ) -> T:
        known = {**self._headers(), **(headers or {})}
        if key is not None:
            known["Idempotency-Key"] = key
        text = None if body is None else check.to_json(body, LARGEST_BODY, _BOUNDS, where).encode()
        call = Call(method, self._path(path, query or {}), text, known, wait_sec)
        return await self._transport.call(call, kind)

    def _path(self, path: str, query: Mapping[str, Any]) -> str:
        named = [*query.items(), ("workspace", self._speaker.workspace), ("view", "native")]
        pairs = [(name, _as_query(each, name)) for name, value in named for each in _each(value)]
        return f"{path}?{urlencode(pairs)}" if pairs else path

    def _headers(self) -> dict[str, str]:
        known = {"X-Actor": self._speaker.actor}
        return known if self._speaker.request_id is None else {**known, "X-Request-Id": self._speaker.request_id}


def new_key() -> str:
    return uuid.uuid4().hex


def actor_header(actor: str) -> str:
    """Who speaks, with what has no place in a header written as in an address: `human:Zo%C3%AB`."""
    return quote(check.name(actor, "actor"), safe=PRINTABLE)


def header(value: str, where: str) -> str:
    """What goes into a header: printable ASCII, since beyond it no two programs agree."""
    if _HEADER.fullmatch(check.name(value, where)) is None:
        raise InputError("over HTTP expected printable ASCII", where=where)
    return value


def part(name: str, where: str) -> str:
    """A caller's name for something as one part of a path."""
    return quote(check.name(name, where), safe="")


def _each(value: Any) -> Sequence[Any]:
    if value is None:
        return ()
    return value if isinstance(value, list | tuple) else (value,)


def _as_query(value: Any, name: str) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return check.text(value, name) or "" if isinstance(value, str) else str(value)


# -- claims and batches ------------------------------------------------------------------------------------------


def token_text(token: str | Token) -> str:
    return token.text if isinstance(token, Token) else check.text(token, "token", 300) or ""


def of_claim(token: str | Token, verb: str) -> tuple[str, str]:
    """The path of a write under a claim, and the claim's token."""
    text = token_text(token)
    parts = ids.split_token(text)
    if parts is None:
        parse_token(text)  # says what is wrong with it
    return f"/api/tasks/{part(parts[0] if parts else '', 'token')}/{verb}", text


def batches(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """A server takes so many at once; each has its own outcome, so that parting them changes nothing."""
    for start in range(0, len(items), MOST_IN_BATCH):
        yield items[start : start + MOST_IN_BATCH]


def outcome(reply: OutcomeReply) -> Outcome:
    error = None if reply.error is None else error_of(msgspec.structs.asdict(reply.error))
    return Outcome(reply.task_id, reply.status, error, reply.repeated, reply.data)


def given(**fields: Any) -> dict[str, Any]:
    """What the caller gave; what is None says nothing."""
    return {name: value for name, value in fields.items() if value is not None}
