"""The figures of a run: values per round, medians, and ratios of two queues measured in the same rounds."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One queue in one case: a value per round, or None if it failed."""

    measurement: str
    what: str
    queue: str
    unit: str
    values: list[float | None]
    note: str = ""

    @property
    def median(self) -> float | None:
        found = [value for value in self.values if value is not None]
        return statistics.median(found) if found else None


class Queue(msgspec.Struct, frozen=True, kw_only=True):
    """A queue of the run."""

    label: str
    name: str
    store: str
    version: str
    settings: Mapping[str, str]
    lacks: str = ""


class Run(msgspec.Struct, kw_only=True):
    """A whole run, as written to JSON."""

    date: str
    commit: str
    quick: bool
    environment: dict[str, str]
    queues: list[Queue]
    figures: list[Figure] = []

    def find(self, measurement: str, what: str, label: str) -> Figure | None:
        wanted = (measurement, what, label)
        return next((each for each in self.figures if (each.measurement, each.what, each.queue) == wanted), None)

    def median(self, measurement: str, what: str, label: str) -> float | None:
        found = self.find(measurement, what, label)
        return found.median if found else None

    def best(self, measurement: str, what: str, labels: Iterable[str], *, least: bool = False) -> str | None:
        """Return the queue with the best median; with `least`, the smallest."""
        medians = {label: value for label in labels if (value := self.median(measurement, what, label)) is not None}
        if not medians:
            return None
        return min(medians, key=medians.__getitem__) if least else max(medians, key=medians.__getitem__)

    def peers(self, *stores: str) -> list[str]:
        """Return the other queues on these stores."""
        return [each.label for each in self.queues if each.store in stores and each.label == each.name]


class Ratio(NamedTuple):
    """The median of the rounds, and their range."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        if self.low == self.high:
            return f"{self.median:.2f}"
        return f"{self.median:.2f} ({self.low:.2f} to {self.high:.2f})"


def ratio(one: Figure | None, other: Figure | None) -> Ratio | None:
    """Divide round by round: a disturbance of the machine slows both queues."""
    if one is None or other is None:
        return None
    return ratio_of(one.values, other.values)


def ratio_of(ones: Sequence[float | None], others: Sequence[float | None]) -> Ratio | None:
    found = [one / other for one, other in zip(ones, others, strict=False) if one is not None and other]
    return Ratio(statistics.median(found), min(found), max(found)) if found else None


def write(path: Path, run: Run) -> None:
    path.write_bytes(msgspec.json.format(msgspec.json.encode(run), indent=1) + b"\n")


def read(path: Path) -> Run:
    return msgspec.json.decode(path.read_bytes(), type=Run)


def number(value: float | None) -> str:
    """Format without decimals from 100 on, else with three digits: more are noise."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
