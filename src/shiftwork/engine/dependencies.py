"""Finds the tasks that a new task depends on, and locks them against finishing while it is being added."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from shiftwork.engine.engine import Engine, log
from shiftwork.model import graph, ids
from shiftwork.model.errors import CircularDependency, UnknownDependency
from shiftwork.model.states import State

if TYPE_CHECKING:
    from shiftwork.engine.unit_of_work import UnitOfWork
    from shiftwork.settings.model import Settings
    from shiftwork.store.store import Tx


class Dependency(NamedTuple):
    """A dependency: the root of its lineage, and the state of its newest row."""

    root: str
    status: str
    missing: bool = False
    dag_id: str | None = None
    """The DAG, if it can still be joined."""
    name: str = ""
    """The name it was requested by, if it is missing."""


async def resolve(
    tx: Tx, workspace: str, references: Mapping[str, str], new: Collection[str] = ()
) -> dict[str, Dependency]:
    """The dependencies of these references, by the names used. Unknown ones are left out."""
    known = await uuids(tx, workspace, references)
    inside = {name: Dependency(uuid, State.PENDING) for name, uuid in known.items() if uuid in new}
    outside = {name: uuid for name, uuid in known.items() if uuid not in new}
    roots = await _lock(tx, sorted(set(outside.values())))
    if unknown := sorted(set(outside.values()) - roots.keys()):
        merged = {row["id"]: row["task_id"] for row in await tx.all("aliases_of", items=[(uuid,) for uuid in unknown])}
        outside = {name: merged.get(uuid, uuid) for name, uuid in outside.items()}
        roots |= await _lock(tx, sorted(set(merged.values())))
    states = await _states(tx, workspace, sorted({*roots.values(), *outside.values()}))
    found = {name: states[roots.get(uuid, uuid)] for name, uuid in outside.items() if roots.get(uuid, uuid) in states}
    return {**inside, **found}


async def uuids(tx: Tx, workspace: str, references: Mapping[str, str]) -> dict[str, str]:
    """Ids in either written form, and names that callers gave."""
    parsed = {name: ids.parse(reference) for name, reference in references.items()}
    named = sorted({references[name] for name, uuid in parsed.items() if uuid is None})
    given: dict[str, str] = {}
    if named:
        for row in await tx.all("find_names", items=[(name,) for name in named], workspace=workspace):
            given[row["name"]] = row["task_id"]
    found = {name: uuid or given.get(references[name]) for name, uuid in parsed.items()}
    return {name: uuid for name, uuid in found.items() if uuid is not None}


async def _lock(tx: Tx, uuids: Sequence[str]) -> dict[str, str]:
    """Takes share locks in id order; a second statement reads the states, with a snapshot taken after the wait."""
    if not uuids:
        return {}
    rows = list(await tx.all("lock_dependencies", items=[(uuid,) for uuid in uuids]))
    roots = {row["id"]: row["root_id"] for row in rows}
    further = sorted(set(roots.values()) - roots.keys())
    if further:
        rows += await tx.all("lock_dependencies", items=[(root,) for root in further])
    # While we hold the root, no one can add a row to its lineage, and only the newest row can finish.
    newest = sorted({row["newest_id"] for row in rows if row["newest_id"]} - roots.keys())
    if newest:
        await tx.all("lock_dependencies", items=[(id_,) for id_ in newest])
    return roots


async def _states(tx: Tx, workspace: str, uuids: Sequence[str]) -> dict[str, Dependency]:
    if not uuids:
        return {}
    items = [(uuid,) for uuid in uuids]
    live = await tx.all("lineage_states", items=items)
    found = {
        row["root_id"]: Dependency(row["root_id"], row["status"], dag_id=row["dag_id"])
        for row in live
        if row["workspace"] == workspace
    }
    left = [item for item in items if item[0] not in found]
    for row in await tx.all("archived_states", items=left) if left else []:
        if row["workspace"] == workspace:
            found[row["id"]] = Dependency(row["id"], row["status"])
    return found


async def _taken_elsewhere(tx: Tx, workspace: str, uuids: Sequence[str]) -> set[str]:
    """Ids that belong to tasks of other workspaces. An id purged in this workspace never returns and is refused."""
    items = [(uuid,) for uuid in uuids]
    gone = await tx.all("purged", items=items)
    if ours := [row["id"] for row in gone if row["workspace"] == workspace]:
        hint = "Leave this dependency out, or depend on a task that does the work again."
        raise UnknownDependency(f"task {ids.show_task(ours[0])} was purged", where="dependencies", hint=hint)
    return {row["id"] for row in [*gone, *await tx.all("names_in_use", items=items)]}


async def await_missing(tx: Tx, engine: Engine, workspace: str, names: Sequence[str]) -> dict[str, Dependency]:
    """Reserve names for tasks not submitted yet. A later submission of one conflicts with us on its name."""
    if not names:
        return {}
    fresh = dict(zip(names, engine.ids.make_many(tx.now, len(names)), strict=True))
    given = {name: uuid for name in names if (uuid := ids.parse(name)) is not None}
    # An id of another workspace's task will never be ours: no task there may free a task here.
    elsewhere = await _taken_elsewhere(tx, workspace, sorted(set(given.values()))) if given else set()
    wanted = {name: given[name] if given.get(name, "") not in {"", *elsewhere} else fresh[name] for name in names}
    stored = {name: ids.parse(name) or name for name in names}
    await tx.insert("add_names", sorted((workspace, stored[name], wanted[name], False) for name in names))
    rows = await tx.all("lock_names", items=sorted((stored[name],) for name in names), workspace=workspace)
    by_name = {row["name"]: row for row in rows}
    if foreign := [name for name in names if stored[name] not in by_name]:
        raise UnknownDependency(f"there is no task {foreign[0]!r} here", where="dependencies")
    arrived = {name: by_name[stored[name]]["task_id"] for name in names if by_name[stored[name]]["known"]}
    found = await resolve(tx, workspace, arrived) if arrived else {}
    for name in names:
        awaited = Dependency(by_name[stored[name]]["task_id"], State.PENDING, missing=True, name=name)
        found.setdefault(name, awaited)
    return found


def block_check_at(settings: Settings, above: Sequence[Dependency], now: float) -> float | None:
    """When to check whether a dependency is still missing."""
    if settings.dependency_wait_sec is None:
        return None
    all_count = settings.dependency_wait_applies_to != "missing"
    waits = any(p.status != State.COMPLETED and (all_count or p.missing) for p in above)
    return now + settings.dependency_wait_sec if waits else None


def raise_cycle(path: list[str]) -> None:
    log.info("Would create circular dependency: %s", " -> ".join(path), extra={"cycle": path})
    raise CircularDependency(
        "Would create circular dependency", where="dependencies", cycle=path, path=" -> ".join(path)
    )


async def refuse_outer_cycle(work: UnitOfWork, edges: Mapping[str, Sequence[str]]) -> None:
    """Refuse a cycle: the dependents of these tasks may lead back through the new edges."""
    start = sorted({dependency for above in edges.values() for dependency in above})
    if not start:
        return
    ways = await work.tx.all("open_edges_above", items=[(id_,) for id_ in start])
    whole: dict[str, list[str]] = defaultdict(list)
    for way in ways:
        whole[way["dependent"]].append(way["dependency"])
    for dependent, above in edges.items():
        whole[dependent] += above
    if cycle := graph.find_cycle(whole):
        raise_cycle([ids.show_task(node) for node in cycle])
