"""Limits without a store: no window ever holds more than it may, and nothing is lost or kept for ever."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shiftwork.policy import window
from shiftwork.policy.window import Limit, Share, Used

NOW = 1_765_800_000.0


def fill(limit: Limit, at: list[float]) -> tuple[Used, list[tuple[float, Share]]]:
    """Claims at these times, as far as there is room."""
    used, granted = Used(), []
    for now in at:
        if (step := window.take(limit, used, now)) is not None:
            used = step[0]
            granted.append((now, step[1]))
    return used, granted


@given(
    st.lists(st.floats(0, 300), min_size=1, max_size=80),
    st.integers(1, 8),
    st.sampled_from([1.0, 7.0, 60.0]),
)
def test_no_stretch_as_long_as_the_window_holds_more_claims_than_allowed(
    moments: list[float], most: int, length: float
) -> None:
    limit = Limit(requests=most, window_sec=length)
    _, granted = fill(limit, sorted(NOW + moment for moment in moments))
    times = [at for at, _ in granted]
    for end in times:
        assert sum(1 for at in times if end - length < at <= end) <= most


@given(st.lists(st.floats(0, 300), min_size=1, max_size=40))
def test_room_comes_when_it_was_said_and_not_before(moments: list[float]) -> None:
    limit = Limit(requests=2, window_sec=60)
    used, _ = fill(limit, sorted(NOW + moment for moment in moments))
    now = NOW + max(moments)
    at = window.opens_at(limit, used, now)
    assert at is not None
    if at > now:
        assert not window.has_room(limit, used, at - 0.001)
        assert at <= now + 60 + 1.001  # at most a cell late
    assert window.has_room(limit, used, at)


def test_tokens_that_were_set_aside_and_not_used_go_back() -> None:
    limit = Limit(tokens=1000, tokens_per_task=400, window_sec=60)
    used, granted = fill(limit, [NOW, NOW, NOW])
    assert len(granted) == 2
    used = window.give_back(limit, used, granted[0][1], 50, NOW + 5, began=True)
    assert window.has_room(limit, used, NOW + 5)
    assert sum(cell.tokens for cell in used.cells) == 450


def test_tokens_used_beyond_what_was_set_aside_count_from_then_on() -> None:
    limit = Limit(tokens=1000, tokens_per_task=400, window_sec=60)
    used, [(_, share)] = fill(limit, [NOW])
    used = window.give_back(limit, used, share, 1500, NOW + 30, began=True)
    assert not window.has_room(limit, used, NOW + 60)
    assert window.has_room(limit, used, NOW + 92)


def test_what_nobody_told_counts_as_all_that_was_set_aside() -> None:
    limit = Limit(tokens=400, tokens_per_task=400, window_sec=60)
    used, [(_, share)] = fill(limit, [NOW])
    assert not window.has_room(limit, window.give_back(limit, used, share, None, NOW, began=True), NOW)
    assert window.has_room(limit, window.give_back(limit, used, share, None, NOW, began=False), NOW)


def test_a_claim_that_never_began_was_no_request() -> None:
    limit = Limit(requests=1, window_sec=60)
    used, [(_, share)] = fill(limit, [NOW])
    assert not window.has_room(limit, window.give_back(limit, used, share, None, NOW, began=True), NOW)
    assert window.has_room(limit, window.give_back(limit, used, share, None, NOW, began=False), NOW)


def test_so_many_at_once_open_when_one_ends() -> None:
    limit = Limit(concurrency=2)
    used, granted = fill(limit, [NOW] * 3)
    assert (len(granted), window.opens_at(limit, used, NOW)) == (2, None)
    assert window.has_room(limit, window.give_back(limit, used, granted[0][1], None, NOW, began=True), NOW)


@given(st.lists(st.tuples(st.floats(0, 200), st.booleans(), st.integers(0, 500)), max_size=60))
def test_whatever_comes_and_goes_nothing_stays_behind(steps: list[tuple[float, bool, int]]) -> None:
    limit = Limit(requests=5, tokens=1000, tokens_per_task=100, window_sec=60, concurrency=3)
    used, now = Used(), NOW
    live: list[Share] = []
    for passed, ends, tokens in steps:
        now += passed
        if ends and live:
            used = window.give_back(limit, used, live.pop(), tokens, now, began=bool(tokens % 3))
        elif (step := window.take(limit, used, now)) is not None:
            used = step[0]
            live.append(step[1])
        assert used.held == len(live) <= 3
        assert all(cell.requests >= 0 and cell.tokens >= 0 for cell in used.cells)
    for share in live:
        used = window.give_back(limit, used, share, 0, now, began=False)
    assert used.held == 0
    assert window.current(limit, used, now + 122).cells == ()


def test_another_length_of_window_keeps_what_is_used() -> None:
    old, new = Limit(requests=2, window_sec=60), Limit(requests=2, window_sec=600)
    used, _ = fill(old, [NOW, NOW + 1])
    moved = window.rescale(old, new, used)
    assert not window.has_room(new, moved, NOW + 599)
    assert window.rescale(old, old, used) == used


@pytest.mark.parametrize(
    "limit",
    [
        Limit(),
        Limit(requests=5),
        Limit(concurrency=5, window_sec=60),
        Limit(tokens=5, window_sec=60),
        Limit(requests=5, tokens_per_task=5, window_sec=60),
        Limit(tokens=5, tokens_per_task=6, window_sec=60),
    ],
)
def test_a_limit_that_makes_no_sense_is_found(limit: Limit) -> None:
    assert window.wrong(limit)
