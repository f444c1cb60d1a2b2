"""Stops tasks before they become ready if a guard requires approval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from shiftwork.engine.new_rows import NewAlert
from shiftwork.engine.rows import TaskRow
from shiftwork.engine.unit_of_work import UnitOfWork, as_json
from shiftwork.model import ids
from shiftwork.model.states import State, move, write_path
from shiftwork.model.task import dollars
from shiftwork.observe import alert_kinds
from shiftwork.settings.model import Guard, Settings
from shiftwork.waits import policy as guard

PATH_STOPPED = write_path(move(State.CREATED, "accept", "guard"))
_TO_PENDING = {"unblock": (), "promote": ("block",), "review_retry": ("review_block",)}
"""For each path to ready, the path that stops at the guard."""


class Request(NamedTuple):
    """A request for approval: of this revision, because of this rule."""

    revision: str
    rule: Guard
    expires_at: float | None

    @property
    def event_data(self) -> dict[str, Any]:
        """The request as event data."""
        rule = guard.shown(msgspec.to_builtins(self.rule))
        return {"approval": {"revision": self.revision, "rule": rule, "expires_at": self.expires_at}}


async def unblock_or_guard(
    work: UnitOfWork, row: TaskRow, settings: Settings, *way: str, data: Mapping[str, Any] | None = None
) -> tuple[str, dict[str, Any] | None]:
    """Make the task ready, or stop it for approval if a guard requires it; returns the path and the event data."""
    request = await _request(work, row, settings)
    row.hold = None  # earlier holds are over, or the next claim checks them again
    if request is None:
        path = work.move(row, *way)
        work.mark_ready(row, settings)
        return path, dict(data) if data else None
    await _store(work, [(row, request)])
    path = work.move(row, *way[:-1], *_TO_PENDING[way[-1]], "guard")
    return path, {**(data or {}), **request.event_data}


async def stop_copy(
    work: UnitOfWork, copy: TaskRow, settings: Settings, body: str, tags: Sequence[str]
) -> Request | None:
    """Before a new row of a lineage is written as ready: stop it if its work has not been approved before."""
    request = await _request(work, copy, settings, msgspec.json.decode(body), tags)
    if request is not None:
        copy.status = State.WAITING_APPROVAL.value
        await _store(work, [(copy, request)])
    return request


def request_for(
    settings: Settings, facts: guard.GuardFacts, body: Mapping[str, Any], tags: Sequence[str], now: float
) -> Request | None:
    """The approval required before this work may run, if any."""
    rule = guard.rule_for(settings.guards, facts)
    if rule is None:
        return None
    expires_at = None if rule.expire_after_sec is None else now + rule.expire_after_sec
    return Request(guard.revision(body, tags), rule, expires_at)


async def _request(
    work: UnitOfWork,
    row: TaskRow,
    settings: Settings,
    body: Mapping[str, Any] | None = None,
    tags: Sequence[str] | None = None,
) -> Request | None:
    if not settings.guards:
        return None
    if body is None:
        found = await work.tx.one("read_bodies", items=[(row.id,)])
        body = msgspec.json.decode(found["body"]) if found else {}
    if tags is None:
        tags = [tag["tag"] for tag in await work.tx.all("tags_of", items=[(row.id,)])]
    cost = None if row.estimated_cost is None else dollars(row.estimated_cost)
    facts = guard.GuardFacts(row.type, body.get("tool_name"), tags, body.get("created_by"), row.trigger_type, cost)
    request = request_for(settings, facts, body, tags, work.now)
    if request is None:
        return None
    granted = await work.tx.one("granted_approval", root=row.root_id, revision=request.revision)
    return None if granted is not None else request


async def _store(work: UnitOfWork, requests: Sequence[tuple[TaskRow, Request]]) -> None:
    await ask(work, [(row.id, row.root_id, row.workspace, request) for row, request in requests])


async def ask(work: UnitOfWork, requests: Sequence[tuple[str, str, str, Request]]) -> None:
    """Store requests for approval: the task, its lineage, its workspace and the request."""
    items = [
        (id_, asked.revision, root, workspace, as_json(asked.rule), work.now, asked.expires_at)
        for id_, root, workspace, asked in requests
    ]
    await work.tx.run("ask_approvals", items=sorted(items))
    kind = "approval_wanted"  # the event that it belongs to is `approval.requested`, written by the caller
    severity = alert_kinds.KINDS[kind].severity
    alerts = []
    for id_, _, workspace, asked in requests:
        message = alert_kinds.words(kind, {"task": ids.show_task(id_)})
        data = as_json({"revision": asked.revision})
        alerts.append(NewAlert(work.now, workspace, kind, severity, message, id_, data))
    await work.tx.insert("insert_alerts", alerts)


async def reconsider(work: UnitOfWork, row: TaskRow, settings: Settings) -> tuple[str | None, dict[str, Any]]:
    """An unclaimed task was changed: renew or withdraw its request for approval."""
    if row.status == State.READY and settings.guards:
        request = await _request(work, row, settings)
        if request is None:
            return None, {}
        await _store(work, [(row, request)])
        row.hold = None
        return work.move(row, "block", "guard"), request.event_data
    if row.status != State.WAITING_APPROVAL or await _still_required(work, row, settings):
        return None, {}
    await withdraw(work, row)
    path, found = await unblock_or_guard(work, row, settings, "block", "unblock")
    return path, found or {}


async def _still_required(work: UnitOfWork, row: TaskRow, settings: Settings) -> bool:
    request = await _request(work, row, settings)
    open_ = await work.tx.one("open_approvals_of", items=[(row.id,)])
    return request is not None and open_ is not None and open_["revision"] == request.revision


async def withdraw(work: UnitOfWork, row: TaskRow) -> None:
    """Withdraw the request about this task."""
    await work.tx.run("decide_approvals", items=[(row.id, "withdrawn", None)], now=work.now, actor=work.caller.actor)
