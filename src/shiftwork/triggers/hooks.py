"""Deliveries to a hook: verified by signature, fired once, and reported if refused."""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

import msgspec

from shiftwork.engine.engine import Caller, Engine
from shiftwork.engine.secrets import SecretBox
from shiftwork.engine.unit_of_work import UnitOfWork
from shiftwork.model import check
from shiftwork.model.errors import (
    ConflictError,
    HookRefused,
    InputError,
    Malformed,
    NotFound,
    ShiftworkError,
    TooLarge,
)
from shiftwork.operation.local import Call
from shiftwork.store.store import Row, Tx
from shiftwork.triggers import firing, policy
from shiftwork.triggers.firing import ArmedTrigger, FiringCause, armed_trigger, lock
from shiftwork.triggers.model import Firing, Hook
from shiftwork.triggers.policy import HookDelivery, Refused

log = logging.getLogger("shiftwork.engine")
MAX_BYTES = 1_048_576
MAX_SEC = 30.0
ALERT_EVERY_SEC = 60.0
"""The minimum time between reports of refused deliveries to one hook; all are counted."""


class KnownHook(NamedTuple):
    """A hook, with its secret to verify deliveries."""

    trigger: ArmedTrigger
    on: Hook
    secret: str


def should_report(engine: Engine, trigger_id: str) -> bool:
    """Whether to report a refusal: limited per hook and process, because it costs a transaction and a log line."""
    engine.counters["hook_refused"] += 1
    now = engine.store.now()
    if now - engine.refusals.get(trigger_id, -math.inf) < ALERT_EVERY_SEC:
        return False
    engine.refusals[trigger_id] = now
    return True


def refusal(name: str) -> HookRefused:
    """The same error for every reason, so that a forger does not even learn whether the hook exists."""
    return HookRefused(f"the delivery to the hook {name!r} was refused", where="signature")


async def find(tx: Tx, engine: Engine, workspace: str, name: str) -> KnownHook | None:
    row = await tx.one("find_trigger", workspace=workspace, name=name)
    return None if row is None or row["kind"] != "hook" else _known(row, engine.secrets)


def _known(row: Row, secrets: SecretBox) -> KnownHook:
    trigger = armed_trigger(row)
    assert isinstance(trigger.on, Hook)
    return KnownHook(trigger, trigger.on, secrets.open(row["secret"]) or "")


NONE = Hook(), policy.secret_of("standard", secrets.token_bytes(32))
"""A random secret to check deliveries to unknown hooks; no signature matches it."""


def verify(on: Hook, secret: str, headers: Mapping[str, str], body: bytes, now: float) -> tuple[HookDelivery, Any]:
    """Verify a delivery; returns it with its payload. Raises `Refused` for a signature, `Malformed` for a body."""
    delivery = policy.verify_signature(on.signature, secret, headers, body, now)
    return delivery, _payload(headers, body)


def _payload(headers: Mapping[str, str], body: bytes) -> Any:
    """The body as JSON, whatever its content type; otherwise as a form, if its content type says so."""
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if headers.get("content-type", "").partition(";")[0].strip() == "application/x-www-form-urlencoded":
            return _form(body)
        raise Malformed(f"the body is not JSON: {error}", where="body") from None


def _form(body: bytes) -> Any:
    """The fields of a form; GitHub puts JSON into the field `payload`."""
    try:
        found = dict(parse_qsl(body.decode(), keep_blank_values=True, strict_parsing=bool(body), errors="strict"))
    except ValueError as error:
        raise Malformed(f"the body is not a form: {error}", where="body") from None
    return _payload({}, found["payload"].encode()) if found.keys() == {"payload"} else found


async def receive(
    tx: Tx, engine: Engine, caller: Caller, workspace: str, name: str, delivery: HookDelivery, payload: Any
) -> Firing:
    """Fire the hook for a verified delivery, unless it does not match the trigger."""
    row = await lock(tx, workspace, name)
    trigger = armed_trigger(row)
    if not isinstance(trigger.on, Hook):
        raise NotFound(f"there is no hook {name!r}", where="name")
    facts = {"trigger": name, "payload": payload, "event": delivery.event, "delivery": delivery.id}
    found = {"delivery": delivery.id, "event": delivery.event}
    this = FiringCause(delivery.key, facts, data={what: value for what, value in found.items() if value is not None})
    if why := _skip_reason(row, trigger.on, facts):
        return await _emit_skip(tx, engine, caller, trigger, this, why)
    return await firing.fire(tx, engine, caller, trigger, this)


def _skip_reason(row: Row, on: Hook, facts: Mapping[str, Any]) -> str | None:
    if row["paused_at"] is not None:
        return "the trigger is paused"
    place = policy.unmet(on.where, facts)
    return None if place is None else f"{place} does not match the trigger"


async def _emit_skip(
    tx: Tx, engine: Engine, caller: Caller, trigger: ArmedTrigger, this: FiringCause, why: str
) -> Firing:
    """Emit a skip without storing the firing: the same delivery may match later."""
    came = Firing(trigger.name, this.key, tx.now, "skipped", why)
    work = UnitOfWork(tx, engine, caller)
    firing.emit(work, trigger, came, this.data)
    await work.save_events()
    return came


async def record_refused(tx: Tx, engine: Engine, caller: Caller, trigger: ArmedTrigger, why: str) -> None:
    """Record a refused delivery; of many in a short time, only the first emits an event."""
    log.info("hook_refused trigger=%s reason=%s", trigger.name, why, extra={"code": "hook_refused"})
    if await tx.one("tell_refusal", id=trigger.id, now=tx.now, before=tx.now - ALERT_EVERY_SEC) is None:
        return
    work = UnitOfWork(tx, engine, caller)
    work.emit_for(trigger.workspace, "trigger_refused", data={"trigger": trigger.name, "kind": "hook", "reason": why})
    await work.save_events()


async def receive_hook(call: Call, name: str, headers: Mapping[str, str], body: AsyncIterator[bytes]) -> Firing:
    """Accept a request to a hook: the signature is the credential, and every refusal looks the same."""
    check.name(name, "name")
    hook = await call.read(lambda tx: find(tx, call.engine, call.workspace, name))
    lowered = {key.lower(): value for key, value in headers.items()}
    try:
        raw = await whole_body(body)
        # An unknown hook is checked too: otherwise response times would reveal which hooks exist.
        on, secret = (hook.on, hook.secret) if hook is not None else NONE
        delivery, payload = verify(on, secret, lowered, raw, call.engine.store.now())
    except Refused as refused:
        _report_refused(call, hook, refused.reason)
        raise refusal(name) from None
    except (TooLarge, Malformed) as error:
        _report_refused(call, hook, error.what)
        raise
    if hook is None:
        raise refusal(name)
    try:
        came = await call.run_each_time(receive, call.workspace, name, delivery, payload)
    except (InputError, ConflictError) as error:
        _report_refused(call, hook, str(error))
        raise
    if came.duplicate:
        _report_refused(call, hook, "it was delivered before")
    return came


def _report_refused(call: Call, hook: KnownHook | None, why: str) -> None:
    """Report in the background, and rarely: anyone can send any number of refused deliveries."""
    if hook is not None and should_report(call.engine, hook.trigger.id):
        call.shared.keep(asyncio.ensure_future(_record_refused(call, hook, why)))


async def _record_refused(call: Call, hook: KnownHook, why: str) -> None:
    with suppress(ShiftworkError):  # the sender already has its answer
        await call.run_each_time(record_refused, hook.trigger, why)


async def whole_body(body: AsyncIterator[bytes]) -> bytes:
    """Read the body within bounds of size and time, since its sender is not verified yet."""
    parts, size = [], 0
    try:
        async with asyncio.timeout(MAX_SEC):
            async for part in body:
                size += len(part)
                if size > MAX_BYTES:
                    raise TooLarge(f"more than {MAX_BYTES} bytes", where="body", hint="Send a smaller body.")
                parts.append(part)
    except TimeoutError:
        raise Malformed(f"the body did not arrive within {MAX_SEC:g} seconds", where="body") from None
    return b"".join(parts)
