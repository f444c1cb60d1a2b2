"""How long missing heartbeats are forgiven after the store was unreachable.

A claim whose agent is silent is reclaimed after its timeout. Time in which no agent could have been heard proves
nothing: the store was unreachable, a process was suspended, a clock jumped. So the first such stall after the last sign
of life restarts the timeout, once. Later stalls only add their own length: however often they come, the claim ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Stall(NamedTuple):
    """A stretch of the store's time in which no agent could be heard."""

    start: float
    end: float
    why: str


def missed(stalls: Sequence[Stall], since: float) -> float:
    """How much of the time since then was stalls, in which work made no progress or could not report it."""
    return sum(stall.end - max(stall.start, since) for stall in stalls if stall.end > since)


def rests_until(stalls: Sequence[Stall], since: float, span: float) -> float:
    """Until when a claim last heard from at `since` must not be reclaimed for silence; 0 if no stall followed.

    `span` is the claim's heartbeat timeout. `stalls` are in chronological order.
    """
    after = [stall for stall in stalls if stall.end > since]
    if not after:
        return 0.0
    return after[0].end + span + sum(stall.end - stall.start for stall in after[1:])
