"""Whether the next attempt may resume the agent's own conversation after a failure, or must begin a fresh one."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from shiftwork.model import reasons

if TYPE_CHECKING:
    from shiftwork.settings.model import Session


class SessionHistory(NamedTuple):
    """What is known about a session when an attempt fails."""

    resumed: bool
    """The attempt was handed the session, or one that it continued from."""
    failed_resumes: int
    """Attempts before this one that resumed it and failed."""


class SessionOutcome(NamedTuple):
    """What becomes of a session."""

    failed_resumes: int
    retired: str | None
    """Why it is not handed out again; None where it is kept."""


def after_failure(session: Session, past: SessionHistory, reason: str, *, counted: bool) -> SessionOutcome:
    """An attempt that is not counted says nothing about its session, unless its reason does."""
    failed = past.failed_resumes + (past.resumed and counted)
    if reason in reasons.UNSAFE_SESSION:
        return SessionOutcome(failed, f"{reason} makes it unsafe to resume")
    limit = session.max_failed_resumes
    if counted and limit is not None and failed >= limit:
        return SessionOutcome(failed, f"{failed} attempts that resumed it have failed")
    return SessionOutcome(failed, None)
