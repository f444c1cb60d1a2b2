"""Tasks as a model writes them, turned into what the queue takes, and what it answered."""

from __future__ import annotations

import hashlib
from typing import Any

from shiftwork.mcp.shapes import CreatedTask, Draft
from shiftwork.model.bounds import MAX_NAME
from shiftwork.model.task import Submitted

_SAME = ("title", "payload", "key", "dependencies", "priority", "tags", "max_attempts", "timeout_sec")


def new_task(draft: Draft, *, under: str | None = None) -> dict[str, Any]:
    """The fields of a new task. `under` a task its key stands for it there: spawned again, it is the same one."""
    task: dict[str, Any] = {"type": draft.type, **{name: getattr(draft, name) for name in _SAME}}
    if draft.prompt is not None or draft.context_refs:
        task["spec"] = {"prompt": draft.prompt, "context_refs": draft.context_refs}
    if draft.output_schema is not None:
        task["output"] = {"type": "json", "validation": "json-schema", "validation_schema": draft.output_schema}
    known = draft.idempotency_key
    if known is None and under is not None and draft.key is not None:
        known = _below(under, draft.key)
    return task if known is None else {**task, "idempotency_key": known}


def _below(task_id: str, key: str) -> str:
    """What knows a task by its parent and its key there; a long one by its hash."""
    whole = f"{task_id}/{key}"
    return whole if len(whole) <= MAX_NAME else hashlib.sha256(whole.encode()).hexdigest()


def made(submitted: Submitted) -> CreatedTask:
    return CreatedTask(task_id=submitted.id, status=submitted.status, key=submitted.key, duplicate=submitted.duplicate)
