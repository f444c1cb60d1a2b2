"""A task's inputs: artifacts and outputs named by its spec, checked on submit and resolved on claim.

A spec can refer to a task's output if that task is a dependency or has completed, so that the output exists when the
spec's task is claimed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from shiftwork.artifacts import artifact_rows as artifacts
from shiftwork.artifacts.artifact_rows import ArtifactUse
from shiftwork.engine import dependencies
from shiftwork.engine.assignment import Input
from shiftwork.engine.dependencies import Dependency
from shiftwork.engine.engine import Caller
from shiftwork.engine.failed_ends import failed_dependencies
from shiftwork.engine.prepare import Prepared
from shiftwork.engine.rows import TaskRow
from shiftwork.engine.unit_of_work import as_json
from shiftwork.model import ids
from shiftwork.model.errors import UnknownReference
from shiftwork.model.references import artifact_hash, output_of, show_output
from shiftwork.model.states import State
from shiftwork.model.task import FailedDependency, NewTask
from shiftwork.store.store import Row, Tx

INLINE_BYTES = 65_536
"""A larger output is not included in the claim; the agent reads the task's result instead."""

_MENTIONED = '"context_refs"'


class NewTaskInputs(NamedTuple):
    """A task about to be written, with the roots of the tasks it depends on."""

    id: str
    prepared: Prepared
    above: frozenset[str]


def refs_of(new: NewTask) -> Sequence[str]:
    return new.spec.context_refs if new.spec is not None else ()


async def resolve_references(
    tx: Tx,
    caller: Caller,
    workspace: str,
    tasks: Sequence[NewTaskInputs],
    local: Mapping[str, str],
    new: Collection[str],
) -> dict[str, str]:
    """Check all references of these tasks and use their artifacts; returns the bodies, which name tasks by their ids.

    `local` maps the names of tasks in the batch to ids, `new` contains the ids of all new tasks in it.
    """
    refs = {task.id: refs_of(task.prepared.new) for task in tasks}
    wanted = [ref for each in refs.values() for ref in each if artifact_hash(ref)]
    artifacts.refuse_unknown(await artifacts.hold(tx, workspace, wanted), wanted, "spec.context_refs")
    names = {name for each in refs.values() for ref in each if (name := output_of(ref)) is not None}
    found = await _find(tx, workspace, names, local, new)
    uses = [
        ArtifactUse(id_, "input", ref)
        for id_, each in refs.items()
        for ref in dict.fromkeys(each)
        if artifact_hash(ref)
    ]
    await artifacts.use(tx, caller, workspace, uses)
    return {task.id: _body(task, found) for task in tasks}


async def resettle(tx: Tx, caller: Caller, row: TaskRow, prepared: Prepared) -> Prepared:
    """The same for a task whose spec is changed."""
    if not refs_of(prepared.new):
        return prepared
    edges = await tx.all("edges_of", items=[(row.root_id,)])
    task = NewTaskInputs(row.id, prepared, frozenset(edge["dependency"] for edge in edges))
    bodies = await resolve_references(tx, caller, row.workspace, [task], {}, ())
    return prepared._replace(body=bodies[row.id])


async def _find(
    tx: Tx, workspace: str, names: set[str], local: Mapping[str, str], new: Collection[str]
) -> dict[str, Dependency]:
    """The tasks with these names; for a dependency, only the name is known."""
    references = {name: local.get(name) or name for name in sorted(names)}
    if not references:
        return {}
    found = await dependencies.resolve(tx, workspace, references, new)
    awaited = await dependencies.uuids(
        tx, workspace, {name: to for name, to in references.items() if name not in found}
    )
    return found | {name: Dependency(uuid, State.PENDING, missing=True) for name, uuid in awaited.items()}


def _body(task: NewTaskInputs, found: Mapping[str, Dependency]) -> str:
    body: dict[str, Any] = msgspec.json.decode(task.prepared.body)
    body["spec"]["context_refs"] = [_by_id(ref, task, found) for ref in refs_of(task.prepared.new)]
    return as_json(body)


def _by_id(ref: str, task: NewTaskInputs, found: Mapping[str, Dependency]) -> str:
    name = output_of(ref)
    if name is None:
        return ref
    dependency = found.get(name)
    if dependency is None or (dependency.missing and dependency.root not in task.above):
        raise UnknownReference(f"there is no task {name!r} to take an output from", where="spec.context_refs")
    if dependency.root not in task.above and dependency.status != State.COMPLETED:
        hint = "Add it to `dependencies`, so that its output exists when this task is claimed; nothing was changed."
        raise UnknownReference(
            f"task {name!r} has not completed and is not a dependency", where="spec.context_refs", hint=hint
        )
    return show_output(ids.show_task(dependency.root))


async def resolve(
    tx: Tx, workspace: str, rows: Sequence[Row], edges: Mapping[str, Sequence[Row]]
) -> dict[str, list[Input]]:
    """Resolve the references of these tasks, by task, and add the outputs of their dependencies.

    `rows` have an id and a body, `edges` lead to a task's dependencies. Most tasks have neither references nor edges.
    """
    refs: dict[str, list[str]] = {}
    failed: dict[str, dict[str, FailedDependency]] = {}
    for row in rows:
        if _MENTIONED not in row["body"] and row["id"] not in edges:
            continue
        own: list[str] = []
        if _MENTIONED in row["body"]:
            own = (msgspec.json.decode(row["body"]).get("spec") or {}).get("context_refs", [])
        met = [edge["dependency"] for edge in edges.get(row["id"], ()) if edge["waits"] and edge["satisfied"]]
        if own or met:
            failed[row["id"]] = {
                show_output(each.task_id): each for each in failed_dependencies(edges.get(row["id"], ()))
            }
            refs[row["id"]] = list(dict.fromkeys([*own, *(show_output(ids.show_task(task)) for task in met)]))
    if not refs:
        return {}
    named = sorted({ref for each in refs.values() for ref in each})
    found = {**await _artifacts(tx, workspace, named), **await _outputs(tx, workspace, named)}
    return {id_: [_as_seen(found[ref], failed[id_].get(ref)) for ref in each] for id_, each in refs.items()}


def _as_seen(found: Input, failed: FailedDependency | None) -> Input:
    """Hide the output of a task that this one continued without, even if it has been retried since."""
    if failed is None:
        return found
    return Input(found.ref, "output", found.id, status=failed.status, reason=failed.reason, error=failed.error)


async def of_task(tx: Tx, workspace: str, task_id: str) -> list[Input]:
    """The inputs of one task in any state; none for an archived task, which no one will claim."""
    body = await tx.one("read_bodies", items=[(task_id,)])
    if body is None:
        return []
    task = await tx.one("read_tasks", items=[(task_id,)])
    edges = await tx.all("edges_of", items=[(task["root_id"],)]) if task is not None else ()
    return (await resolve(tx, workspace, [{"id": task_id, "body": body["body"]}], {task_id: edges})).get(task_id, [])


async def _artifacts(tx: Tx, workspace: str, refs: Sequence[str]) -> dict[str, Input]:
    asked = {ref: sha256 for ref in refs if (sha256 := artifact_hash(ref))}
    items = [(sha256,) for sha256 in asked.values()]
    rows = await tx.all("find_artifacts", items=items, workspace=workspace) if items else []
    known = {row["hash"]: row for row in rows}
    return {ref: _artifact(ref, known.get(sha256)) for ref, sha256 in asked.items()}


def _artifact(ref: str, row: Row | None) -> Input:
    return Input(ref, "artifact", ref) if row is None else Input(ref, "artifact", ref, row["size"], row["media_type"])


async def _outputs(tx: Tx, workspace: str, refs: Sequence[str]) -> dict[str, Input]:
    asked = {ref: uuid for ref in refs if (name := output_of(ref)) and (uuid := ids.parse(name))}
    if not asked:
        return {}
    items = sorted({(uuid,) for uuid in asked.values()})
    rows = {row["id"]: row for row in await tx.all("find_outputs", items=items, workspace=workspace, most=INLINE_BYTES)}
    old = [item for item in items if item[0] not in rows]
    for row in await tx.all("archived_outputs", items=old, workspace=workspace, most=INLINE_BYTES) if old else []:
        rows[row["id"]] = row
    return {ref: _output(ref, uuid, rows.get(uuid)) for ref, uuid in asked.items()}


def _output(ref: str, uuid: str, row: Row | None) -> Input:
    task_id = ids.show_task(uuid)
    if row is None:
        return Input(ref, "output", task_id)
    if row["result"] is None:
        return Input(ref, "output", task_id, row["size"], status=row["status"])
    handed = msgspec.json.decode(row["result"])
    return Input(
        ref,
        "output",
        task_id,
        row["size"],
        status=row["status"],
        inline=True,
        data=handed.get("data"),
        text=handed.get("text"),
        artifacts=handed.get("artifacts") or [],
    )
