"""Usage inside a step, kept apart from the rest of the attempt, also when steps run concurrently."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from shiftwork.model.task import Usage

NOTHING = Usage()


class UsageTotal:
    """A sum of usage."""

    def __init__(self) -> None:
        self._used = NOTHING
        self.open = True

    def add(self, more: Usage) -> None:
        self._used = add(self._used, more)

    @property
    def used(self) -> Usage:
        return self._used

    def empty(self) -> Usage:
        """Take the sum, to book it now."""
        used, self._used = self._used, NOTHING
        return used


_CURRENT: ContextVar[UsageTotal | None] = ContextVar("usage_total", default=None)


@contextmanager
def collecting_into(usage_total: UsageTotal) -> Iterator[None]:
    """Collect the usage of a step, including its tasks and threads."""
    before = _CURRENT.set(usage_total)
    try:
        yield
    finally:
        usage_total.open = False
        _CURRENT.reset(before)


def current() -> UsageTotal | None:
    """The usage total of the current step; None outside of steps, and for code that outlives its step."""
    usage_total = _CURRENT.get()
    return usage_total if usage_total is not None and usage_total.open else None


def add(one: Usage, more: Usage) -> Usage:
    """The sum; its model is known only if there is just one."""
    return Usage(
        model=more.model if one == NOTHING or one.model == more.model else None,
        cost_usd=_sum(one.cost_usd, more.cost_usd),
        tokens_in=one.tokens_in + more.tokens_in,
        tokens_out=one.tokens_out + more.tokens_out,
        tokens_cached=one.tokens_cached + more.tokens_cached,
    )


def _sum(one: float | None, more: float | None) -> float | None:
    """The sum of two optional values; None only if both are."""
    return None if one is None and more is None else (one or 0.0) + (more or 0.0)
