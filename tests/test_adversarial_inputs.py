"""No caller input takes more than linear time, and every reader of such input is covered here.

Measured is the processor time of this thread, the best of several, so that a busy machine does not count. An input four
times as large may take ten times as long, which is more than four and less than the square; and each has an end.
"""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest

from tests.adversarial import (
    PLACES,
    READERS_OF_CALLERS,
    NoCaller,
    Pattern,
    Reader,
    expression,
    found_places,
    methods,
    pumped,
)

MAX_SEC = 0.5
"""Processor time for the largest input, on a slow machine."""
GROWTH = 10.0
FREE_SEC = 0.02
"""Below this nothing can be said about growth, and nothing has to be."""
GIVE_UP_SEC = 20.0
PATTERNS = {place: found for place, found in PLACES.items() if isinstance(found, Pattern)}


def test_every_regular_expression_is_measured_or_has_no_caller() -> None:
    found = found_places()
    assert sorted(found - PLACES.keys()) == [], (
        "Add these to PLACES in tests/adversarial.py, with inputs that try them."
    )
    assert sorted(PLACES.keys() - found) == [], "These are gone; remove them from PLACES."
    named = {reader for reader in PLACES.values() if isinstance(reader, str)}
    assert named <= READERS_OF_CALLERS.keys()
    assert all(reason.because for reason in PLACES.values() if isinstance(reason, NoCaller))


@pytest.mark.parametrize("place", PATTERNS)
def test_expression_time_grows_linearly_with_its_text(place: str) -> None:
    pattern, known = expression(place), PATTERNS[place]
    is_bytes, used = isinstance(pattern.pattern, bytes), methods(place)

    def match(text: Any) -> None:
        value = text.encode("utf-8", "surrogatepass") if is_bytes else text
        for method in used & {"fullmatch", "match", "search"}:
            getattr(pattern, method)(value)
        if used - {"fullmatch", "match", "search"}:
            for _ in pattern.finditer(value):
                pass

    check_growth(Reader(match, pumped(*known.prefixes), known.largest))


@pytest.mark.parametrize("name", READERS_OF_CALLERS)
def test_reader_time_grows_linearly_with_its_input(name: str) -> None:
    check_growth(READERS_OF_CALLERS[name])


def test_backtracking_expression_is_detected() -> None:
    """The check itself: with former expressions of this code."""
    import re  # noqa: PLC0415  # these are not part of the product

    before = ((r"\{\{\s*([^{}]*?)\s*\}\}", "{{", 1_000), (r"retry-after\s*[:=]?\s*(\d+)", "retry-after", 16_000))
    for pattern, prefix, largest in before:
        with pytest.raises(AssertionError, match="too long"):
            check_growth(Reader(re.compile(pattern).search, pumped(prefix), largest))


def check_growth(reader: Reader) -> None:
    for number, make in enumerate(reader.makers):
        small, large = make(reader.largest // 4), make(reader.largest)
        took = least(reader.call, large)
        if took <= FREE_SEC:
            continue
        before = least(reader.call, small)
        shown = f"input {number}, such as {str(make(40))[:80]!r}"
        assert took <= MAX_SEC, f"too long: {took:.2f} s for {shown}"
        assert took <= GROWTH * before + FREE_SEC, f"too long: {before:.3f} s became {took:.3f} s for {shown}"


def least(call: Callable[[Any], object], value: Any) -> float:
    """Return the CPU time of a call in this thread, the best of a few."""
    best = float("inf")
    with at_most(GIVE_UP_SEC):
        for _ in range(4):
            begun = time.thread_time()
            call(value)
            best = min(best, time.thread_time() - begun)
            if not FREE_SEC / 2 < best < 2 * MAX_SEC:
                break
    return best


class GivenUpError(BaseException):
    """Not derived from Exception, so that the measured code does not catch it."""


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Abort calls that take far too long; regular expressions check for signals."""

    def end(_number: int, _frame: FrameType | None) -> None:
        raise GivenUpError

    before = signal.signal(signal.SIGVTALRM, end)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    except GivenUpError:
        raise AssertionError(f"too long: it did not end within {seconds:g} s of processor time") from None
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
