"""The circuit breaker's own rules, without a store: what opens it, who is tested, what closes it."""

from hypothesis import given
from hypothesis import strategies as st

from shiftwork.core.settings import Breaker
from shiftwork.policy import breaker
from shiftwork.policy.breaker import Circuit, End

RULE = Breaker(failure_threshold=3, half_open_after=60)
NOW = 1000.0
PROBE = ("task", 7)


def failed(number: int = 1, reason: str = "crash", **facts: bool) -> End:
    return End((f"other-{number}", 1), "failed", reason, **facts)


def probe_ended(outcome: str, reason: str | None = None) -> End:
    return End(PROBE, outcome, reason)


def opened(at: float = NOW) -> Circuit:
    return breaker.trip(Circuit(), at)


def half_open() -> Circuit:
    under_test = breaker.put_to_test(opened(), RULE, PROBE, NOW + 600, NOW + 60)
    assert under_test is not None
    return under_test


def test_it_opens_with_the_failure_that_reaches_the_threshold() -> None:
    circuit = Circuit()
    for number in range(2):
        circuit = breaker.after(circuit, RULE, failed(number), NOW + number)
        assert (circuit.state, circuit.failures, circuit.last_failure) == ("closed", number + 1, NOW + number)
    circuit = breaker.after(circuit, RULE, failed(3), NOW + 9)
    assert (circuit.state, circuit.failures, circuit.opened_at) == ("open", 3, NOW + 9)


def test_a_success_between_failures_clears_the_count_or_not_as_the_rule_says() -> None:
    counted = Circuit(failures=2)
    success = End(("other", 1), "completed")
    assert breaker.after(counted, RULE, success, NOW).failures == 0
    only_the_tested = Breaker(failure_threshold=3, reset_on_success="half_open_only")
    assert breaker.after(counted, only_the_tested, success, NOW).failures == 2


def test_what_is_ignored_counts_for_nothing() -> None:
    assert breaker.after(Circuit(), RULE, failed(reason="rate_limit"), NOW) == Circuit()
    assert breaker.after(Circuit(), RULE, End(("t", 1), "released"), NOW) == Circuit()


def test_where_only_dead_letters_count_a_retry_does_not() -> None:
    rule = Breaker(count="dead_letter", ignore=())
    assert breaker.after(Circuit(), rule, failed(), NOW) == Circuit()
    assert breaker.after(Circuit(), rule, failed(final=True), NOW).failures == 1


def test_nobody_is_tested_before_the_time_and_one_is_from_then_on() -> None:
    assert breaker.put_to_test(opened(), RULE, PROBE, NOW + 600, NOW + 59.9) is None
    circuit = breaker.put_to_test(opened(), RULE, PROBE, NOW + 600, NOW + 60)
    assert circuit is not None
    assert (circuit.state, circuit.half_open_at, circuit.probe) == ("half-open", NOW + 60, PROBE)
    assert breaker.put_to_test(circuit, RULE, ("second", 1), NOW + 900, NOW + 61) is None
    assert breaker.put_to_test(Circuit(), RULE, PROBE, NOW + 600, NOW) is None


def test_a_test_that_never_ends_gives_its_place_to_the_next() -> None:
    circuit = breaker.put_to_test(half_open(), RULE, ("second", 1), NOW + 900, NOW + 600)
    assert circuit is not None
    assert (circuit.probe, circuit.half_open_at) == (("second", 1), NOW + 60)
    late = breaker.after(circuit, RULE, probe_ended("completed"), NOW + 700)
    assert late == circuit  # whoever was tested before no longer decides


def test_the_tested_task_decides_with_its_first_outcome() -> None:
    closed = breaker.after(half_open(), RULE, probe_ended("completed"), NOW + 70)
    assert (closed.state, closed.failures, closed.probe) == ("closed", 0, None)
    again = breaker.after(half_open(), Breaker(count="dead_letter"), probe_ended("failed", "crash"), NOW + 70)
    assert (again.state, again.opened_at, again.probe) == ("open", NOW + 70, None)


def test_a_tested_task_that_says_nothing_leaves_its_place_to_another() -> None:
    for outcome, reason in [("released", None), ("cancelled", None), ("reclaimed", "crash"), ("failed", "rate_limit")]:
        circuit = breaker.after(half_open(), RULE, probe_ended(outcome, reason), NOW + 70)
        assert (circuit.state, circuit.probe) == ("half-open", None)
        assert breaker.closed_until(circuit, RULE, NOW + 70) == NOW + 70


def test_work_claimed_before_it_opened_neither_closes_nor_reopens_it() -> None:
    for circuit in (opened(), half_open()):
        assert breaker.after(circuit, RULE, End(("old", 1), "completed"), NOW + 70) == circuit
        counted = breaker.after(circuit, RULE, failed(), NOW + 70)
        assert counted == circuit._replace(failures=circuit.failures + 1, last_failure=NOW + 70)


OUTCOMES = st.sampled_from(["completed", "failed", "released", "cancelled", "reclaimed"])
STEPS = st.lists(
    st.tuples(st.sampled_from(["claim", "end"]), st.integers(1, 4), OUTCOMES, st.floats(0, 100)), max_size=60
)


@given(STEPS)
def test_there_is_never_more_than_one_under_test_and_none_while_it_is_open(
    steps: list[tuple[str, int, str, float]],
) -> None:
    circuit, now = Circuit(), NOW
    for step, number, outcome, passed in steps:
        now += passed
        claim = (f"task-{number}", number)
        before = circuit
        if step == "claim":
            circuit = breaker.put_to_test(circuit, RULE, claim, now + 50, now) or circuit
            if circuit != before and before.probe is not None:
                assert before.probe_until is not None
                assert before.probe_until <= now
        else:
            circuit = breaker.after(circuit, RULE, End(claim, outcome, "crash"), now)
        assert (circuit.probe is None) or circuit.state == "half-open"
        assert circuit.state != "closed" or circuit.failures < RULE.failure_threshold
