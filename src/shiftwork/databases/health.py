"""Checks a database of a queue: whether it answers and accepts writes, its workspaces, and how late its jobs are."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from shiftwork.databases.model import DatabaseInfo, WorkspaceInfo
from shiftwork.engine.engine import Engine
from shiftwork.model.errors import StoreError
from shiftwork.model.text import without_secrets
from shiftwork.observe import maintenance_health
from shiftwork.store.store import Tx

PATIENCE_SEC = 2.0
"""How long to wait for a database."""


class DatabaseReport(NamedTuple):
    """The state of a database and its workspaces; only known ones if it does not answer."""

    database: DatabaseInfo
    workspaces: Sequence[WorkspaceInfo]


async def workspaces(tx: Tx) -> list[WorkspaceInfo]:
    rows = await tx.all("workspace_tasks")
    return [WorkspaceInfo(**{name: row[name] for name in _FIELDS}) for row in rows]


_FIELDS = ("name", "profile", "created_at", "open_tasks", "ready", "running", "dead_lettered")


async def report(
    engine: Engine,
    name: str | None = None,
    *,
    is_default: bool = True,
    is_owned: Callable[[str], bool] = lambda _: True,
    known: Sequence[str] = (),
) -> DatabaseReport:
    """Check a database. `known` are the workspaces that it had when it last answered."""
    began = time.perf_counter()
    try:
        async with asyncio.timeout(PATIENCE_SEC):
            found, late = await engine.store.read(_read)
    except (StoreError, TimeoutError) as error:
        why = error.what if isinstance(error, StoreError) else f"no answer within {PATIENCE_SEC:g} s"
        return DatabaseReport(DatabaseInfo(name, "down", is_default, len(known), error=without_secrets(why)), ())
    took = time.perf_counter() - began
    owned = [each for each in found if is_owned(each.name)]
    refusal = engine.store.refusal
    info = DatabaseInfo(
        name,
        "up" if refusal is None else "read_only",
        is_default,
        len(owned),
        **{field: sum(getattr(each, field) for each in owned) for field in _FIELDS[3:]},
        answered_in_ms=round(took * 1000, 1),
        maintenance_late_sec=round(late, 1),
        error=None if refusal is None else without_secrets(refusal.what),
    )
    return DatabaseReport(info, owned)


async def _read(tx: Tx) -> tuple[list[WorkspaceInfo], float]:
    jobs = maintenance_health.jobs_of(await tx.all("list_jobs"))
    late = max((maintenance_health.late_sec(job, tx.now) for job in jobs), default=0.0)
    return await workspaces(tx), late
