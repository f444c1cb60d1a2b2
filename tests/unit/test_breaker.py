"""Rules of the circuit breaker, without a store: what opens it, what is probed, what closes it."""

from hypothesis import given
from hypothesis import strategies as st

from shiftwork.limits import breaker_policy
from shiftwork.limits.breaker_policy import Circuit, TrialEnd
from shiftwork.settings.model import Breaker

RULE = Breaker(failure_threshold=3, half_open_after=60)
NOW = 1000.0
PROBE = ("task", 7)


def failed(number: int = 1, reason: str = "crash", **facts: bool) -> TrialEnd:
    return TrialEnd((f"other-{number}", 1), "failed", reason, **facts)


def probe_ended(outcome: str, reason: str | None = None) -> TrialEnd:
    return TrialEnd(PROBE, outcome, reason)


def opened(at: float = NOW) -> Circuit:
    return breaker_policy.trip(Circuit(), at)


def half_open() -> Circuit:
    under_test = breaker_policy.begin_test(opened(), RULE, PROBE, NOW + 600, NOW + 60)
    assert under_test is not None
    return under_test


def test_breaker_opens_at_the_failure_threshold() -> None:
    circuit = Circuit()
    for number in range(2):
        circuit = breaker_policy.after(circuit, RULE, failed(number), NOW + number)
        assert (circuit.state, circuit.failures, circuit.last_failure) == ("closed", number + 1, NOW + number)
    circuit = breaker_policy.after(circuit, RULE, failed(3), NOW + 9)
    assert (circuit.state, circuit.failures, circuit.opened_at) == ("open", 3, NOW + 9)


def test_reset_on_success_setting_decides_failure_count() -> None:
    counted = Circuit(failures=2)
    success = TrialEnd(("other", 1), "completed")
    assert breaker_policy.after(counted, RULE, success, NOW).failures == 0
    only_the_tested = Breaker(failure_threshold=3, reset_on_success="half_open_only")
    assert breaker_policy.after(counted, only_the_tested, success, NOW).failures == 2


def test_ignored_reasons_do_not_count() -> None:
    assert breaker_policy.after(Circuit(), RULE, failed(reason="rate_limit"), NOW) == Circuit()
    assert breaker_policy.after(Circuit(), RULE, TrialEnd(("t", 1), "released"), NOW) == Circuit()


def test_with_dead_letter_counting_a_retry_does_not_count() -> None:
    rule = Breaker(count="dead_letter", ignore=())
    assert breaker_policy.after(Circuit(), rule, failed(), NOW) == Circuit()
    assert breaker_policy.after(Circuit(), rule, failed(final=True), NOW).failures == 1


def test_one_probe_is_allowed_only_after_the_interval() -> None:
    assert breaker_policy.begin_test(opened(), RULE, PROBE, NOW + 600, NOW + 59.9) is None
    circuit = breaker_policy.begin_test(opened(), RULE, PROBE, NOW + 600, NOW + 60)
    assert circuit is not None
    assert (circuit.state, circuit.half_open_at, circuit.probe) == ("half-open", NOW + 60, PROBE)
    assert breaker_policy.begin_test(circuit, RULE, ("second", 1), NOW + 900, NOW + 61) is None
    assert breaker_policy.begin_test(Circuit(), RULE, PROBE, NOW + 600, NOW) is None


def test_probe_that_never_ends_is_replaced_by_the_next() -> None:
    circuit = breaker_policy.begin_test(half_open(), RULE, ("second", 1), NOW + 900, NOW + 600)
    assert circuit is not None
    assert (circuit.probe, circuit.half_open_at) == (("second", 1), NOW + 60)
    late = breaker_policy.after(circuit, RULE, probe_ended("completed"), NOW + 700)
    assert late == circuit  # anyone who was tested before no longer decides


def test_probe_decides_with_its_first_outcome() -> None:
    closed = breaker_policy.after(half_open(), RULE, probe_ended("completed"), NOW + 70)
    assert (closed.state, closed.failures, closed.probe) == ("closed", 0, None)
    again = breaker_policy.after(half_open(), Breaker(count="dead_letter"), probe_ended("failed", "crash"), NOW + 70)
    assert (again.state, again.opened_at, again.probe) == ("open", NOW + 70, None)


def test_inconclusive_probe_is_replaced_by_another() -> None:
    for outcome, reason in [("released", None), ("cancelled", None), ("reclaimed", "crash"), ("failed", "rate_limit")]:
        circuit = breaker_policy.after(half_open(), RULE, probe_ended(outcome, reason), NOW + 70)
        assert (circuit.state, circuit.probe) == ("half-open", None)
        assert breaker_policy.closed_until(circuit, RULE, NOW + 70) == NOW + 70


def test_earlier_claims_neither_close_nor_reopen_the_breaker() -> None:
    for circuit in (opened(), half_open()):
        assert breaker_policy.after(circuit, RULE, TrialEnd(("old", 1), "completed"), NOW + 70) == circuit
        counted = breaker_policy.after(circuit, RULE, failed(), NOW + 70)
        assert counted == circuit._replace(failures=circuit.failures + 1, last_failure=NOW + 70)


OUTCOMES = st.sampled_from(["completed", "failed", "released", "cancelled", "reclaimed"])
STEPS = st.lists(
    st.tuples(st.sampled_from(["claim", "end"]), st.integers(1, 4), OUTCOMES, st.floats(0, 100)), max_size=60
)


@given(STEPS)
def test_at_most_one_probe_is_under_way_and_none_while_open(
    steps: list[tuple[str, int, str, float]],
) -> None:
    circuit, now = Circuit(), NOW
    for step, number, outcome, passed in steps:
        now += passed
        claim = (f"task-{number}", number)
        before = circuit
        if step == "claim":
            circuit = breaker_policy.begin_test(circuit, RULE, claim, now + 50, now) or circuit
            if circuit != before and before.probe is not None:
                assert before.probe_until is not None
                assert before.probe_until <= now
        else:
            circuit = breaker_policy.after(circuit, RULE, TrialEnd(claim, outcome, "crash"), now)
        assert (circuit.probe is None) or circuit.state == "half-open"
        assert circuit.state != "closed" or circuit.failures < RULE.failure_threshold
