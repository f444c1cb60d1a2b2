"""Agents' conversations: pinned to a task, inherited by its retries, retired when resuming them keeps failing."""

from __future__ import annotations

from shiftwork.engine import session_policy
from shiftwork.engine.decide import Decision
from shiftwork.engine.rows import TaskRow
from shiftwork.engine.session_policy import SessionHistory
from shiftwork.engine.unit_of_work import UnitOfWork
from shiftwork.store.store import Row, Tx


async def pin(tx: Tx, row: Row, session_id: str) -> bool:
    """Record which attempt brought the session; False if it is retired and must not be handed out again."""
    known = await tx.one("read_session", root=row["root_id"], session=session_id)
    if known is None:
        past = await _went_on_from(tx, row)
        await tx.insert("insert_sessions", [(row["root_id"], session_id, row["id"], row["fence"], *past, None)])
    return known is None or known["retired_at"] is None


async def _went_on_from(tx: Tx, row: Row) -> SessionHistory:
    """Copy the health of the old session id to the new one under which the agent resumes."""
    handed = await tx.one("handed_session", id=row["id"])
    if handed is None:
        return SessionHistory(resumed=False, failed_resumes=0)
    return _past(handed, row["id"], row["fence"])


def _past(known: Row | None, task_id: str, fence: int) -> SessionHistory:
    """Whether this attempt was given a session, from the task or from another attempt."""
    if known is None or known["task_id"] is None:
        return SessionHistory(resumed=True, failed_resumes=0)
    own = (known["task_id"], known["fence"]) == (task_id, fence)
    return SessionHistory(not own or bool(known["resumed"]), known["failed_resumes"])


async def record_health(work: UnitOfWork, row: TaskRow, decision: Decision) -> str | None:
    """After a failed attempt, keep its session for the next one, or unpin it and say why."""
    if row.session_id is None:
        return None
    id_ = row.session_id
    known = await work.tx.one("read_session", root=row.root_id, session=id_)
    past = _past(known, row.id, row.fence)
    settings = (await work.settings_of(row)).session
    fate = session_policy.after_failure(settings, past, decision.reason, counted=decision.counted)
    if fate.retired is None and fate.failed_resumes == past.failed_resumes:
        return None
    retired_at = work.now if fate.retired else None
    await work.tx.insert(
        "insert_sessions", [(row.root_id, id_, row.id, row.fence, past.resumed, fate.failed_resumes, retired_at)]
    )
    if fate.retired is None:
        return None
    row.session_id = None
    return f"session {id_} is retired: {fate.retired}"
