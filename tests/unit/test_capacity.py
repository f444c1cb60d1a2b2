"""Capacity rules: which tasks fit, which must displace others, and when a queue is full."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shiftwork.engine.rank import level as level_of
from shiftwork.limits.capacity_policy import LEVELS, Limits, below, fill, filled, limits_of, needing_displacement, room
from shiftwork.settings.model import Level, Quotas, Settings

COSCIENTIST = Limits(10_000, 1000, 5000, 4000)
FULL: dict[Level, int] = {"high": 1000, "medium": 5000, "low": 4000}
levels = st.sampled_from(LEVELS)
limits = st.builds(Limits, *[st.none() | st.integers(0, 8)] * 4)


def test_settings_without_limits_give_no_limits() -> None:
    assert limits_of(Settings()) is None
    assert limits_of(Settings(priority_quotas=Quotas(low=0))) == Limits(None, None, None, 0)


@pytest.mark.parametrize(
    ("priority", "level"), [(0, "high"), (29.9, "high"), (30, "medium"), (60, "low"), (100, "low")]
)
def test_levels_follow_the_priority(priority: float, level: Level) -> None:
    assert level_of(priority) == level


def test_level_at_its_quota_must_displace_although_there_is_room() -> None:
    assert needing_displacement(COSCIENTIST, {"high": 1000}, ["high"]) == ["high"]
    assert needing_displacement(COSCIENTIST, FULL, ["high", "low"]) == ["low", "high"]
    assert needing_displacement(COSCIENTIST, {"high": 999}, ["high"]) == []


def test_each_level_displaces_only_lower_levels() -> None:
    assert [below(level) for level in ("high", "medium", "low")] == [("low", "medium"), ("low",), ()]


@given(limits, st.lists(levels, max_size=20), st.lists(levels, max_size=20))
def test_newcomers_not_in_need_fit_the_limits(bounds: Limits, waiting: list[Level], newcomers: list[Level]) -> None:
    needy = needing_displacement(bounds, Counter(waiting), newcomers)
    let_in = Counter(newcomers) - Counter(needy)
    after = Counter(waiting) + let_in
    if let_in and bounds.total is not None:
        assert sum(after.values()) <= bounds.total
    for level in LEVELS:
        quota = bounds.of(level)
        assert quota is None or not let_in[level] or after[level] <= quota


@given(limits, st.lists(levels, max_size=20), levels)
def test_room_equals_number_of_newcomers_not_in_need(bounds: Limits, waiting: list[Level], level: Level) -> None:
    left = room(bounds, Counter(waiting), level)
    newcomers = [level] * (25 if left is None else left + 1)
    assert len(needing_displacement(bounds, Counter(waiting), newcomers)) == (0 if left is None else 1)


@pytest.mark.requirement("C-189", "C-190")
@pytest.mark.parametrize(
    ("waiting", "state"),
    [(0, "normal"), (7999, "normal"), (8000, "warning"), (9499, "warning"), (9500, "critical"), (12_000, "critical")],
)
def test_queue_warns_at_80_and_is_critical_at_95_percent(waiting: int, state: str) -> None:
    shares = filled(Limits(10_000, None, None, None), {"low": waiting})
    assert fill(shares["total"], Settings()) == state


def test_limit_of_zero_is_full() -> None:
    assert filled(Limits(0, None, None, None), {}) == {"total": 1.0}
