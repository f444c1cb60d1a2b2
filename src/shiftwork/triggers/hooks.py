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
"""How often refused deliveries to one hook are reported at most; all are counted."""


class KnownHook(NamedTuple):
    """A hook with what is needed to check its deliveries."""

    trigger: ArmedTrigger
    on: Hook
    secret: str


def is_news(engine: Engine, trigger_id: str) -> bool:
    """Whether to report a refusal: rarely per hook and process, because it costs a transaction and a log line."""
    engine.counters["hook_refused"] += 1
    now = engine.store.now()
    if now - engine.refusals.get(trigger_id, -math.inf) < ALERT_EVERY_SEC:
        return False
    engine.refusals[trigger_id] = now
    return True


def refusal(name: str) -> HookRefused:
    """The same error for every reason: a forger learns nothing, not even whether the hook exists."""
    return HookRefused(f"the delivery to the hook {name!r} is not accepted", where="signature")


async def find(tx: Tx, engine: Engine, workspace: str, name: str) -> KnownHook | None:
    row = await tx.one("find_trigger", workspace=workspace, name=name)
    return None if row is None or row["kind"] != "hook" else _known(row, engine.secrets)


def _known(row: Row, secrets: SecretBox) -> KnownHook:
    trigger = armed_trigger(row)
    assert isinstance(trigger.on, Hook)
    return KnownHook(trigger, trigger.on, secrets.open(row["secret"]) or "")


NONE = Hook(), policy.secret_of("standard", secrets.token_bytes(32))
"""What a delivery to a hook that is not there is checked against: nothing fits it."""


def believe(on: Hook, secret: str, headers: Mapping[str, str], body: bytes, now: float) -> tuple[HookDelivery, Any]:
    """The delivery and what it says; `Refused` where its signature is wrong, `Malformed` where its text is."""
    delivery = policy.verify_signature(on.signature, secret, headers, body, now)
    return delivery, _payload(headers, body)


def _payload(headers: Mapping[str, str], body: bytes) -> Any:
    """JSON, whatever it says it is; only what is none may be the form it says it is."""
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if headers.get("content-type", "").partition(";")[0].strip() == "application/x-www-form-urlencoded":
            return _form(body)
        raise Malformed(f"the body is not JSON: {error}", where="body") from None


def _form(body: bytes) -> Any:
    """The fields of a form; GitHub puts its JSON into the field `payload`."""
    try:
        found = dict(parse_qsl(body.decode(), keep_blank_values=True, strict_parsing=bool(body), errors="strict"))
    except ValueError as error:
        raise Malformed(f"the body is not a form: {error}", where="body") from None
    return _payload({}, found["payload"].encode()) if found.keys() == {"payload"} else found


async def receive(
    tx: Tx, engine: Engine, caller: Caller, workspace: str, name: str, delivery: HookDelivery, payload: Any
) -> Firing:
    """Fire the hook for a delivery that was believed, unless it says something that the hook does not wait for."""
    row = await lock(tx, workspace, name)
    trigger = armed_trigger(row)
    if not isinstance(trigger.on, Hook):
        raise NotFound(f"there is no hook {name!r}", where="name")
    facts = {"trigger": name, "payload": payload, "event": delivery.event, "delivery": delivery.id}
    found = {"delivery": delivery.id, "event": delivery.event}
    this = FiringCause(delivery.key, facts, data={what: value for what, value in found.items() if value is not None})
    if why := _not_wanted(row, trigger.on, facts):
        return await _pass_over(tx, engine, caller, trigger, this, why)
    return await firing.fire(tx, engine, caller, trigger, this)


def _not_wanted(row: Row, on: Hook, facts: Mapping[str, Any]) -> str | None:
    if row["paused_at"] is not None:
        return "the trigger is paused"
    place = policy.unmet(on.where, facts)
    return None if place is None else f"{place} is not what the trigger waits for"


async def _pass_over(
    tx: Tx, engine: Engine, caller: Caller, trigger: ArmedTrigger, this: FiringCause, why: str
) -> Firing:
    """Logged, but not kept: the same delivery may be wanted later."""
    came = Firing(trigger.name, this.key, tx.now, "skipped", why)
    work = UnitOfWork(tx, engine, caller)
    firing.emit(work, trigger, came, this.data)
    await work.save_events()
    return came


async def tell_refused(tx: Tx, engine: Engine, caller: Caller, trigger: ArmedTrigger, why: str) -> None:
    """A delivery was refused; only the first of many within a while is notified of."""
    log.info("hook_refused trigger=%s reason=%s", trigger.name, why, extra={"code": "hook_refused"})
    if await tx.one("tell_refusal", id=trigger.id, now=tx.now, before=tx.now - ALERT_EVERY_SEC) is None:
        return
    work = UnitOfWork(tx, engine, caller)
    work.emit_for(trigger.workspace, "trigger_refused", data={"trigger": trigger.name, "kind": "hook", "reason": why})
    await work.save_events()


async def receive_hook(call: Call, name: str, headers: Mapping[str, str], body: AsyncIterator[bytes]) -> Firing:
    """Accept what was posted to a hook: the signature is the credential, and every refusal looks the same."""
    check.name(name, "name")
    hook = await call.read(lambda tx: find(tx, call.engine, call.workspace, name))
    lowered = {key.lower(): value for key, value in headers.items()}
    try:
        raw = await whole_body(body)
        # An unknown hook is checked as well: else the time of a refusal would reveal which hooks exist.
        on, secret = (hook.on, hook.secret) if hook is not None else NONE
        delivery, payload = believe(on, secret, lowered, raw, call.engine.store.now())
    except Refused as refused:
        _note_refused(call, hook, refused.reason)
        raise refusal(name) from None
    except (TooLarge, Malformed) as error:
        _note_refused(call, hook, error.what)
        raise
    if hook is None:
        raise refusal(name)
    try:
        came = await call.run_each_time(receive, call.workspace, name, delivery, payload)
    except (InputError, ConflictError) as error:
        _note_refused(call, hook, str(error))
        raise
    if came.duplicate:
        _note_refused(call, hook, "it was delivered before")
    return came


def _note_refused(call: Call, hook: KnownHook | None, why: str) -> None:
    """In the background, and seldom: anyone can send deliveries that are refused, as often as they like."""
    if hook is not None and is_news(call.engine, hook.trigger.id):
        call.shared.keep(asyncio.ensure_future(_tell_refused(call, hook, why)))


async def _tell_refused(call: Call, hook: KnownHook, why: str) -> None:
    with suppress(ShiftworkError):  # its sender was answered long ago
        await call.run_each_time(tell_refused, hook.trigger, why)


async def whole_body(body: AsyncIterator[bytes]) -> bytes:
    """The body, within bounds of size and time: its sender is not known yet."""
    parts, size = [], 0
    try:
        async with asyncio.timeout(MAX_SEC):
            async for part in body:
                size += len(part)
                if size > MAX_BYTES:
                    raise TooLarge(f"more than {MAX_BYTES} bytes", where="body", hint="Send a smaller body.")
                parts.append(part)
    except TimeoutError:
        raise Malformed(f"the body did not come within {MAX_SEC:g} seconds", where="body") from None
    return b"".join(parts)
