"""Answers in the names of the five documents, as schemas made from the tables of the views."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shiftwork.core.task import Dag, Result, Submitted, Task
from shiftwork.queue.agents import Agent
from shiftwork.queue.dags import DagPage, DagSummary
from shiftwork.queue.face.reading import Page
from shiftwork.views import VIEWS
from shiftwork.views.view import DAG, MEMBERS, Field, View
from shiftwork.wire.shapes import AgentList, ClaimReply, LetterList, OutcomeReply, SubmittedBatch

Schema = dict[str, Any]
Reference = Callable[[str], Schema]
"""The reference to one document's record: Task, Assignment, Result, DeadLetter, Agent, Dag or DagSummary."""


def components() -> dict[str, Schema]:
    """One schema for each record of each document: `AegisTask`, `LokiResult`."""
    return {view.name.capitalize() + name: schema for view in VIEWS.values() for name, schema in _records(view).items()}


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
    """Every name is there, null where we have nothing to say; of what kind it is, the document says."""
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
    """The task with its token, or a record around it where the document has one."""
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
    OutcomeReply: lambda of: of("Task"),
    Submitted | list[Submitted]: lambda of: {"anyOf": [of("Task"), _listed(of("Task"))]},
    SubmittedBatch: lambda of: _object({"tasks": _listed(of("Task"))}),
    Dag: lambda of: of("Dag"),
    DagSummary: lambda of: of("DagSummary"),
    DagPage: lambda of: _object({"dags": _listed(of("DagSummary")), "next": {"type": ["string", "null"]}}),
    Page: lambda of: _object({"tasks": _listed(of("Task")), "next": {"type": ["string", "null"]}}),
    Result: lambda of: of("Result"),
    Agent: lambda of: of("Agent"),
    AgentList: lambda of: _object({"agents": _listed(of("Agent"))}),
    LetterList: lambda of: _object({"dead_letters": _listed(of("DeadLetter"))}),
}


def _claimed(of: Reference, view: View) -> Schema:
    one = {"anyOf": [of("Assignment"), {"type": "null"}]}
    return _object({view.handed: one, f"{view.handed}s": _listed(of("Assignment"))})


def in_each(answer: Any, template: str) -> list[Schema]:
    """What this answer may be when a view is asked for."""

    def reference_of(view: str) -> Reference:
        return lambda record: {"$ref": template.format(name=view.capitalize() + record)}

    if answer is ClaimReply:
        return [_claimed(reference_of(name), view) for name, view in VIEWS.items()]
    shape = _SHAPES.get(answer)
    if shape is None:
        return [{"type": "object"}]
    return [shape(reference_of(view)) for view in VIEWS]
