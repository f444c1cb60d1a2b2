"""Failure patterns: failed attempts grouped by what they have in common."""

from __future__ import annotations

from typing import Literal, get_args

import msgspec

from shiftwork.core import ids
from shiftwork.store.store import Row, Tx

By = Literal["type", "agent", "reason", "signature"]
WAYS: tuple[str, ...] = get_args(By)


class Pattern(msgspec.Struct, frozen=True):
    """Failed attempts that have one thing in common; `task_id` and `error` are of the newest."""

    by: By
    value: str | None
    total: int
    first_at: float
    last_at: float
    task_id: str | None
    error: str | None


async def patterns(tx: Tx, workspace: str, by: By, since: float, count: int) -> list[Pattern]:
    """The most frequent first."""
    groups = await tx.all("failure_patterns", workspace=workspace, by=by, since=since, count=count)
    items = [(group["last_seq"],) for group in groups]
    newest = {row["seq"]: row for row in await tx.all("events_numbered", items=items)} if items else {}
    return [_pattern(by, group, newest[group["last_seq"]]) for group in groups]


def _pattern(by: By, group: Row, newest: Row) -> Pattern:
    data = msgspec.json.decode(newest["data"] or "{}")
    return Pattern(
        by=by,
        value=group["value"],
        total=int(group["total"]),
        first_at=group["first_at"],
        last_at=group["last_at"],
        task_id=None if newest["task_id"] is None else ids.show_task(newest["task_id"]),
        error=data.get("error") or data.get("note") or newest["reason"],
    )
