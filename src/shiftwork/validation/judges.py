"""Judges: creates a task that judges an output, for an agent with the capability `judge`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from shiftwork.engine.prepare import Prepared, prepare
from shiftwork.engine.rows import TaskRow
from shiftwork.engine.submit import DagFields, Origin, submit
from shiftwork.engine.unit_of_work import UnitOfWork
from shiftwork.model import ids
from shiftwork.model.task import Constraints, NewTask, Output, Spec
from shiftwork.settings.resolve import Resolver
from shiftwork.store.store import Row
from shiftwork.validation import policy as verdict

_PROMPT = (
    "Judge the output in the payload by the criteria there. Submit "
    '{"verdict": "accept"} or {"verdict": "reject", "reasons": ["what is missing or wrong"]}.'
)


def prepare_judge(row: Row, body: Mapping[str, Any], result: str, resolver: Resolver, now: float) -> Prepared:
    """The judging task for a result; an error if it is not possible, as for an output that is too large."""
    spec, output = body.get("spec") or {}, body.get("output") or {}
    task_id = ids.show_task(row["id"])
    new = NewTask(
        type=verdict.JUDGE,
        idempotency_key=f"{verdict.JUDGE}:{ids.token(task_id, row['fence'])}",
        title=f"Judge the output of {task_id}",
        payload={
            "task_id": task_id,
            "type": row["type"],
            "title": body.get("title"),
            "prompt": spec.get("prompt"),
            "payload": body.get("payload", {}),
            "criteria": output.get("validation_schema"),
            "output": msgspec.json.decode(result),
            "author": row["agent_id"],
        },
        spec=Spec(prompt=_PROMPT, constraints=Constraints(required_capabilities=[verdict.JUDGE])),
        output=Output(type="json", validation="json-schema", validation_schema=verdict.JUDGE_SCHEMA),
        priority=body.get("priority", 50),
        deadline=body.get("deadline"),
        created_by=f"agent:{row['agent_id']}",
    )
    return prepare(new, row["workspace"], resolver, now, "judge")


async def ask(work: UnitOfWork, row: TaskRow, judge: Prepared) -> str:
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
