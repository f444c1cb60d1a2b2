"""Submitting: one task, a batch or a DAG, all or nothing."""

from __future__ import annotations

import functools
import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from shiftwork.artifacts import inputs
from shiftwork.budgets.membership import assign_budgets
from shiftwork.engine import critical_path, dependencies, duplicates, new_dags, rank
from shiftwork.engine.dependencies import Dependency, block_check_at, raise_cycle, refuse_outer_cycle
from shiftwork.engine.dependents import apply_ended_dependencies
from shiftwork.engine.duplicates import Duplicate, Item
from shiftwork.engine.engine import Caller, Engine
from shiftwork.engine.lanes import LaneKey
from shiftwork.engine.new_dags import NO_DAG, DagFields
from shiftwork.engine.new_events import Alike, BatchItem, NewEvent
from shiftwork.engine.new_rows import NewEdge
from shiftwork.engine.prepare import Prepared
from shiftwork.engine.rows import TaskRow, places_of_id, to_insert
from shiftwork.engine.unit_of_work import UnitOfWork
from shiftwork.limits import capacity, quotas
from shiftwork.model import gc_pause, graph, ids
from shiftwork.model.errors import IdInUse, InputError, UnknownDependency
from shiftwork.model.states import State, move, write_path
from shiftwork.model.task import SCHEDULED, NewTask, Submitted, dollars, micros
from shiftwork.model.times import epoch
from shiftwork.settings.model import Settings
from shiftwork.store.store import AlikeRows, Tx
from shiftwork.waits import approval_guard as guard
from shiftwork.waits import policy as guard_policy
from shiftwork.waits import schedule

PATH_READY = write_path(move(State.CREATED, "accept", "unblock"))
PATH_PENDING = write_path(move(State.CREATED, "accept"))


class Origin(NamedTuple):
    """The origin of the tasks, for their rows and events."""

    verb: str = "submitted"
    parent_id: str | None = None
    budget_id: str | None = None
    admitted: bool = False
    """Accept them even if the queue is full."""
    waited_by: int | None = None
    """The length of the chain behind a parent that waits for them all."""


async def submit(
    tx: Tx,
    engine: Engine,
    caller: Caller,
    workspace: str,
    batch: Sequence[Prepared],
    lanes: Mapping[LaneKey, int] | None = None,
    dag: DagFields = NO_DAG,
    origin: Origin | None = None,
    work: UnitOfWork | None = None,
) -> list[Submitted]:
    """Create the new tasks of a batch; for duplicates, return the existing tasks.

    Without `lanes`, this process must know the lanes of the batch already.
    """
    lanes = engine.lanes.known(lanes_of(batch)) if lanes is None else lanes
    own = work is None
    limited = bounded = False
    if origin is None or not origin.admitted:
        limited = await quotas.enter(tx, engine, workspace)
        bounded = await capacity.enter(tx, engine, workspace)
    stands_alone = own and origin is None and dag == NO_DAG and not (limited or bounded)
    work = work or UnitOfWork(tx, engine, caller)
    made = engine.ids.make_many(tx.now, len(batch))
    if stands_alone and all(prepared.plain for prepared in batch):
        return await _submit_plain(work, workspace, batch, made, lanes)
    origin = origin or Origin()
    items = [Item(i, p, p.uuid or made[i]) for i, p in enumerate(batch)]
    items, twice = await duplicates.take_keys(work, workspace, items)
    items, twice = await _take_names(tx, workspace, duplicates.fold_twins(items, twice), twice)
    local = _local_keys(items, batch, twice)
    await duplicates.lock_kept(work, twice)
    await duplicates.take_aliases(work, workspace, items, twice)
    joined = [await duplicates.merge(work, workspace, each, local) for each in twice]
    edges = await _edges(work, workspace, items, local)
    _refuse_cycle(items, edges)
    items = await _settle_inputs(work, workspace, items, edges, local)
    if limited:
        await quotas.admit(tx, engine, workspace, len(items), functools.partial(_size, items))
    if not origin.admitted:
        await capacity.admit(work, workspace, (item.prepared.new.priority for item in items))
    if any(joined) or any(item.name for item in (*items, *(each.item for each in twice))):
        # A cycle may lead through tasks of this batch whose ids were not known before.
        await refuse_outer_cycle(work, {c: [p.root for p in a] for c, a in edges.items() if a})
    rows = await _insert(work, workspace, items, edges, lanes, dag, origin)
    await apply_ended_dependencies(work, edges)
    if own:
        await work.save()
    answers = {
        item.place: _answer(work, item, row, edges.get(item.id, ())) for item, row in zip(items, rows, strict=True)
    }
    answers.update({each.item.place: each.answer(work) for each in twice})
    return [answers[place] for place in range(len(batch))]


async def _submit_plain(
    work: UnitOfWork, workspace: str, batch: Sequence[Prepared], made: Sequence[str], lanes: Mapping[LaneKey, int]
) -> list[Submitted]:
    """Submit plain tasks: a row, a body, tags and an event each. Shared values are computed once."""
    places, kinds = _Places(lanes, work.now), dict[Any, _Alikes]()
    with gc_pause.put_off(len(batch)):
        for id_, prepared in zip(made, batch, strict=True):
            new = prepared.new
            key = (
                id(prepared.plan), prepared.request_id, new.created_by, new.priority, new.deadline, new.expires_at,
                new.target_agent_id, new.issue_id, new.trigger_type, new.session_id, new.work_dir,
                new.force_fresh_session,
            )  # fmt: skip
            kind = kinds.get(key)
            if kind is None:
                kind = kinds[key] = _alikes(work, workspace, id_, prepared, places)
            kind.tasks.append((id_, None, None))
        answers = [Submitted(task, _READY, dag_id=dag) for task, dag in map(ids.show_standalone, made)]
    rows = [kind.rows() for kind in kinds.values()]
    await work.tx.insert("insert_tasks", rows[0] if len(rows) == 1 else list(itertools.chain.from_iterable(rows)))
    await work.tx.insert("insert_bodies", [(id_, prepared.body) for id_, prepared in zip(made, batch, strict=True)])
    for kind in kinds.values():
        work.add_batch(kind.event, kind.tasks)
        work.tx.wake(kind.row.lane)
    await _write_tags(work, workspace, zip(made, batch, strict=True))
    await work.save_events()
    return answers


class _Alikes(NamedTuple):
    """New plain tasks whose rows differ only in their ids."""

    row: TaskRow
    """That of the first of them."""
    event: Alike
    tasks: list[BatchItem]

    def rows(self) -> AlikeRows:
        return AlikeRows(to_insert(self.row), places_of_id(), [id_ for id_, _, _ in self.tasks])


def _alikes(work: UnitOfWork, workspace: str, id_: str, prepared: Prepared, places: _Places) -> _Alikes:
    origin = Origin()
    row = _row(work, workspace, Item(0, prepared, id_), (), id_, origin, 0, places.of(prepared, 0), None)
    actor = prepared.new.created_by or work.caller.actor
    request_id = prepared.request_id or work.caller.request_id
    event = Alike(workspace, origin.verb, PATH_READY, actor, request_id, type=prepared.new.type)
    return _Alikes(row, event, [])


def _size(items: Sequence[Item]) -> int:
    return sum(len(msgspec.json.encode(item.prepared.new)) for item in items)


def _answer(work: UnitOfWork, item: Item, row: TaskRow, above: Sequence[Dependency]) -> Submitted:
    status = work.rows.get(item.id, row).status
    missing = [dependency.name for dependency in above if dependency.missing]
    dag = ids.show_dag(row.dag_id)
    return Submitted(
        ids.show_task(item.id), status, key=item.prepared.new.key, dag_id=dag, missing_dependencies=missing
    )


def lanes_of(batch: Sequence[Prepared]) -> set[LaneKey]:
    """The lanes of a batch; comparing plans first is cheaper than hashing every lane."""
    plans = {id(prepared.plan): prepared.plan for prepared in batch}
    return {plan.lane for plan in plans.values()}


async def _take_names(
    tx: Tx, workspace: str, items: list[Item], twice: list[Duplicate]
) -> tuple[list[Item], list[Duplicate]]:
    """Ids that callers chose: unique, and perhaps already awaited by other tasks."""
    named: dict[str, Item] = {}
    for item in items:
        if item.prepared.name or item.prepared.uuid:
            if (name := item.prepared.name or item.id) in named:
                what = f"two tasks of the batch have the same id, {item.prepared.new.id!r}"
                raise IdInUse(what, where=item.prepared.place_of("id"))
            named[name] = item
    if not named:
        return items, twice
    await _refuse_used_ids(tx, items)
    await tx.insert("add_names", [(workspace, name, named[name].id, True) for name in sorted(named)])
    adopted: dict[str, str] = {}
    for row in await tx.all("lock_names", items=[(name,) for name in sorted(named)], workspace=workspace):
        item = named[row["name"]]
        if row["known"] and row["task_id"] != item.id:
            raise IdInUse(
                f"a task with the id {row['name']!r} exists",
                where=item.prepared.place_of("id"),
                task_id=ids.show_task(row["task_id"]),
            )
        if not row["known"]:
            adopted[item.id] = row["task_id"]
    if adopted:
        await tx.advisory_lock(f"edges:{workspace}")
        await tx.run("know_names", items=[(id_,) for id_ in sorted(adopted.values())])
        keys = [(workspace, i.prepared.key, i.id, adopted[i.id]) for i in items if i.prepared.key and i.id in adopted]
        await tx.run("move_keys", items=sorted(keys))
        twice = [each._replace(kept=adopted.get(each.kept, each.kept)) for each in twice]
    return [i._replace(id=adopted.get(i.id, i.id)) for i in items], twice


async def _refuse_used_ids(tx: Tx, items: list[Item]) -> None:
    given = sorted((i.id,) for i in items if i.prepared.uuid)
    if not given:
        return
    used = await tx.all("names_in_use", items=given) or await tx.all("archived_states", items=given)
    used = used or await tx.all("purged", items=given)  # fences must not restart
    used = used or await tx.all("aliases_of", items=given)
    if used:
        item = next(i for i in items if i.id == used[0]["id"])
        raise IdInUse(f"a task with the id {ids.show_task(item.id)} exists", where=item.prepared.place_of("id"))


def _local_keys(items: list[Item], batch: Sequence[Prepared], twice: list[Duplicate]) -> dict[str, str]:
    """Local key -> id, of new tasks and of those that turned out to exist."""
    local: dict[str, str] = {}
    by_place = {item.place: item.id for item in items} | {each.item.place: each.kept for each in twice}
    for place, prepared in enumerate(batch):
        key = prepared.new.key
        if key is None:
            continue
        if key in local:
            raise InputError(f"two tasks of the batch have the key {key!r}", where=prepared.place_of("key"))
        local[key] = by_place[place]
    return local


async def _edges(
    work: UnitOfWork, workspace: str, items: list[Item], local: dict[str, str]
) -> dict[str, list[Dependency]]:
    """Per new task, its dependencies with their state, each locked against finishing meanwhile."""
    if not any(item.prepared.new.dependencies for item in items):
        return {}
    new = {item.id for item in items}
    wanted: dict[str, list[str]] = {}
    outside: dict[str, None] = {}
    for item in items:
        names = list(dict.fromkeys(item.prepared.new.dependencies))
        wanted[item.id] = names
        outside.update(dict.fromkeys(n for n in names if local.get(n) not in new))
    references = {name: local.get(name) or name for name in outside}
    await _lock_joined(work, workspace, references)
    may_wait = {n for i in items if i.prepared.settings.missing_dependency == "wait" for n in wanted[i.id]}
    found = await dependencies.resolve(work.tx, workspace, references, new)
    missing = [name for name in outside if name not in found]
    if refused := [name for name in missing if name not in may_wait]:
        item = next(item for item in items if refused[0] in wanted[item.id])
        raise UnknownDependency(
            f"there is no task {refused[0]!r} in this batch or in the queue",
            where=item.prepared.place_of("dependencies"),
        )
    found.update(await dependencies.await_missing(work.tx, work.engine, workspace, missing))
    edges = {}
    for item in items:
        above = [found[n] if n in found else Dependency(local[n], State.PENDING) for n in wanted[item.id]]
        edges[item.id] = list(
            {dependency.root: dependency for dependency in above}.values()
        )  # two names may mean one task
    return edges


async def _lock_joined(work: UnitOfWork, workspace: str, references: Mapping[str, str]) -> None:
    """Lock existing tasks that get dependents: their DAG and their critical path change.

    Locked exclusively at once, in id order: two transactions that share a lock first would deadlock on upgrading it.
    """
    known = set((await dependencies.uuids(work.tx, workspace, references)).values())
    if known:
        await work.lock(sorted(known | await critical_path.above(work, known)))


async def _settle_inputs(
    work: UnitOfWork, workspace: str, items: list[Item], edges: dict[str, list[Dependency]], local: dict[str, str]
) -> list[Item]:
    """Check that references exist, and turn batch-local names into ids."""
    referring = [
        inputs.NewTaskInputs(
            item.id, item.prepared, frozenset(dependency.root for dependency in edges.get(item.id, ()))
        )
        for item in items
        if item.prepared.new.spec is not None and item.prepared.new.spec.context_refs
    ]
    if not referring:
        return items
    new = {item.id for item in items}
    bodies = await inputs.resolve_references(work.tx, work.caller, workspace, referring, local, new)
    return [
        item._replace(prepared=item.prepared._replace(body=bodies.get(item.id, item.prepared.body))) for item in items
    ]


def _refuse_cycle(items: list[Item], edges: dict[str, list[Dependency]]) -> None:
    if not any(edges.values()):
        return
    if cycle := graph.find_cycle({dependent: [p.root for p in above] for dependent, above in edges.items()}):
        keys = {item.id: item.prepared.new.key or item.prepared.new.id or ids.show_task(item.id) for item in items}
        raise_cycle([keys.get(node, ids.show_task(node)) for node in cycle])


async def recheck_dependencies(work: UnitOfWork, row: TaskRow) -> None:
    """The same for a task that waits again: its dependencies may have ended meanwhile."""
    if row.status != State.PENDING:
        return
    edges = await work.tx.all("edges_of", items=[(row.root_id,)])
    newest = await work.tx.all("lineage_states", items=[(e["dependency"],) for e in edges if not e["satisfied"]])
    states = {each["root_id"]: each["status"] for each in newest}
    states |= {each["root_id"]: work.rows[each["id"]].status for each in newest if each["id"] in work.rows}
    await apply_ended_dependencies(work, {row.root_id: [Dependency(root, status) for root, status in states.items()]})


async def _insert(
    work: UnitOfWork,
    workspace: str,
    items: list[Item],
    edges: dict[str, list[Dependency]],
    lanes: Mapping[LaneKey, int],
    dag: DagFields,
    origin: Origin,
) -> list[TaskRow]:
    dags, joined = await new_dags.assign(work, workspace, [item.id for item in items], edges, dag)
    under = await _budgets(work, workspace, items, dags, joined, dag, origin)
    weights = graph.path_weights({c: [p.root for p in a] for c, a in edges.items()}) if any(edges.values()) else {}
    if origin.waited_by is not None:
        weights = {i: weights.get(i, 0) + origin.waited_by + 1 for i in {*weights, *(item.id for item in items)}}
    places = _Places(lanes, work.now)
    rows = []
    for item in items:
        above, dag_id, weight = edges.get(item.id, ()), dags.get(item.id, item.id), weights.get(item.id, 0)
        spot = places.of(item.prepared, weight)
        rows.append(_row(work, workspace, item, above, dag_id, origin, weight, spot, under.get(item.id)))
    stopped = await _stop_at_guards(work, items, rows)
    await write_rows(work, rows, [item.prepared.body for item in items])
    await _write_around(work, workspace, items, edges)
    await _schedule(work, rows)
    _tell_created(work, items, rows, origin.verb, stopped)
    new = {item.id for item in items}
    await critical_path.lengthen(work, {root: length for root, length in weights.items() if root not in new and length})
    for row in rows:
        if row.dag_id != row.id:
            work.count_in_dag(row.dag_id, None, row.status)
    return rows


async def _stop_at_guards(work: UnitOfWork, items: list[Item], rows: list[TaskRow]) -> dict[str, guard.Request]:
    """Stop tasks that a person must approve before they become ready: their rows are written in that state."""
    stopped: dict[str, guard.Request] = {}
    for item, row in zip(items, rows, strict=True):
        settings = item.prepared.settings
        if settings.guards and row.status == _READY and (request := _request(work, item, settings)):
            stopped[item.id] = request
            row.status = _WAITING_APPROVAL
    if stopped:
        await guard.ask(work, [(row.id, row.id, row.workspace, stopped[row.id]) for row in rows if row.id in stopped])
    return stopped


def _request(work: UnitOfWork, item: Item, settings: Settings) -> guard.Request | None:
    new, limit = item.prepared.new, item.prepared.estimated_cost
    cost = None if limit is None else dollars(limit)
    facts = guard_policy.GuardFacts(new.type, new.tool_name, new.tags, new.created_by, new.trigger_type, cost)
    return guard.request_for(settings, facts, msgspec.json.decode(item.prepared.body), new.tags, work.now)


class _Places:
    """Ranks of new tasks, computed once for equal ones, as most tasks of a batch are."""

    def __init__(self, lanes: Mapping[LaneKey, int], now: float) -> None:
        self._lanes = lanes
        self._now = now
        self._known: dict[Any, tuple[int, rank.RankedKey]] = {}

    def of(self, prepared: Prepared, weight: int) -> tuple[int, rank.RankedKey]:
        new, plan = prepared.new, prepared.plan
        key = id(plan), new.priority, new.deadline, weight
        found = self._known.get(key)
        if found is None:
            facts = rank.RankFacts(
                new.priority, plan.boost, self._now, self._now, epoch(new.deadline), weight, front=False
            )
            place = rank.rank(facts, plan.settings, self._now)
            found = self._known[key] = self._lanes[plan.lane], place
        return found


async def _budgets(
    work: UnitOfWork,
    workspace: str,
    items: list[Item],
    dags: dict[str, str],
    joined: set[str],
    dag: DagFields,
    origin: Origin,
) -> dict[str, str]:
    """The budget of each task that has one; most have none."""
    trees = any(item.prepared.new.tree_budget_usd is not None for item in items)
    if not items or not (trees or joined or dag.budget_ceiling is not None or origin.budget_id is not None):
        return {}
    groups: dict[str, dict[str, NewTask]] = defaultdict(dict)
    for item in items:
        groups[dags.get(item.id, "")][item.id] = item.prepared.new
    under: dict[str, str] = {}
    for dag_id, tasks in groups.items():
        under |= await assign_budgets(work, workspace, tasks, dag_id, dag.budget_ceiling, origin.budget_id)
    return under


def _row(
    work: UnitOfWork,
    workspace: str,
    item: Item,
    above: Sequence[Dependency],
    dag_id: str,
    origin: Origin,
    weight: int,
    spot: tuple[int, rank.RankedKey],
    budget_id: str | None,
) -> TaskRow:
    new, plan, now, id_ = item.prepared.new, item.prepared.plan, work.now, item.id
    lane, place = spot
    waiting = sum(1 for p in above if p.status != State.COMPLETED) if above else 0
    check_at = block_check_at(plan.settings, above, now) if above else None
    due_at, hold = epoch(new.run_at), None
    if due_at is not None and due_at > now:
        waiting, hold = waiting + 1, SCHEDULED
    else:
        due_at = None
    return TaskRow(
        id=id_, workspace=workspace, type=new.type, status=_PENDING if waiting else _READY, hold=hold,
        lane=lane, rank=place.rank, ordered_at=due_at or now, rerank_at=place.rerank_at,
        priority=float(new.priority), boost=plan.boost, deadline=epoch(new.deadline), path_weight=weight,
        dag_id=dag_id, root_id=id_, parent_id=origin.parent_id, waiting=waiting, block_check_at=check_at,
        max_attempts=plan.max_attempts, timeout_sec=plan.timeout_sec, validation=plan.validation,
        at_most_once=plan.at_most_once, own_settings=plan.has_own_settings, tallied=plan.tallied,
        estimated_cost=plan.estimated_cost, budget_id=budget_id, external_id=item.prepared.name,
        idempotency_key=item.prepared.key, target_agent_id=new.target_agent_id, issue_id=new.issue_id,
        trigger_type=new.trigger_type, session_id=None if new.force_fresh_session else new.session_id,
        work_dir=new.work_dir, force_fresh_session=new.force_fresh_session, created_at=now, updated_at=now,
        expires_at=epoch(new.expires_at), due_at=due_at,
    )  # fmt: skip


_READY, _PENDING, _WAITING_APPROVAL = State.READY.value, State.PENDING.value, State.WAITING_APPROVAL.value
_PATHS = {_READY: PATH_READY, _PENDING: PATH_PENDING, _WAITING_APPROVAL: guard.PATH_STOPPED}


async def write_rows(work: UnitOfWork, rows: Sequence[TaskRow], bodies: Sequence[str]) -> None:
    await work.tx.insert("insert_tasks", [to_insert(row) for row in rows])
    await work.tx.insert("insert_bodies", [(row.id, body) for row, body in zip(rows, bodies, strict=True)])
    for lane in {row.lane for row in rows if row.status == _READY}:
        work.tx.wake(lane)


async def _write_around(
    work: UnitOfWork, workspace: str, items: list[Item], edges: dict[str, list[Dependency]]
) -> None:
    """Edges and tags of new tasks."""
    new = [NewEdge(dependent, p.root, p.status == State.COMPLETED) for dependent, above in edges.items() for p in above]
    await work.tx.insert("insert_edges", sorted(new))
    await _write_tags(work, workspace, ((item.id, item.prepared) for item in items))


async def _write_tags(work: UnitOfWork, workspace: str, tasks: Iterable[tuple[str, Prepared]]) -> None:
    tags = [(workspace, tag, id_) for id_, prepared in tasks for tag in dict.fromkeys(prepared.new.tags)]
    await work.tx.insert("insert_tags", tags)


async def _schedule(work: UnitOfWork, rows: Sequence[TaskRow]) -> None:
    """Schedule tasks that wait for their time."""
    waits = [schedule.opened(row, row.due_at, work.now) for row in rows if row.due_at is not None]
    if waits:
        await work.tx.insert("insert_waits", waits)


def _event_data(item: Item, row: TaskRow, stopped: dict[str, guard.Request]) -> dict[str, Any] | None:
    if item.id in stopped:
        return stopped[item.id].event_data
    return {"run_at": row.due_at} if row.hold == SCHEDULED else None


def _tell_created(
    work: UnitOfWork, items: list[Item], rows: list[TaskRow], verb: str, stopped: dict[str, guard.Request]
) -> None:
    now, caller_actor, caller_request = work.now, work.caller.actor, work.caller.request_id
    lone: dict[tuple[str, str, str, str, str | None], list[BatchItem]] = defaultdict(list)
    for item, row in zip(items, rows, strict=True):
        actor, request_id = item.prepared.new.created_by or caller_actor, item.prepared.request_id or caller_request
        data, path = _event_data(item, row, stopped), _PATHS[row.status]
        if data is None and row.dag_id == row.id:
            lone[row.workspace, row.type, path, actor, request_id].append((row.id, None, None))
        else:
            place = (row.workspace, verb, actor, row.id, row.dag_id)
            work.add_event(NewEvent(now, *place, path, request_id, data=data))
    for (workspace, type_, path, actor, request_id), tasks in lone.items():
        work.add_batch(Alike(workspace, verb, path, actor, request_id, type=type_), tasks)


def ceiling(dollars: float | None) -> int | None:
    return None if dollars is None else micros(dollars)
