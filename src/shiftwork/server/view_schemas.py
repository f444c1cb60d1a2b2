"""Builds schemas of answers in a document's names from the tables of its view."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shiftwork.agents.api import Agents
from shiftwork.agents.model import Agent
from shiftwork.dags.api import Dags
from shiftwork.dags.model import DagPage, DagSummary
from shiftwork.dead_letters.api import DeadLetters
from shiftwork.engine.api import Submissions
from shiftwork.engine.assignment import ClaimResult
from shiftwork.engine.claims_api import Spawning
from shiftwork.model.outcome import Outcome
from shiftwork.model.task import Dag, Page, Result, Submitted, Task
from shiftwork.operation.declare import operation_of
from shiftwork.views.view import DAG, MEMBERS, Field, View
from shiftwork.wire.shapes import OutcomeReply, SubmittedBatch

Schema = dict[str, Any]
Reference = Callable[[str], Schema]
"""The reference to one document's record: Task, Assignment, Result, DeadLetter, Agent, Dag or DagSummary."""


def components(view: View) -> dict[str, Schema]:
    """One schema per record of a document, such as `AegisTask` or `AegisResult`."""
    return {view.name.capitalize() + name: schema for name, schema in _records(view).items()}


def _records(view: View) -> dict[str, Schema]:
    return {
        "Task": _record(view.task),
        "Assignment": _assignment(view),
        "Result": _record(view.result),
        "DeadLetter": _record(view.dead_letter),
        "Agent": _record(view.agent),
        "Dag": _record(DAG),
        "DagSummary": _record(tuple(row for row in DAG if row.ours not in MEMBERS)),
    }


def _record(table: tuple[Field, ...]) -> Schema:
    """Every name is present, null without a value; its type is defined by the document."""
    schema = _object({})
    for row in table:
        if row.is_out:
            _add(schema, row.theirs.split("."))
    return schema


def _add(schema: Schema, path: list[str]) -> None:
    name, *rest = path
    found = schema["properties"].setdefault(name, _object({}) if rest else {})
    if name not in schema["required"]:
        schema["required"].append(name)
    if rest and "properties" in found:
        _add(found, rest)


def _assignment(view: View) -> Schema:
    """The task with its token, or the document's own record around it."""
    schema = _record(view.assignment or view.task)
    _add(schema, ["token"])
    _add(schema, ["inputs"])
    if view.assignment:
        schema = _object({**schema["properties"], "task": _record(view.task)})
    return schema


def _object(properties: Schema) -> Schema:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _listed(items: Schema) -> Schema:
    return {"type": "array", "items": items}


_SHAPES: dict[Any, Callable[[Reference], Schema]] = {
    Task: lambda of: of("Task"),
    Outcome: lambda of: of("Task"),
    OutcomeReply: lambda of: of("Task"),
    Submitted | list[Submitted]: lambda of: {"anyOf": [of("Task"), _listed(of("Task"))]},
    operation_of(Spawning.spawn).reply: lambda of: _object({"tasks": _listed(of("Task"))}),
    SubmittedBatch: lambda of: _object({"tasks": _listed(of("Task"))}),
    operation_of(Submissions.submit_dag).reply: lambda of: _object({"tasks": _listed(of("Task"))}),
    operation_of(Dags.add_tasks).reply: lambda of: _object({"tasks": _listed(of("Task"))}),
    Dag: lambda of: of("Dag"),
    DagSummary: lambda of: of("DagSummary"),
    DagPage: lambda of: _object({"dags": _listed(of("DagSummary")), "next": {"type": ["string", "null"]}}),
    Page: lambda of: _object({"tasks": _listed(of("Task")), "next": {"type": ["string", "null"]}}),
    Result: lambda of: of("Result"),
    Agent: lambda of: of("Agent"),
    operation_of(Agents.list).reply: lambda of: _object({"agents": _listed(of("Agent"))}),
    operation_of(DeadLetters.list).reply: lambda of: _object({"dead_letters": _listed(of("DeadLetter"))}),
}


def _claimed(of: Reference, view: View) -> Schema:
    one = {"anyOf": [of("Assignment"), {"type": "null"}]}
    return _object({view.handed: one, f"{view.handed}s": _listed(of("Assignment"))})


def in_view(answer: Any, view: View, template: str) -> Schema:
    """The schema of this answer in a document's names."""

    def of(record: str) -> Schema:
        return {"$ref": template.format(name=view.name.capitalize() + record)}

    if answer is ClaimResult:
        return _claimed(of, view)
    shape = _SHAPES.get(answer)
    return {"type": "object"} if shape is None else shape(of)
