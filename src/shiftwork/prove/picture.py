"""The picture of a run: tasks completed per second, with the faults marked."""

from __future__ import annotations

from itertools import pairwise

from shiftwork.prove import svg
from shiftwork.prove.run import Outcome, rate_between


def throughput(outcome: Outcome) -> str:
    rates = [(later.at_sec, rate_between(earlier, later)) for earlier, later in pairwise(outcome.samples)]
    marks = [svg.Mark(each.at_sec, each.lasted_sec, each.fault) for each in outcome.occurrences if each.affected]
    return svg.charts("Throughput while faults are injected", [svg.Series("tasks completed per second", rates)], marks)
