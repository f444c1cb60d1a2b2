"""Budget rules as arithmetic on integer amounts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shiftwork.budgets import policy as budget

amounts = st.integers(0, 1000)
levels = st.lists(st.integers(-100, 1000), max_size=4)


@given(st.none() | amounts, amounts, levels)
def test_grant_never_exceeds_the_remainder_at_any_level(limit: int | None, estimate: int, left: list[int]) -> None:
    granted = budget.grant(limit, estimate, left)
    assert granted is None or all(granted <= rest for rest in left)


@given(amounts, amounts, levels)
def test_price_is_granted_whole_or_not_at_all(limit: int, estimate: int, left: list[int]) -> None:
    assert budget.grant(limit, estimate, left) in {None, limit}


@pytest.mark.parametrize(
    ("limit", "estimate", "left", "granted"),
    [
        (None, 25, [], 25),
        (50, 25, [], 50),
        (None, 25, [100, 10], 10),
        (None, 25, [100, 0], None),
        (0, 25, [0], 0),
        (0, 25, [-1], None),
        (50, 25, [50], 50),
        (50, 25, [49], None),
    ],
)
def test_grant_follows_limit_estimate_and_remainder(
    limit: int | None, estimate: int, left: list[int], granted: int | None
) -> None:
    assert budget.grant(limit, estimate, left) == granted


@given(amounts, amounts)
def test_attempt_occupies_the_same_amount_running_and_lost(granted: int, used: int) -> None:
    assert sum(budget.share(granted, used, over=False)) == sum(budget.share(granted, used, over=True))
    assert budget.share(granted, used, over=True).granted == 0
    assert budget.share(granted, used, over=False).spent == used


@pytest.mark.parametrize(
    ("ceiling", "spent", "percent"),
    [(100, 79, 0), (100, 80, 80), (100, 94, 80), (100, 95, 95), (100, 100, 100), (100, 300, 100)]
    + [(None, 99, 0), (0, 0, 0), (0, 1, 100), (3, 2, 0)],
)
def test_reached_warning_threshold_is_computed(ceiling: int | None, spent: int, percent: int) -> None:
    assert budget.reached(ceiling, spent) == percent


def test_attempt_within_its_grant_is_never_stopped() -> None:
    assert not budget.is_over(50, 50, -1000)
    assert budget.is_over(50, 51, -1)
    assert not budget.is_over(50, 51, 0)
    assert not budget.is_over(50, 51, None)
