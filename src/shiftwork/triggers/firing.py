"""Fires a trigger once per key, and creates its task or DAG in the same transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from shiftwork.engine import change
from shiftwork.engine.engine import Caller, Engine
from shiftwork.engine.new_dags import DagFields
from shiftwork.engine.prepare import Plans, Prepared, prepare
from shiftwork.engine.submit import ceiling, lanes_of, submit
from shiftwork.engine.unit_of_work import UnitOfWork, as_json
from shiftwork.model import check, ids
from shiftwork.model.errors import NotFound, TooLarge
from shiftwork.model.task import NewDag, NewTask, Submitted
from shiftwork.settings.resolve import Resolver
from shiftwork.store.store import Row, Tx
from shiftwork.task_types import policy as type_policy
from shiftwork.triggers import templates
from shiftwork.triggers.model import Firing, Kind, Overlap, Source
from shiftwork.triggers.policy import MAX_CHAIN_LENGTH
from shiftwork.triggers.templates import Parameter
from shiftwork.validation.schema import MAX_STEPS_TOGETHER

KEEP_FIRINGS_SEC = 30 * 86_400.0
"""How long a repeated delivery is recognized."""
LOOKED_BACK = 20
"""How many of the last firings are checked for unfinished work."""


class Template(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a trigger creates."""

    task: dict[str, Any] | None = None
    dag: dict[str, Any] | None = None
    parameters: dict[str, Parameter] = {}


class ArmedTrigger(NamedTuple):
    """A trigger, read from its row."""

    id: str
    workspace: str
    name: str
    kind: Kind
    on: Source
    template: Template
    overlap: Overlap

    @property
    def actor(self) -> str:
        """The creator of its tasks."""
        return f"cron:{self.name}" if self.kind == "cron" else f"trigger:{self.name}"


class FiringCause(NamedTuple):
    """The occasion of a firing."""

    key: str
    facts: Mapping[str, Any] = {}
    given: Mapping[str, Any] = {}
    depth: int = 0
    data: Mapping[str, Any] = {}
    by_hand: bool = False


async def lock(tx: Tx, workspace: str, name: str) -> Row:
    return _there(await tx.one("lock_trigger", workspace=workspace, name=name), name)


async def find(tx: Tx, workspace: str, name: str) -> Row:
    return _there(await tx.one("find_trigger", workspace=workspace, name=name), name)


def _there(row: Row | None, name: str) -> Row:
    if row is None:
        raise NotFound(f"there is no trigger {name!r}", where="name")
    return row


def armed_trigger(row: Row) -> ArmedTrigger:
    on: Source = msgspec.json.decode(row["source"], type=Source)
    template = msgspec.json.decode(row["template"], type=Template)
    return ArmedTrigger(row["id"], row["workspace"], row["name"], row["kind"], on, template, row["overlap"])


def shown(name: str, row: Row, *, duplicate: bool = False) -> Firing:
    dag_id = None if row["dag_id"] is None else ids.show_dag(row["dag_id"])
    tasks = msgspec.json.decode(row["tasks"])
    return Firing(name, row["key"], row["at"], row["outcome"], row["reason"], tasks, dag_id, duplicate)


def describe(template: Template, actor: str, cause: FiringCause) -> Template:
    """The task or DAG with its parameters filled in, and its creator."""
    values = templates.values(template.parameters, cause.facts, cause.given)
    trigger_type = {} if cause.by_hand else {"trigger_type": "autopilot"}
    own = {"created_by": actor, **trigger_type}
    if template.task is not None:
        return Template(task={**own, **templates.fill(template.task, values)})
    dag = templates.fill(template.dag, values)
    tasks = [{**own, **task} if isinstance(task, dict) else task for task in _list(dag.get("tasks"))]
    return Template(dag={"created_by": actor, **dag, "tasks": tasks})


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]  # a value that is not a list is refused later by name


def prepare_all(
    described: Template, workspace: str, resolver: Resolver, now: float, template: Template | None = None
) -> tuple[list[Prepared], DagFields]:
    """Prepare the tasks for submission, with the usual checks.

    With `template`, filled with sample parameters, payloads that contain parameters are not checked.
    """
    if described.task is not None:
        new = check.read(described.task, NewTask, "task")
        is_fixed = template is None or _has_fixed_payload(template.task, described.task)
        return [prepare(new, workspace, resolver, now, check_payload=is_fixed)], DagFields()
    dag = check.read(described.dag, NewDag, "dag")
    most = resolver.settings().bounds.batch
    if len(dag.tasks) > most:
        raise TooLarge(f"{len(dag.tasks)} tasks in one DAG, at most {most}", where="dag.tasks")
    _refuse_long_checks(dag.tasks, resolver)
    filled = _tasks_of(described)
    written = filled if template is None else _tasks_of(template)
    plans: Plans = {}
    batch = []
    for n, new in enumerate(dag.tasks):
        is_fixed = _has_fixed_payload(written[n], filled[n])
        batch.append(prepare(new, workspace, resolver, now, f"dag.tasks[{n}]", plans, check_payload=is_fixed))
    title, author = check.text(dag.title, "dag.title"), check.text(dag.created_by, "dag.created_by")
    return batch, DagFields(True, title, author, ceiling(dag.budget_ceiling_usd))  # noqa: FBT003  # together


def _tasks_of(template: Template) -> list[Any]:
    return _list((template.dag or {}).get("tasks"))


def _has_fixed_payload(template: Any, filled: Any) -> bool:
    """Whether the payload of a task contains no parameter, so that it is the same for every firing."""
    return bool(template.get("payload") == filled.get("payload"))


def _refuse_long_checks(tasks: Sequence[NewTask], resolver: Resolver) -> None:
    """Refuse payloads that take long to check, since a trigger fires inside a transaction."""
    schemas = [(task, resolver.declared(task.type)) for task in tasks]
    steps = sum(
        type_policy.steps_of(task.payload, each.payload_schema)
        for task, each in schemas
        if each is not None and each.payload_schema is not None
    )
    if steps > MAX_STEPS_TOGETHER:
        raise TooLarge("checking the payloads of this DAG against their types takes too long", where="dag.tasks")


async def fire(tx: Tx, engine: Engine, caller: Caller, trigger: ArmedTrigger, cause: FiringCause) -> Firing:
    """Fire the trigger, unless it already fired for this occasion or must not now."""
    place = {"trigger_id": trigger.id, "key": cause.key}
    if await tx.one("take_firing", **place, now=tx.now, depth=cause.depth) is None:
        before = await tx.one("read_firing", **place)  # a second statement: the first may have waited for it
        assert before is not None
        return shown(trigger.name, before, duplicate=True)
    if cause.depth > MAX_CHAIN_LENGTH:
        return await _skip(tx, engine, caller, trigger, cause, f"{MAX_CHAIN_LENGTH} triggers have fired in a chain")
    if unfinished := await _unfinished_work(tx, engine, caller, trigger):
        return await _skip(tx, engine, caller, trigger, cause, f"{unfinished} has not ended")
    made = await _create(tx, engine, caller, trigger, cause)
    if all(task.duplicate for task in made):
        return await _skip(tx, engine, caller, trigger, cause, f"{_listed(made)} has the same idempotency key")
    await tx.run("count_firing", id=trigger.id, now=tx.now)
    return await _end(tx, engine, caller, trigger, cause, made=made)


async def skip(tx: Tx, engine: Engine, caller: Caller, trigger: ArmedTrigger, cause: FiringCause, reason: str) -> None:
    """Record a firing that created nothing, unless that is already recorded."""
    place = {"trigger_id": trigger.id, "key": cause.key}
    if await tx.one("take_firing", **place, now=tx.now, depth=cause.depth) is not None:
        await _skip(tx, engine, caller, trigger, cause, reason)


async def _unfinished_work(tx: Tx, engine: Engine, caller: Caller, trigger: ArmedTrigger) -> str | None:
    """The unfinished work of an earlier firing that prevents this one; `replace` cancels it."""
    if trigger.overlap == "allow":
        return None
    found = await tx.one("unfinished_firing", trigger_id=trigger.id, count=LOOKED_BACK)
    if found is None:
        return None
    if trigger.overlap == "skip":
        return ids.show_dag(found["dag_id"])
    by = Caller(trigger.actor, caller.request_id, trigger.workspace)
    await change.cancel_dag(tx, engine, by, trigger.workspace, found["dag_id"], f"replaced by trigger {trigger.name}")
    return None


async def _create(tx: Tx, engine: Engine, caller: Caller, trigger: ArmedTrigger, cause: FiringCause) -> list[Submitted]:
    actor = caller.actor if cause.by_hand else trigger.actor
    described = describe(trigger.template, actor, cause)
    resolver = await engine.settings_cache.load(tx, trigger.workspace)
    batch, dag = prepare_all(described, trigger.workspace, resolver, tx.now)
    lanes = await engine.lanes.intern_in(tx, lanes_of(batch))
    by = Caller(actor, caller.request_id, trigger.workspace)
    return await submit(tx, engine, by, trigger.workspace, batch, lanes, dag)


def _listed(made: Sequence[Submitted]) -> str:
    return ", ".join(task.id for task in made)


async def _skip(
    tx: Tx, engine: Engine, caller: Caller, trigger: ArmedTrigger, cause: FiringCause, reason: str
) -> Firing:
    return await _end(tx, engine, caller, trigger, cause, reason=reason)


async def _end(
    tx: Tx,
    engine: Engine,
    caller: Caller,
    trigger: ArmedTrigger,
    cause: FiringCause,
    *,
    made: Sequence[Submitted] = (),
    reason: str | None = None,
) -> Firing:
    outcome, tasks = "skipped" if reason else "fired", [task.id for task in made if not task.duplicate]
    dag_id = next((task.dag_id for task in made if task.dag_id is not None), None)
    uuid = None if dag_id is None else ids.parse(dag_id)
    firing = Firing(trigger.name, cause.key, tx.now, outcome, reason, tasks, dag_id)  # type: ignore[arg-type]  # one of the two
    place = {"trigger_id": trigger.id, "key": cause.key}
    await tx.run("end_firing", **place, outcome=outcome, reason=reason, tasks=as_json(tasks), dag_id=uuid)
    work = UnitOfWork(tx, engine, caller)
    emit(work, trigger, firing, cause.data)
    await work.save_events()
    return firing


def emit(work: UnitOfWork, trigger: ArmedTrigger, firing: Firing, more: Mapping[str, Any]) -> None:
    """Record the outcome: the tasks created, or why there are none."""
    came = {"tasks": firing.tasks, "dag_id": firing.dag_id} if firing.outcome == "fired" else {"reason": firing.reason}
    data = {"trigger": trigger.name, "kind": trigger.kind, "key": firing.key, **came, **more}
    dag_id = None if firing.dag_id is None else ids.parse(firing.dag_id)
    work.emit_for(trigger.workspace, f"trigger_{firing.outcome}", dag_id=dag_id, data=data)
