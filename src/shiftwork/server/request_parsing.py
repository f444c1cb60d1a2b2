"""Parses requests: headers, path, query and body, with errors that name the field."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import cache
from types import UnionType
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote

import msgspec
import starlette.datastructures
from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.types import ASGIApp, Receive, Scope, Send

from shiftwork.model import check, times
from shiftwork.model.bounds import HEADER_TEXT, MAX_BODY_BYTES, MAX_NAME
from shiftwork.model.errors import BadText, InputError, Malformed, Overloaded, TooLarge, UnsupportedEncoding
from shiftwork.operation.first_step import Ended, begin
from shiftwork.server import rendering
from shiftwork.server.endpoint import Endpoint, Query
from shiftwork.views import NATIVE
from shiftwork.views.view import View

if TYPE_CHECKING:
    from shiftwork.server.state import ServerState

MAX_BODY_SEC = 30.0
MAX_PER_QUERY = 1000
IF_MATCH = r'(?:\*|([0-9]{1,18})|(?:W/)?"([0-9]{1,18})(?:-[0-9a-f]{16})?")'
"""A task's version, alone or in its ETag."""
_IF_MATCH = re.compile(IF_MATCH)
_HEADER_TEXT = re.compile(HEADER_TEXT)
_NAMED_FIELD = re.compile(r"Object (?:contains unknown|missing required) field `(.+)`")
_ESCAPED_NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")
_ESCAPES = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)", re.DOTALL
)
"""Escapes in JSON, one after another; the group matches a surrogate without its other half."""
_NOT_A_NUMBER = re.compile(r"[+-]?(?:nan|inf|infinity)|null", re.IGNORECASE)


class Headers(starlette.datastructures.Headers):
    """Headers in a dict: Starlette's lookup scans all of them each time, which took a sixth of a request."""

    def __init__(self, scope: Scope) -> None:
        super().__init__(scope=scope)
        self._first = dict(reversed(self._list))

    def get(self, key: str, default: Any = None) -> Any:
        value = self._first.get(_sent_name(key))
        return default if value is None else value.decode("latin-1")


@cache
def _sent_name(key: str) -> bytes:
    """The name of a header as stored; the code uses a few dozen, so the cache stays small."""
    return key.lower().encode("latin-1")


class Call(Request):
    """A request with our headers."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        super().__init__(scope, receive, send)
        self._ours = Headers(scope)

    @property
    def headers(self) -> Headers:
        return self._ours


def is_header_text(value: str) -> bool:
    return _HEADER_TEXT.fullmatch(value) is not None


def header(request: Request, name: str) -> str | None:
    value = request.headers.get(name)
    if value is not None and not is_header_text(value):
        raise InputError("expected 1 to 255 characters of printable ASCII", where=name)
    return value


def if_match(request: Request) -> int | None:
    """The task version that the request requires, if any."""
    sent = request.headers.get("if-match")
    if sent is None:
        return None
    known = _IF_MATCH.fullmatch(sent)
    if known is None:
        raise InputError(f"{sent!r} is not a version", where="If-Match", hint="Send the ETag of the task.")
    version = known[1] or known[2]
    return int(version) if version else None


class RawPath:
    """Routes by the raw path, so that a name in it may contain a slash, encoded as `%2F`."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope = {**scope, "path": scope["raw_path"].decode("ascii")}
        await self._app(scope, receive, send)


def path(request: Request) -> dict[str, str]:
    """The names in the path, checked to be storable."""
    return {name: _name(value, name) for name, value in request.path_params.items()}


def _name(quoted: str, where: str) -> str:
    try:
        name = unquote(quoted, errors="strict")
    except UnicodeDecodeError:
        raise BadText("not UTF-8", where=where) from None
    if len(name) > MAX_NAME:
        raise InputError(f"{len(name)} characters, at most {MAX_NAME} are allowed", where=where)
    return check.name(name, where)


def query(connection: HTTPConnection, kind: type[Query], default: View | None = None) -> Any:
    """Read the query into its struct. In a view, named or by default, times may be in ISO 8601."""
    kinds = _kinds(kind)
    values: dict[str, Any] = {}
    for name, value in _pairs(connection.scope["query_string"]):
        check.text(name, "query")
        check.text(value, name)
        written = kinds.get(name, "str")
        if "list" in written:
            values.setdefault(name, []).append(value)
        elif name in values:
            raise InputError("given more than once", where=name)
        elif "str" not in written and _NOT_A_NUMBER.fullmatch(value):
            raise InputError(f"{value!r} is not a valid number", where=name)  # msgspec would accept it
        else:
            values[name] = value
    if values.get("view") != NATIVE and ("view" in values or default is not None):
        values = rendering.moments_in(values, kind)
    try:
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        raise _problem(error) from None


@cache
def _kinds(kind: type[Query]) -> dict[str, str]:
    """The annotations of the fields, cached: computing them took a seventh of a request."""
    return {field.encode_name: str(field.type) for field in msgspec.structs.fields(kind)}


def _pairs(raw: bytes) -> list[tuple[str, str]]:
    try:
        return parse_qsl(raw.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=MAX_PER_QUERY)
    except UnicodeDecodeError:
        raise BadText("not UTF-8", where="query") from None
    except ValueError:
        raise InputError(f"at most {MAX_PER_QUERY} values are read", where="query") from None


def _problem(error: msgspec.ValidationError) -> InputError:
    what, _, place = str(error).partition(" - at ")
    parts = [place.strip("`").removeprefix("$").lstrip(".")]
    if parts[0].startswith("["):  # the body is a list of tasks
        parts[0] = f"tasks{parts[0]}"
    if named := _NAMED_FIELD.match(what):
        parts.append(named[1])
    return InputError(what, where=".".join(filter(None, parts)) or None, hint=times.hint(what))


async def body(request: Request) -> bytes:
    """Read the whole body, limited in size and time.

    Usually all of it arrived with the head: then there is no wait and no timer.
    """
    _refuse_packed(request)
    announced = request.headers.get("content-length", "0")
    if announced.isdigit() and int(announced) > MAX_BODY_BYTES:
        raise TooLarge(f"{announced} bytes, at most {MAX_BODY_BYTES} are read", where="body")
    begun = begin(request.receive())
    if isinstance(begun, Ended) and not begun.value.get("more_body"):
        return _part(begun.value, 0)
    parts: list[bytes] = []
    size, more = 0, True
    async with _patience(request, f"the body did not arrive within {MAX_BODY_SEC:g} seconds"):
        message = begun.value if isinstance(begun, Ended) else await begun
        while more:
            parts.append(_part(message, size))
            size += len(parts[-1])
            more = message.get("more_body", False)
            message = await request.receive() if more else message
    return b"".join(parts)


def _part(message: Mapping[str, Any], before: int) -> bytes:
    if message["type"] == "http.disconnect":
        raise ClientDisconnect
    part: bytes = message.get("body", b"")
    if before + len(part) > MAX_BODY_BYTES:
        raise TooLarge(f"at most {MAX_BODY_BYTES} bytes are read", where="body")
    return part


async def stream(request: Request) -> AsyncIterator[bytes]:
    """Read the body part by part. The caller limits its size; each part must arrive in time."""
    _refuse_packed(request)
    parts = request.stream()
    while True:
        async with _patience(request, f"no part of the body arrived for {MAX_BODY_SEC:g} seconds"):
            part = await anext(parts, None)
        if part is None:
            return
        yield part


def _refuse_packed(request: Request) -> None:
    """Refuse a compressed body: it would fail as JSON, or be stored compressed as an artifact."""
    if request.headers.get("content-encoding") is None:
        return
    named = ",".join(request.headers.getlist("content-encoding"))
    if any(coding.strip().lower() not in {"", "identity"} for coding in named.split(",")):
        raise UnsupportedEncoding(f"the body has the encoding {named[:100]!r}", where="Content-Encoding")


@asynccontextmanager
async def _patience(request: Request, slow: str) -> AsyncIterator[None]:
    """Limit the wait for a body. A stopping server does not wait, but still reads what has arrived."""
    state: ServerState = request.app.state.server
    try:
        async with asyncio.timeout(0 if state.stopping.is_set() else MAX_BODY_SEC) as limit:
            state.reads.add(limit)
            try:
                yield
            finally:
                state.reads.discard(limit)
    except TimeoutError:
        if state.stopping.is_set():
            raise Overloaded("the server is stopping, and the body is incomplete", where="body") from None
        raise Malformed(slow, where="body") from None


_ONE: msgspec.json.Decoder[Any] = msgspec.json.Decoder(dict[str, Any])
_ONE_OR_MANY: msgspec.json.Decoder[Any] = msgspec.json.Decoder(dict[str, Any] | list[dict[str, Any]])


def in_document(endpoint: Endpoint) -> msgspec.json.Decoder[Any]:
    """The decoder for a body in a document's names, which its view translates."""
    return _ONE_OR_MANY if isinstance(endpoint.body, UnionType) else _ONE


def in_our_words(raw: bytes, words: Mapping[str, str]) -> bytes:
    """Translate a document's names for agent and claim in a body to ours."""
    body = decode(raw, _ONE)
    return msgspec.json.encode({words.get(name, name): value for name, value in body.items()})


def in_our_times(raw: bytes, kind: Any, decoder: msgspec.json.Decoder[Any]) -> Any:
    """Decode a body under our names in which times may be in ISO 8601."""
    if not rendering.has_moments(kind):
        return decode(raw, decoder)
    return decode(msgspec.json.encode(rendering.moments_in(decode(raw, _ONE), kind)), decoder)


def decode(raw: bytes, decoder: msgspec.json.Decoder[Any]) -> Any:
    """Decode the body into its struct. An empty one counts as `{}`."""
    if b"\\u0000" in raw and _ESCAPED_NUL.search(raw):
        raise BadText("the body contains a NUL character", where="body")
    try:
        return _decode(raw or b"{}", decoder)
    except msgspec.ValidationError as error:
        raise _problem(error) from None
    except UnicodeDecodeError:
        raise BadText("the body is not UTF-8", where="body") from None
    except msgspec.DecodeError as error:
        if any(escape[1] for escape in _ESCAPES.finditer(raw)):  # msgspec reports it as a truncated text
            raise BadText("the body contains a lone surrogate", where="body") from None
        raise Malformed(f"the body is not JSON: {error}", where="body") from None
    except RecursionError:
        raise TooLarge("nested too deeply", where="body") from None


def _decode(raw: bytes, decoder: msgspec.json.Decoder[Any]) -> Any:
    try:
        return decoder.decode(raw)
    except msgspec.ValidationError as error:
        if b"." not in raw and b"e" not in raw and b"E" not in raw:
            raise
        try:
            plain = msgspec.json.decode(raw)
        except msgspec.ValidationError:
            raise error from None
        # In JSON Schema, 2.0 is an integer.
        return msgspec.convert(_whole(plain), decoder.type)


def _whole(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {name: _whole(inner) for name, inner in value.items()}
    return [_whole(inner) for inner in value] if isinstance(value, list) else value
