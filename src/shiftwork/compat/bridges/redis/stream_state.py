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
    """Message ids sort by time, then by number; as text they do not."""
    ms, _, number = message_id.partition("-")
    return int(ms), int(number or 0)


def after(message_id: str) -> str:
    """The first id behind this one; servers before 6.2 know no open ranges."""
    ms, number = parse(message_id)
    return f"{ms}-{number + 1}"


class StreamState(NamedTuple):
    """The group as Redis shows it: what is pending with whom, and up to which entry it was given out."""

    pending: Mapping[str, str]
    last: MessageId = NOTHING

    def delivered(self, message_id: str | None) -> bool:
        return message_id is not None and parse(message_id) <= self.last


class Findings(NamedTuple):
    """What to do about the offers that are open."""

    taken: list[StreamDelivery]
    """Someone has them, who had them not before."""
    unseen: list[Offer]
    """Someone took and acknowledged them between two looks."""
    recovered: list[StreamDelivery]
    """A bridge has them from a worker that was silent for too long."""
    unanswered: list[StreamDelivery]
    """Acknowledged long ago, or gone from Redis, without a result."""
    stale: list[Offer]
    """Their tasks went another way."""
    unwanted: list[tuple[Offer, str]]
    """No one has taken them, and no one should."""
    waiting: list[tuple[Offer, str]]
    """No one has taken them yet."""
    ended: list[tuple[Offer, str | None]]
    """To be removed from the stream."""


class Rules(NamedTuple):
    """What a judgement needs to know besides."""

    group: str
    us: str
    """The consumer by which bridges take entries back."""
    visibility_sec: float
    closed: frozenset[str] = frozenset()
    """Types of which nothing is to be handed out now."""


def assess(rows: Sequence[Row], stream_state: StreamState, rules: Rules, now: float) -> Findings:
    found = Findings([], [], [], [], [], [], [], [])
    for row in rows:
        offer, message_id = Offer(row["task_id"], row["number"]), row["message_id"]
        if row["ended"]:
            found.ended.append((offer, message_id))
        elif not _stands(row):
            found.stale.append(offer)
        elif message_id is None:
            continue
        elif row["consumer"] is None:
            _assess_unread(found, row, offer, stream_state, rules, now)
        else:
            _assess_taken(found, row, offer, stream_state, rules, now)
    return found


def _stands(row: Row) -> bool:
    """Whether its task is still as the offer says."""
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
