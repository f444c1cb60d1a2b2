"""Responses of providers in the exceptions of HTTP clients and SDKs, found by their common attribute names."""

from http import HTTPStatus
from types import SimpleNamespace
from typing import Any

import pytest

from shiftwork.worker import provider_errors

NOW = 1_794_916_800.0


class ApiError(Exception):
    """Has the attributes of a client's exceptions."""

    def __init__(self, text: str = "it did not work", **attributes: Any) -> None:
        super().__init__(text)
        self.__dict__.update(attributes)


def response(status: int, **headers: str) -> SimpleNamespace:
    named = {name.replace("_", "-").title(): value for name, value in headers.items()}
    return SimpleNamespace(status_code=status, headers=named)


@pytest.mark.parametrize(
    ("error", "facts"),
    [
        # httpx, requests: the status and headers are the response's
        (ApiError(response=response(429, retry_after="20")), {"status": 429, "headers": {"retry-after": "20"}}),
        # openai: `body` is the inner object
        (
            ApiError(
                status_code=429,
                response=response(429),
                body={"type": "insufficient_quota", "code": "insufficient_quota"},
            ),
            {"status": 429, "error": {"type": "insufficient_quota", "code": "insufficient_quota"}},
        ),
        # anthropic: `body` is the whole answer
        (
            ApiError(
                status_code=529,
                response=response(529),
                body={"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}},
            ),
            {"status": 529, "error": {"type": "overloaded_error"}},
        ),
        # aiohttp, urllib: their own attributes
        (ApiError(status=429, headers={"Retry-After": "7"}), {"status": 429, "headers": {"retry-after": "7"}}),
        (ApiError(code=401, headers={}), {"status": 401}),
        # google.api_core
        (ApiError(code=HTTPStatus.TOO_MANY_REQUESTS), {"status": 429}),
        # botocore
        (
            ApiError(
                response={
                    "Error": {"Code": "ThrottlingException", "Message": "slow down"},
                    "ResponseMetadata": {"HTTPStatusCode": 429, "HTTPHeaders": {"retry-after": "3"}},
                }
            ),
            {"status": 429, "headers": {"retry-after": "3"}, "error": {"code": "ThrottlingException"}},
        ),
        (ApiError(status_code=429, retry_after=2.5), {"status": 429, "retry_after": 2.5}),
        (
            ApiError(status_code=200, body={"type": "error", "error": {"type": "overloaded_error"}}),
            {"error": {"type": "overloaded_error"}},
        ),
        (ApiError(status=429, headers={"Retry-After": "7\0\ud800"}), {"status": 429, "headers": {"retry-after": "7?"}}),
        (ApiError(status_code=429, retry_after=float("nan")), {"status": 429}),
        (ApiError(status_code="429"), None),
        (ApiError(code=7), None),
        (ApiError(errno=429), None),
        (KeyError(429), None),
    ],
)
def test_status_headers_and_type_are_found(error: Exception, facts: dict[str, Any] | None) -> None:
    assert provider_errors.read(error) == facts


def test_only_rate_limit_headers_are_kept() -> None:
    headers = {"set-cookie": "secret", "x-request-id": "1", "x-ratelimit-remaining-tokens": "0"}
    found = provider_errors.read(ApiError(status=429, headers=headers))
    assert found == {"status": 429, "headers": {"x-ratelimit-remaining-tokens": "0"}}


def test_cause_is_used_when_the_exception_has_no_facts() -> None:
    wrapped = RuntimeError("the agent failed")
    wrapped.__cause__ = ApiError(status_code=429)
    assert provider_errors.read(wrapped) == {"status": 429}


def test_suppressed_context_is_not_used() -> None:
    wrapped = RuntimeError("the agent failed")
    wrapped.__context__, wrapped.__suppress_context__ = ApiError(status_code=429), True
    assert provider_errors.read(wrapped) is None


def test_exception_with_failing_attributes_gives_nothing() -> None:
    class Hostile(Exception):
        @property
        def response(self) -> Any:
            raise SystemError

    assert provider_errors.read(Hostile()) is None


@pytest.mark.parametrize(
    ("error", "text", "reason"),
    [
        (ApiError(status_code=429), "it did not work", "agent_error"),
        (ApiError(status_code=401), "it did not work", "agent_error"),
        (RuntimeError("HTTP 429"), "RuntimeError: HTTP 429", "agent_error"),
        (ApiError(status_code=500), "it did not work", "crash"),
        (KeyError(429), "KeyError: 429", "crash"),
    ],
)
def test_exception_is_a_crash_unless_it_is_a_provider_error(error: Exception, text: str, reason: str) -> None:
    assert provider_errors.classify(error, text, NOW)[0] == reason


def test_clock_time_is_reported_as_timestamp() -> None:
    _, data = provider_errors.classify(RuntimeError(), "You've hit your limit · resets 1pm (UTC)", NOW)
    assert data == {"provider_error": {"resets_at": NOW + 3_600}}
