"""Verbs of whoever looks after the queue: breakers, cooldowns and limits, shown and changed."""

from __future__ import annotations

import msgspec

from shiftwork.core import ids, keys
from shiftwork.core.breaker_file import BreakerConfig
from shiftwork.core.errors import ConflictError
from shiftwork.core.keys import Key
from shiftwork.core.settings import Breaker as BreakerRule
from shiftwork.policy import breaker, window
from shiftwork.policy.breaker import Circuit
from shiftwork.policy.window import Limit, Used
from shiftwork.queue import control
from shiftwork.queue.engine import Caller, Engine
from shiftwork.queue.protection import breakers, gates, limits
from shiftwork.queue.protection.breakers import Change
from shiftwork.queue.work import Work
from shiftwork.store.store import Row, Tx


class Breaker(msgspec.Struct, frozen=True):
    """The circuit breaker of one type, and the rules in force for it; without rules it is switched off."""

    type: str
    state: breaker.State
    failures: int
    last_failure: float | None
    opened_at: float | None
    half_open_at: float | None
    tested_task_id: str | None
    """The one task that is out to see whether it fares better."""
    closed_until: float | None
    """When the next task may go out to see, while it is not closed."""
    enabled: bool
    failure_threshold: int | None
    half_open_after: float | None
    cooldown_seconds: float | None


class Cooldown(msgspec.Struct, frozen=True):
    """A cooldown: of what, until when, for one agent or for everybody."""

    key: str
    provider: str | None
    account: str | None
    model: str | None
    type: str | None
    agent_id: str | None
    since: float
    until: float
    reason: str | None
    by: str


class LimitInForce(msgspec.Struct, frozen=True):
    """A limit and what is used of it now."""

    key: str
    requests: int | None
    tokens: int | None
    tokens_per_task: int | None
    window_sec: float | None
    concurrency: int | None
    held: int
    requests_used: int
    tokens_used: int
    opens_at: float | None
    """When there is room for another task, where there is none now; null also where one has to end first."""
    full: bool
    set_at: float
    set_by: str


# -- breakers ----------------------------------------------------------------------------------------------------


async def read_breakers(tx: Tx, engine: Engine, workspace: str, type_: str | None) -> list[Breaker]:
    """Of every type that has had work here, or of the one named, whether or not it ever failed."""
    found = {row["type"]: breakers.load(row) for row in await tx.all("list_breakers", workspace=workspace)}
    types = {lane["type"] for lane in await tx.all("lanes_of_workspace", workspace=workspace)} | found.keys()
    return [
        await _breaker(tx, engine, workspace, name, found.get(name, Circuit()))
        for name in sorted(types if type_ is None else {type_})
    ]


async def _breaker(tx: Tx, engine: Engine, workspace: str, type_: str, circuit: Circuit) -> Breaker:
    rule = (await engine.book.of(tx, workspace)).settings(type_).circuit_breaker
    task = None if circuit.probe is None else ids.show_task(circuit.probe[0])
    return Breaker(
        type=type_,
        state=circuit.state,
        failures=circuit.failures,
        last_failure=circuit.last_failure,
        opened_at=circuit.opened_at,
        half_open_at=circuit.half_open_at,
        tested_task_id=task,
        closed_until=None if rule is None else breaker.closed_until(circuit, rule, tx.now),
        enabled=rule is not None,
        failure_threshold=rule.failure_threshold if rule else None,
        half_open_after=rule.half_open_after if rule else None,
        cooldown_seconds=rule.cooldown_seconds if rule else None,
    )


async def trip(tx: Tx, engine: Engine, caller: Caller, workspace: str, type_: str) -> Breaker:
    """Open a breaker now, however its tasks fare."""
    name = workspace, type_
    work = Work(tx, engine, caller)
    rule = await breakers.rule_of(work, name)
    if rule is None:
        raise ConflictError(
            f"the circuit breaker of type {type_!r} is switched off",
            where="type",
            mend="Set `circuit_breaker.failure_threshold` for the type to switch it on, or pause the type.",
        )
    before = (await breakers.lock(work, [name], add=[name]))[name]
    after = breaker.trip(before, tx.now)
    await breakers.save(work, {name: Change(before, after, rule)})
    await work.save_events()
    return await _breaker(tx, engine, workspace, type_, after)


async def reset(tx: Tx, engine: Engine, caller: Caller, workspace: str, type_: str) -> Breaker:
    """Close a breaker and forget what it has counted; work of the type flows again."""
    name = workspace, type_
    work = Work(tx, engine, caller)
    rule = await breakers.rule_of(work, name)
    before = (await breakers.lock(work, [name])).get(name, Circuit())
    after = breaker.reset(before)
    if after != before:
        await breakers.save(work, {name: Change(before, after, rule or BreakerRule())})
    await work.save_events()
    return await _breaker(tx, engine, workspace, type_, after)


async def configure(tx: Tx, engine: Engine, caller: Caller, workspace: str, config: BreakerConfig) -> None:
    """Set the rules of all types and of the types named; what was set for other types is forgotten."""
    stored = await tx.all("read_settings", workspace=workspace)
    for row in stored:
        if row["key"].partition(".")[0] == "circuit_breaker":
            await control.change_setting(tx, engine, caller, workspace, row["scope"], row["key"], None, unset=True)
    for scope, rule in [("", config.defaults), *sorted(config.overrides.items())]:
        for key, value in rule.settings().items():
            await control.change_setting(tx, engine, caller, workspace, scope, key, value, unset=False)


# -- cooldowns ---------------------------------------------------------------------------------------------------


async def read_cooldowns(tx: Tx, workspace: str) -> list[Cooldown]:
    """The cooldowns in force, in the order of their ends."""
    rows = await tx.all("read_gates", workspace=workspace)
    live = [row for row in rows if row["kind"] == "cooldown" and gates.is_shut(row, tx.now)]
    return [_cooldown(row) for row in sorted(live, key=lambda row: (row["until"], row["scope"], row["agent_id"]))]


def _cooldown(row: Row) -> Cooldown:
    return Cooldown(
        row["scope"],
        *keys.parse(row["scope"]),
        agent_id=row["agent_id"] or None,
        since=row["closed_at"],
        until=row["until"],
        reason=row["reason"],
        by=row["closed_by"],
    )


async def cool_down(
    tx: Tx, engine: Engine, caller: Caller, workspace: str, key: Key, seconds: float, reason: str | None
) -> Cooldown:
    """Begin a cooldown for everybody; an earlier word about how long is replaced."""
    until = tx.now + seconds
    gate = (workspace, key.text, "cooldown", "", reason, until)
    await tx.run("move_gates", items=[gate], now=tx.now, actor=caller.actor)
    work = Work(tx, engine, caller)
    work.tell_of(workspace, "cooldown_started", data={"key": key.text, "until": until, "reason": reason})
    await work.save_events()
    return Cooldown(key.text, *key, agent_id=None, since=tx.now, until=until, reason=reason, by=caller.actor)


async def lift_cooldown(tx: Tx, engine: Engine, caller: Caller, workspace: str, key: Key) -> bool:
    """Let work that uses this key go again, whoever was held back; False where it had no cooldown."""
    gone = await tx.all("open_gates", items=[(workspace, key.text, kind) for kind in ("cooldown", "slowdown")])
    if not gone:
        return False
    await gates.wake(tx, workspace, [key])
    work = Work(tx, engine, caller)
    work.tell_of(workspace, "cooldown_lifted", data={"key": key.text})
    await work.save_events()
    return True


# -- limits ------------------------------------------------------------------------------------------------------


async def read_limits(tx: Tx, workspace: str) -> list[LimitInForce]:
    """All limits with what is used of them, by key."""
    return [_limit(row, tx.now) for row in await tx.all("list_limits", workspace=workspace)]


def _limit(row: Row, now: float) -> LimitInForce:
    limit, used = limits.load(row)
    cells = window.current(limit, used, now).cells
    at = window.opens_at(limit, used, now)
    return LimitInForce(
        row["key"],
        requests=limit.requests,
        tokens=limit.tokens,
        tokens_per_task=limit.tokens_per_task,
        window_sec=limit.window_sec,
        concurrency=limit.concurrency,
        held=used.held,
        requests_used=sum(cell.requests for cell in cells),
        tokens_used=sum(cell.tokens for cell in cells),
        opens_at=None if at == now else at,
        full=at != now,
        set_at=row["set_at"],
        set_by=row["set_by"],
    )


async def set_limit(tx: Tx, engine: Engine, caller: Caller, workspace: str, key: Key, limit: Limit) -> LimitInForce:
    """Set or change a limit; what is used of it stays used."""
    name = workspace, key.text
    work = Work(tx, engine, caller)
    old = (await limits.lock(work, [name])).get(name)
    used = Used() if old is None else window.rescale(old.limit, limit, old.used)
    terms = msgspec.json.encode(limit).decode()
    known = {"workspace": workspace, "key": key.text, "now": tx.now, "actor": caller.actor}
    await tx.run("set_limit", **known, terms=terms, cells=limits.as_text(used.cells))
    await limits.save(work, {name: limits.Taken(limit, used)})
    work.tell_of(workspace, "limit_set", data={"key": key.text, **msgspec.to_builtins(limit)})
    await work.save_events()
    rows = await tx.all("list_limits", workspace=workspace)
    return next(_limit(row, tx.now) for row in rows if row["key"] == key.text)


async def remove_limit(tx: Tx, engine: Engine, caller: Caller, workspace: str, key: Key) -> bool:
    """Forget a limit; False where there was none."""
    gone = await tx.one("remove_limit", workspace=workspace, key=key.text)
    if gone is None:
        return False
    await tx.run("drop_limit_claims", workspace=workspace, key=key.text)
    work = Work(tx, engine, caller)
    await limits.open_gates(work, [(workspace, key.text)])
    work.tell_of(workspace, "limit_removed", data={"key": key.text})
    await work.save_events()
    return True
