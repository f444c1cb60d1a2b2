"""Runs operations over HTTP: the request follows from the declaration."""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import AsyncGenerator, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

import msgspec

from shiftwork.client.transport import Call, Transport
from shiftwork.engine.api import MAX_RESULT_WAIT_SEC
from shiftwork.engine.claims_api import ClaimBatch, Claims
from shiftwork.model import check, ids
from shiftwork.model.bounds import HEADER_TEXT, MAX_BODY_BYTES
from shiftwork.model.errors import ConnectionUnusable, InputError, ShiftworkError
from shiftwork.model.outcome import Token, task_of, token_text
from shiftwork.operation.declare import Operation, operation_of
from shiftwork.operation.parameters import MAX_BATCH, TASK, TOKEN
from shiftwork.settings.model import Bounds

if TYPE_CHECKING:
    from shiftwork.artifacts.model import Artifact
    from shiftwork.artifacts.spool import Upload

PRINTABLE = "".join(map(chr, range(ord(" "), ord("~") + 1)))
_HEADER = re.compile(HEADER_TEXT)
_BOUNDS = Bounds(depth=100)
"""The server checks the real bound on depth; this one only keeps the encoder from overflowing."""

_CLAIM = operation_of(Claims.request)
_MADE_BY_REQUEST = operation_of(Claims.made_by_request)
_RELEASE = operation_of(ClaimBatch.release)


class CallerIdentity(msgspec.Struct, frozen=True):
    """The caller, and the workspace it calls; None means the token's own."""

    actor: str = "system"
    request_id: str | None = None
    workspace: str | None = None


class HttpExecutor:
    """One caller's access to a server, in one workspace."""

    max_wait_sec = MAX_RESULT_WAIT_SEC

    def __init__(self, transport: Transport, workspace: str, caller: CallerIdentity) -> None:
        self.transport = transport
        self.workspace = workspace
        self.caller = caller

    async def execute(self, operation: Operation, values: dict[str, Any]) -> Any:
        return await self.perform(operation, operation.parameters.read(values))

    async def perform(self, operation: Operation, values: dict[str, Any]) -> Any:
        if operation.batch is not None and len(values[operation.batch]) > MAX_BATCH:
            return await self._in_batches(operation, operation.batch, values)
        return await self._call(operation, values)

    async def _in_batches(self, operation: Operation, name: str, values: dict[str, Any]) -> list[Any]:
        """Split the items over several calls, in order. Each has its own outcome, so splitting changes nothing."""
        items: Sequence[Any] = values[name]
        answers: list[Any] = []
        for start in range(0, len(items), MAX_BATCH):
            part = {**values, name: items[start : start + MAX_BATCH]}
            answers += await self._call(operation, part)
        return answers

    async def _call(self, operation: Operation, values: dict[str, Any]) -> Any:
        wait_sec = float(values[operation.long_poll] or 0.0) if operation.long_poll else 0.0
        headers = self._headers(operation, values)
        call = Call(operation.http_method, self.path_of(operation, values), _body(operation, values), headers, wait_sec)
        try:
            return operation.unwrap(await self.transport.call(call, operation.reply))
        except asyncio.CancelledError:
            if operation is _CLAIM:
                claimed_by = values["agent_id"] or values["runtime_id"]
                self.transport.keep(self._release(claimed_by, headers["Idempotency-Key"]))
            raise

    async def _release(self, claimed_by: str, key: str) -> None:
        """Release tasks that the server claimed for a call that was cancelled."""
        with suppress(ShiftworkError):
            made = await self.execute(_MADE_BY_REQUEST, {"claimed_by": claimed_by, "request_id": key})
            tokens = [ids.token(task.id, task.fence) for task in made]
            if tokens:
                await self.execute(_RELEASE, {"tokens": tokens, "reason": "the caller disconnected"})

    def joining(self, connection: object) -> HttpExecutor:
        kind = type(connection).__qualname__
        raise ConnectionUnusable(
            f"a server cannot take part in the transaction of a {kind} here",
            where="connection",
            hint="Open the queue on its database: Queue.open('postgresql://…').",
            joinable=False,
        )

    def upload(self, upload: Upload) -> Coroutine[Any, Any, Artifact]:
        from shiftwork.client.uploads import send  # noqa: PLC0415  # most programs send no files

        return send(self, upload)

    def download(self, artifact_id: str, start: int, end: int | None) -> AsyncGenerator[bytes, None]:
        from shiftwork.client.uploads import fetch  # noqa: PLC0415  # most programs fetch no files

        return fetch(self, artifact_id, start, end)

    def path_of(self, operation: Operation, values: Mapping[str, Any]) -> str:
        parameters = operation.parameters
        named = dict(values)
        if operation.under_claim:
            named[TASK] = task_of(values[TOKEN])
        path = operation.path.format(**{name: _part(named[name], name) for name in operation.path_names})
        given = [field[0] for field in parameters.query if field[2:] != (values[field[0]],)]  # not the defaults
        query = [(parameters.http_name(name), values[name]) for name in given]
        pairs = [*query, ("workspace", self.caller.workspace), ("view", "native")]
        return f"{path}?{urlencode([(name, _as_query(item)) for name, value in pairs for item in _each(value)])}"

    def _headers(self, operation: Operation, values: Mapping[str, Any]) -> dict[str, str]:
        headers = self.identity()
        if operation.changes and _needs_key(operation, values):
            headers["Idempotency-Key"] = new_key()
        return headers

    def identity(self) -> dict[str, str]:
        headers = {"X-Actor": self.caller.actor}
        if self.caller.request_id is not None:
            headers["X-Request-Id"] = self.caller.request_id
        return headers


def _needs_key(operation: Operation, values: Mapping[str, Any]) -> bool:
    """Whether a repeat needs an idempotency key: a repeated result counts once, but its usage would be booked twice."""
    if operation.key == "with_usage":
        items = values.get(operation.batch or "") or [values]
        return any(_usage_of(item) is not None for item in items)
    return operation.key == "always"


def _usage_of(item: Any) -> Any:
    return item.get("usage") if isinstance(item, Mapping) else getattr(item, "usage", None)


def _body(operation: Operation, values: Mapping[str, Any]) -> bytes | None:
    parameters = operation.parameters
    if parameters.body is None:
        return None
    if parameters.body_name is not None:
        sent = values[parameters.body_name]
    else:
        names = [name for name in parameters.body.__struct_fields__ if name in values]
        sent = parameters.body(**{name: _as_sent(values[name]) for name in names})
        if operation.under_claim:
            sent.token = token_text(values[TOKEN])
    return check.to_json(sent, MAX_BODY_BYTES, _BOUNDS, parameters.body_name or "body").encode()


def _as_sent(value: Any) -> Any:
    """Replace claim tokens by their text, also inside the items of a list."""
    if isinstance(value, Token):
        return value.text
    if isinstance(value, list):
        return [_as_sent(item) for item in value]
    if isinstance(value, msgspec.Struct) and isinstance(getattr(value, TOKEN, None), Token):
        return msgspec.structs.replace(value, token=token_text(getattr(value, TOKEN)))
    return value


def _part(value: Any, where: str) -> str:
    """Encode a value as one path segment."""
    if isinstance(value, str):
        check.text(value, where)
        if not value:
            raise InputError("must not be empty", where=where)
    return quote(str(value), safe="")


def _each(value: Any) -> Sequence[Any]:
    if value is None:
        return ()
    return value if isinstance(value, list | tuple) else (value,)


def _as_query(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def new_key() -> str:
    return uuid.uuid4().hex


def actor_header(actor: str) -> str:
    """The actor, percent-encoded where a header cannot hold a character: `human:Zo%C3%AB`."""
    return quote(check.name(actor, "actor"), safe=PRINTABLE)


def header(value: str, where: str) -> str:
    """Check a header value: only printable ASCII is decoded alike by all programs."""
    if _HEADER.fullmatch(check.name(value, where)) is None:
        raise InputError("expected printable ASCII: it is sent as an HTTP header", where=where)
    return value
