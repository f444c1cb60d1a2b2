"""Decides whether the attempt after a failure resumes the agent's session or begins a fresh one."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from shiftwork.model import reasons

if TYPE_CHECKING:
    from shiftwork.settings.model import Session


class SessionHistory(NamedTuple):
    """What is known about a session when an attempt fails."""

    resumed: bool
    """Whether the attempt was given the session, or one that it continued from."""
    failed_resumes: int
    """Earlier attempts that resumed it and failed."""


class SessionOutcome(NamedTuple):
    """The decision about a session."""

    failed_resumes: int
    retired: str | None
    """Why it is retired; None if it is kept."""


def after_failure(session: Session, past: SessionHistory, reason: str, *, counted: bool) -> SessionOutcome:
    """An uncounted attempt says nothing about its session, unless its reason does."""
    failed = past.failed_resumes + (past.resumed and counted)
    if reason in reasons.UNSAFE_SESSION:
        return SessionOutcome(failed, f"{reason} makes it unsafe to resume")
    limit = session.max_failed_resumes
    if counted and limit is not None and failed >= limit:
        return SessionOutcome(failed, f"{failed} attempts that resumed it have failed")
    return SessionOutcome(failed, None)
