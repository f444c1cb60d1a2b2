"""Provider limits in the data and text of a failure, and the resulting delays."""

import itertools
from email.utils import formatdate
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shiftwork.providers import provider_limits
from shiftwork.providers.provider_limits import Signal, wait_for
from shiftwork.settings.model import RateLimit

NOW = 1_765_800_000.0
IN_90 = formatdate(NOW + 90, usegmt=True)
DAY = 86_400
LOKI = RateLimit(matching="substrings")
LIMIT = Signal("rate_limit")


def reason_of(reason: str | None, error: str | None = None, data: Any = None, limit: RateLimit | None = None) -> str:
    return provider_limits.classify_failure(reason, error, data, limit or RateLimit(), NOW).reason


def signal_of(error: str | None = None, data: Any = None, reason: str | None = "rate_limit") -> Signal:
    found = provider_limits.classify_failure(reason, error, data, RateLimit(), NOW).signal
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("reason", "error", "expected"),
    [
        (None, "Rate limit reached", "rate_limit"),
        (None, "RATE LIMIT reached", "rate_limit"),
        (None, "HTTP 429", "rate_limit"),
        ("agent_error", "Too Many Requests", "rate_limit"),
        ("agent_error", "API Error: 529 Overloaded", "rate_limit"),
        ("agent_error", "Credit balance is too low", "rate_limit"),
        ("agent_error", "Invalid API key · Please run /login", "auth_failure"),
        (None, "disk full", "agent_error"),
        (None, None, "agent_error"),
        ("crash", "disk full", "crash"),
        ("crash", None, "crash"),
    ],
)
def test_error_text_decides_when_no_reason_is_stated(reason: str | None, error: str | None, expected: str) -> None:
    assert reason_of(reason, error) == expected


@pytest.mark.parametrize("reason", ["crash", "transient_api", "invalid_output", "timeout", "auth_failure", "my_own"])
@pytest.mark.parametrize("error", ["HTTP 429", "Quota exceeded", "Invalid API key · Please run /login"])
def test_error_text_does_not_override_a_stated_reason(reason: str, error: str) -> None:
    assert reason_of(reason, error) == reason


@pytest.mark.requirement("L-132")
@pytest.mark.parametrize(
    "error", ["the report quotes a Rate Limit", "line 429", "no Retry-After", "quota exceeded page"]
)
def test_loki_indicators_count_anywhere_in_the_text(error: str) -> None:
    for reason in (None, "agent_error", "crash", "transient_api"):
        assert reason_of(reason, error, limit=LOKI) == "rate_limit"
    assert reason_of("invalid_output", error, limit=LOKI) == "invalid_output"
    assert reason_of("crash", error) == "crash"
    assert reason_of(None, error) == "agent_error"


@pytest.mark.parametrize("limit", [RateLimit(classify=False), RateLimit(classify=False, matching="substrings")])
def test_rate_limit_detection_can_be_disabled(limit: RateLimit) -> None:
    assert reason_of("agent_error", "quota exceeded", limit=limit) == "agent_error"
    assert reason_of(None, "HTTP 429", {"status": 429}, limit) == "agent_error"


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        ({"status": 429}, "rate_limit"),
        ({"status_code": "429"}, "rate_limit"),
        ({"statusCode": 429}, "rate_limit"),
        ({"response": {"status": 429}}, "rate_limit"),
        ({"error": {"code": 429}}, "rate_limit"),
        ({"provider_error": {"status": 529}}, "overloaded"),
        ({"api_error_status": 503}, "overloaded"),
        ({"status": 402}, "quota"),
        ({"status": 429, "error": {"type": "insufficient_quota"}}, "quota"),
        ({"error": {"type": "rate_limit_error"}}, "rate_limit"),
        ({"error": {"type": "overloaded_error"}}, "overloaded"),
        ({"provider_error": {"error": {"code": "ThrottlingException"}}}, "rate_limit"),
        ({"status": 401}, "auth"),
        ({"status": 403}, "auth"),
        ({"status": 403, "headers": {"x-ratelimit-remaining": "0", "x-ratelimit-reset": NOW + 60}}, "rate_limit"),
        ({"error": {"type": "authentication_error"}}, "auth"),
        ({"status": 500}, None),
        ({"lines": 429}, None),
        ({"type": "rate_limit_error"}, None),
        ({"a": {"b": {"status": 429}}}, None),
        ({"rate_limit_info": {"status": "allowed_warning", "resetsAt": NOW + 9}}, None),
        ([429], None),
        ("429", None),
        (None, None),
    ],
)
@pytest.mark.parametrize("reason", [None, "agent_error", "crash", "transient_api"])
def test_facts_override_a_vague_reason(reason: str | None, data: Any, kind: str | None) -> None:
    found = provider_limits.classify_failure(reason, "it did not work", data, RateLimit(), NOW)
    expected = {None: reason or "agent_error", "auth": "auth_failure"}.get(kind, "rate_limit")
    assert (found.reason, found.signal and found.signal.kind) == (expected, kind)


def test_facts_do_not_override_a_specific_reason() -> None:
    assert reason_of("invalid_output", "x", {"status": 429}) == "invalid_output"


def test_text_of_a_429_distinguishes_quota_from_rate() -> None:
    quota = "You exceeded your current quota, please check your plan and billing details."
    assert signal_of(quota, {"status": 429}, None).kind == "quota"
    assert signal_of(quota + " Please retry in 34s", {"status": 429}, None) == Signal("rate_limit", "model", 34)


@pytest.mark.parametrize(
    ("error", "data", "seconds"),
    [
        (None, {"retry_after": 12}, 12),
        (None, {"retry_after_ms": 1500}, 1.5),
        (None, {"headers": {"Retry-After": "7"}}, 7),
        (None, {"headers": {"retry-after": IN_90}}, 90),
        (None, {"headers": {"retry-after": "1m30s"}}, 90),
        (None, {"provider_error": {"headers": {"retry-after": "7"}}}, 7),
        (None, {"resets_at": NOW + 5 * 3_600}, 18_000),
        (None, {"resets_at": (NOW + 60) * 1_000}, 60),
        (None, {"error": {"resets_in_seconds": 13_872}}, 13_872),
        (f"HTTP 429\nRetry-After: {IN_90}\n", None, 90),
        ("retry-after: 30", {"retry_after": 5}, 5),
        ("retry-after: 30", {"retry_after": "soon"}, 30),
        ("retry-after: 30", {"retry_after": True}, 30),
        ("429", None, None),
        ("retry-after: tomorrow", None, None),
        (None, {"retry_after": -5}, 0),
        (None, {"retry_after": "nan"}, None),
        (f"Retry-After: {formatdate(NOW - 90, usegmt=True)}", None, 0),
        (None, {"resets_at": NOW - 90}, None),
        (None, {"retry_after": 1e300}, 366 * DAY),
    ],
)
def test_wait_requested_by_the_provider_is_read(error: str | None, data: Any, seconds: float | None) -> None:
    assert signal_of(error, data).wait_sec == seconds


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "6m0s"}, 360),
        ({"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "120ms"}, 0.12),
        ({"x-ratelimit-remaining-tokens": "17", "x-ratelimit-reset-tokens": "6m0s"}, None),
        (
            {
                "x-ratelimit-remaining-requests": "0",
                "x-ratelimit-reset-requests": "1s",
                "x-ratelimit-remaining-tokens": "0",
                "x-ratelimit-reset-tokens": "1h2m3.5s",
            },
            3_723.5,
        ),
        (
            {
                "anthropic-ratelimit-tokens-remaining": "0",
                "anthropic-ratelimit-tokens-reset": "2025-12-15T12:01:00Z",
            },
            60,
        ),
        (
            {
                "anthropic-ratelimit-unified-status": "rejected",
                "anthropic-ratelimit-unified-reset": str(int(NOW) + 18_000),
            },
            18_000,
        ),
        (
            {
                "anthropic-ratelimit-unified-status": "allowed",
                "anthropic-ratelimit-unified-reset": str(int(NOW) + 18_000),
            },
            None,
        ),
        ({"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": str((int(NOW) + 60) * 1_000)}, 60),
        ({"retry-after": "3", "x-ratelimit-remaining": "0", "x-ratelimit-reset": "60"}, 3),
    ],
)
def test_wait_is_read_from_headers(headers: dict[str, str], seconds: float | None) -> None:
    assert signal_of(None, {"provider_error": {"status": 429, "headers": headers}}, "crash").wait_sec == seconds


@pytest.mark.parametrize(
    ("window", "scope"), [("five_hour", "account"), ("seven_day", "account"), ("seven_day_opus", "model")]
)
def test_exhausted_window_of_claude_code_is_read(window: str, scope: str) -> None:
    info = {"status": "rejected", "resetsAt": int(NOW) + 18_000, "rateLimitType": window, "utilization": 1}
    found = signal_of("You've hit your limit", {"provider_error": {"rate_limit_info": info}}, "agent_error")
    assert tuple(found)[:6] == ("rate_limit", scope, 18_000, NOW + 18_000, window, 1.0)


@pytest.mark.parametrize("data", [{str(n): n for n in range(5_000)}, {"error": {"error": {"error": {"error": {}}}}}])
def test_only_part_of_large_data_is_scanned(data: Any) -> None:
    assert reason_of("crash", None, data) == "crash"


@pytest.mark.requirement("L-143")
def test_rate_limit_waits_double_up_to_an_hour() -> None:
    waits = [wait_for(RateLimit(), LIMIT, n, 0.0) for n in range(1, 9)]
    assert waits == [60, 120, 240, 480, 960, 1920, 3600, 3600]


@pytest.mark.requirement("L-144")
def test_rate_limit_wait_has_up_to_a_tenth_added() -> None:
    samples = [wait_for(RateLimit(), LIMIT, 1, roll / 100) for roll in range(100)]
    assert all(60 <= wait <= 66 for wait in samples)
    assert len(set(samples)) == 100
    assert 3600 < wait_for(RateLimit(), LIMIT, 5000, 0.999) <= 3960


@pytest.mark.parametrize(
    ("named", "waited"), [(30, 30), (5 * 3_600, 5 * 3_600), (7 * DAY, 7 * DAY), (30 * DAY, 8 * DAY), (0, 0)]
)
def test_named_wait_is_kept_up_to_a_week_without_jitter(named: float, waited: float) -> None:
    assert wait_for(RateLimit(), Signal("rate_limit", wait_sec=named), 4, 0.9) == waited


def test_maximum_of_named_waits_can_be_set() -> None:
    assert wait_for(RateLimit(max_window_sec=600), Signal("rate_limit", wait_sec=DAY), 1, 0.9) == 600


def test_exhausted_quota_waits_an_hour_from_the_first_time() -> None:
    assert [wait_for(RateLimit(), Signal("quota", "account"), n, 0.0) for n in (1, 2)] == [3600, 3600]


@given(roll=st.floats(0, 1, exclude_max=True))
def test_rate_limit_waits_never_shrink(roll: float) -> None:
    waits = [wait_for(RateLimit(), LIMIT, n, roll) for n in range(1, 30)]
    assert all(before <= after for before, after in itertools.pairwise(waits))
