"""When a failure is retried, and after which delay."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shiftwork.engine.retry import RetryDecision, decide_retry, delay, models
from shiftwork.settings.model import Retry

PLAIN = Retry(jitter=False)
LOKI = Retry(initial_delay_sec=60, max_delay_sec=None, jitter=False)
AEGIS = Retry(
    strategy="immediate",
    retry_on=("runtime_offline", "timeout"),
    no_retry_on=("agent_error",),
    otherwise="fail",
    exclude_triggers=("autopilot",),
)
MIDDLE = 0.5


def decide(
    retry: Retry,
    reason: str,
    *,
    failures: int = 1,
    max_attempts: int = 3,
    trigger_type: str | None = None,
    poisoned: bool = False,
) -> RetryDecision:
    return decide_retry(
        retry,
        reason=reason,
        failures=failures,
        max_attempts=max_attempts,
        trigger_type=trigger_type,
        poisoned=poisoned,
        roll=MIDDLE,
    )


@pytest.mark.parametrize(
    ("retry", "delays"),
    [
        pytest.param(
            PLAIN,
            [10, 20, 40, 80, 160, 300, 300],
            id="exponential",
            marks=pytest.mark.requirement("F-171", "F-172"),
        ),
        pytest.param(LOKI, [60, 120, 240, 480], id="doubling without a cap"),
        pytest.param(
            Retry(strategy="fixed", jitter=False),
            [10, 10, 10],
            id="fixed",
            marks=pytest.mark.requirement("F-174"),
        ),
        pytest.param(Retry(strategy="immediate"), [0, 0, 0], id="immediate"),
        pytest.param(
            Retry(strategy="schedule", schedule_sec=(60, 300, 900), max_delay_sec=None, jitter=False),
            [60, 300, 900, 900],
            id="a schedule repeats its last value",
            marks=pytest.mark.requirement("R-028"),
        ),
        pytest.param(
            Retry(strategy="schedule", schedule_sec=(5, 30, 120), jitter=False),
            [5, 30, 120, 120],
            id="co-scientist",
        ),
        pytest.param(
            Retry(strategy="schedule", schedule_sec=(60, 900), jitter=False),
            [60, 300],
            id="the cap holds here too",
        ),
        pytest.param(Retry(strategy="schedule", jitter=False), [0, 0], id="an empty schedule"),
    ],
)
def test_each_strategy_has_its_sequence_of_delays(retry: Retry, delays: list[float]) -> None:
    assert [delay(retry, failures, MIDDLE) for failures in range(1, len(delays) + 1)] == delays


def test_fixed_delay_is_never_spread() -> None:
    assert {delay(Retry(strategy="fixed", initial_delay_sec=1), 1, roll) for roll in (0.0, 0.5, 0.99)} == {1}


@pytest.mark.requirement("F-173")
def test_jitter_spreads_a_delay_from_half_to_one_and_a_half() -> None:
    samples = [delay(Retry(), 1, roll / 100) for roll in range(100)]
    assert min(samples) == 5.0
    assert max(samples) <= 15.0
    assert len(set(samples)) == 100


def test_jitter_is_applied_after_the_cap() -> None:
    assert delay(Retry(), 20, 0.75) == 375.0


def test_doubling_without_a_cap_stays_within_a_year() -> None:
    assert delay(LOKI, 100_000, MIDDLE) == 31_622_400.0


@given(
    failures=st.integers(1, 50),
    roll=st.floats(0, 1, exclude_max=True),
    multiplier=st.floats(1, 10),
    cap=st.none() | st.floats(0, 1e6),
)
def test_later_failure_never_waits_shorter(failures: int, roll: float, multiplier: float, cap: float | None) -> None:
    retry = Retry(backoff_multiplier=multiplier, max_delay_sec=cap)
    assert delay(retry, failures, roll) <= delay(retry, failures + 1, roll)


@given(failures=st.integers(1, 50), rolls=st.tuples(*[st.floats(0, 1, exclude_max=True)] * 2))
def test_larger_roll_never_waits_shorter(failures: int, rolls: tuple[float, float]) -> None:
    small, large = sorted(rolls)
    assert delay(Retry(), failures, small) <= delay(Retry(), failures, large) <= 450.0


@pytest.mark.parametrize(
    ("reason", "again", "why"),
    [
        ("timeout", True, "retry"),
        ("claim_expired", True, "retry"),
        ("heartbeat_timeout", True, "retry"),
        ("runtime_offline", True, "retry"),
        ("crash", True, "retry"),
        ("rate_limit", True, "retry"),
        ("agent_error", True, "retry"),
        ("network", True, "retry"),
        ("resource_unavailable", True, "retry"),
        ("transient_api", True, "retry"),
        ("invalid_output", True, "retry"),
        ("the agent's own word", True, "retry"),
        ("auth_failure", False, "no_retry_on"),
        ("budget_exceeded", False, "no_retry_on"),
        ("cancelled", False, "no_retry_on"),
        ("invalid_input", False, "never"),
        ("safety_violation", False, "never"),
        ("resource_permanent", False, "never"),
        ("delivery_unknown", False, "never"),
        ("approval_rejected", False, "never"),
    ],
)
def test_standard_lists_decide_which_reasons_are_retried(reason: str, *, again: bool, why: str) -> None:
    decision = decide(Retry(), reason)
    assert (decision.again, decision.why) == (again, why)


@pytest.mark.parametrize(
    ("reason", "again", "why"),
    [
        ("timeout", True, "retry"),
        ("runtime_offline", True, "retry"),
        ("claim_expired", True, "retry"),
        ("heartbeat_timeout", True, "retry"),
        ("agent_error", False, "no_retry_on"),
        ("crash", False, "not_in_retry_on"),
        ("the agent's own word", False, "not_in_retry_on"),
        ("cancelled", False, "never"),
    ],
)
def test_closed_list_retries_only_listed_reasons(reason: str, *, again: bool, why: str) -> None:
    decision = decide(AEGIS, reason)
    assert (decision.again, decision.why) == (again, why)


def test_specific_reason_takes_precedence_over_its_class() -> None:
    only_silence = Retry(retry_on=("heartbeat_timeout",), no_retry_on=("timeout",))
    assert decide(only_silence, "heartbeat_timeout").again
    assert decide(only_silence, "claim_expired").why == "no_retry_on"
    all_but_silence = Retry(retry_on=("timeout",), no_retry_on=("heartbeat_timeout",))
    assert decide(all_but_silence, "heartbeat_timeout").why == "no_retry_on"
    assert decide(all_but_silence, "claim_expired").again


def test_final_reason_can_be_retried_when_listed() -> None:
    assert decide(Retry(retry_on=("invalid_input",)), "invalid_input").again


def test_no_retry_follows_the_last_attempt() -> None:
    decisions = [decide(PLAIN, "crash", failures=n, max_attempts=3) for n in (1, 2, 3, 4)]
    assert decisions == [
        (True, 10, "retry"),
        (True, 20, "retry"),
        (False, 0, "exhausted"),
        (False, 0, "exhausted"),
    ]


def test_poisoned_task_is_not_retried_with_attempts_left() -> None:
    assert decide(PLAIN, "crash", failures=3, max_attempts=5, poisoned=True) == (False, 0, "poison")


def test_excluded_trigger_is_not_retried() -> None:
    assert decide(AEGIS, "timeout", trigger_type="autopilot").why == "excluded_trigger"
    assert decide(AEGIS, "timeout", trigger_type="cron").why == "retry"
    assert decide(AEGIS, "timeout", trigger_type=None).why == "retry"


@pytest.mark.parametrize(
    ("fallback", "failures", "expected"),
    [
        (["haiku"], 0, ("opus", "sonnet")),
        (["haiku"], 1, ("opus", "sonnet")),
        (["haiku"], 2, ("haiku",)),
        (["haiku"], 3, ("haiku",)),
        ([], 2, ("opus", "sonnet")),
    ],
)
def test_second_failure_switches_to_the_fallback_models(
    fallback: list[str], failures: int, expected: tuple[str, ...]
) -> None:
    assert models(["opus", "sonnet"], fallback, failures) == expected
