"""Finds submissions that duplicate an existing task, and merges them into it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from shiftwork.engine import critical_path, dedupe_policy, dependencies
from shiftwork.engine import dependents as consequences
from shiftwork.engine.dependencies import Dependency, refuse_outer_cycle
from shiftwork.engine.engine import log
from shiftwork.engine.new_rows import NewEdge
from shiftwork.engine.prepare import Prepared
from shiftwork.engine.read import read_body
from shiftwork.engine.rows import TaskRow
from shiftwork.engine.unit_of_work import UnitOfWork, as_json
from shiftwork.model import graph, ids
from shiftwork.model.errors import DuplicateTask, IdInUse, UnknownDependency
from shiftwork.model.states import FINAL, State
from shiftwork.model.task import Submitted
from shiftwork.observe import alert_kinds
from shiftwork.store.store import Row
from shiftwork.waits import approval_guard as guard


class Item(NamedTuple):
    place: int
    prepared: Prepared
    id: str

    @property
    def key(self) -> str | None:
        return self.prepared.key

    @property
    def name(self) -> str | None:
        """The id that the caller chose."""
        return self.prepared.name or self.prepared.uuid

    @property
    def derived(self) -> bool:
        """Whether the key was computed from the content alone: then equal content is what makes a duplicate."""
        return self.prepared.settings.idempotency.source == "params_hash" and not self.prepared.new.idempotency_key


class Duplicate(NamedTuple):
    """A submission that duplicates an existing task, or an earlier item of its batch."""

    item: Item
    kept: str
    status: str
    twin: bool

    def answer(self, work: UnitOfWork) -> Submitted:
        row = work.rows.get(self.kept)
        status = self.status if row is None else row.status
        return Submitted(ids.show_task(self.kept), status, duplicate=True, key=self.item.prepared.new.key)


async def take_keys(work: UnitOfWork, workspace: str, items: list[Item]) -> tuple[list[Item], list[Duplicate]]:
    """Take the idempotency keys. Returns the new tasks, and the duplicates."""
    first: dict[str, Item] = {}
    for item in items:
        if item.key is not None:
            first.setdefault(item.key, item)
    if not first:
        return items, []
    taken = sorted(
        (workspace, key, i.id, dedupe_policy.until(i.prepared.settings.idempotency, work.now))
        for key, i in first.items()
    )
    ours = {r["key"] for r in await work.tx.all("take_keys", items=taken, now=work.now)}
    # A second statement: the snapshot of the first does not see a key that another transaction has just taken.
    holders = {r["key"]: r for r in await work.tx.all("read_keys", items=[(workspace, key) for key in sorted(first)])}
    found: dict[int, Duplicate] = {}
    fresh: dict[int, Item] = {}
    for item in _parents_first(items):
        owner = holders.get(item.key) if item.key is not None else None
        if item.key is None or owner is None or (item.key in ours and item is first[item.key]):
            fresh[item.place] = item
        elif item.key in ours:
            found[item.place] = Duplicate(item, first[item.key].id, State.READY.value, twin=True)
        elif await _is_same(work, workspace, item, owner, items, found):
            status = owner["status"] or State.COMPLETED.value
            found[item.place] = Duplicate(item, owner["task_id"], status, twin=False)
        else:
            fresh[item.place] = await _go_alone(work, workspace, item, owner)
            if _has_ended(owner):  # the key is ours now: a duplicate in this batch must find this task, not the old one
                ours.add(item.key)
                first[item.key] = item
    for place in sorted(found):
        _report(work, found[place])
    return [fresh[place] for place in sorted(fresh)], [found[place] for place in sorted(found)]


def _parents_first(items: list[Item]) -> list[Item]:
    """The batch in an order with dependencies before dependents; a cycle is refused later."""
    keys = {item.prepared.new.key: str(item.place) for item in items if item.prepared.new.key is not None}
    if not keys:
        return items
    edges = {str(i.place): {keys[n] for n in i.prepared.new.dependencies if n in keys} for i in items}
    if graph.find_cycle(edges):
        return items
    weights = graph.path_weights(edges)
    return sorted(items, key=lambda item: (-weights[str(item.place)], item.place))


async def _is_same(
    work: UnitOfWork, workspace: str, item: Item, owner: Row, items: list[Item], found: Mapping[int, Duplicate]
) -> bool:
    """With a given key, always. With a key derived from content, only if the first has not ended and waits for no
    others.
    """
    if not item.derived:
        return True
    if _has_ended(owner):
        return False
    batch = {i.prepared.new.key: i for i in items if i.prepared.new.key is not None}
    wanted = {name: name for name in item.prepared.new.dependencies if name not in batch}
    known = await dependencies.uuids(work.tx, workspace, wanted) if wanted else {}
    for name in set(item.prepared.new.dependencies) & batch.keys():
        twin = found.get(batch[name].place)
        known[name] = twin.kept if twin is not None else batch[name].id
    if known.keys() != set(item.prepared.new.dependencies):
        return False
    edges = await work.tx.all("edges_of", items=[(owner["root_id"],)])
    return {edge["dependency"] for edge in edges if not edge["waits"]} == set(known.values())


async def _go_alone(work: UnitOfWork, workspace: str, item: Item, owner: Row) -> Item:
    """Submit it as a new task. If the previous holder of the key has ended, it takes the key over; otherwise it has
    none.
    """
    if _has_ended(owner):
        await work.tx.run("pass_keys", items=[(workspace, item.key, owner["task_id"], item.id, _until(work, item))])
        return item
    return item._replace(prepared=item.prepared._replace(key=None))


def _has_ended(owner: Row) -> bool:
    """Whether the task has ended; an archived one has no row in `tasks`."""
    return owner["status"] is None or owner["status"] in FINAL


def _until(work: UnitOfWork, item: Item) -> float | None:
    return dedupe_policy.until(item.prepared.settings.idempotency, work.now)


def _report(work: UnitOfWork, duplicate: Duplicate) -> None:
    key, task_id = duplicate.item.key, ids.show_task(duplicate.kept)
    work.engine.conflict("duplicate_task", key=key, task=task_id)
    log.info(alert_kinds.DUPLICATE, key, extra={"key": key, "task": task_id})
    if duplicate.item.prepared.settings.idempotency.on_duplicate == "reject":
        where = duplicate.item.prepared.place_of("idempotency_key")
        raise DuplicateTask(f"task {task_id} has the idempotency key {key!r}", where=where, task_id=task_id)


def fold_twins(items: list[Item], duplicates: Sequence[Duplicate]) -> list[Item]:
    """Merge duplicates within one batch: the first takes the requirements of all."""
    twins = [d for d in duplicates if d.twin and d.item.prepared.settings.idempotency.on_duplicate == "merge"]
    if not twins:
        return items
    by_id = {item.id: item for item in items}
    for twin in twins:
        item = by_id[twin.kept]
        old, new = item.prepared.new, twin.item.prepared.new
        merged = dedupe_policy.merge(
            dedupe_policy.Mergeable(old.priority, tuple(old.tags), tuple(old.dependencies)),
            dedupe_policy.Mergeable(new.priority, tuple(new.tags), tuple(new.dependencies)),
        )
        fields = {
            "priority": merged.priority,
            "tags": list(merged.tags),
            "dependencies": list(merged.dependencies),
        }
        body = {**msgspec.json.decode(item.prepared.body), **{k: v for k, v in fields.items() if v or k == "priority"}}
        prepared = item.prepared._replace(new=msgspec.structs.replace(old, **fields), body=as_json(body))
        by_id[item.id] = item._replace(prepared=prepared)
    return [by_id[item.id] for item in items]


async def lock_kept(work: UnitOfWork, duplicates: Sequence[Duplicate]) -> None:
    """Lock the existing tasks that may change or get another name, in lock order."""
    merging = [d for d in duplicates if d.item.prepared.settings.idempotency.on_duplicate == "merge"]
    wanted = {d.kept for d in duplicates if not d.twin and (d in merging or d.item.name is not None)}
    await work.lock(sorted(wanted))


async def merge(work: UnitOfWork, workspace: str, duplicate: Duplicate, local: Mapping[str, str]) -> bool:
    """Merge the duplicate's requirements into the existing task, unless it is claimed; returns whether it got new
    dependencies.
    """
    if duplicate.twin or duplicate.item.prepared.settings.idempotency.on_duplicate != "merge":
        return False
    rows = await work.lock([duplicate.kept])
    if not rows or not dedupe_policy.may_merge(rows[0].status):
        return False
    row, new = rows[0], duplicate.item.prepared.new
    tags = [t["tag"] for t in await work.tx.all("tags_of", items=[(row.id,)])]
    merged = dedupe_policy.merge(
        dedupe_policy.Mergeable(row.priority, tuple(tags)), dedupe_policy.Mergeable(new.priority, tuple(new.tags))
    )
    row.priority = merged.priority
    await work.tx.insert("insert_tags", [(row.workspace, tag, row.id) for tag in merged.tags if tag not in tags])
    body = {**await read_body(work.tx, row.id), "priority": merged.priority, "tags": list(merged.tags)}
    await work.tx.run("save_bodies", items=[(row.id, as_json(body))])
    work.touch(row)
    settings = await work.settings_of(row)
    joined, path = await _join_dependencies(work, workspace, row, new.dependencies, local)
    event_data: dict[str, object] = {}
    if path is None:
        path, event_data = await guard.reconsider(work, row, settings)
    if row.status == State.READY and path is None:
        work.mark_ready(row, settings)
    more = {"dependencies": [ids.show_task(d.root) for d in joined]} if joined else {}
    work.emit(row, "merged", path, data={"priority": row.priority, "tags": list(merged.tags), **more, **event_data})
    await consequences.apply_ended_dependencies(work, {row.root_id: joined})
    return bool(joined)


async def _join_dependencies(
    work: UnitOfWork, workspace: str, row: TaskRow, names: Sequence[str], local: Mapping[str, str]
) -> tuple[list[Dependency], str | None]:
    """Add the duplicate's dependencies that the existing task lacks."""
    if not names:
        return [], None
    await work.tx.advisory_lock(f"edges:{workspace}")
    fresh = {name: Dependency(local[name], State.PENDING) for name in names if name in local}
    outside = {name: name for name in names if name not in local}
    found = await dependencies.resolve(work.tx, workspace, outside)
    missing = [name for name in outside if name not in found]
    settings = await work.settings_of(row)
    if missing and settings.missing_dependency == "reject":
        raise UnknownDependency(f"there is no task {missing[0]!r}", where="dependencies")
    found.update(await dependencies.await_missing(work.tx, work.engine, workspace, missing))
    for name, inside in fresh.items():
        found[name] = (await dependencies.resolve(work.tx, workspace, {name: inside.root})).get(name, inside)
    edges = await work.tx.all("edges_of", items=[(row.root_id,)])
    before = {edge["dependency"] for edge in edges} | {row.root_id}
    joined = list({d.root: d for d in found.values() if d.root not in before}.values())
    if not joined:
        return [], None
    await refuse_outer_cycle(work, {row.root_id: [d.root for d in joined]})
    edges_to = [NewEdge(row.root_id, d.root, d.status == State.COMPLETED) for d in joined]
    await work.tx.insert("insert_edges", sorted(edges_to))
    await critical_path.lengthen(work, {d.root: row.path_weight + 1 for d in joined})
    row.waiting = await consequences.count_waiting(work, row.root_id)
    row.block_check_at = dependencies.block_check_at(settings, joined, work.now) or row.block_check_at
    if not row.waiting or row.status == State.PENDING:
        return joined, None
    if row.status == State.WAITING_APPROVAL:
        await guard.withdraw(work, row)
    return joined, work.move(row, "block")


async def take_aliases(
    work: UnitOfWork, workspace: str, items: Sequence[Item], duplicates: Sequence[Duplicate]
) -> None:
    """Make the duplicate's id an alias of the existing task, also for tasks that wait for that id."""
    fresh = {item.name: item.id for item in items if item.name is not None}
    taken = dict(fresh)
    named: dict[str, Duplicate] = {}
    for each in duplicates:
        if (name := each.item.name) is None:
            continue
        if taken.setdefault(name, each.kept) != each.kept:
            what = f"two tasks of the batch have the same id, {each.item.prepared.new.id!r}"
            raise IdInUse(what, where=each.item.prepared.place_of("id"))
        if name not in fresh:
            named[name] = each
    if not named:
        return
    await _refuse_used(work, named.values())
    await work.tx.insert("add_names", [(workspace, name, named[name].item.id, True) for name in sorted(named)])
    rows = await work.tx.all("lock_names", items=[(name,) for name in sorted(named)], workspace=workspace)
    for name in named.keys() - {row["name"] for row in rows}:  # another workspace has the same id
        raise IdInUse(f"a task with the id {name!r} exists", where="id")
    new: list[tuple[str, str, str]] = []
    for row in rows:
        duplicate = named[row["name"]]
        kept = await _root_of(work, duplicate.kept)
        if row["known"] and row["task_id"] != duplicate.item.id:
            await _refuse_other(work, row, kept)
        elif row["task_id"] != kept:
            new.append((row["task_id"], workspace, kept))
            if not row["known"]:
                await _pass_dependents(work, workspace, row["task_id"], kept)
    if new:
        await work.tx.insert("insert_aliases", sorted(new))
        await work.tx.run("know_names", items=[(alias,) for alias, _, _ in sorted(new)])


async def _refuse_used(work: UnitOfWork, named: Iterable[Duplicate]) -> None:
    """Refuse an id in the queue's own form that belongs to another task, even an archived or purged one."""
    given = {d.item.prepared.uuid: d for d in named if d.item.prepared.uuid is not None}
    items = [(uuid,) for uuid in sorted(given)]
    for statement in ("names_in_use", "archived_states", "purged", "aliases_of") if items else ():
        for row in await work.tx.all(statement, items=items):
            meant = row["task_id"] if statement == "aliases_of" else row["id"]
            if await _root_of(work, meant) != await _root_of(work, given[row["id"]].kept):
                raise IdInUse(f"a task with the id {ids.show_task(row['id'])} exists", where="id")


async def _root_of(work: UnitOfWork, task_id: str) -> str:
    rows = await work.lock([task_id])
    return rows[0].root_id if rows else task_id


async def _refuse_other(work: UnitOfWork, name: Row, kept: str) -> None:
    """A repeated submission may bring the same id again, but not the id of another task."""
    aliases = await work.tx.all("aliases_of", items=[(name["task_id"],)])
    meant = aliases[0]["task_id"] if aliases else name["task_id"]
    if await _root_of(work, meant) != kept:
        shown = ids.show_task(meant)
        raise IdInUse(f"a task with the id {ids.shown(name['name'])!r} exists", where="id", task_id=shown)


async def _pass_dependents(work: UnitOfWork, workspace: str, awaited: str, kept: str) -> None:
    """Make tasks that waited for this id wait for the existing task, or continue if that has completed."""
    await work.tx.advisory_lock(f"edges:{workspace}")
    dependents = sorted(e["dependent"] for e in await work.tx.all("open_dependents", items=[(awaited,)]))
    if not dependents:
        return
    await refuse_outer_cycle(work, {dependent: [kept] for dependent in dependents})
    found = await dependencies.resolve(work.tx, workspace, {"kept": kept})
    there = found.get("kept", Dependency(kept, State.PENDING))  # a duplicate within this batch is not written yet
    await work.tx.run("drop_edges", items=[(dependent, awaited) for dependent in dependents])
    edges = [NewEdge(dependent, kept, there.status == State.COMPLETED) for dependent in dependents]
    await work.tx.insert("insert_edges", edges)
    for row in await consequences.lock_newest(work, dependents):
        row.waiting = await consequences.count_waiting(work, row.root_id)
        row.blocked_reason = row.block_check_at = None
        work.touch(row)
        if row.waiting == 0 and row.status == State.PENDING:
            await consequences.unblock(work, row)
    await consequences.apply_ended_dependencies(work, {dependent: [there] for dependent in dependents})
