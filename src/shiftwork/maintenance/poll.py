"""Polls for due maintenance in one query, so that idle jobs cost nothing more."""

from __future__ import annotations

from typing import NamedTuple

from shiftwork.agents import presence
from shiftwork.engine.engine import Engine
from shiftwork.fairness import serial_keys
from shiftwork.maintenance.clock import went_back
from shiftwork.settings.model import Maintenance
from shiftwork.snapshots import maintenance as snapshots
from shiftwork.store.store import Row, Tx


class JobsSnapshot(NamedTuple):
    """The state of all jobs, read in one transaction."""

    now: float
    jobs: dict[str, Row]
    """By name: when each job is due, and when it last ran."""
    work: dict[str, float | None]
    """By job: the earliest moment at which it has work. 0 means now, None never."""
    shared: frozenset[str]
    """Jobs for which any process can tell whether there is work."""
    maintenance: Maintenance

    def is_due(self, name: str, period: float) -> bool:
        """Whether a job is due by its period."""
        job = self.jobs.get(name)
        return job is None or is_due(job, self.now, period)

    def has_work(self, name: str) -> bool:
        at = self.work[name]
        return at is not None and at <= self.now

    def has_timed_work(self, name: str) -> bool:
        """Whether the moment from which the job has work has passed."""
        at = self.work[name]
        return at is not None and 0 < at <= self.now

    def next_moment(self, names: set[str]) -> float | None:
        """The earliest future moment at which one of these jobs has work."""
        ahead = [at for name, at in self.work.items() if name in names and at is not None and at > self.now]
        return min(ahead, default=None)


IDLE_SEC = 10.0
"""How often, at most, a job without work is recorded as run, and an unconfigured job is checked."""


def is_due(job: Row, now: float, period: float) -> bool:
    """Whether the job is due. A moment further ahead than its period was written before the clock went back."""
    return not now < job["due_at"] <= now + max(period, IDLE_SEC)


async def poll(engine: Engine) -> JobsSnapshot:
    """Read the snapshot in the same way as a heartbeat: an answer means that agents can be heard."""
    return await engine.store.read_in_turn(lambda tx: _poll(tx, engine))


async def _poll(tx: Tx, engine: Engine) -> JobsSnapshot:
    rows = await tx.all("look", serial_idle=serial_keys.IDLE_SEC)
    jobs = {row["name"]: row for row in rows if row["kind"] == "job"}
    work: dict[str, float | None] = {row["name"]: row["work_at"] for row in rows if row["kind"] == "work"}
    shared = frozenset(work)
    settings = (await engine.settings_cache.load_many(tx, ["default"]))["default"].settings()
    if work["presence"] is not None:
        work["presence"] = await _presence(tx, engine, settings.maintenance.presence_sec)
    work["snapshot"] = 0.0 if snapshots.are_ours(engine, settings) else None
    work["clock"] = 0.0 if went_back(jobs.values(), tx.now) else None
    return JobsSnapshot(tx.now, jobs, work, shared, settings.maintenance)


async def _presence(tx: Tx, engine: Engine, period: float) -> float | None:
    """Each process checks its own machine, so this job has no row."""
    if 0 <= tx.now - engine.presence_seen_at < period:
        return None
    engine.presence_seen_at = tx.now
    return 0.0 if await presence.find_gone(tx) else None
