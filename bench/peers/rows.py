"""The performance goals: each is a ratio (or a figure) of one run, under the name that the plan gives it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from bench.peers.catalogue import OURS
from bench.peers.figures import Run, number, ratio, ratio_of

PG, LITE, HTTP_PG, HTTP_LITE = (f"{OURS} {place}" for place in ("postgres", "sqlite", "http postgres", "http sqlite"))
ONE, TWO, DEFAULT = "fast, 1 process", "fast, 2 processes", "default, 1 process"
SINGLE, BULK = "one by one", "in batches of 1000"


class Row(NamedTuple):
    """A goal, and the function that returns what a run measured for it; empty if it was not measured."""

    name: str
    aim: str
    answer: Callable[[Run], list[str]]


def _against(run: Run, measurement: str, what: str, ours: str, theirs: str | None) -> str:
    """Return a ratio such as `1.20 graphile-worker`; above one is better than the peer."""
    found = ratio(run.find(measurement, what, ours), run.find(measurement, what, theirs)) if theirs else None
    return f"{found} {theirs}" if found else ""


def _fastest_drain(run: Run) -> list[str]:
    return [_against(run, "drain", what, PG, "graphile-worker") for what in (ONE, TWO)]


def _default_drain(run: Run) -> list[str]:
    pairs = ((PG, run.peers("postgres")), (LITE, run.peers("sqlite")), (PG, run.peers("redis")))
    return [_against(run, "drain", DEFAULT, ours, run.best("drain", DEFAULT, peers)) for ours, peers in pairs]


def _bulk(run: Run) -> list[str]:
    return [_against(run, "submit", BULK, PG, run.best("submit", BULK, run.peers("postgres", "redis", "sqlite")))]


def _single(run: Run) -> list[str]:
    return [_against(run, "submit", SINGLE, PG, run.best("submit", SINGLE, run.peers("postgres")))]


def best_pickup(run: Run, labels: list[str]) -> tuple[str, str] | None:
    """Return the setting and the queue with the shortest median."""
    found = {
        (what, label): value
        for what in ("default, p50", "fast, p50")
        for label in labels
        if (value := run.median("pickup", what, label)) is not None
    }
    return min(found, key=found.__getitem__) if found else None


def _pickup(run: Run) -> list[str]:
    """Divide their latency by ours, each at its better setting; above one is quicker."""
    ours, theirs = best_pickup(run, [PG]), best_pickup(run, run.peers("postgres"))
    if ours is None or theirs is None:
        return []
    return [f"{ratio(run.find('pickup', *theirs), run.find('pickup', *ours))} {theirs[1]}"]


def depth_ratios(run: Run, label: str) -> list[str]:
    """Divide the rate out of each deeper backlog by the rate out of the shallow one."""
    found = [each for each in run.figures if each.measurement == "depth" and each.queue == label]
    return [f"{value.median:.2f}" for each in found[1:] if (value := ratio(each, found[0]))]


def _depth(run: Run) -> list[str]:
    found = {label: depth_ratios(run, label) for label in (PG, LITE)}
    return [f"{' and '.join(values)} {label}" for label, values in found.items() if values]


def _sqlite(run: Run) -> list[str]:
    drains = [_against(run, "drain", ONE, LITE, label) for label in others_of(run, LITE)]
    return [*drains, _against(run, "submit", SINGLE, LITE, "huey")]


def _agents(run: Run, *labels: str) -> list[str]:
    found = [number(run.median("agents", "50 at once", label)) for label in labels]
    return [" / ".join(found)] if found != ["-"] * len(found) else []


def _agents_over_http(run: Run) -> list[str]:
    ratios = (_against(run, "agents", "50 at once", label, "Restate") for label in (HTTP_PG, HTTP_LITE))
    return [*_agents(run, HTTP_PG, HTTP_LITE), *ratios]


def _crowd(run: Run) -> list[str]:
    found = []
    for label in (HTTP_PG, HTTP_LITE):
        waits = [run.median("crowd", f"200 wait, {share}", label) for share in ("p50", "p95")]
        if None not in waits:
            found.append(f"{' / '.join(map(number, waits))} ms {label}")
    return found


ROWS = (
    Row("PostgreSQL drain / graphile-worker's fastest, 1 and 2 processes", "1.2, 1.2", _fastest_drain),
    Row("drain at default settings / best peer's default", "1.5", _default_drain),
    Row("bulk submit / best peer (pgqueuer)", "1.2", _bulk),
    Row("single submit / best PostgreSQL peer (pgqueuer)", "1.0", _single),
    Row("pick-up p50 / best PostgreSQL peer (graphile)", "1.0 or quicker", _pickup),
    Row("drain out of 200 k and 1 M ready / out of 5 k", "0.9, 0.9", _depth),
    Row("SQLite drain / today's SQLite in the same run; single submit / huey's", "2, 1.0", _sqlite),
    Row(
        "50 agents, one task at a time each, one process: tasks/s on PostgreSQL / SQLite",
        "2,500 / 3,000",
        lambda run: _agents(run, PG, LITE),
    ),
    Row("the same over HTTP, one server", "1,000 / 1,500, ahead of Restate", _agents_over_http),
    Row("200 agents wait, 200 tasks/s: submit to claimed p50 / p95", "10 ms / 50 ms", _crowd),
)


def answers(run: Run) -> list[tuple[str, str, str]]:
    """Return name, goal and measured value of each row; a ratio above one is better than the other queue."""
    found = [(row.name, row.aim, ", ".join(filter(None, row.answer(run)))) for row in ROWS]
    return [each for each in found if each[2]]


def others_of(run: Run, label: str) -> list[str]:
    """Return the label of the same store for each other checkout."""
    place = label.removeprefix(OURS)
    others = (each for each in run.queues if each.name.startswith(f"{OURS} at "))
    return [each.label for each in others if each.label == each.name + place]


def old_and_new(run: Run) -> list[tuple[str, str, str]]:
    """Divide this checkout by another one, case by case; latencies and costs inversely, so that more is better."""
    found = []
    for figure in run.figures:
        for label in others_of(run, figure.queue):
            other = run.find(figure.measurement, figure.what, label)
            theirs = other.values if other else []
            more = figure.unit.endswith("/s")
            value = ratio_of(figure.values, theirs) if more else ratio_of(theirs, figure.values)
            if value is not None:
                place = figure.queue.removeprefix(f"{OURS} ")
                found.append((f"{place} {figure.measurement} {figure.what}", label, str(value)))
    return found
