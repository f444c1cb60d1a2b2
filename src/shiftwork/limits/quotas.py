"""Quotas that the operator of a server sets for each workspace. No workspace can change its own.

Use is counted when a quota is set, increased by each submission, and recounted when the quota seems used up: so nothing
is counted while there is room, and purged tasks free their room after at most RECOUNT_SEC.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from shiftwork.engine.engine import Engine
from shiftwork.limits import quota_policy as policy
from shiftwork.limits.model import QuotaInForce
from shiftwork.limits.quota_cache import QuotaUsage
from shiftwork.limits.quota_policy import Quota
from shiftwork.model.errors import QuotaExceeded, TooManyRequests
from shiftwork.store.store import Row, Tx

RECOUNT_SEC = 5.0
"""How often each process recounts, at most, for a workspace that submits against a full quota."""


async def read(tx: Tx, workspace: str) -> QuotaInForce:
    row = await tx.one("read_quota", workspace=workspace)
    return QuotaInForce(workspace) if row is None else in_force(row, tx.now)


def in_force(row: Row, now: float) -> QuotaInForce:
    quota = _terms(row)
    return QuotaInForce(
        row["workspace"],
        quota.max_tasks,
        quota.max_bytes,
        quota.submits_per_minute,
        None if quota.max_tasks is None else row["tasks"],
        None if quota.max_bytes is None else row["bytes"],
        None if quota.submits_per_minute is None else int(_room(row, quota, now)),
        row["set_at"],
        row["set_by"],
    )


def _terms(row: Row) -> Quota:
    return Quota(max_tasks=row["max_tasks"], max_bytes=row["max_bytes"], submits_per_minute=row["submits_per_minute"])


def _room(row: Row, quota: Quota, now: float) -> float:
    rate = quota.submits_per_minute
    return 0.0 if rate is None else policy.refilled(row["room"], rate, now - row["filled_at"])


async def enter(tx: Tx, engine: Engine, workspace: str) -> bool:
    """Whether this workspace has a quota; if so, takes its lock, before any row is locked."""
    if not await engine.quotas.has(tx, workspace):
        return False
    await tx.advisory_lock(f"quota:{workspace}")
    return True


async def admit(tx: Tx, engine: Engine, workspace: str, tasks: int, size: Callable[[], int]) -> None:
    """Count a submission, or refuse all of it. The lock must be held."""
    row = await tx.one("read_quota", workspace=workspace)
    if row is None:
        return
    quota = _terms(row)
    room = _room(row, quota, tx.now)
    if tasks:
        _check_rate(quota, room, tasks)
    used = QuotaUsage(row["tasks"], row["bytes"], row["counted_at"])
    brought = size() if quota.max_bytes is not None else 0
    if _over(quota, used, tasks, brought):
        used = await _recount(tx, engine, workspace, quota, used)
    if what := _over(quota, used, tasks, brought):
        name, most, found, more = what
        raise QuotaExceeded(
            f"the workspace has {found} of at most {most} {name}, and {more} more would be too many",
            where=name,
            quota=most,
            used=found,
        )
    after = {"tasks": used.tasks + tasks, "bytes": used.bytes + brought, "counted_at": used.counted_at}
    await tx.run("use_quota", workspace=workspace, **after, room=room - tasks, now=tx.now)


def _check_rate(quota: Quota, room: float, tasks: int) -> None:
    rate = quota.submits_per_minute
    if rate is None or tasks <= room:
        return
    if tasks > rate:
        raise QuotaExceeded(
            f"{tasks} tasks at once are more than the {rate} a minute of this workspace",
            where="submits_per_minute",
            hint=f"Submit at most {rate} at once.",
            quota=rate,
        )
    raise TooManyRequests(
        f"the workspace can submit {rate} tasks a minute",
        where="submits_per_minute",
        retry_after=policy.wait_for(tasks, room, rate),
        quota=rate,
    )


def _over(quota: Quota, used: QuotaUsage, tasks: int, brought: int) -> tuple[str, int, int, int] | None:
    if tasks and quota.max_tasks is not None and used.tasks + tasks > quota.max_tasks:
        return "tasks", quota.max_tasks, used.tasks, tasks
    if brought and quota.max_bytes is not None and used.bytes + brought > quota.max_bytes:
        return "bytes", quota.max_bytes, used.bytes, brought
    return None


async def _recount(tx: Tx, engine: Engine, workspace: str, quota: Quota, used: QuotaUsage) -> QuotaUsage:
    """Recount, since some may have been purged. Rarely, or a workspace without room could keep the store busy."""
    at, counted = engine.quotas.counted.get(workspace, (-math.inf, used))
    if time.monotonic() - at >= RECOUNT_SEC:
        counted = await count(tx, workspace, quota)
        engine.quotas.counted[workspace] = time.monotonic(), counted
        return counted
    return used if used.counted_at >= counted.counted_at else counted


async def count(tx: Tx, workspace: str, quota: Quota) -> QuotaUsage:
    tasks = bytes_ = 0
    if quota.max_tasks is not None:
        found = await tx.one("count_tasks_stored", workspace=workspace)
        tasks = int(found["total"]) if found is not None else 0
    if quota.max_bytes is not None:
        found = await tx.one("count_bytes_stored", workspace=workspace)
        bytes_ = int(found["total"]) if found is not None else 0
    return QuotaUsage(tasks, bytes_, tx.now)
