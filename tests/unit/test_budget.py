"""What a budget allows, as plain arithmetic on whole amounts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shiftwork.policy import budget

amounts = st.integers(0, 1000)
levels = st.lists(st.integers(-100, 1000), max_size=4)


@given(st.none() | amounts, amounts, levels)
def test_a_grant_never_passes_what_is_left_at_any_level(limit: int | None, estimate: int, left: list[int]) -> None:
    granted = budget.grant(limit, estimate, left)
    assert granted is None or all(granted <= rest for rest in left)


@given(amounts, amounts, levels)
def test_a_price_is_granted_whole_or_not_at_all(limit: int, estimate: int, left: list[int]) -> None:
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
def test_what_is_granted(limit: int | None, estimate: int, left: list[int], granted: int | None) -> None:
    assert budget.grant(limit, estimate, left) == granted


@given(amounts, amounts)
def test_an_attempt_takes_up_the_same_while_it_runs_and_when_it_is_lost(granted: int, used: int) -> None:
    assert sum(budget.share(granted, used, over=False)) == sum(budget.share(granted, used, over=True))
    assert budget.share(granted, used, over=True).granted == 0
    assert budget.share(granted, used, over=False).spent == used


@pytest.mark.parametrize(
    ("ceiling", "spent", "percent"),
    [(100, 79, 0), (100, 80, 80), (100, 94, 80), (100, 95, 95), (100, 100, 100), (100, 300, 100)]
    + [(None, 99, 0), (0, 0, 0), (0, 1, 100), (3, 2, 0)],
)
def test_the_share_that_is_warned_of(ceiling: int | None, spent: int, percent: int) -> None:
    assert budget.reached(ceiling, spent) == percent


def test_who_keeps_to_its_grant_is_never_stopped() -> None:
    assert not budget.is_over(50, 50, -1000)
    assert budget.is_over(50, 51, -1)
    assert not budget.is_over(50, 51, 0)
    assert not budget.is_over(50, 51, None)
