"""Deliveries to a hook: believed by their signature, fired for once, and told of when they are refused."""

from __future__ import annotations

import logging
import math
import secrets
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

import msgspec

from shiftwork.core.errors import HookRefused, Malformed, NotFound
from shiftwork.core.trigger import Firing, Hook
from shiftwork.policy import occasion, signature
from shiftwork.policy.signature import Delivery
from shiftwork.queue.engine import Caller, Engine
from shiftwork.queue.secrets import Vault
from shiftwork.queue.triggers import firing
from shiftwork.queue.triggers.firing import Armed, Occasion, armed
from shiftwork.queue.triggers.triggers import lock
from shiftwork.queue.work import Work
from shiftwork.store.store import Row, Tx

log = logging.getLogger("shiftwork.queue")
LARGEST_BYTES = 1_048_576
TOLD_EVERY_SEC = 60.0
"""Refused deliveries to one hook are told of so often at most; all are counted."""


class Known(NamedTuple):
    """A hook with what is needed to check its deliveries."""

    trigger: Armed
    on: Hook
    secret: str


def is_news(engine: Engine, trigger_id: str) -> bool:
    """Whether a refusal is told of: one in a while for each hook and process, which costs a transaction and a line."""
    engine.counters["hook_refused"] += 1
    now = engine.store.now()
    if now - engine.refusals.get(trigger_id, -math.inf) < TOLD_EVERY_SEC:
        return False
    engine.refusals[trigger_id] = now
    return True


def refusal(name: str) -> HookRefused:
    """The same for every reason: who forges one learns nothing, not even whether there is such a hook."""
    return HookRefused(f"the delivery to the hook {name!r} is not accepted", where="signature")


async def find(tx: Tx, engine: Engine, workspace: str, name: str) -> Known | None:
    row = await tx.one("find_trigger", workspace=workspace, name=name)
    return None if row is None or row["kind"] != "hook" else _known(row, engine.vault)


def _known(row: Row, vault: Vault) -> Known:
    trigger = armed(row)
    assert isinstance(trigger.on, Hook)
    return Known(trigger, trigger.on, vault.open(row["secret"]) or "")


NONE = Hook(), signature.secret_of("standard", secrets.token_bytes(32))
"""What a delivery to a hook that is not there is checked against: nothing fits it."""


def believe(on: Hook, secret: str, headers: Mapping[str, str], body: bytes, now: float) -> tuple[Delivery, Any]:
    """The delivery and what it says; `Refused` where its signature is wrong, `Malformed` where its text is."""
    delivery = signature.verify(on.signature, secret, headers, body, now)
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
        raise Malformed(f"the body is no form: {error}", where="body") from None
    return _payload({}, found["payload"].encode()) if found.keys() == {"payload"} else found


async def receive(
    tx: Tx, engine: Engine, caller: Caller, workspace: str, name: str, delivery: Delivery, payload: Any
) -> Firing:
    """Fire the hook for a delivery that was believed, unless it says something that the hook does not wait for."""
    row = await lock(tx, workspace, name)
    trigger = armed(row)
    if not isinstance(trigger.on, Hook):
        raise NotFound(f"there is no hook {name!r}", where="name")
    facts = {"trigger": name, "payload": payload, "event": delivery.event, "delivery": delivery.id}
    told = {"delivery": delivery.id, "event": delivery.event}
    this = Occasion(delivery.key, facts, told={what: value for what, value in told.items() if value is not None})
    if why := _not_wanted(row, trigger.on, facts):
        return await _pass_over(tx, engine, caller, trigger, this, why)
    return await firing.fire(tx, engine, caller, trigger, this)


def _not_wanted(row: Row, on: Hook, facts: Mapping[str, Any]) -> str | None:
    if row["paused_at"] is not None:
        return "the trigger is paused"
    place = occasion.unmet(on.where, facts)
    return None if place is None else f"{place} is not what the trigger waits for"


async def _pass_over(tx: Tx, engine: Engine, caller: Caller, trigger: Armed, this: Occasion, why: str) -> Firing:
    """Told, but not kept: the same delivery may be wanted later."""
    came = Firing(trigger.name, this.key, tx.now, "skipped", why)
    work = Work(tx, engine, caller)
    firing.tell(work, trigger, came, this.told)
    await work.save_events()
    return came


async def tell_refused(tx: Tx, engine: Engine, caller: Caller, trigger: Armed, why: str) -> None:
    """A delivery was refused; only the first of many within a while is told of."""
    log.info("hook_refused trigger=%s reason=%s", trigger.name, why, extra={"code": "hook_refused"})
    if await tx.one("tell_refusal", id=trigger.id, now=tx.now, before=tx.now - TOLD_EVERY_SEC) is None:
        return
    work = Work(tx, engine, caller)
    work.tell_of(trigger.workspace, "trigger_refused", data={"trigger": trigger.name, "kind": "hook", "reason": why})
    await work.save_events()
