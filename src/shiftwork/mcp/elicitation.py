"""Questions and approvals of tasks as MCP elicitation forms, and the answers read back.

A form has a flat schema of plain values. A question with any other schema becomes a form with one field: the answer, as
a plain value or as JSON text.
"""

from __future__ import annotations

from typing import Any

import msgspec

from shiftwork.model.errors import InputError
from shiftwork.operation.interface import AnyQueue
from shiftwork.waits.model import ApprovalRequest

METHOD = "elicitation/create"
PLAIN = frozenset({"string", "number", "integer", "boolean"})
ANSWER = "answer"
APPROVAL: dict[str, Any] = {
    "type": "object",
    "properties": {
        "decision": {"type": "string", "enum": ["approve", "reject"], "description": "reject cancels the task."},
        "note": {"type": "string", "description": "The reason, recorded in the history."},
    },
    "required": ["decision"],
}


def key_of(request: ApprovalRequest) -> str:
    """A unique key of a request: a task has one wait per name, and a revision is approved once."""
    what = request.revision if request.kind == "approval" else request.name
    return f"{request.task_id}:{request.kind}:{what}"


def form_of(request: ApprovalRequest) -> dict[str, Any]:
    """The request that the client shows to a person."""
    if request.kind == "approval":
        about = request.title or request.type
        message, schema = f"Task {request.task_id} ({about}) waits for approval.", APPROVAL
    else:
        message, schema = request.question or "", _form_schema(request.schema)
    return {"method": METHOD, "params": {"mode": "form", "message": message, "requestedSchema": schema}}


def _form_schema(schema: dict[str, Any] | None) -> dict[str, Any]:
    if schema is not None and _is_flat(schema):
        return schema
    field: dict[str, Any] = {"type": "string"}
    if schema is not None and schema.get("type") in PLAIN:
        field = schema
    elif schema is not None:
        field["description"] = f"JSON that meets the schema {msgspec.json.encode(schema).decode()}"
    return {"type": "object", "properties": {ANSWER: field}, "required": [ANSWER]}


def _is_flat(schema: dict[str, Any]) -> bool:
    fields = schema.get("properties")
    if schema.get("type") != "object" or not isinstance(fields, dict) or not fields:
        return False
    return all(isinstance(field, dict) and field.get("type") in PLAIN for field in fields.values())


async def submit_response(queue: AnyQueue, request: ApprovalRequest, response: Any) -> None:
    """Pass a person's response on to the task; one that was declined leaves it waiting."""
    if not isinstance(response, dict) or response.get("action") != "accept":
        return
    content = response.get("content")
    if not isinstance(content, dict):
        raise InputError("an accepted form has its values in `content`", where=f"inputResponses.{key_of(request)}")
    if request.kind == "question":
        await queue.approvals.answer(request.task_id, _answer(request.schema, content))
        return
    decide = queue.approvals.reject if content.get("decision") == "reject" else queue.approvals.approve
    if content.get("decision") not in {"approve", "reject"}:
        raise InputError("decide with `approve` or `reject`", where=f"inputResponses.{key_of(request)}.decision")
    await decide(request.task_id, revision=request.revision, note=content.get("note"))


def _answer(schema: dict[str, Any] | None, content: dict[str, Any]) -> Any:
    if schema is not None and _is_flat(schema):
        return content
    if ANSWER not in content:
        raise InputError(f"the form has the field `{ANSWER}`", where="inputResponses")
    value = content[ANSWER]
    if schema is None or schema.get("type") in PLAIN or not isinstance(value, str):
        return value
    try:
        return msgspec.json.decode(value)
    except msgspec.DecodeError as error:
        raise InputError(f"the answer is not JSON: {error}", where="inputResponses") from None
