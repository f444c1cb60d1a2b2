"""Limits without a store: no window ever exceeds its limit, and no usage is lost or kept forever."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shiftwork.limits import window_policy
from shiftwork.limits.window_policy import Limit, LimitShare, LimitUsage

NOW = 1_765_800_000.0


def fill(limit: Limit, at: list[float]) -> tuple[LimitUsage, list[tuple[float, LimitShare]]]:
    """Make claims at these times while there is room."""
    used, granted = LimitUsage(), []
    for now in at:
        if (step := window_policy.take(limit, used, now)) is not None:
            used = step[0]
            granted.append((now, step[1]))
    return used, granted


@given(
    st.lists(st.floats(0, 300), min_size=1, max_size=80),
    st.integers(1, 8),
    st.sampled_from([1.0, 7.0, 60.0]),
)
def test_no_window_contains_more_claims_than_allowed(moments: list[float], most: int, length: float) -> None:
    limit = Limit(requests=most, window_sec=length)
    _, granted = fill(limit, sorted(NOW + moment for moment in moments))
    times = [at for at, _ in granted]
    for end in times:
        assert sum(1 for at in times if end - length < at <= end) <= most


@given(st.lists(st.floats(0, 300), min_size=1, max_size=40))
def test_window_opens_exactly_at_the_reported_time(moments: list[float]) -> None:
    limit = Limit(requests=2, window_sec=60)
    used, _ = fill(limit, sorted(NOW + moment for moment in moments))
    now = NOW + max(moments)
    at = window_policy.opens_at(limit, used, now)
    assert at is not None
    if at > now:
        assert not window_policy.has_room(limit, used, at - 0.001)
        assert at <= now + 60 + 1.001  # at most a cell late
    assert window_policy.has_room(limit, used, at)


def test_unused_reserved_tokens_are_returned() -> None:
    limit = Limit(tokens=1000, tokens_per_task=400, window_sec=60)
    used, granted = fill(limit, [NOW, NOW, NOW])
    assert len(granted) == 2
    used = window_policy.release(limit, used, granted[0][1], 50, NOW + 5, began=True)
    assert window_policy.has_room(limit, used, NOW + 5)
    assert sum(cell.tokens for cell in used.cells) == 450


def test_tokens_used_beyond_the_reservation_count_from_then_on() -> None:
    limit = Limit(tokens=1000, tokens_per_task=400, window_sec=60)
    used, [(_, share)] = fill(limit, [NOW])
    used = window_policy.release(limit, used, share, 1500, NOW + 30, began=True)
    assert not window_policy.has_room(limit, used, NOW + 60)
    assert window_policy.has_room(limit, used, NOW + 92)


def test_unreported_usage_counts_as_the_whole_reservation() -> None:
    limit = Limit(tokens=400, tokens_per_task=400, window_sec=60)
    used, [(_, share)] = fill(limit, [NOW])
    assert not window_policy.has_room(limit, window_policy.release(limit, used, share, None, NOW, began=True), NOW)
    assert window_policy.has_room(limit, window_policy.release(limit, used, share, None, NOW, began=False), NOW)


def test_claim_never_started_is_not_a_request() -> None:
    limit = Limit(requests=1, window_sec=60)
    used, [(_, share)] = fill(limit, [NOW])
    assert not window_policy.has_room(limit, window_policy.release(limit, used, share, None, NOW, began=True), NOW)
    assert window_policy.has_room(limit, window_policy.release(limit, used, share, None, NOW, began=False), NOW)


def test_concurrency_limit_opens_when_one_ends() -> None:
    limit = Limit(concurrency=2)
    used, granted = fill(limit, [NOW] * 3)
    assert (len(granted), window_policy.opens_at(limit, used, NOW)) == (2, None)
    assert window_policy.has_room(limit, window_policy.release(limit, used, granted[0][1], None, NOW, began=True), NOW)


@given(st.lists(st.tuples(st.floats(0, 200), st.booleans(), st.integers(0, 500)), max_size=60))
def test_counters_return_to_zero_after_any_sequence(steps: list[tuple[float, bool, int]]) -> None:
    limit = Limit(requests=5, tokens=1000, tokens_per_task=100, window_sec=60, concurrency=3)
    used, now = LimitUsage(), NOW
    live: list[LimitShare] = []
    for passed, ends, tokens in steps:
        now += passed
        if ends and live:
            used = window_policy.release(limit, used, live.pop(), tokens, now, began=bool(tokens % 3))
        elif (step := window_policy.take(limit, used, now)) is not None:
            used = step[0]
            live.append(step[1])
        assert used.held == len(live) <= 3
        assert all(cell.requests >= 0 and cell.tokens >= 0 for cell in used.cells)
    for share in live:
        used = window_policy.release(limit, used, share, 0, now, began=False)
    assert used.held == 0
    assert window_policy.current(limit, used, now + 122).cells == ()


def test_changed_window_length_keeps_the_usage() -> None:
    old, new = Limit(requests=2, window_sec=60), Limit(requests=2, window_sec=600)
    used, _ = fill(old, [NOW, NOW + 1])
    moved = window_policy.rescale(old, new, used)
    assert not window_policy.has_room(new, moved, NOW + 599)
    assert window_policy.rescale(old, old, used) == used


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
def test_invalid_limit_is_detected(limit: Limit) -> None:
    assert window_policy.problem(limit)
