"""Compares offers with the stream's state: what was taken, lost, or must be removed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from shiftwork.compat.external.model import Offer, StreamDelivery
from shiftwork.model.states import CLAIMED_STATES, State
from shiftwork.model.task import PUBLISHED
from shiftwork.store.store import Row

MessageId = tuple[int, int]
NOTHING: MessageId = (0, 0)


def parse(message_id: str) -> MessageId:
    """Parse a message id, since ids do not sort as text."""
    ms, _, number = message_id.partition("-")
    return int(ms), int(number or 0)


def after(message_id: str) -> str:
    """The id right after this one; servers before 6.2 have no exclusive ranges."""
    ms, number = parse(message_id)
    return f"{ms}-{number + 1}"


class StreamState(NamedTuple):
    """The state of the group: pending entries with their consumers, and the last delivered entry."""

    pending: Mapping[str, str]
    last: MessageId = NOTHING

    def delivered(self, message_id: str | None) -> bool:
        return message_id is not None and parse(message_id) <= self.last


class Findings(NamedTuple):
    """What to do about open offers."""

    taken: list[StreamDelivery]
    """Delivered to a consumer since the last pass."""
    unseen: list[Offer]
    """Delivered and acknowledged between two passes."""
    recovered: list[StreamDelivery]
    """Reclaimed by a bridge from a worker that was silent for too long."""
    unanswered: list[StreamDelivery]
    """Acknowledged a while ago, or lost by Redis, without a result."""
    stale: list[Offer]
    """Their tasks changed outside of the stream."""
    unwanted: list[tuple[Offer, str]]
    """Not delivered yet, and to be withdrawn."""
    waiting: list[tuple[Offer, str]]
    """Not delivered yet."""
    ended: list[tuple[Offer, str | None]]
    """To be removed from the stream."""


class Rules(NamedTuple):
    """Further inputs of `assess`."""

    group: str
    us: str
    """The consumer name with which bridges reclaim entries."""
    visibility_sec: float
    closed: frozenset[str] = frozenset()
    """Types that are closed now."""


def assess(rows: Sequence[Row], stream_state: StreamState, rules: Rules, now: float) -> Findings:
    found = Findings([], [], [], [], [], [], [], [])
    for row in rows:
        offer, message_id = Offer(row["task_id"], row["number"]), row["message_id"]
        if row["ended"]:
            found.ended.append((offer, message_id))
        elif not _is_current(row):
            found.stale.append(offer)
        elif message_id is None:
            continue
        elif row["consumer"] is None:
            _assess_unread(found, row, offer, stream_state, rules, now)
        else:
            _assess_taken(found, row, offer, stream_state, rules, now)
    return found


def _is_current(row: Row) -> bool:
    """Whether its task is still in the state of the offer."""
    if row["consumer"] is None:
        return bool(row["status"] == State.READY and row["hold"] == PUBLISHED)
    return bool(row["status"] in CLAIMED_STATES and row["task_fence"] == row["fence"])


def _assess_unread(
    found: Findings, row: Row, offer: Offer, stream_state: StreamState, rules: Rules, now: float
) -> None:
    message_id, consumer = row["message_id"], stream_state.pending.get(row["message_id"])
    if consumer == rules.us:
        found.recovered.append(StreamDelivery(offer, message_id, rules.group))
    elif consumer is not None:
        found.taken.append(StreamDelivery(offer, message_id, consumer))
    elif row["delivered_at"] is not None:
        if row["delivered_at"] + rules.visibility_sec <= now:
            found.unanswered.append(StreamDelivery(offer, message_id, rules.group))
    elif stream_state.delivered(message_id):
        found.unseen.append(offer)
    elif row["task_version"] != row["number"] or not rules.closed.isdisjoint({"*", row["type"]}):
        found.unwanted.append((offer, message_id))
    else:
        found.waiting.append((offer, message_id))


def _assess_taken(found: Findings, row: Row, offer: Offer, stream_state: StreamState, rules: Rules, now: float) -> None:
    message_id, consumer = row["message_id"], stream_state.pending.get(row["message_id"])
    if consumer == rules.us:
        found.recovered.append(StreamDelivery(offer, message_id, row["consumer"]))
    elif consumer is None:
        if row["delivered_at"] + rules.visibility_sec <= now:
            found.unanswered.append(StreamDelivery(offer, message_id, row["consumer"]))
    elif consumer != row["consumer"]:
        found.taken.append(StreamDelivery(offer, message_id, consumer))
