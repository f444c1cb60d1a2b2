"""Ranking: a stored sort key that ageing never rewrites, and its components for people."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

import msgspec

from shiftwork.settings.model import Level, Settings

if TYPE_CHECKING:
    from collections.abc import Iterator

Tier = Literal["critical", "high", "normal", "low", "background"]

DEADLINE_BOOST = 50.0
"""Boost at the deadline; half of it 15 minutes before, a quarter 30 minutes before, and so on."""
DEADLINE_HALF_SEC = 900.0
DEADLINE_STEPS = 8
PATH_BOOST = 2.0
"""Boost for each doubling of the chain of dependents: grows with every task, but never runs away."""
AGE_BOOST_LIMIT_PCT = 100.0
MIN_RATE = 0.001

_TIERS: tuple[tuple[float, Tier], ...] = ((10, "critical"), (30, "high"), (60, "normal"), (80, "low"))
_INDEX: dict[Level, int] = {name: place for place, name in enumerate(get_args(Level))}
_USUAL: dict[Level, float] = {"high": 20, "medium": 50, "low": 70}
_TOP: dict[Level, float] = {"high": 0, "medium": 30, "low": 60}

# Each mark is larger than all that it must outweigh: |score| <= 9e4 < front < starved < half a level, and
# the largest ageing rate times the minutes since 1970 stays below the mark for urgent work.
_LEVEL_GAP = 1e6
_SCORE_LIMIT = 9e4
_FRONT = 2e5
_STARVED = 4e5
_URGENT = 1e9
URGENT_BELOW = -_URGENT / 2
"""Ranks of urgent work are below this, and no others."""

STRICT_BELOW = {
    "urgent_high": _LEVEL_GAP / 2 - _URGENT,
    "urgent_medium": _LEVEL_GAP * 3 / 2 - _URGENT,
    "urgent": URGENT_BELOW,
    "high": _LEVEL_GAP / 2,
    "medium": _LEVEL_GAP * 3 / 2,
}
"""Where levels are strict, the ranks of each are below this and not below the one before; urgent work comes first."""

# Moments before the deadline at which the boost passes 1/8, 2/8 ... of its full height.
_DEADLINE_LEADS = tuple(DEADLINE_HALF_SEC * math.log2(DEADLINE_STEPS / k) for k in range(1, DEADLINE_STEPS + 1))
_MINUTE = 60.0
_TOLERANCE_MIN = 1e-6


class RankFacts(NamedTuple):
    """The facts that determine a task's order."""

    priority: float
    boost_per_minute: float
    created_at: float
    ordered_at: float
    deadline: float | None = None
    path_weight: int = 0
    front: bool = False


class RankedKey(NamedTuple):
    """A sort key, smaller first, and when it must be recomputed."""

    rank: float
    rerank_at: float | None


class Parts(msgspec.Struct, frozen=True, kw_only=True):
    """Effective priority and its components as of one moment; lower is more urgent."""

    base: float
    age: float
    deadline: float
    dependency: float
    escalation: float
    percentage: float
    type: float
    effective: float
    age_minutes: float
    tier: Tier
    level: Level
    urgent: bool


class _Lift(NamedTuple):
    level: Level
    value: float
    starved: bool


def tier(priority: float) -> Tier:
    """Band of a priority; a fraction belongs to the band of its floor."""
    for below, name in _TIERS:
        if priority < below:
            return name
    return "background"


def level(priority: float) -> Level:
    """The three levels over the five tiers, for depth, quotas and strict order."""
    if priority < 30:
        return "high"
    return "medium" if priority < 60 else "low"


def ageing_rate(asked: float) -> float:
    """The rate at which a task ages, rounded to three decimals.

    Tasks of one rate share lanes, in which their order never changes. Rounding saves lanes for nearly equal rates.
    """
    return max(MIN_RATE, round(asked, 3)) if asked else 0.0


def lane_rate(settings: Settings, boost_per_minute: float) -> float:
    """Points per minute that a lane gains on the others; only `effective` order lets lanes age."""
    return boost_per_minute if settings.ordering == "effective" else 0.0


def rank(facts: RankFacts, settings: Settings, now: float) -> RankedKey:
    """Sort key of a task inside its lane; lanes are compared by `rank - lane_rate * now / 60`."""
    if settings.ordering == "fifo":
        return RankedKey(0.0, None)
    if settings.ordering == "static":
        return RankedKey(facts.priority, None)
    if settings.ordering == "effective" and _only_ages(facts, settings):
        return RankedKey(_ageing(facts.priority - settings.type_boost - _dependency(facts), facts), None)
    urgent_at = _urgent_at(facts, settings)
    if urgent_at is not None and now >= urgent_at:
        # Ranked as of the moment it became urgent, so that urgent work keeps its order without re-ranking.
        return RankedKey(_key(facts, settings, urgent_at) - _URGENT, None)
    rerank_at = min((moment for moment in _changes(facts, settings) if moment > now), default=None)
    return RankedKey(_key(facts, settings, now), rerank_at)


def band(key: float, settings: Settings) -> int:
    """The band that fairness never crosses, smaller first: urgent work, then strict levels one after the other.

    Takes a rank as lanes are compared by it.
    """
    if key < URGENT_BELOW:
        return -1
    return round(key / _LEVEL_GAP) if settings.ordering == "strict_level" else 0


def is_starved(facts: RankFacts, settings: Settings, since: float, now: float) -> bool:
    """Whether a task that has waited this long counts as starved."""
    at = _starved_at(facts, settings)
    return at is not None and since <= at <= now


def parts(facts: RankFacts, settings: Settings, now: float) -> Parts:
    """Effective priority with its components, as a person reads it.

    Shows only the components that the workspace's order uses, so that the number matches the order of hand-out.
    Rounds, to avoid `59.99999999999999`.
    """
    graded = settings.ordering in {"effective", "strict_level"}
    lift = _lift(facts, settings, now) if graded else _Lift(level(facts.priority), facts.priority, starved=False)
    urgent_at = _urgent_at(facts, settings)
    age_minutes = max(0.0, now - facts.created_at) / _MINUTE
    base = _tidy(facts.priority)
    age = _tidy(lane_rate(settings, facts.boost_per_minute) * age_minutes)
    deadline = _tidy(_deadline(facts, now)) if graded else 0.0
    dependency = _tidy(_dependency(facts)) if graded else 0.0
    escalation = _tidy(facts.priority - lift.value)
    percentage = _tidy(_percentage(facts, settings, lift.value, now)) if graded else 0.0
    type_ = _tidy(settings.type_boost) if graded else 0.0
    effective = _tidy(base - age - deadline - dependency - escalation - percentage - type_)
    return Parts(
        base=base,
        age=age,
        deadline=deadline,
        dependency=dependency,
        escalation=escalation,
        percentage=percentage,
        type=type_,
        effective=effective,
        age_minutes=_tidy(age_minutes),
        tier=tier(effective),
        level=lift.level,
        urgent=graded and urgent_at is not None and now >= urgent_at,
    )


def _tidy(value: float) -> float:
    return round(value, 6) + 0.0  # + 0.0 turns -0.0 into 0.0


def _only_ages(facts: RankFacts, settings: Settings) -> bool:
    """The case of nearly every task of a bulk submission: this path is four times as fast."""
    return (
        facts.deadline is None
        and not facts.front
        and not settings.escalation
        and settings.age_boost is None
        and settings.starvation_threshold_sec is None
    )


def _key(facts: RankFacts, settings: Settings, now: float) -> float:
    lift = _lift(facts, settings, now)
    score = (
        lift.value
        - settings.type_boost
        - _dependency(facts)
        - _percentage(facts, settings, lift.value, now)
        - _stepped_deadline(facts, now)
    )
    return _strict(score, lift, facts) if settings.ordering == "strict_level" else _ageing(score, facts)


def _ageing(score: float, facts: RankFacts) -> float:
    return score + facts.boost_per_minute * facts.created_at / _MINUTE


def _strict(score: float, lift: _Lift, facts: RankFacts) -> float:
    inside = max(-_SCORE_LIMIT, min(_SCORE_LIMIT, score))
    if lift.starved:
        inside -= _STARVED
    elif facts.front:
        inside -= _FRONT
    return _INDEX[lift.level] * _LEVEL_GAP + inside


def _lift(facts: RankFacts, settings: Settings, now: float) -> _Lift:
    """Level and base value of a task after escalation by age, starvation and the front mark."""
    own = level(facts.priority)
    starved_at = _starved_at(facts, settings)
    if starved_at is not None and now >= starved_at:
        return _Lift("high", min(facts.priority, _TOP["high"]), starved=True)
    best = own
    for step in settings.escalation:
        if now >= facts.created_at + step.after_sec and _INDEX[step.to_level] < _INDEX[best]:
            best = step.to_level
    value = facts.priority if best == own else _USUAL[best]
    if facts.front:
        value = min(value, _TOP[best])
    return _Lift(best, value, starved=False)


def _starved_at(facts: RankFacts, settings: Settings) -> float | None:
    patience = settings.starvation_threshold_sec
    return None if patience is None else facts.created_at + patience


def _dependency(facts: RankFacts) -> float:
    return PATH_BOOST * math.log2(1 + facts.path_weight) if facts.path_weight > 0 else 0.0


def _percentage(facts: RankFacts, settings: Settings, value: float, now: float) -> float:
    """A share of the base value per whole minute past the threshold, so that rank moves on the minute."""
    if settings.age_boost is None:
        return 0.0
    minutes = _minutes_past(facts.created_at + settings.age_boost.threshold_sec, now)
    return max(0.0, value) * min(AGE_BOOST_LIMIT_PCT, settings.age_boost.pct_per_min * minutes) / 100


def _minutes_past(start: float, now: float) -> int:
    # The tolerance makes a re-rank that comes exactly on the minute see that minute as passed.
    return max(0, math.floor((now - start) / _MINUTE + _TOLERANCE_MIN))


def _deadline(facts: RankFacts, now: float) -> float:
    if facts.deadline is None:
        return 0.0
    left = max(0.0, facts.deadline - now)
    return DEADLINE_BOOST * math.exp2(-left / DEADLINE_HALF_SEC)


def _stepped_deadline(facts: RankFacts, now: float) -> float:
    """The deadline curve in steps of equal height: never more than one step behind."""
    if facts.deadline is None:
        return 0.0
    passed = sum(now >= facts.deadline - lead for lead in _DEADLINE_LEADS)
    return DEADLINE_BOOST * passed / DEADLINE_STEPS


def _urgent_at(facts: RankFacts, settings: Settings) -> float | None:
    if facts.deadline is None or settings.deadline.urgent_sec is None:
        return None
    return facts.deadline - settings.deadline.urgent_sec


def _changes(facts: RankFacts, settings: Settings) -> Iterator[float]:
    """All times at which the stored rank changes other than by linear ageing."""
    if facts.deadline is not None:
        yield from (facts.deadline - lead for lead in _DEADLINE_LEADS)
    if (urgent_at := _urgent_at(facts, settings)) is not None:
        yield urgent_at
    if (starved_at := _starved_at(facts, settings)) is not None:
        yield starved_at
    for step in settings.escalation:
        if _INDEX[step.to_level] < _INDEX[level(facts.priority)]:
            yield facts.created_at + step.after_sec
    if settings.age_boost is not None and settings.age_boost.pct_per_min > 0:
        start = facts.created_at + settings.age_boost.threshold_sec
        last = math.ceil(AGE_BOOST_LIMIT_PCT / settings.age_boost.pct_per_min)
        yield from (start + _MINUTE * minute for minute in range(1, last + 1))
