"""Implements the operations on metrics and alerts."""

from __future__ import annotations

import msgspec

from shiftwork.engine.engine import Caller, Engine
from shiftwork.engine.unit_of_work import UnitOfWork
from shiftwork.model import ids
from shiftwork.model.errors import InputError, NotFound
from shiftwork.model.times import Time, epoch
from shiftwork.observe import metrics
from shiftwork.observe.alert_kinds import KINDS
from shiftwork.observe.api import Alerts, MetricsApi
from shiftwork.observe.model import Alert, By, Metrics, Pattern
from shiftwork.observe.policy import AttemptCounts
from shiftwork.operation.local import Call, implements, reading, transaction
from shiftwork.store.store import Row, Tx, record

_NO_END = 2**62
MAX_AGENTS = 20
"""Agents that a failure pattern names."""


@implements(MetricsApi.read)
async def read_metrics(call: Call) -> Metrics:
    measured, counted = call.shared.measured, call.shared.counted
    async with measured.turn:
        if (known := measured.find(call.workspace, call.engine.store.now())) is not None:
            return known
        await call.shared.tally.write()
        before = counted.get(call.workspace)
        found, counted[call.workspace] = await call.read(
            lambda tx: metrics.read(tx, call.engine, call.workspace, before)
        )
        measured.keep(call.workspace, found, sum(counted[call.workspace].counts.values()))
    return found


@reading(MetricsApi.snapshots)
async def list_snapshots(
    tx: Tx, engine: Engine, caller: Caller, workspace: str, *, since: Time | None = None, limit: int = 10
) -> list[Metrics]:
    return await metrics.kept(tx, workspace, epoch(since) or 0.0, limit)


@reading(MetricsApi.failures)
async def list_failures(
    tx: Tx,
    engine: Engine,
    caller: Caller,
    workspace: str,
    by: By = "signature",
    *,
    since: Time | None = None,
    limit: int = 50,
) -> list[Pattern]:
    begin = epoch(since) or 0.0
    groups = await tx.all("failure_patterns", workspace=workspace, by=by, since=begin, count=limit)
    if not groups:
        return []
    items = [(group["last_seq"],) for group in groups]
    newest = {row["seq"]: row for row in await tx.all("events_numbered", items=items)}
    rates = await metrics.ended_by(tx, workspace, by, begin) if by in {"type", "agent"} else {}
    return [_pattern(by, group, newest[group["last_seq"]], rates.get(group["value"])) for group in groups]


def _pattern(by: By, group: Row, newest: Row, ended: AttemptCounts | None) -> Pattern:
    data = msgspec.json.decode(newest["data"] or "{}")
    agents = sorted({agent for agent in msgspec.json.decode(group["agents"]) if agent is not None})
    return Pattern(
        by=by,
        value=group["value"],
        total=int(group["total"]),
        rate=None if ended is None else round(ended.rate, 3),
        agents=agents[:MAX_AGENTS],
        first_at=group["first_at"],
        last_at=group["last_at"],
        task_id=None if newest["task_id"] is None else ids.show_task(newest["task_id"]),
        error=data.get("error") or data.get("note") or newest["reason"],
    )


@transaction(Alerts.acknowledge)
async def acknowledge(tx: Tx, engine: Engine, caller: Caller, workspace: str, seq: int) -> Alert:
    # The first to acknowledge an alert stays its reader.
    if await tx.one("acknowledge_alert", seq=seq, workspace=workspace, now=tx.now, actor=caller.actor):
        work = UnitOfWork(tx, engine, caller)
        work.emit_for(workspace, "alert_acknowledged", data={"alert": seq})
        await work.save_events()
    row = await tx.one("read_alert", seq=seq, workspace=workspace)
    if row is None:
        raise NotFound(f"there is no alert {seq}", where="seq")
    return _alert(row)


@implements(Alerts.list)
async def list_alerts(
    call: Call, after: int = 0, *, open_only: bool = False, kind: str | None = None, limit: int = 100
) -> list[Alert]:
    if kind is not None and kind not in KINDS:
        raise InputError(f"there is no kind {kind!r}", where="kind", hint=f"Use one of {', '.join(KINDS)}.")
    name = "open_alerts_after" if open_only else "alerts_after"

    async def page(tx: Tx, last: int) -> list[Alert]:
        rows = await tx.all(name, workspace=call.workspace, kind=kind, after=after, last=last, count=limit)
        return [_alert(row) for row in rows]

    found = await call.read(lambda tx: page(tx, _NO_END))
    if not found:
        return []
    # Numbers are taken before the commit: a lower one may still be uncommitted.
    await call.engine.store.settle_events()
    return await call.read(lambda tx: page(tx, found[-1].seq))


def _alert(row: Row) -> Alert:
    return record(
        Alert,
        row,
        workspace_id=row["workspace"],
        task_id=None if row["task_id"] is None else ids.show_task(row["task_id"]),
        data=msgspec.json.decode(row["data"]),
    )
