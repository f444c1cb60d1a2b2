"""What a report says about a rate limit, in its data or in its words."""

from email.utils import formatdate
from typing import Any

import pytest

from shiftwork.policy import throttle

NOW = 1_765_800_000.0
IN_90 = formatdate(NOW + 90, usegmt=True)


@pytest.mark.parametrize(
    ("data", "limited"),
    [
        ({"status": 429}, True),
        ({"status_code": "429"}, True),
        ({"response": {"status": 429}}, True),
        ({"error": {"code": 429}}, True),
        ({"status": 500}, False),
        ({"lines": 429}, False),
        ({"a": {"b": {"status": 429}}}, False),
        ([429], False),
        ("429", False),
        (None, False),
    ],
)
def test_a_status_of_429_is_a_rate_limit(data: Any, *, limited: bool) -> None:
    assert throttle.reported(data) is limited


@pytest.mark.parametrize(
    ("error", "data", "seconds"),
    [
        (None, {"retry_after": 12}, 12),
        (None, {"retry_after_ms": 1500}, 1.5),
        (None, {"headers": {"Retry-After": "7"}}, 7),
        (None, {"headers": {"retry-after": IN_90}}, 90),
        (f"HTTP 429\nRetry-After: {IN_90}\n", None, 90),
        ("retry-after: 30", {"retry_after": 5}, 5),
        ("retry-after: 30", {"retry_after": "soon"}, 30),
        ("retry-after: 30", {"retry_after": True}, 30),
        ("429", None, None),
        ("retry-after: tomorrow", None, None),
        (None, {"retry_after": -5}, 0),
        (None, {"retry_after": "nan"}, None),
        (f"Retry-After: {formatdate(NOW - 90, usegmt=True)}", None, 0),
        (None, {"retry_after": 1e300}, 366 * 86_400),
    ],
)
def test_how_long_the_provider_asks_to_wait(error: str | None, data: Any, seconds: float | None) -> None:
    assert throttle.asked(error, data, NOW) == seconds
