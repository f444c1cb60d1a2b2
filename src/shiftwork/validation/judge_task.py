"""The task that judges an output: an agent with the capability `judge` takes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from shiftwork.engine.prepare import Prepared, prepare
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
