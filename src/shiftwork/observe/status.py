"""The queue's status: depth, agents, throughput and recent failures."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any, get_args

import msgspec

from shiftwork.engine import event_log, rank
from shiftwork.engine.engine import Engine
from shiftwork.limits import capacity, quotas
from shiftwork.limits.model import QuotaInForce
from shiftwork.model import ids
from shiftwork.model.states import WAITING, State
from shiftwork.observe import kept_counts
from shiftwork.observe.kept_counts import Sums
from shiftwork.observe.model import RecentFailure, Status
from shiftwork.observe.policy import TaskCounts
from shiftwork.settings.model import Level
from shiftwork.store.store import Row, Tx

WINDOW_SEC = 300.0
NEWEST = 20_000
"""The most events read: a busy queue is measured over less than the window."""

STRAY_SEC = 60.0
"""An event that is numbered earlier is not younger by more than this: no verb takes longer."""

FAILURES = 10
_LEVELS = get_args(Level)
_TIERS: tuple[rank.Tier, ...] = get_args(rank.Tier)
_LEVEL_OF = ("high", "high", "medium", "low", "low")
"""The level of each tier."""
DEFAULT_TIER: rank.Tier = "normal"
_NO_LEVEL = 3


async def count_tasks(
    tx: Tx, engine: Engine, workspace: str, known: TaskCounts | None, recent_sec: float = 0.0
) -> TaskCounts:
    """The tasks counted now; `known` counts are used while they are reusable or no older than `recent_sec`."""
    settings = (await engine.settings_cache.load(tx, workspace)).settings()
    if known is not None and (
        known.serves(tx.now, settings.maintenance.metrics_sec) or 0 <= tx.now - known.at < recent_sec
    ):
        return known
    return await _count(tx, workspace, strict=settings.ordering == "strict_level")


async def read(tx: Tx, engine: Engine, workspace: str, known: TaskCounts | None) -> tuple[Status, TaskCounts]:
    """The status now; `known` counts are used while they are reusable."""
    known = await count_tasks(tx, engine, workspace, known)
    agents = await tx.all("list_agents", workspace=workspace)
    failures = await tx.all("recent_failures", workspace=workspace, count=FAILURES)
    status = Status(
        calculated_at=tx.now,
        counts=known.counts,
        types=known.types,
        tiers=known.tiers,
        depth={**known.depth, "total": sum(known.depth.values())},
        agents=_presence(agents),
        slots=_slots(agents),
        scheduled=known.scheduled,
        next_scheduled_at=known.next_scheduled_at,
        paused=[gate["scope"] for gate in await tx.all("read_gates", workspace=workspace) if gate["kind"] == "pause"],
        completions=known.counts.get(State.COMPLETED, 0) + known.archived.get(State.COMPLETED, 0),
        **await _flow(tx, workspace),
        recent_failures=[_failure(row) for row in failures],
        capacity_warnings=(await capacity.read(tx, engine, workspace)).warnings,
        counted_at=known.at,
        tombstones=known.tombstones,
        archived=sum(known.archived.values()),
        quota=await _quota(tx, engine, workspace),
    )
    return status, known


async def _quota(tx: Tx, engine: Engine, workspace: str) -> QuotaInForce | None:
    return await quotas.read(tx, workspace) if await engine.quotas.has(tx, workspace) else None


async def _count(tx: Tx, workspace: str, *, strict: bool) -> TaskCounts:
    counts: Counter[str] = Counter()
    types: dict[str, Counter[str]] = defaultdict(Counter)
    tiers: Counter[str] = Counter()
    by_tier: Counter[tuple[str, str]] = Counter()
    depth = dict.fromkeys(_LEVELS, 0)
    by_lane: Counter[tuple[int, str, str | None]] = Counter()
    kept = await kept_counts.read(tx, workspace)
    if kept is None:
        await tx.run("read_whole_tables")
    statement = "task_counts" if kept is None else "open_task_counts"
    rows = await tx.all(statement, workspace=workspace, strict=strict, **rank.STRICT_BELOW)
    for row in rows:
        total, tier, level = int(row["total"]), _TIERS[row["tier"]], row["level"]
        counts[row["status"]] += total
        types[row["type"]][row["status"]] += total
        by_tier[row["status"], tier] += total
        if row["status"] in WAITING:
            tiers[tier] += total
            by_lane[row["lane"], row["status"], row["hold"]] += total
            depth[_LEVEL_OF[row["tier"]] if level == _NO_LEVEL else _LEVELS[level]] += total
    rows_read = sum(counts.values())
    for of, total in _of(kept, "tasks").items():
        counts[of.status] += total
        types[of.type][of.status] += total
        by_tier[of.status, _TIERS[of.tier] if of.tier < len(_TIERS) else DEFAULT_TIER] += total
    archived, erased = await _ended(tx, workspace, kept)
    plain = {name: dict(of_type) for name, of_type in types.items()}
    later = await tx.one("scheduled_count", workspace=workspace)
    total, next_at = (int(later["total"]), later["next_at"]) if later else (0, None)
    by_state = (dict(tiers), erased, archived, dict(by_tier), depth, dict(by_lane))
    return TaskCounts(tx.now, dict(counts), plain, *by_state, total, next_at, rows_read)


async def _ended(tx: Tx, workspace: str, kept: Sums | None) -> tuple[dict[str, int], int]:
    """Archived tasks by state, and removed tasks of which only a tombstone or a count is left."""
    pruned = await tx.one("pruned_count", workspace=workspace)
    if kept is None:
        archived = {row["status"]: int(row["total"]) for row in await tx.all("archive_counts", workspace=workspace)}
        marks = await tx.one("tombstone_count", workspace=workspace)
        tombstones = int(marks["total"]) if marks else 0
    else:
        archived = {of.status: total for of, total in _of(kept, "archive").items()}
        tombstones = _of(kept, "tombstones").total()
    return archived, tombstones + (int(pruned["total"]) if pruned else 0)


def _of(kept: Sums | None, place: str) -> Sums:
    """The counts of one table, without those that are 0."""
    return Counter({of: total for of, total in (kept or {}).items() if of.place == place and total})


def _presence(agents: Sequence[Row]) -> dict[str, int]:
    alive = [agent for agent in agents if agent["status"] in {"active", "draining"}]
    return {
        "active": sum(1 for agent in alive if agent["current_tasks"]),
        "idle": sum(1 for agent in alive if not agent["current_tasks"]),
        "failed": sum(1 for agent in agents if agent["status"] == "failed"),
        "offline": sum(1 for agent in agents if agent["status"] == "offline"),
    }


def _slots(agents: Sequence[Row]) -> dict[str, int]:
    """The agents' slots, and how many are free: a draining agent has none."""
    alive = [agent for agent in agents if agent["status"] in {"active", "draining"}]
    limited = [agent for agent in alive if agent["max_concurrent_tasks"] is not None]
    free = [agent["max_concurrent_tasks"] - agent["current_tasks"] for agent in limited if agent["status"] == "active"]
    return {
        "total": sum(int(agent["max_concurrent_tasks"]) for agent in limited),
        "free": sum(max(0, int(slots)) for slots in free),
        "unlimited": len(alive) - len(limited),
    }


async def _flow(tx: Tx, workspace: str) -> dict[str, Any]:
    """Recent completions, and the waits of recent claims, from the newest events."""
    last = await event_log.last(tx)
    first = await _newest(tx, last)
    began = first["at"] if first and last > NEWEST else tx.now - WINDOW_SEC
    rows = await tx.all(
        "recent_flow",
        workspace=workspace,
        first=first["seq"] if first else 0,
        last=last,
        since=tx.now - WINDOW_SEC,
        minute=tx.now - 60,
    )
    completed = [row for row in rows if row["verb"] == "completed"]
    claimed = {row["level"]: row["waited"] / row["total"] for row in rows if row["verb"] == "claimed"}
    return {
        "completed_last_minute": _scaled(sum(int(row["last_minute"]) for row in completed), tx.now - began, 60),
        "completed_per_minute": _scaled(sum(int(row["total"]) for row in completed), tx.now - began, WINDOW_SEC) / 5,
        "average_wait_sec": {level: claimed.get(level) for level in _LEVELS},
    }


async def _newest(tx: Tx, last: int) -> Row | None:
    """The event to read from: the first of the few newest ones, if these reach back far enough."""
    first = None
    for count in (NEWEST // 20, NEWEST // 4, NEWEST):
        first = await tx.one("event_at", seq=max(1, last - count + 1))
        if first is None or first["at"] < tx.now - WINDOW_SEC - STRAY_SEC or last <= count:
            break
    return first


def _scaled(count: int, seen_sec: float, window_sec: float) -> float:
    """Extrapolate a count to the whole window, if only its last part was read."""
    return count * max(1.0, window_sec / max(seen_sec, 0.1))


def _failure(row: Row) -> RecentFailure:
    data = msgspec.json.decode(row["data"] or "{}")
    return RecentFailure(
        task_id=ids.show_task(row["task_id"]),
        type=data.get("type"),
        reason=row["reason"],
        error=data.get("error") or data.get("note") or row["reason"],
        agent_id=data.get("agent"),
        at=row["at"],
    )
