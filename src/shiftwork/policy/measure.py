"""Measuring: quantiles, how long somebody was busy, and which bucket a time falls into."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence

Spell = tuple[float, float]
"""From when until when something was held."""


def quantile(ordered: Sequence[float], share: float) -> float:
    """The smallest of these values, in order, that this share of them does not exceed."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def busy_sec(spells: Iterable[Spell], since: float, until: float) -> float:
    """How much of this time at least one spell covers."""
    covered, end = 0.0, since
    for first, last in sorted(spells):
        held = min(last, until) - max(first, end)
        if held > 0:
            covered += held
            end = min(last, until)
    return covered


def bucket(seconds: float, bounds: Sequence[float]) -> str:
    """The bound of the bucket a time falls into, as monitoring systems write it."""
    place = bisect_left(bounds, seconds)
    return le(bounds[place]) if place < len(bounds) else "+Inf"


def le(bound: float) -> str:
    return str(float(bound))
