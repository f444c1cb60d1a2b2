"""What is spent inside a step, kept apart from the rest of the attempt, also where steps run side by side."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from shiftwork.core.task import Usage

NOTHING = Usage()


class Purse:
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
        """What was in it, for whoever books it now."""
        used, self._used = self._used, NOTHING
        return used


_CURRENT: ContextVar[Purse | None] = ContextVar("purse", default=None)


@contextmanager
def spending_from(purse: Purse) -> Iterator[None]:
    """For the length of a step: whatever is spent by it, its tasks and its threads."""
    before = _CURRENT.set(purse)
    try:
        yield
    finally:
        purse.open = False
        _CURRENT.reset(before)


def current() -> Purse | None:
    """The purse of the step that runs here; None outside of steps, and for what outlives its step."""
    purse = _CURRENT.get()
    return purse if purse is not None and purse.open else None


def add(one: Usage, more: Usage) -> Usage:
    """The sum; of which model it is known only where that is one."""
    return Usage(
        model=more.model if one == NOTHING or one.model == more.model else None,
        cost_usd=one.cost_usd + more.cost_usd,
        tokens_in=one.tokens_in + more.tokens_in,
        tokens_out=one.tokens_out + more.tokens_out,
    )
