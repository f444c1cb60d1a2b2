"""Tasks as a model writes them: fields of a new task, with a prompt and a schema of the result in simple form."""

from __future__ import annotations

import hashlib
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from shiftwork.mcp.tool import Parameter, fields_of, struct_of
from shiftwork.mcp.tool_results import CreatedTask
from shiftwork.model.bounds import MAX_NAME
from shiftwork.model.task import Name, NewTask, Submitted

MAX_TASKS = 100
_OWN = ("prompt", "context_refs", "output_schema")
"""Arguments that are not fields of a new task by this name."""

TaskArguments: type[msgspec.Struct] = struct_of(
    "TaskArguments",
    fields_of(NewTask),
    {
        "type": "The kind of work; decides which agents can claim it.",
        "title": "A one-line title.",
        "prompt": Parameter("Instructions for the agent.", kind=str | None, default=None),
        "payload": "Parameters of the work.",
        "key": "A name within this call, for others to depend on.",
        "dependencies": "Keys or ids of tasks that must be done before.",
        "context_refs": Parameter(
            "Artifacts, or outputs of dependencies (`task:KEY:output`), to pass along.", kind=list[Name], default=[]
        ),
        "priority": "0 (first) to 100 (last).",
        "tags": None,
        "run_at": "Not before this time: ISO 8601 with an offset, or seconds since 1970.",
        "delay": "Not before this many seconds from now.",
        "expires_in": "Cancel it if no attempt has begun within this many seconds.",
        "output_schema": Parameter("JSON Schema that the result must meet.", kind=dict[str, Any] | None, default=None),
        "max_attempts": None,
        "timeout_sec": None,
        "idempotency_key": "The same key twice is one task.",
    },
    {},
)
TaskList: Any = Annotated[list[TaskArguments], Meta(min_length=1, max_length=MAX_TASKS)]  # type: ignore[valid-type]  # built above


def new_task(fields: Any, *, under: str | None = None) -> dict[str, Any]:
    """The fields of a new task. `under` a parent, its key identifies it: spawned again, it is the same task."""
    task = {
        name: value for name, value in msgspec.structs.asdict(fields).items() if value is not None and name not in _OWN
    }
    if fields.prompt is not None or fields.context_refs:
        task["spec"] = {"prompt": fields.prompt, "context_refs": fields.context_refs}
    if fields.output_schema is not None:
        task["output"] = {"type": "json", "validation": "json-schema", "validation_schema": fields.output_schema}
    if "idempotency_key" not in task and under is not None and fields.key is not None:
        task["idempotency_key"] = _below(under, fields.key)
    return task


def _below(task_id: str, key: str) -> str:
    """The idempotency key made of the parent and the key; hashed if long."""
    whole = f"{task_id}/{key}"
    return whole if len(whole) <= MAX_NAME else hashlib.sha256(whole.encode()).hexdigest()


def created(submitted: Submitted) -> CreatedTask:
    return CreatedTask(task_id=submitted.id, status=submitted.status, key=submitted.key, duplicate=submitted.duplicate)
