"""Judging what is offered by what the stream shows of it: who took what, what was lost, what must go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from shiftwork.core.states import HELD, State
from shiftwork.queue.bridged.published import HOLD, Delivery, Offer
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


class Sight(NamedTuple):
    """The group as Redis shows it: what is pending with whom, and up to which entry it was given out."""

    pending: Mapping[str, str]
    last: MessageId = NOTHING

    def delivered(self, message_id: str | None) -> bool:
        return message_id is not None and parse(message_id) <= self.last


class Findings(NamedTuple):
    """What to do about the offers that are open."""

    taken: list[Delivery]
    """Somebody has them, who had them not before."""
    unseen: list[Offer]
    """Somebody took and acknowledged them between two looks."""
    recovered: list[Delivery]
    """A bridge has them from a worker that was silent for too long."""
    unanswered: list[Delivery]
    """Acknowledged long ago, or gone from Redis, without a result."""
    stale: list[Offer]
    """Their tasks went another way."""
    unwanted: list[tuple[Offer, str]]
    """Nobody has taken them, and nobody should."""
    waiting: list[tuple[Offer, str]]
    """Nobody has taken them yet."""
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


def judge(rows: Sequence[Row], sight: Sight, rules: Rules, now: float) -> Findings:
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
            _judge_unread(found, row, offer, sight, rules, now)
        else:
            _judge_taken(found, row, offer, sight, rules, now)
    return found


def _stands(row: Row) -> bool:
    """Whether its task is still as the offer says."""
    if row["consumer"] is None:
        return bool(row["status"] == State.READY and row["hold"] == HOLD)
    return bool(row["status"] in HELD and row["task_fence"] == row["fence"])


def _judge_unread(found: Findings, row: Row, offer: Offer, sight: Sight, rules: Rules, now: float) -> None:
    message_id, consumer = row["message_id"], sight.pending.get(row["message_id"])
    if consumer == rules.us:
        found.recovered.append(Delivery(offer, message_id, rules.group))
    elif consumer is not None:
        found.taken.append(Delivery(offer, message_id, consumer))
    elif row["delivered_at"] is not None:
        if row["delivered_at"] + rules.visibility_sec <= now:
            found.unanswered.append(Delivery(offer, message_id, rules.group))
    elif sight.delivered(message_id):
        found.unseen.append(offer)
    elif row["task_version"] != row["number"] or not rules.closed.isdisjoint({"*", row["type"]}):
        found.unwanted.append((offer, message_id))
    else:
        found.waiting.append((offer, message_id))


def _judge_taken(found: Findings, row: Row, offer: Offer, sight: Sight, rules: Rules, now: float) -> None:
    message_id, consumer = row["message_id"], sight.pending.get(row["message_id"])
    if consumer == rules.us:
        found.recovered.append(Delivery(offer, message_id, row["consumer"]))
    elif consumer is None:
        if row["delivered_at"] + rules.visibility_sec <= now:
            found.unanswered.append(Delivery(offer, message_id, row["consumer"]))
    elif consumer != row["consumer"]:
        found.taken.append(Delivery(offer, message_id, consumer))
