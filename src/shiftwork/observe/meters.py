"""Counts the event log into meters, each event once: sums and position move in one transaction.

This costs the verbs nothing, and readers of meters add the events after the mark, so that nothing is late.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from shiftwork.budgets.policy import day_begins
from shiftwork.engine import event_log
from shiftwork.model import reasons
from shiftwork.model.task import dollars
from shiftwork.observe.metric_catalogue import BUCKETS, MAX_SERIES, METRICS, OTHER
from shiftwork.observe.policy import le
from shiftwork.store.store import Row, Tx

STRETCH = 5_000
"""Event numbers counted at once."""

DAY = 86_400.0
SUM = "sum"
_BOUNDS = (*map(le, BUCKETS), "+Inf")
"""The buckets of times, by their place in the statement `meter_seconds`."""

CREATED = frozenset({"submitted", "spawned", "retried", "rerun"})
REASONS = {reasons.BUDGET_EXCEEDED: "budget", **dict.fromkeys(reasons.SILENCE, reasons.TIMEOUT)}
"""Reasons with another name in the metrics; a separate metric has the exact ones."""


class Series(NamedTuple):
    """One series of one workspace; the values of its labels in the order of the catalogue."""

    workspace: str
    name: str
    labels: tuple[str, ...]


Sums = dict[Series, float]


class Mark(NamedTuple):
    """How far the log is counted, how far it is complete, and how far it was seen while these writers were active."""

    folded_to: int = 0
    whole_to: int = 0
    seen_to: int = 0
    writers: frozenset[str] = frozenset()
    costs_to: float = 0.0


class CountedEvents(NamedTuple):
    """The counts of the log from one mark to the next."""

    before: Mark
    after: Mark
    sums: Sums


async def mark_seen(tx: Tx) -> None:
    """Record up to where the log is final."""
    await tx.run("add_meter_mark")
    mark = await read_mark(tx)
    await _move(tx, _settled(mark, await event_log.last(tx), await _writers(tx)))


async def read_mark(tx: Tx) -> Mark:
    row = await tx.one("read_meter_mark")
    if row is None:
        return Mark()
    writers = frozenset(msgspec.json.decode(row["writers"]))
    return Mark(row["folded_to"], row["whole_to"], row["seen_to"], writers, row["costs_to"])


async def _move(tx: Tx, mark: Mark) -> None:
    writers = msgspec.json.encode(sorted(mark.writers)).decode()
    await tx.run("move_meter_mark", whole_to=mark.whole_to, seen_to=mark.seen_to, writers=writers)


async def _writers(tx: Tx) -> frozenset[str]:
    """Transactions that may still commit a number below the newest, read before: they lock first, then draw numbers."""
    return frozenset(row["holder"] for row in await tx.all("event_writers"))


def _settled(mark: Mark, newest: int, writers: frozenset[str]) -> Mark:
    """A number may be drawn long before it is committed: the log seen is complete once all writers of that time have
    ended.
    """
    if not writers:
        return mark._replace(whole_to=newest, seen_to=newest, writers=writers)
    if mark.writers & writers:
        return mark
    return mark._replace(whole_to=mark.seen_to, seen_to=newest, writers=writers)


async def count_on(tx: Tx) -> CountedEvents:
    """Count the next complete stretch. It only reads, so that no writer waits for it."""
    before = await read_mark(tx)
    last = max(before.folded_to, min(before.whole_to, before.folded_to + STRETCH))
    sums = await count(tx, before.folded_to, last)
    if not sums:  # many numbers may be skipped, as when a workspace came from another database
        numbers = await tx.all("event_numbers", after=last, count=1)
        last = max(last, min(before.whole_to, numbers[0]["seq"] - 1 if numbers else before.whole_to))
    after = before._replace(folded_to=last, costs_to=max(before.costs_to, _costs_end(tx.now)))
    if after.costs_to > before.costs_to:
        for workspace in await tx.all("used_workspaces"):
            _add(sums, await count_costs(tx, workspace["name"], before.costs_to, after.costs_to))
    return CountedEvents(before, after, sums)


async def keep(tx: Tx, counted: CountedEvents) -> int:
    """Add it to the stored meters, unless another process has counted it; returns how much of the log it was."""
    now = await tx.one("lock_meter_mark")
    before, after = counted.before, counted.after
    if now is None or (now["folded_to"], now["costs_to"]) != (before.folded_to, before.costs_to) or before == after:
        return 0
    await add(tx, counted.sums)
    await tx.run("move_meters", folded_to=after.folded_to, costs_to=after.costs_to)
    return after.folded_to - before.folded_to


def _costs_end(now: float) -> float:
    """Attempts claimed before yesterday report no more costs; later ones are summed on request."""
    return day_begins(now) - DAY


async def count(tx: Tx, after: int, last: int, workspace: str | None = None) -> Sums:
    """The counts of a stretch of the log, in all workspaces or in one."""
    sums: Sums = defaultdict(float)
    if last <= after:
        return sums
    stretch = {"after": after, "last": last, "workspace": workspace}
    for row in await tx.all("meter_counts", **stretch):
        for name, labels in _counted(row):
            sums[Series(row["workspace"], name, labels)] += float(row["total"])
    for row in await tx.all("meter_seconds", **stretch):
        name = "shiftwork_wait_seconds" if row["verb"] == "claimed" else "shiftwork_execution_seconds"
        of = row["workspace"], name, row["type"] or OTHER
        _observe(sums, *of, _BOUNDS[row["place"]], row["total"])
        _observe(sums, *of, SUM, row["seconds"])
    return sums


def _counted(row: Row) -> Iterable[tuple[str, tuple[str, ...]]]:
    verb = row["verb"]
    if verb in CREATED:
        yield "shiftwork_tasks_created_total", (row["type"] or OTHER,)
    elif verb == "completed":
        yield "tasks_completed_total", (row["type"] or OTHER,)
    elif verb == "failed":
        reason = row["reason"] or OTHER
        yield "tasks_failed_total", (REASONS.get(reason, reason),)
        yield "tasks_failed_detail_total", (reason,)
    elif verb == "agent_silent":
        yield "agent_heartbeat_misses_total", (row["agent"] or OTHER,)
    if row["dead"]:
        yield "tasks_dead_lettered_total", ()


def _observe(sums: Sums, workspace: str, name: str, type_: str, part: str, value: float) -> None:
    sums[Series(workspace, name, (type_, part))] += value


async def count_costs(tx: Tx, workspace: str, since: float, until: float) -> Sums:
    """What attempts claimed in this time have cost, in dollars."""
    rows = await tx.all("meter_costs", workspace=workspace, since=since, until=until)
    return {
        Series(workspace, "task_cost_usd", (row["type"], row["agent_id"], row["model"])): dollars(int(row["cost"]))
        for row in rows
    }


def _add(sums: Sums, more: Mapping[Series, float]) -> None:
    for series, value in more.items():
        sums[series] = sums.get(series, 0.0) + value


async def add(tx: Tx, sums: Sums) -> None:
    """Add to the stored meters. Series beyond the maximum are counted as one."""
    if not sums:
        return
    known = await _known(tx, {(series.workspace, series.name) for series in sums})
    kept: Sums = defaultdict(float)
    for series, value in sums.items():
        kept[bounded(series, known[series.workspace, series.name])] += value
    items = [(s.workspace, s.name, msgspec.json.encode(s.labels).decode(), kept[s]) for s in sorted(kept)]
    await tx.run("add_meters", items=items, now=tx.now)


async def _known(tx: Tx, names: Iterable[tuple[str, str]]) -> dict[tuple[str, str], set[tuple[str, ...]]]:
    known = {}
    for workspace, name in sorted(names):
        series = await _series(tx, workspace, name)
        if len(series) >= MAX_SERIES:  # agents come and go under new names
            await tx.run("drop_still_meters", workspace=workspace, name=name, before=tx.now - DAY)
            series = await _series(tx, workspace, name)
        known[workspace, name] = series
    return known


async def _series(tx: Tx, workspace: str, name: str) -> set[tuple[str, ...]]:
    rows = await tx.all("meter_series", workspace=workspace, name=name)
    return {own_labels(name, msgspec.json.decode(row["labels"])) for row in rows}


def own_labels(name: str, labels: Sequence[str]) -> tuple[str, ...]:
    """The labels without a bucket's bound."""
    return tuple(labels[: len(METRICS[name].labels)])


def bounded(series: Series, known: set[tuple[str, ...]]) -> Series:
    """The series itself while there is room for it, otherwise the one for all others."""
    own = own_labels(series.name, series.labels)
    if own not in known and len(known) >= MAX_SERIES:
        return series._replace(labels=(OTHER,) * len(own) + series.labels[len(own) :])
    known.add(own)
    return series
