"""A soak: a steady load for a long time with retention on; memory, descriptors, sizes and latency must stay flat."""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from shiftwork.client import Client
from shiftwork.model.errors import ShiftworkError, StoreUnavailable
from shiftwork.prove import svg
from shiftwork.prove.fleet import Fleet, fleet_on, free_port
from shiftwork.prove.probes import AWAY
from shiftwork.prove.run import SETTLE_SEC, Tell, connected
from shiftwork.prove.scratch_store import Scratch, scratch_at
from shiftwork.prove.workload import SOAK
from shiftwork.queue import Queue

STEP_SEC = 0.1
LATENCY_SEC = 0.25
VACUUM_SEC = 120.0
"""PostgreSQL checks for tables to vacuum every minute; the space of removed rows is reused after the second run."""

LOAD = "load of the machine"
"""Drawn but not judged, because other programs may cause it."""

CREATED = """
select (select count(*) from tasks) + (select count(*) from archive) + (select count(*) from tombstones)
  + (select coalesce(sum(tasks), 0) from pruned)"""
OPEN = "select count(*) from tasks where status <> 'completed'"


class SoakPlan(NamedTuple):
    """The options of a soak."""

    minutes: float
    rate: float
    """Tasks submitted per second."""
    workers: int
    keep_sec: float
    sample_sec: float

    @property
    def retention_sec(self) -> float:
        return min(60.0, self.keep_sec / 3)

    def warm_up_sec(self, *, sqlite: bool) -> float:
        """Half of the time, or until as much is removed as is added: from the tables, and then from the archive."""
        level = 2 * self.keep_sec + self.retention_sec + (0.0 if sqlite else VACUUM_SEC)
        return max(30 * self.minutes, level)


class Bound(NamedTuple):
    """How much a series may grow after the warm-up: a share of its mean, but at least `floor`."""

    share: float
    floor: float


BOUNDS = {
    "memory of the server, MiB": Bound(0.1, 10),
    "memory of the workers, MiB": Bound(0.1, 20),
    "open descriptors": Bound(0.1, 20),
    "size of the store, MiB": Bound(0.2, 10),
    "tasks in the tables": Bound(0.2, 1000),
    "submit to result, ms": Bound(0.5, 100),
}


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict on one series after the warm-up."""

    series: str
    mean: float
    growth: float
    """The growth after the warm-up, by the slope."""
    allowed: float
    per_hour: float
    """The slope per hour, to compare runs of different lengths."""

    @property
    def flat(self) -> bool:
        return self.growth <= self.allowed


class SoakLedger(msgspec.Struct, frozen=True, kw_only=True):
    """The results of a soak."""

    submitted: int
    lost: int
    """Acknowledged tasks that are neither in the queue nor removed by retention."""
    stuck: int
    took_sec: float
    tasks_per_sec: float
    warm_up_sec: float
    """When the judged time starts."""
    verdicts: list[Verdict]

    @property
    def too_short(self) -> bool:
        """Whether less than a quarter of the time was left to judge."""
        return self.warm_up_sec > 0.75 * self.took_sec

    @property
    def violations(self) -> list[str]:
        """What went wrong; growth is ignored if the run was too short."""
        wrong = [name for name in ("lost", "stuck") if getattr(self, name)]
        grown = [] if self.too_short else [verdict.series for verdict in self.verdicts if not verdict.flat]
        return wrong + grown


class SoakOutcome(NamedTuple):
    """The ledger and its samples."""

    ledger: SoakLedger
    series: dict[str, list[tuple[float, float]]]


def judge(name: str, points: list[tuple[float, float]], warm_up_sec: float) -> Verdict:
    """Judge the slope of a series by least squares after the warm-up, but over at least its last quarter."""
    since = min(warm_up_sec, 0.75 * points[-1][0])
    after = [point for point in points if point[0] >= since]
    values = [value for _, value in after]
    mean = statistics.fmean(values)
    slope = statistics.linear_regression([at for at, _ in after], values).slope
    bound = BOUNDS[name]
    growth = slope * (after[-1][0] - after[0][0])
    return Verdict(
        series=name,
        mean=round(mean, 1),
        growth=round(growth, 1),
        allowed=round(max(bound.share * mean, bound.floor), 1),
        per_hour=round(3600 * slope, 1),
    )


async def soak(url: str, plan: SoakPlan, report: Tell) -> SoakOutcome:
    """Run a fleet at this rate on a scratch store at this address, and remove the store."""
    settings = {
        "archive_after_sec": plan.keep_sec,
        "keep_archived_sec": plan.keep_sec,
        "keep_events_sec": plan.keep_sec,
        "maintenance.retention_sec": plan.retention_sec,
    }
    async with scratch_at(url) as scratch:
        port = free_port()
        server, folder = f"http://127.0.0.1:{port}", scratch.folder
        async with await Queue.open(scratch.url, actor="system:soak") as queue:
            await queue.settings.change(settings)
            async with (
                fleet_on(scratch.url, server, port, plan.workers, folder, one_clock=True) as fleet,
                await connected(server) as client,
            ):
                return await Soak(scratch, fleet, queue, client, plan, report).run()


class Soak:
    """A fleet under a steady load, and samples of it."""

    def __init__(  # each is used
        self, scratch: Scratch, fleet: Fleet, queue: Queue, client: Client, plan: SoakPlan, report: Tell
    ) -> None:
        self._scratch, self._fleet, self._queue, self._client = scratch, fleet, queue, client
        self._plan, self._report = plan, report
        self._began = time.monotonic()
        self._submitted = 0
        self._latencies: list[float] = []
        self._series: dict[str, list[tuple[float, float]]] = {}

    @property
    def _at(self) -> float:
        return time.monotonic() - self._began

    async def run(self) -> SoakOutcome:
        background = [self._measure_latency(), self._sample(), self._fleet.supervise()]
        running = [asyncio.ensure_future(work) for work in background]
        try:
            await self._load()
            loaded = self._at
        finally:
            for work in running:
                work.cancel()
            ended = await asyncio.gather(*running, return_exceptions=True)
        for error in ended:
            if isinstance(error, Exception):
                raise error
        stuck = await self._settled()
        lost = self._submitted - await self._scratch.value(CREATED)
        warm_up = self._plan.warm_up_sec(sqlite=self._scratch.is_sqlite)
        ledger = SoakLedger(
            submitted=self._submitted,
            lost=max(0, lost),
            stuck=stuck,
            took_sec=round(loaded, 1),
            tasks_per_sec=round(self._submitted / loaded, 1),
            warm_up_sec=round(warm_up, 1),
            verdicts=[judge(name, points, warm_up) for name, points in self._series.items() if name in BOUNDS],
        )
        return SoakOutcome(ledger, self._series)

    async def _load(self) -> None:
        """Submit the tasks that are due, in small batches; refused batches are retried."""
        while (at := self._at) < 60 * self._plan.minutes:
            due = int(at * self._plan.rate) - self._submitted
            if due > 0:
                await self._submit(min(due, 500))
            await asyncio.sleep(STEP_SEC)

    async def _submit(self, count: int) -> None:
        keys = [f"soak-{self._submitted + number}" for number in range(count)]
        batch = [{"type": SOAK, "idempotency_key": key} for key in keys]
        while True:
            try:
                await self._queue.submit_many(batch)
            except AWAY:
                await asyncio.sleep(STEP_SEC)
            else:
                self._submitted += count
                return

    async def _measure_latency(self) -> None:
        while True:
            began = time.monotonic()
            with suppress(ShiftworkError):
                task = await self._client.submit(type=SOAK)
                self._submitted += 1
                await self._client.result(task.id, wait=30)
                self._latencies.append(1000 * (time.monotonic() - began))
            await asyncio.sleep(LATENCY_SEC)

    async def _sample(self) -> None:
        while True:
            await asyncio.sleep(self._plan.sample_sec)
            with suppress(StoreUnavailable):
                await self._sample_store()
            self._sample_processes()
            self._add(LOAD, os.getloadavg()[0])
            if self._latencies:
                self._add("submit to result, ms", statistics.median(self._latencies))
                self._latencies.clear()
            now = ", ".join(f"{name} {svg.number(points[-1][1])}" for name, points in self._series.items())
            self._report(f"{self._at:.0f} s: {self._submitted:,} submitted, {now}")

    async def _sample_store(self) -> None:
        self._add("size of the store, MiB", await self._scratch.size() / 2**20)
        self._add("tasks in the tables", await self._scratch.value("select count(*) from tasks"))

    def _sample_processes(self) -> None:
        """Sample the processes, if the system has /proc."""
        server, *workers = self._fleet.members
        with suppress(FileNotFoundError):
            self._add("memory of the server, MiB", memory_mib(server.pid))
            self._add("memory of the workers, MiB", sum(memory_mib(worker.pid) for worker in workers))
            self._add("open descriptors", sum(descriptors(member.pid) for member in self._fleet.members))

    def _add(self, name: str, value: float) -> None:
        self._series.setdefault(name, []).append((self._at, value))

    async def _settled(self) -> int:
        """Wait for the last tasks; returns how many have not ended after a while."""
        end = time.monotonic() + SETTLE_SEC
        while (left := int(await self._scratch.value(OPEN))) and time.monotonic() < end:  # noqa: ASYNC110  # processes
            await asyncio.sleep(0.25)
        return left


def memory_mib(pid: int) -> float:
    """Resident memory of a process."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


def descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def picture(outcome: SoakOutcome) -> str:
    ledger = outcome.ledger
    title = f"{ledger.submitted:,} tasks in {ledger.took_sec / 60:.0f} minutes"
    return svg.charts(title, [svg.Series(name, points) for name, points in sorted(outcome.series.items())])
