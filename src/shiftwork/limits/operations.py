"""Implements the operations on breakers, cooldowns, limits and quotas."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from shiftwork.accounts import windows
from shiftwork.engine.engine import Caller, Engine
from shiftwork.engine.unit_of_work import UnitOfWork
from shiftwork.limits import breaker_policy, breakers, gates, quotas, rate_limits, window_policy
from shiftwork.limits.api import Breakers, Cooldowns, Limits, Quotas
from shiftwork.limits.breaker_policy import Circuit
from shiftwork.limits.breakers import Change
from shiftwork.limits.model import Breaker, BreakerConfig, Cooldown, LimitInForce, QuotaInForce
from shiftwork.limits.quota_policy import Quota
from shiftwork.limits.window_policy import Limit, LimitUsage
from shiftwork.model import check, ids, keys, times
from shiftwork.model.errors import ConflictError, InputError
from shiftwork.model.keys import Key
from shiftwork.model.times import Duration
from shiftwork.operation.local import Call, implements, reading, transaction
from shiftwork.settings.model import Breaker as BreakerRule
from shiftwork.settings.operations import change_setting
from shiftwork.store.store import Row, Tx


@reading(Breakers.list)
async def list_breakers(
    tx: Tx, engine: Engine, caller: Caller, workspace: str, type: str | None = None
) -> list[Breaker]:
    found = {row["type"]: breakers.load(row) for row in await tx.all("list_breakers", workspace=workspace)}
    types = {lane["type"] for lane in await tx.all("lanes_of_workspace", workspace=workspace)} | found.keys()
    return [
        await _breaker(tx, engine, workspace, name, found.get(name, Circuit()))
        for name in sorted(types if type is None else {type})
    ]


async def _breaker(tx: Tx, engine: Engine, workspace: str, type: str, circuit: Circuit) -> Breaker:
    rule = (await engine.settings_cache.load(tx, workspace)).settings(type).circuit_breaker
    task = None if circuit.probe is None else ids.show_task(circuit.probe[0])
    return Breaker(
        type=type,
        state=circuit.state,
        failures=circuit.failures,
        last_failure=circuit.last_failure,
        opened_at=circuit.opened_at,
        half_open_at=circuit.half_open_at,
        tested_task_id=task,
        closed_until=None if rule is None else breaker_policy.closed_until(circuit, rule, tx.now),
        enabled=rule is not None,
        failure_threshold=rule.failure_threshold if rule else None,
        half_open_after=rule.half_open_after if rule else None,
        cooldown_seconds=rule.cooldown_seconds if rule else None,
    )


@implements(Breakers.configure)
async def configure(call: Call, config: BreakerConfig | Mapping[str, Any]) -> list[Breaker]:
    assert isinstance(config, BreakerConfig)
    try:
        await call.run(_configure, call.workspace, check.fit(config, "config"))
    finally:
        call.engine.settings_cache.forget(call.workspace)
    return await call.read(lambda tx: list_breakers(tx, call.engine, call.caller, call.workspace))


@transaction(Breakers.trip)
async def trip(tx: Tx, engine: Engine, caller: Caller, workspace: str, type: str) -> Breaker:
    name = workspace, type
    work = UnitOfWork(tx, engine, caller)
    rule = await breakers.rule_of(work, name)
    if rule is None:
        raise ConflictError(
            f"the circuit breaker of type {type!r} is switched off",
            where="type",
            hint="Set `circuit_breaker.failure_threshold` for the type to switch it on, or pause the type.",
        )
    before = (await breakers.lock(work, [name], add=[name]))[name]
    after = breaker_policy.trip(before, tx.now)
    await breakers.save(work, {name: Change(before, after, rule)})
    await work.save_events()
    return await _breaker(tx, engine, workspace, type, after)


@transaction(Breakers.reset)
async def reset(tx: Tx, engine: Engine, caller: Caller, workspace: str, type: str) -> Breaker:
    name = workspace, type
    work = UnitOfWork(tx, engine, caller)
    rule = await breakers.rule_of(work, name)
    before = (await breakers.lock(work, [name])).get(name, Circuit())
    after = breaker_policy.reset(before)
    if after != before:
        await breakers.save(work, {name: Change(before, after, rule or BreakerRule())})
    await work.save_events()
    return await _breaker(tx, engine, workspace, type, after)


async def _configure(tx: Tx, engine: Engine, caller: Caller, workspace: str, config: BreakerConfig) -> None:
    """Set the rules of all types and of the types named; rules of other types are removed."""
    stored = await tx.all("read_settings", workspace=workspace)
    for row in stored:
        if row["key"].partition(".")[0] == "circuit_breaker":
            await change_setting(tx, engine, caller, workspace, row["scope"], row["key"], None, unset=True)
    for scope, rule in [("", config.defaults), *sorted(config.overrides.items())]:
        for key, value in rule.settings().items():
            await change_setting(tx, engine, caller, workspace, scope, key, value, unset=False)


@reading(Cooldowns.list)
async def list_cooldowns(tx: Tx, engine: Engine, caller: Caller, workspace: str) -> list[Cooldown]:
    rows = await tx.all("read_gates", workspace=workspace)
    live = [row for row in rows if row["kind"] == "cooldown" and gates.is_shut(row, tx.now)]
    live.sort(key=lambda row: (row["until"] is None, row["until"] or 0.0, row["scope"], row["agent_id"]))
    return [_cooldown(row) for row in live]


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


@transaction(Cooldowns.set)
async def set_cooldown(
    tx: Tx, engine: Engine, caller: Caller, workspace: str, key: str, seconds: Duration, reason: str | None = None
) -> Cooldown:
    of = keys.parse(key)
    until = tx.now + times.seconds(seconds)
    gate = (workspace, of.text, "cooldown", "", reason, until)
    await tx.run("move_gates", items=[gate], now=tx.now, actor=caller.actor)
    work = UnitOfWork(tx, engine, caller)
    work.emit_for(workspace, "cooldown_started", data={"key": of.text, "until": until, "reason": reason})
    await work.save_events()
    return Cooldown(of.text, *of, agent_id=None, since=tx.now, until=until, reason=reason, by=caller.actor)


@transaction(Cooldowns.lift)
async def lift_cooldown(tx: Tx, engine: Engine, caller: Caller, workspace: str, key: str) -> bool:
    of = keys.parse(key)
    gone = await tx.all("open_gates", items=[(workspace, of.text, kind) for kind in ("cooldown", "slowdown")])
    if not gone:
        return False
    work = UnitOfWork(tx, engine, caller)
    await windows.clear(work, workspace, of)
    await gates.wake(tx, workspace, [of])
    work.emit_for(workspace, "cooldown_lifted", data={"key": of.text})
    await work.save_events()
    return True


@reading(Limits.list)
async def list_limits(tx: Tx, engine: Engine, caller: Caller, workspace: str) -> list[LimitInForce]:
    return [_limit(row, tx.now) for row in await tx.all("list_limits", workspace=workspace)]


def _limit(row: Row, now: float) -> LimitInForce:
    limit, used = rate_limits.load(row)
    cells = window_policy.current(limit, used, now).cells
    at = window_policy.opens_at(limit, used, now)
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


@transaction(Limits.set)
async def set_limit(
    tx: Tx,
    engine: Engine,
    caller: Caller,
    workspace: str,
    key: str,
    *,
    requests: int | None = None,
    tokens: int | None = None,
    tokens_per_task: int | None = None,
    window_sec: Duration | None = None,
    concurrency: int | None = None,
) -> LimitInForce:
    limit = Limit(
        requests=requests,
        tokens=tokens,
        tokens_per_task=tokens_per_task,
        window_sec=times.seconds(window_sec),
        concurrency=concurrency,
    )
    if (problem := window_policy.problem(limit)) is not None:
        raise InputError(problem, where="limit")
    return await _set_limit(tx, engine, caller, workspace, keys.parse(key), limit)


async def _set_limit(tx: Tx, engine: Engine, caller: Caller, workspace: str, key: Key, limit: Limit) -> LimitInForce:
    """Set or change a limit; its current use is kept."""
    name = workspace, key.text
    work = UnitOfWork(tx, engine, caller)
    old = (await rate_limits.lock(work, [name])).get(name)
    used = LimitUsage() if old is None else window_policy.rescale(old.limit, limit, old.used)
    terms = msgspec.json.encode(limit).decode()
    known = {"workspace": workspace, "key": key.text, "now": tx.now, "actor": caller.actor}
    await tx.run("set_limit", **known, terms=terms, cells=rate_limits.as_text(used.cells))
    await rate_limits.save(work, {name: rate_limits.LimitInUse(limit, used)})
    work.emit_for(workspace, "limit_set", data={"key": key.text, **msgspec.to_builtins(limit)})
    await work.save_events()
    rows = await tx.all("list_limits", workspace=workspace)
    return next(_limit(row, tx.now) for row in rows if row["key"] == key.text)


@transaction(Limits.remove)
async def remove_limit(tx: Tx, engine: Engine, caller: Caller, workspace: str, key: str) -> bool:
    of = keys.parse(key)
    gone = await tx.one("remove_limit", workspace=workspace, key=of.text)
    if gone is None:
        return False
    await tx.run("drop_limit_claims", workspace=workspace, key=of.text)
    work = UnitOfWork(tx, engine, caller)
    await rate_limits.open_gates(work, [(workspace, of.text)])
    work.emit_for(workspace, "limit_removed", data={"key": of.text})
    await work.save_events()
    return True


@implements(Quotas.set)
async def set_quota(
    call: Call,
    workspace: str,
    *,
    max_tasks: int | None = None,
    max_bytes: int | None = None,
    submits_per_minute: int | None = None,
) -> QuotaInForce:
    quota = Quota(max_tasks=max_tasks, max_bytes=max_bytes, submits_per_minute=submits_per_minute)
    try:
        return await call.run(_set_quota, check.name(workspace, "workspace"), quota)
    finally:
        call.engine.quotas.forget(workspace)


async def _set_quota(tx: Tx, engine: Engine, caller: Caller, workspace: str, quota: Quota) -> QuotaInForce:
    """Without any limit, the workspace no longer has a quota."""
    await tx.advisory_lock(f"quota:{workspace}")
    await engine.settings_cache.add(tx, workspace)
    if quota.is_empty:
        await tx.run("remove_quota", workspace=workspace)
    else:
        used = await quotas.count(tx, workspace, quota)
        terms = msgspec.structs.asdict(quota)
        room = float(quota.submits_per_minute or 0)
        counted = {"tasks": used.tasks, "bytes": used.bytes, "room": room}
        await tx.run("save_quota", workspace=workspace, **terms, **counted, now=tx.now, actor=caller.actor)
    work = UnitOfWork(tx, engine, caller)
    work.emit_for(workspace, "quota_set", data=msgspec.to_builtins(quota))
    await work.save_events()
    return await quotas.read(tx, workspace)


@reading(Quotas.get)
async def get_quota(tx: Tx, engine: Engine, caller: Caller, workspace: str) -> QuotaInForce:
    return await quotas.read(tx, workspace)


@reading(Quotas.list)
async def list_quotas(tx: Tx, engine: Engine, caller: Caller, workspace: str) -> list[QuotaInForce]:
    return [quotas.in_force(row, tx.now) for row in await tx.all("list_quotas")]
