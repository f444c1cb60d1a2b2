"""Callers' regular expressions, matched in linear time by an engine without backtracking."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

import jsonschema_rs

MAX_LENGTH = 4_096
"""Characters of a pattern."""
MAX_CLASSES = 40
"""How often `\\w`, `\\d` and `\\s` may occur in one: compiling takes the square of that."""
MAX_STEPS = 5_300_000
"""The most steps, 15 ns each, of a match: the queue waits meanwhile."""
SIZES = ((1_024, 2), (8_192, 95), (16_384, 170), (65_536, 300), (131_072, 1_200), (524_288, 4_600))
"""Bytes of a compiled pattern, and the steps that each byte of a text takes at worst.

At worst the engine compares each byte with all of the pattern. The steps were measured with patterns that make it do
so, such as `[ab]*a[ab]{100}c` on a random text of a and b.
"""
FIX = (
    "Write it without look-around and back-references, in at most 4096 characters, with smaller counts than {1,500}, "
    "and with at most 40 of \\w, \\d and \\s: \\d{4} is one."
)
_CLASSES = re.compile(r"\\[wdsWDS]")
_COUNTS = re.compile(r"\{(\d{1,9})(?:,(\d{0,9}))?\}")
_FEW_STEPS = 40


class Pattern(NamedTuple):
    """A usable pattern: its compiled size, and the most steps per byte of text."""

    limit: int
    steps: float
    classes: int

    @property
    def longest(self) -> int:
        """The most bytes of a text to match it against."""
        return min(int(MAX_STEPS / self.steps), 1_048_576)


@lru_cache(maxsize=2048)
def measure(pattern: str) -> Pattern | None:
    """Measure the pattern; None for one that is too large or invalid."""
    classes = len(_CLASSES.findall(pattern))
    if len(pattern) > MAX_LENGTH or classes > MAX_CLASSES:
        return None
    for limit, steps in SIZES:
        try:
            _compiled(pattern, limit)
        except ValueError:
            continue
        return Pattern(limit, min(steps, _places(pattern)), classes)
    return None


def _places(pattern: str) -> float:
    """Each place of a pattern is compared once: it has as many as characters, and those that counts stand for.

    A count behind a group, or behind another count, is one of all that is in it.
    """
    single, times = 0.0, 1.0
    for found in _COUNTS.finditer(pattern):
        count = int(found[2] or found[1])
        if pattern[found.start() - 1 : found.start()] in {")", "}", "*", "+", "?"}:
            times *= 2 * max(count, 1)
        else:
            single += count
    return _FEW_STEPS + (len(pattern) + 2 * single) * times


def steps_of(pattern: str, text: str) -> float:
    """The most steps of a search for the pattern in a text; one step if it is not started."""
    measured = measure(pattern)
    size = len(text.encode())
    return 1 if measured is None or size > measured.longest else 1 + measured.steps * size


@lru_cache(maxsize=512)
def matcher(pattern: str) -> tuple[jsonschema_rs.Validator, int]:
    """The compiled matcher, and the most bytes of text for it."""
    measured = measure(pattern)
    if measured is None:
        raise ValueError(pattern)
    return _compiled(pattern, measured.limit), measured.longest


def _compiled(pattern: str, limit: int) -> jsonschema_rs.Validator:
    return jsonschema_rs.validator_for(
        {"pattern": pattern}, pattern_options=jsonschema_rs.RegexOptions(size_limit=limit)
    )
