"""Failure patterns: failed attempts grouped by what they have in common."""

from __future__ import annotations

from typing import Literal, get_args

import msgspec

from shiftwork.core import ids
from shiftwork.policy.friction import Ended
from shiftwork.queue import log
from shiftwork.store.store import Row, Tx

By = Literal["type", "agent", "model", "reason", "signature"]
WAYS: tuple[str, ...] = get_args(By)

NEWEST = 20_000
"""Events that are looked at for a share, so that a busy queue is measured over less time and not for longer."""

MOST_AGENTS = 20


class Pattern(msgspec.Struct, frozen=True):
    """Failed attempts that have one thing in common; `task_id` and `error` are of the newest."""

    by: By
    value: str | None
    total: int
    rate: float | None
    """The share of the attempts of this type or agent that failed of late; null for other groups."""
    agents: list[str]
    """Whose attempts they were: up to twenty, by name."""
    first_at: float
    last_at: float
    task_id: str | None
    error: str | None


async def patterns(tx: Tx, workspace: str, by: By, since: float, count: int) -> list[Pattern]:
    """The most frequent first."""
    groups = await tx.all("failure_patterns", workspace=workspace, by=by, since=since, count=count)
    if not groups:
        return []
    items = [(group["last_seq"],) for group in groups]
    newest = {row["seq"]: row for row in await tx.all("events_numbered", items=items)}
    rates = await ended_by(tx, workspace, by, since) if by in {"type", "agent"} else {}
    return [_pattern(by, group, newest[group["last_seq"]], rates.get(group["value"])) for group in groups]


def _pattern(by: By, group: Row, newest: Row, ended: Ended | None) -> Pattern:
    data = msgspec.json.decode(newest["data"] or "{}")
    agents = sorted({agent for agent in msgspec.json.decode(group["agents"]) if agent is not None})
    return Pattern(
        by=by,
        value=group["value"],
        total=int(group["total"]),
        rate=None if ended is None else round(ended.rate, 3),
        agents=agents[:MOST_AGENTS],
        first_at=group["first_at"],
        last_at=group["last_at"],
        task_id=None if newest["task_id"] is None else ids.show_task(newest["task_id"]),
        error=data.get("error") or data.get("note") or newest["reason"],
    )


async def ended_by(tx: Tx, workspace: str, by: str, since: float) -> dict[str, Ended]:
    """How attempts ended of late, by type or by agent."""
    last = await log.last(tx)
    stretch = {"first": max(1, last - NEWEST + 1), "last": last, "since": since}
    rows = await tx.all(f"ended_by_{by}", workspace=workspace, **stretch)
    return {row["value"]: Ended(int(row["failed"]), int(row["ended"])) for row in rows}
