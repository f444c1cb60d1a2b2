"""Verdicts on outputs that were submitted without one: given by their holder, or missed."""

from __future__ import annotations

from shiftwork.engine import dependents, finish
from shiftwork.engine.decide import after_failure
from shiftwork.engine.engine import Caller, Engine
from shiftwork.engine.fence import lock_claim, refusal
from shiftwork.engine.rows import TaskRow
from shiftwork.engine.unit_of_work import UnitOfWork
from shiftwork.model import ids, reasons
from shiftwork.model.outcome import Outcome, Token
from shiftwork.model.states import FINAL, SETTLED, State
from shiftwork.model.task import NewVerdict
from shiftwork.providers.provider_limits import ClassifiedFailure
from shiftwork.settings.model import Settings
from shiftwork.store.store import Row, Tx

_AWAITED = frozenset({State.VALIDATING.value})


async def give(tx: Tx, engine: Engine, caller: Caller, token: Token, verdict: NewVerdict) -> Outcome:
    """Accept or reject an output that waits for its tests."""
    row = await lock_claim(tx, caller, token)
    if error := refusal(engine, caller, token, row, _AWAITED):
        return await _repeat(tx, caller, token, row) or Outcome(ids.show_task(token.id), error=error)
    work = UnitOfWork(tx, engine, caller)
    outcome = await finish.judge_output(work, token, verdict)
    await work.save()
    return outcome


async def _repeat(tx: Tx, caller: Caller, token: Token, row: Row | None) -> Outcome | None:
    """Repeat of a verdict after its answer was lost: returns the task's outcome since."""
    if row is None or not caller.may_write(row["holder"]):
        return None
    attempt = await tx.one("read_attempt", id=token.id, fence=token.fence, workspace=caller.workspace)
    if attempt is None or attempt["verdict"] is None:
        return None
    return Outcome(ids.show_task(token.id), row["status"], repeated=True)


async def miss(work: UnitOfWork, row: TaskRow, settings: Settings) -> None:
    """No verdict came in time, or none will: fail the attempt, keeping its output."""
    reason, error = await _why(work, row)
    facts, roll = await finish.facts_of(work, row), work.engine.random.random()
    decision = after_failure(facts, settings, ClassifiedFailure(reason), roll)
    await finish.end_failed(work, row, decision, error=error)


async def _why(work: UnitOfWork, row: TaskRow) -> tuple[str, str]:
    output = await work.tx.one("read_outputs", items=[(row.id,)])
    waited = 0.0 if output is None else work.now - output["handed_in_at"]
    if output is not None and output["judge_id"] is not None:
        for judge in await dependents.lock_newest(work, [output["judge_id"]]):
            if judge.status in FINAL | SETTLED:
                why = judge.cancel_reason or judge.failure_reason or judge.status
                shown = ids.show_task(judge.id)
                return reasons.RESOURCE_UNAVAILABLE, f"there is no verdict: its judging task {shown} ended, {why}"
    return reasons.TIMEOUT, f"Timeout: there was no verdict within {waited:.0f}s"
