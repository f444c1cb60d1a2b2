"""When a session is kept for the next attempt, and when it is retired."""

import pytest

from shiftwork.core import reasons
from shiftwork.core.settings import Session
from shiftwork.policy.session import Fate, Past, after_failure

TWICE = Session(max_failed_resumes=2)
FRESH = Past(resumed=False, failed_resumes=0)


@pytest.mark.parametrize("reason", sorted(reasons.MEANING.keys() - reasons.UNSAFE_SESSION))
def test_what_befell_the_agent_from_outside_keeps_its_session(reason: str) -> None:
    assert after_failure(TWICE, FRESH, reason, counted=True) == Fate(0, None)


@pytest.mark.parametrize("reason", sorted(reasons.UNSAFE_SESSION))
def test_what_stands_in_the_session_itself_retires_it_at_once(reason: str) -> None:
    fate = after_failure(TWICE, FRESH, reason, counted=False)
    assert fate.retired == f"{reason} makes it unsafe to resume"


def test_every_unsafe_reason_is_a_known_one() -> None:
    assert reasons.MEANING.keys() >= reasons.UNSAFE_SESSION


@pytest.mark.parametrize(
    ("limit", "before", "resumed", "counted", "expected"),
    [
        (2, 0, True, True, Fate(1, None)),
        (2, 1, True, True, Fate(2, "2 attempts that resumed it have failed")),
        (2, 1, True, False, Fate(1, None)),
        (2, 1, False, True, Fate(1, None)),
        (0, 0, False, True, Fate(0, "0 attempts that resumed it have failed")),
        (0, 0, False, False, Fate(0, None)),
        (None, 99, True, True, Fate(100, None)),
    ],
)
def test_only_counted_failures_of_attempts_that_resumed_count(
    limit: int | None, before: int, *, resumed: bool, counted: bool, expected: Fate
) -> None:
    found = after_failure(Session(max_failed_resumes=limit), Past(resumed, before), reasons.CRASH, counted=counted)
    assert found == expected
