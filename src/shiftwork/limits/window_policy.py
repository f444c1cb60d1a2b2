"""Limits on claims or tokens in any window of some seconds, and on concurrent claims.

The window slides. Use is counted in cells of a sixtieth of the window; a cell expires when all of it is as old as the
window: no window ever holds more than the limit, and room appears at most a sixtieth late. (A leaky bucket would be a
single number, but would admit twice the limit within one window.)
"""

from __future__ import annotations

import math
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

SLOTS = 60


class Limit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The limits on a key. An omitted value means no limit."""

    requests: Annotated[int, Meta(ge=1, le=10**9)] | None = None
    """Claims in one window."""
    tokens: Annotated[int, Meta(ge=1, le=10**15)] | None = None
    """Tokens in one window."""
    tokens_per_task: Annotated[int, Meta(ge=1, le=10**15)] | None = None
    """The tokens that a claim sets aside, because its use is not known yet."""
    window_sec: Annotated[float, Meta(ge=1, le=366 * 86400)] | None = None
    concurrency: Annotated[int, Meta(ge=1, le=10**6)] | None = None
    """Claims at the same time."""


class Cell(NamedTuple):
    number: int
    requests: int = 0
    tokens: int = 0


class LimitUsage(NamedTuple):
    """How much of a limit is taken."""

    held: int = 0
    cells: tuple[Cell, ...] = ()


class LimitShare(NamedTuple):
    """The share of a limit taken by one claim."""

    at: float
    tokens: int = 0


def problem(limit: Limit) -> str | None:
    """What is wrong with a limit, or None."""
    if limit.requests is None and limit.tokens is None and limit.concurrency is None:
        return "a limit needs requests, tokens or concurrency"
    windowed = limit.requests is not None or limit.tokens is not None
    if windowed != (limit.window_sec is not None):
        return "requests and tokens are counted in a window: give window_sec with them, and with them only"
    if (limit.tokens is None) != (limit.tokens_per_task is None):
        return "tokens need tokens_per_task, which every claim sets aside, and it needs them"
    if limit.tokens is not None and limit.tokens_per_task is not None and limit.tokens_per_task > limit.tokens:
        return "one task sets aside more tokens than there are"
    return None


def take(limit: Limit, used: LimitUsage, now: float) -> tuple[LimitUsage, LimitShare] | None:
    """The use with one more claim, and its share; None if there is no room."""
    if not has_room(limit, used, now):
        return None
    share = LimitShare(now, limit.tokens_per_task or 0)
    return LimitUsage(used.held + 1, _add(limit, current(limit, used, now).cells, now, 1, share.tokens)), share


def release(
    limit: Limit, used: LimitUsage, share: LimitShare, tokens: int | None, now: float, *, began: bool
) -> LimitUsage:
    """The use after a claim has ended. `tokens` is what it used; if None, everything it set aside counts.

    Unused tokens are removed from the cell of its claim; tokens beyond its share are counted now. A claim that never
    started used nothing.
    """
    spent = (share.tokens if tokens is None else tokens) if began else 0
    live = current(limit, used, now).cells
    cells = _add(limit, live, share.at, 0 if began else -1, min(0, spent - share.tokens))
    if spent > share.tokens:
        cells = _add(limit, cells, now, 0, spent - share.tokens)
    return LimitUsage(max(0, used.held - 1), cells)


def has_room(limit: Limit, used: LimitUsage, now: float) -> bool:
    return opens_at(limit, used, now) == now


def opens_at(limit: Limit, used: LimitUsage, now: float) -> float | None:
    """When there is room for one more claim: now, later, or None if a claim must end first."""
    if limit.concurrency is not None and used.held >= limit.concurrency:
        return None
    live = current(limit, used, now).cells
    requests, tokens = sum(cell.requests for cell in live), sum(cell.tokens for cell in live)
    at = now
    for cell in live:
        if _fits(limit, requests, tokens):
            break
        requests, tokens, at = requests - cell.requests, tokens - cell.tokens, _leaves(limit, cell.number)
    return at


def current(limit: Limit, used: LimitUsage, now: float) -> LimitUsage:
    """Without expired cells."""
    kept = tuple(cell for cell in used.cells if limit.window_sec is not None and _leaves(limit, cell.number) > now)
    return used._replace(cells=kept)


def rescale(old: Limit, new: Limit, used: LimitUsage) -> LimitUsage:
    """The use converted to a window of another length, never counted for a shorter time than it should be."""
    if old.window_sec == new.window_sec:
        return used
    cells: tuple[Cell, ...] = ()
    for cell in used.cells if old.window_sec is not None else ():
        cells = _add(new, cells, (cell.number + 1) * _width(old), cell.requests, cell.tokens)
    return used._replace(cells=cells)


def _fits(limit: Limit, requests: int, tokens: int) -> bool:
    more = tokens + (limit.tokens_per_task or 0)
    return (limit.requests is None or requests < limit.requests) and (limit.tokens is None or more <= limit.tokens)


def _width(limit: Limit) -> float:
    return (limit.window_sec or 0.0) / SLOTS


def _leaves(limit: Limit, number: int) -> float:
    """When a cell is no longer inside any window."""
    return (number + 1) * _width(limit) + (limit.window_sec or 0.0)


def _add(limit: Limit, cells: tuple[Cell, ...], at: float, requests: int, tokens: int) -> tuple[Cell, ...]:
    """Add to, or subtract from, the cell of this time; an expired cell is not changed."""
    if limit.window_sec is None or not (requests or tokens):
        return cells
    number = math.floor(at / _width(limit))
    changed = {cell.number: cell for cell in cells}
    old = changed.get(number)
    if old is None and (requests < 0 or tokens < 0):
        return cells
    old = old or Cell(number)
    changed[number] = Cell(number, max(0, old.requests + requests), max(0, old.tokens + tokens))
    return tuple(cell for _, cell in sorted(changed.items()) if cell.requests or cell.tokens)
