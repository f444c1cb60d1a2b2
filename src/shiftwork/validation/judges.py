"""Keeps an output until its verdict comes: from a judge, which is a task of its own, or from an agent's tests."""

from __future__ import annotations

from shiftwork.engine import lease_policy
from shiftwork.engine.new_dags import DagFields
from shiftwork.engine.prepare import Prepared
from shiftwork.engine.rows import TaskRow
from shiftwork.engine.submit import Origin, submit
from shiftwork.engine.unit_of_work import UnitOfWork
from shiftwork.limits.rate_limits import Limits
from shiftwork.model import ids
from shiftwork.model.outcome import Outcome
from shiftwork.model.states import State
from shiftwork.validation import policy as verdict
from shiftwork.validation.operations import Awaited


async def submit_result(work: UnitOfWork, awaited: Awaited) -> Outcome:
    """Store an output until its verdict comes. Its author's slot is free and needs no more heartbeats."""
    item, judge = awaited
    row = (await work.lock([item.token.id]))[0]
    settings = await work.settings_of(row)
    limit = lease_policy.at_hand_in(
        settings, timeout_sec=row.timeout_sec, run_until=row.run_until, judged=judge is not None, now=work.now
    )
    row.run_until = row.lease_check_at = limit
    row.lease_until = None
    work.part(Limits).release_submitted(row)
    path = work.move(row, "submit_output")
    judge_id = None if judge is None else await _submit_judge(work, row, judge)
    await work.tx.insert("insert_outputs", [(row.id, row.fence, judge_id, item.stored, work.now)])
    data = {"until": limit} if judge_id is None else {"until": limit, "judge": ids.show_task(judge_id)}
    work.emit(row, "handed_in", path, fence=row.fence, data=data, actor=work.caller.for_agent(row.agent_id))
    return Outcome(ids.show_task(row.id), State.VALIDATING.value, data=data)


async def _submit_judge(work: UnitOfWork, row: TaskRow, judge: Prepared) -> str:
    """Submit a judging task; returns its UUID. It is not part of the judged task's DAG, whose end it must not delay.

    It uses the same budgets, and is accepted even by a full queue: finished work must be able to end.
    """
    tx, engine, caller, lane = work.tx, work.engine, work.caller, judge.lane
    lanes = await engine.lanes.intern_in(tx, [lane])
    origin = Origin(budget_id=row.budget_id, admitted=True)
    (made,) = await submit(tx, engine, caller, row.workspace, [judge], lanes, DagFields(), origin, work)
    judge_id = ids.parse(made.id)
    assert judge_id is not None
    await work.tx.run("mark_judge", id=judge_id, validation=verdict.JUDGING, author=row.agent_id)
    return judge_id
