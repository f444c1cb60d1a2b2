"""Alert conditions: reported once when they begin and once when they end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from shiftwork.engine.unit_of_work import UnitOfWork

Kind = Literal[
    "capacity", "pool", "queue_depth", "failure_rate", "task_stuck", "backlog_age", "dead_rows", "old_transaction",
    "friction", "sink", "snapshot", "maintenance",
]  # fmt: skip

_OWN_EVENTS: dict[Kind, str] = {"capacity": "capacity_normal", "pool": "pool_restored"}
"""Conditions whose alert is also an event, and the event that ends them."""


class Finding(NamedTuple):
    """One condition that holds now."""

    subject: str
    alert: str
    facts: dict[str, Any]
    task_id: str | None = None


async def compare(work: UnitOfWork, workspace: str, kind: Kind, found: Sequence[Finding]) -> list[Finding]:
    """Record conditions that began, changed or ended since the last check; returns those that began."""
    rows = await work.tx.all("read_conditions", workspace=workspace, kind=kind)
    known = {row["subject"]: row["alert"] for row in rows}
    now = {finding.subject for finding in found}
    over = [subject for subject in known if subject not in now]
    began = [finding for finding in found if known.get(finding.subject) != finding.alert]
    left = over + [finding.subject for finding in began if finding.subject in known]
    if left:
        alerts = [(workspace, known[subject], subject) for subject in left]
        await work.tx.run("resolve_alerts", items=alerts, now=work.now, actor=work.caller.actor)
    if over:
        await work.tx.run("drop_conditions", items=[(workspace, kind, subject) for subject in over])
    for subject in over:
        work.emit_for(workspace, _OWN_EVENTS.get(kind, "condition_over"), data={"kind": kind, "subject": subject})
    if began:
        items = [(workspace, kind, finding.subject, finding.alert) for finding in began]
        await work.tx.run("save_conditions", items=items, now=work.now)
    for finding in began:
        verb = finding.alert if kind in _OWN_EVENTS else "condition_began"
        facts = {"subject": finding.subject, **finding.facts}
        work.emit_for(workspace, verb, data={"kind": kind, **facts})
        work.alert(workspace, finding.alert, finding.task_id, **facts)
    return began
