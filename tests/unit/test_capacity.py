"""Who finds room, who needs a place, and how full is full."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shiftwork.core.settings import Level, Quotas, Settings
from shiftwork.policy.capacity import LEVELS, Limits, below, fill, filled, in_need, limits_of, room
from shiftwork.policy.rank import level as level_of

COSCIENTIST = Limits(10_000, 1000, 5000, 4000)
FULL: dict[Level, int] = {"high": 1000, "medium": 5000, "low": 4000}
levels = st.sampled_from(LEVELS)
limits = st.builds(Limits, *[st.none() | st.integers(0, 8)] * 4)


def test_a_queue_without_limits_has_none() -> None:
    assert limits_of(Settings()) is None
    assert limits_of(Settings(priority_quotas=Quotas(low=0))) == Limits(None, None, None, 0)


@pytest.mark.parametrize(
    ("priority", "level"), [(0, "high"), (29.9, "high"), (30, "medium"), (60, "low"), (100, "low")]
)
def test_levels_are_those_of_the_priority(priority: float, level: Level) -> None:
    assert level_of(priority) == level


def test_a_level_at_its_quota_needs_a_place_though_there_is_room() -> None:
    assert in_need(COSCIENTIST, {"high": 1000}, ["high"]) == ["high"]
    assert in_need(COSCIENTIST, FULL, ["high", "low"]) == ["low", "high"]
    assert in_need(COSCIENTIST, {"high": 999}, ["high"]) == []


def test_who_gives_way_to_whom() -> None:
    assert [below(level) for level in ("high", "medium", "low")] == [("low", "medium"), ("low",), ()]


@given(limits, st.lists(levels, max_size=20), st.lists(levels, max_size=20))
def test_who_is_not_in_need_fits(bounds: Limits, waiting: list[Level], newcomers: list[Level]) -> None:
    needy = in_need(bounds, Counter(waiting), newcomers)
    let_in = Counter(newcomers) - Counter(needy)
    after = Counter(waiting) + let_in
    if let_in and bounds.total is not None:
        assert sum(after.values()) <= bounds.total
    for level in LEVELS:
        quota = bounds.of(level)
        assert quota is None or not let_in[level] or after[level] <= quota


@given(limits, st.lists(levels, max_size=20), levels)
def test_room_is_how_many_would_not_be_in_need(bounds: Limits, waiting: list[Level], level: Level) -> None:
    left = room(bounds, Counter(waiting), level)
    newcomers = [level] * (25 if left is None else left + 1)
    assert len(in_need(bounds, Counter(waiting), newcomers)) == (0 if left is None else 1)


@pytest.mark.requirement("C-189", "C-190")
@pytest.mark.parametrize(
    ("waiting", "state"),
    [(0, "normal"), (7999, "normal"), (8000, "warning"), (9499, "warning"), (9500, "critical"), (12_000, "critical")],
)
def test_a_queue_is_nearly_full_from_80_and_95_percent_on(waiting: int, state: str) -> None:
    shares = filled(Limits(10_000, None, None, None), {"low": waiting})
    assert fill(shares["total"], Settings()) == state


def test_a_limit_of_nothing_is_full() -> None:
    assert filled(Limits(0, None, None, None), {}) == {"total": 1.0}
