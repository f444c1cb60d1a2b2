"""When a session is kept for the next attempt, and when it is retired."""

import pytest

from shiftwork.engine.session_policy import SessionHistory, SessionOutcome, after_failure
from shiftwork.model import reasons
from shiftwork.settings.model import Session

TWICE = Session(max_failed_resumes=2)
FRESH = SessionHistory(resumed=False, failed_resumes=0)


@pytest.mark.parametrize("reason", sorted(reasons.MEANING.keys() - reasons.UNSAFE_SESSION))
def test_external_failure_keeps_the_session(reason: str) -> None:
    assert after_failure(TWICE, FRESH, reason, counted=True) == SessionOutcome(0, None)


@pytest.mark.parametrize("reason", sorted(reasons.UNSAFE_SESSION))
def test_session_related_failure_retires_it_at_once(reason: str) -> None:
    fate = after_failure(TWICE, FRESH, reason, counted=False)
    assert fate.retired == f"{reason} makes it unsafe to resume"


def test_every_unsafe_reason_is_known() -> None:
    assert reasons.MEANING.keys() >= reasons.UNSAFE_SESSION


@pytest.mark.parametrize(
    ("limit", "before", "resumed", "counted", "expected"),
    [
        (2, 0, True, True, SessionOutcome(1, None)),
        (2, 1, True, True, SessionOutcome(2, "2 attempts that resumed it have failed")),
        (2, 1, True, False, SessionOutcome(1, None)),
        (2, 1, False, True, SessionOutcome(1, None)),
        (0, 0, False, True, SessionOutcome(0, "0 attempts that resumed it have failed")),
        (0, 0, False, False, SessionOutcome(0, None)),
        (None, 99, True, True, SessionOutcome(100, None)),
    ],
)
def test_only_counted_failures_of_resumed_attempts_count(
    limit: int | None, before: int, *, resumed: bool, counted: bool, expected: SessionOutcome
) -> None:
    found = after_failure(
        Session(max_failed_resumes=limit), SessionHistory(resumed, before), reasons.CRASH, counted=counted
    )
    assert found == expected
