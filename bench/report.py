"""Figures and limits of the measurements: collects them, prints them, and writes them for `make requirements`."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from bench import witness

if TYPE_CHECKING:
    from bench.stores import Place

Measurement = Callable[["Bench"], Awaitable[None]]
MEASUREMENTS: dict[str, Measurement] = {}
ROWS_OF: dict[Measurement, tuple[str, ...]] = {}


def measurement(function: Measurement) -> Measurement:
    """Register a measurement under its name; measurements run in the order of their definition."""
    MEASUREMENTS[function.__name__] = function
    return function


def requirement(*ids: str) -> Callable[[Measurement], Measurement]:
    """Name the rows of the documents whose limits this measurement checks. It must check each of them."""

    def mark(function: Measurement) -> Measurement:
        ROWS_OF[function] = ids
        return function

    return mark


DISTURBED = 0.002
"""From this share of stalled time on, a missed limit is shown with it: the p99 then reflects the machine, too."""


class Figure(NamedTuple):
    """One line of the table: a value per repetition."""

    store: str
    measurement: str
    what: str
    values: list[float]
    unit: str
    note: str = ""


class Check(NamedTuple):
    """A limit of a document, and what was measured against it."""

    store: str
    row: str
    what: str
    limit: float
    value: float
    unit: str
    at_least: bool
    stood_still: float = 0.0
    """The share of the measurement during which the machine stalled."""

    @property
    def ok(self) -> bool:
        return self.value >= self.limit if self.at_least else self.value < self.limit


class Bench:
    """The argument of a measurement: the store, the size of the run, and the collected figures and checks."""

    def __init__(self, place: Place, *, quick: bool) -> None:
        self.place = place
        self.quick = quick
        self.name = ""
        self.figures: list[Figure] = []
        self.checks: list[Check] = []

    @property
    def repetitions(self) -> int:
        return 2 if self.quick else 3

    def size(self, full: int, quick: int) -> int:
        return quick if self.quick else full

    def sizes(self, full: Sequence[int], quick: Sequence[int]) -> Sequence[int]:
        return quick if self.quick else full

    def figure(self, what: str, values: Sequence[float], unit: str, note: str = "") -> None:
        self.figures.append(Figure(self.place.name, self.name, what, list(values), unit, note))
        _print_figure(self.figures[-1])

    def check(self, row: str, what: str, value: float, limit: float, unit: str, *, at_least: bool = False) -> None:
        self.checks.append(Check(self.place.name, row, what, limit, value, unit, at_least))

    async def run(self, name: str) -> None:
        """Run one measurement. A row that it is marked with but does not check is a mistake in the benchmark."""
        self.name = name
        function = MEASUREMENTS[name]
        seen, began = len(self.checks), time.perf_counter()
        await function(self)
        share = witness.share(began, time.perf_counter())
        self.checks[seen:] = [check._replace(stood_still=share) for check in self.checks[seen:]]
        forgotten = set(ROWS_OF.get(function, ())) - {check.row for check in self.checks[seen:]}
        if forgotten:
            raise AssertionError(f"{name} is marked with {sorted(forgotten)} and measures nothing for them")


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which this share of the values lies."""
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, int(share * len(ranked)))]


def head() -> None:
    print(f"{'store':<9} {'measurement':<12} {'what':<52} {'median':>10} {'min - max':>21}  unit", flush=True)


def _print_figure(figure: Figure) -> None:
    median = statistics.median(figure.values)
    spread = f"{_number(min(figure.values))} - {_number(max(figure.values))}" if len(figure.values) > 1 else ""
    note = f"  ({figure.note})" if figure.note else ""
    print(
        f"{figure.store:<9} {figure.measurement:<12} {figure.what:<52} {_number(median):>10} {spread:>21}  "
        f"{figure.unit}{note}",
        flush=True,
    )


def _number(value: float) -> str:
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.2f}" if value < 10 or 99 < value < 100 else f"{value:.1f}"


def print_checks(checks: Sequence[Check]) -> None:
    if not checks:
        return
    print("\nLimits of the documents:")
    for check in sorted(checks, key=lambda c: (c.row, c.store)):
        sign = ">=" if check.at_least else "<"
        mark = "ok" if check.ok else "MISSED"
        if not check.ok and check.stood_still >= DISTURBED:
            mark += f" (the machine stood still {check.stood_still:.1%} of the time)"
        print(
            f"  {check.row:<6} {check.store:<9} {check.what:<58} "
            f"{_number(check.value):>8} {sign} {_number(check.limit)} {check.unit}  {mark}"
        )


def record(path: Path, machine: str, date: str, names: Sequence[str], checks: Sequence[Check]) -> None:
    """Write the checked limits in the short form that is committed. Rows not fully measured stay as they were."""
    kept = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    left_out = {row for name, each in MEASUREMENTS.items() if name not in names for row in ROWS_OF.get(each, ())}
    for row in sorted({check.row for check in checks} - left_out):
        found = [check for check in checks if check.row == row]
        kept[row] = {
            "date": date,
            "machine": machine,
            "ok": all(check.ok for check in found),
            "checks": [_sentence(check) for check in found],
        }
    path.write_text(json.dumps(dict(sorted(kept.items())), indent=1) + "\n", encoding="utf-8")


def _sentence(check: Check) -> str:
    sign = ">=" if check.at_least else "<"
    missed = "" if check.ok else ": missed"
    return f"{check.store}: {check.what}: {_number(check.value)} {sign} {_number(check.limit)} {check.unit}{missed}"


def write(path: Path, environment: dict[str, Any], figures: Sequence[Figure], checks: Sequence[Check]) -> None:
    """Write a report for other programs: a row passes if all its checks pass, on every store."""
    rows: dict[str, dict[str, Any]] = {}
    for check in checks:
        row = rows.setdefault(check.row, {"checks": []})
        row["checks"].append({**check._asdict(), "ok": check.ok})
        worst = min(row["checks"], key=lambda found: found["ok"])  # the first that is missed, else the first
        row |= {key: worst[key] for key in ("limit", "value", "unit", "ok")}
    document = {
        "environment": environment,
        "rows": rows,
        "figures": [{**figure._asdict(), "median": statistics.median(figure.values)} for figure in figures],
    }
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
