"""Quantiles and busy time, compared with the simplest implementation."""

from hypothesis import given
from hypothesis import strategies as st

from shiftwork.observe import policy

SPELLS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)).map(lambda pair: (min(pair), max(pair))))


@given(st.lists(st.floats(0, 1e6), min_size=1), st.sampled_from([0.5, 0.95, 0.99]))
def test_quantile_is_the_least_value_enough_do_not_exceed(values: list[float], share: float) -> None:
    found = policy.quantile(sorted(values), share)
    assert sum(value <= found for value in values) >= share * len(values)
    assert sum(value < found for value in values) < share * len(values)


@given(SPELLS, st.integers(0, 60), st.integers(0, 60))
def test_overlapping_busy_time_counts_once(spells: list[tuple[int, int]], since: int, length: int) -> None:
    until = since + length
    covered = {second for first, last in spells for second in range(first, last) if since <= second < until}
    assert policy.busy_sec([(float(a), float(b)) for a, b in spells], since, until) == len(covered)
