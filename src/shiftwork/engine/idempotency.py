"""Makes requests idempotent: the first answer is stored in its own transaction and returned to repeats."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, cast

import msgspec

from shiftwork.engine.engine import IdempotentRequest
from shiftwork.model.errors import IdempotencyKeyReused, ShiftworkError, from_dict
from shiftwork.store.store import Row, Tx

T = TypeVar("T")
KEPT_SEC = 86_400.0
"""How long a repeat of a request is recognized."""
EFFECT_KEPT_SEC = 600.0
"""The same for requests of which only the fact is stored: claims are many, and are not repeated after this long."""


async def run_idempotently(
    workspace: str, request: IdempotentRequest, step: int, kind: Any, verb: Callable[[Tx], Awaitable[T]], tx: Tx
) -> T:
    """Run a verb, or return the answer of its first run under this key.

    Of two concurrent calls, the second waits for the first on its key. A verb that raises leaves no key behind.
    """
    place = {"workspace": workspace, "key": request.key, "step": step}
    mark = {"fingerprint": request.fingerprint, "until": tx.now + KEPT_SEC}
    while await tx.one("take_reply", **place, **mark) is None:
        kept = await tx.one("read_reply", **place)
        if kept is not None:  # otherwise the row had just expired and was removed between the two statements
            return cast(T, _repeat(request, kept, kind))
    result = await verb(tx)
    text = msgspec.json.encode(result, enc_hook=_plain).decode()
    await tx.run("keep_reply", **place, result=text)
    return result


class Repeated(Exception):
    """This request has already had its effect, and its answer was not stored."""


async def record_first(
    workspace: str,
    request: IdempotentRequest,
    verb: Callable[[Tx], Awaitable[T]],
    had_effect: Callable[[T], bool],
    tx: Tx,
) -> T:
    """Run a verb whose answer is not stored; once it has had an effect, it is not run again under this key."""
    place = {"workspace": workspace, "key": request.key, "step": request.steps + 1}
    _refuse_repeat(request, await tx.one("read_reply", **place))
    result = await verb(tx)
    mark = {"fingerprint": request.fingerprint, "until": tx.now + EFFECT_KEPT_SEC}
    if not had_effect(result) or await tx.one("take_reply", **place, **mark) is None:
        _refuse_repeat(request, await tx.one("read_reply", **place))  # it was sent twice at the same time
    return result


def _refuse_repeat(request: IdempotentRequest, kept: Row | None) -> None:
    if kept is not None:
        _check_same(request, kept)
        raise Repeated


def _check_same(request: IdempotentRequest, kept: Row) -> None:
    if kept["fingerprint"] != request.fingerprint:
        raise IdempotencyKeyReused(f"the key {request.key!r} belongs to another request", where="Idempotency-Key")


def _repeat(request: IdempotentRequest, kept: Row, kind: Any) -> Any:
    _check_same(request, kept)
    try:
        return msgspec.json.decode(kept["result"], type=kind, dec_hook=_error)
    except msgspec.ValidationError:  # stored by another version, in another format
        raise IdempotencyKeyReused(
            f"the request with the key {request.key!r} was done before an upgrade, and its answer cannot be read",
            where="Idempotency-Key",
            hint="Read the records that it changed; do not send it again under a new key.",
        ) from None


def _plain(value: Any) -> Any:
    if isinstance(value, ShiftworkError):
        return value.as_dict()
    raise NotImplementedError(type(value))


def _error(kind: type, value: Any) -> Any:
    if issubclass(kind, ShiftworkError):
        return from_dict(value)
    raise NotImplementedError(kind)
