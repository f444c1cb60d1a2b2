"""The metrics of one workspace: counted from its log, and measured on request."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from shiftwork.budgets.policy import day_begins
from shiftwork.engine import event_log
from shiftwork.engine.engine import Engine
from shiftwork.limits import gates
from shiftwork.model.task import dollars
from shiftwork.observe import maintenance_health, meters, status
from shiftwork.observe.meters import SUM, Series, Sums
from shiftwork.observe.metric_catalogue import BUCKETS, MAX_SERIES, METRICS, OTHER, QUANTILES
from shiftwork.observe.model import KEPT_SNAPSHOTS, Metrics, Sample, Status
from shiftwork.observe.policy import AttemptCounts, Spell, TaskCounts, busy_sec, le, quantile
from shiftwork.observe.status import NEWEST, WINDOW_SEC
from shiftwork.store.store import Row, Tx

TAIL = 20_000
"""Event numbers after the mark that a reader counts itself; beyond that, metrics are slightly late."""

LEVELS = ("high", "medium", "low")
_NO_END = 1e308


class Window(NamedTuple):
    """The newest part of the log: of a busy queue less than five minutes."""

    after: int
    last: int
    since: float


async def read(tx: Tx, engine: Engine, workspace: str, known: TaskCounts | None) -> tuple[Metrics, TaskCounts]:
    """All metrics, on one snapshot of the store; `known` counts are reused while they are recent enough."""
    current, counted = await status.read(tx, engine, workspace, known)
    window = await _window(tx)
    ends = await tx.all("meter_ends", workspace=workspace, **window._asdict())
    agents = await tx.all("list_agents", workspace=workspace)
    samples = [
        *_depths(current, counted),
        *await _waits(tx, workspace, window),
        *_latencies(ends),
        *await _meters(tx, workspace),
        *await _money(tx, workspace, agents),
        *await _fleet(tx, workspace, window, agents, ends),
        *await _rates(tx, workspace),
        *await _care(tx, workspace),
        Sample("shiftwork_completed_per_minute", current.completed_per_minute),
        *_labelled("shiftwork_agents", current.agents),
    ]
    return Metrics(tx.now, sorted(samples, key=_order)), counted


_PLACES = {name: place for place, name in enumerate(METRICS)}


def _order(sample: Sample) -> int:
    """Order samples like the catalogue."""
    return _PLACES[metric_of(sample.name)]


def metric_of(name: str) -> str:
    """The metric a sample belongs to."""
    for ending in ("_bucket", "_sum", "_count"):
        if name.removesuffix(ending) in METRICS:
            return name.removesuffix(ending)
    return name


def _labelled(name: str, values: Mapping[str, float]) -> list[Sample]:
    """The series of a metric that has one label."""
    (label,) = METRICS[name].labels
    return [Sample(name, float(value), {label: of}) for of, value in values.items()]


async def _window(tx: Tx) -> Window:
    last = await event_log.last(tx)
    after = max(0, last - NEWEST)
    oldest = await tx.one("event_at", seq=after) if after else None
    since = tx.now - WINDOW_SEC
    return Window(after, last, max(since, oldest["at"]) if oldest is not None else since)


def _depths(current: Status, counted: TaskCounts) -> list[Sample]:
    depth = [
        Sample("task_queue_depth", float(count), {"status": state, "priority_tier": tier})
        for (state, tier), count in sorted(counted.by_tier.items())
    ]
    return [*depth, *_labelled("shiftwork_queue_depth", {level: current.depth[level] for level in LEVELS})]


async def _waits(tx: Tx, workspace: str, window: Window) -> list[Sample]:
    rows = await tx.all("meter_waits", workspace=workspace, **window._asdict())
    waits = sorted(row["seconds"] for row in rows if row["seconds"] is not None)
    oldest = await tx.one("oldest_head", workspace=workspace, before=tx.now)
    age = 0.0 if oldest is None else tx.now - oldest["updated_at"]
    return [*_quantiles("task_queue_wait_seconds", waits), Sample("shiftwork_oldest_ready_seconds", age)]


def _latencies(ends: Sequence[Row]) -> list[Sample]:
    done = [row for row in ends if row["verb"] == "completed" and row["created_at"] is not None]
    return _quantiles("shiftwork_latency_seconds", sorted(row["ended_at"] - row["created_at"] for row in done))


def _quantiles(name: str, ordered: Sequence[float]) -> list[Sample]:
    if not ordered:
        return []
    return _labelled(name, {word: quantile(ordered, share) for word, share in QUANTILES.items()})


async def _rates(tx: Tx, workspace: str) -> list[Sample]:
    ended = await ended_by(tx, workspace, "type", tx.now - WINDOW_SEC)
    most = sorted(ended, key=lambda type_: (-ended[type_].ended, type_))[:MAX_SERIES]
    return _labelled("shiftwork_failure_rate", {type_: ended[type_].rate for type_ in sorted(most)})


async def _care(tx: Tx, workspace: str) -> list[Sample]:
    """Open alerts and dead letters, and the age of maintenance jobs."""
    alerts = {row["severity"]: row["total"] for row in await tx.all("open_alert_counts", workspace=workspace)}
    shut = Counter(row["kind"] for row in await tx.all("read_gates", workspace=workspace) if gates.is_shut(row, tx.now))
    ages = {row["name"]: row["last_run_at"] for row in maintenance_health.jobs_of(await tx.all("list_jobs"))}
    return [
        *_labelled("shiftwork_alerts_open", {severity: alerts.get(severity, 0) for severity in _SEVERITIES}),
        *_labelled("shiftwork_gates_closed", {kind: shut[kind] for kind in gates.NAMES}),
        *_labelled(
            "shiftwork_maintenance_age_seconds", {job: tx.now - at for job, at in ages.items() if at is not None}
        ),
    ]


_SEVERITIES = ("info", "warning", "critical")


async def _meters(tx: Tx, workspace: str) -> list[Sample]:
    """The stored meters plus the log since: one snapshot, so nothing is counted twice or left out."""
    mark = await meters.read_mark(tx)
    last = min(await event_log.last(tx), mark.folded_to + TAIL)
    kept = {
        Series(workspace, row["name"], tuple(msgspec.json.decode(row["labels"]))): float(row["value"])
        for row in await tx.all("read_meters", workspace=workspace)
    }
    sums = _together(kept, await meters.count(tx, mark.folded_to, last, workspace))
    sums = _together(sums, await meters.count_costs(tx, workspace, mark.costs_to, _NO_END))
    sums.setdefault(Series(workspace, "tasks_dead_lettered_total", ()), 0.0)
    return [*_plain(sums), *_histograms(sums), *_success(sums)]


def _together(kept: Sums, more: Sums) -> Sums:
    known: dict[str, set[tuple[str, ...]]] = defaultdict(set)
    for series in kept:
        known[series.name].add(meters.own_labels(series.name, series.labels))
    total: Sums = defaultdict(float, kept)
    for series, value in sorted(more.items()):
        total[meters.bounded(series, known[series.name])] += value
    return total


def _plain(sums: Sums) -> list[Sample]:
    return [
        Sample(series.name, value, dict(zip(METRICS[series.name].labels, series.labels, strict=True)))
        for series, value in sorted(sums.items())
        if METRICS[series.name].kind != "histogram"
    ]


def _histograms(sums: Sums) -> list[Sample]:
    found: dict[tuple[str, tuple[str, ...]], dict[str, float]] = defaultdict(dict)
    for series, value in sorted(sums.items()):
        if METRICS[series.name].kind == "histogram":
            found[series.name, series.labels[:-1]][series.labels[-1]] = value
    return [sample for (name, own), parts in found.items() for sample in _histogram(name, own, parts)]


def _histogram(name: str, own: tuple[str, ...], parts: Mapping[str, float]) -> Iterable[Sample]:
    labels, below = dict(zip(METRICS[name].labels, own, strict=True)), 0.0
    for bound in (*map(le, BUCKETS), "+Inf"):
        below += parts.get(bound, 0.0)
        yield Sample(f"{name}_bucket", below, {**labels, "le": bound})
    yield Sample(f"{name}_sum", parts.get(SUM, 0.0), labels)
    yield Sample(f"{name}_count", below, labels)


def _success(sums: Sums) -> list[Sample]:
    """The share of each agent's claim calls that got work."""
    calls: dict[str, Counter[str]] = defaultdict(Counter)
    for series, value in sums.items():
        if series.name == "shiftwork_claim_calls_total":
            agent, result = series.labels
            calls[agent][result] += int(value)
    rates = {agent: of["work"] / of.total() for agent, of in sorted(calls.items()) if agent != OTHER}
    return _labelled("agent_claim_success_rate", rates)


async def _money(tx: Tx, workspace: str, agents: Sequence[Row]) -> list[Sample]:
    today = await tx.one("spent_since", workspace=workspace, since=day_begins(tx.now))
    paid = [agent for agent in _some(agents) if agent["budget"] is not None]
    left = {agent["id"]: dollars(agent["budget"] - agent["spent"] - agent["granted"]) for agent in paid}
    spent = dollars(int(today["cost"]) if today else 0)
    return [Sample("daily_spend_usd", spent), *_labelled("budget_remaining_usd", left)]


async def _fleet(tx: Tx, workspace: str, window: Window, agents: Sequence[Row], ends: Sequence[Row]) -> list[Sample]:
    spells: dict[str, list[Spell]] = defaultdict(list)
    for row in ends:
        spells[row["agent_id"]].append((row["claimed_at"], row["ended_at"]))
    for row in await tx.all("held_spells", workspace=workspace):
        spells[row["agent_id"]].append((row["claimed_at"], tx.now))
    found = _some(agents)
    shares = {agent["id"]: _share(spells[agent["id"]], agent["registered_at"], window, tx.now) for agent in found}
    pool = [shares[agent["id"]] for agent in found if _is_alive(agent)]
    mean = sum(pool) / len(pool) if pool else 0.0
    return [*_labelled("agent_utilization", shares), Sample("shiftwork_pool_utilization", mean)]


def _share(spells: list[Spell], registered_at: float, window: Window, now: float) -> float:
    """Utilization over the window, or the time since the agent registered if that is shorter."""
    since = max(window.since, min([registered_at, *(first for first, _ in spells)]))
    return busy_sec(spells, since, now) / (now - since) if now > since else float(bool(spells))


def _some(agents: Sequence[Row]) -> list[Row]:
    """The agents with series of their own: live ones first."""
    return sorted(agents, key=lambda agent: not _is_alive(agent))[:MAX_SERIES]


def _is_alive(agent: Row) -> bool:
    return agent["status"] in {"active", "draining"}


async def keep(tx: Tx, workspace: str, found: Metrics, period_sec: float) -> None:
    """Store the metrics without histograms, and remove old ones."""
    plain = [sample for sample in found.samples if "le" not in sample.labels]
    written: Any = msgspec.json.encode(plain).decode()
    await tx.insert("insert_metric_snapshots", [(workspace, found.calculated_at, written)])
    before = found.calculated_at - KEPT_SNAPSHOTS * max(period_sec, 1.0)
    await tx.run("drop_metric_snapshots", workspace=workspace, before=before)


async def kept(tx: Tx, workspace: str, since: float, count: int) -> list[Metrics]:
    """The stored metrics, newest first."""
    rows = await tx.all("metric_snapshots", workspace=workspace, since=since, count=count)
    return [Metrics(row["at"], msgspec.json.decode(row["samples"], type=list[Sample])) for row in rows]


async def ended_by(tx: Tx, workspace: str, by: str, since: float) -> dict[str, AttemptCounts]:
    """How recent attempts ended, by type or by agent."""
    last = await event_log.last(tx)
    stretch = {"first": max(1, last - NEWEST + 1), "last": last, "since": since}
    rows = await tx.all(f"ended_by_{by}", workspace=workspace, **stretch)
    return {row["value"]: AttemptCounts(int(row["failed"]), int(row["ended"])) for row in rows}
