"""Implements the operations on triggers, and checks triggers when they are saved."""

from __future__ import annotations

import hashlib
import itertools
import re
import secrets
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from shiftwork.engine import event_log
from shiftwork.engine.dependencies import raise_cycle
from shiftwork.engine.engine import Caller, Engine
from shiftwork.engine.unit_of_work import UnitOfWork, as_json
from shiftwork.model import check, graph
from shiftwork.model.errors import ConflictError, InputError
from shiftwork.operation.local import Call, implements, reading, transaction
from shiftwork.settings.model import Bounds
from shiftwork.settings.resolve import Resolver
from shiftwork.store.store import Row, Tx, record
from shiftwork.triggers import policy, schedule_policy, templates
from shiftwork.triggers.api import Triggers
from shiftwork.triggers.firing import (
    ArmedTrigger,
    FiringCause,
    Template,
    armed_trigger,
    describe,
    find,
    fire,
    lock,
    prepare_all,
    shown,
)
from shiftwork.triggers.model import (
    Cron,
    Files,
    Firing,
    Happens,
    Hook,
    NewTrigger,
    Overlap,
    Preview,
    SavedTrigger,
    Source,
    Trigger,
)
from shiftwork.triggers.templates import Parameter

MAX_SHOWN = 10
"""The most next times of a schedule to return."""
_BOUNDS = Bounds()
SECRET_BYTES = 32
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
"""The name is part of an address, and of the creator of its tasks."""


class Secret(NamedTuple):
    """The caller's secret, or a new one in case it is needed."""

    given: str | None = None
    made: str | None = None


class Stored(msgspec.Struct, frozen=True):
    """A saved trigger, and the hash of its generated secret, which itself is not stored here."""

    trigger: Trigger
    made: str | None = None


def mark(secret: str | None) -> str | None:
    return None if secret is None else hashlib.sha256(secret.encode()).hexdigest()


def check_new(new: NewTrigger, workspace: str, resolver: Resolver, now: float) -> None:
    """Check that the trigger can fire, and that its work can be submitted."""
    check.to_json(new, _BOUNDS.body_bytes, _BOUNDS, "trigger")
    _check_source(new.on)
    if (new.task is None) == (new.dag is None):
        raise InputError("a trigger must create either a task or a dag", where="task")
    template = Template(new.task, new.dag, new.parameters)
    templates.check_template(new.task if new.task is not None else new.dag, new.parameters)
    _refuse_fixed_ids(template)
    _refuse_fixed_times(template)
    sample = FiringCause("", given=templates.samples(new.parameters))
    described = describe(template, "trigger", sample)
    prepare_all(described, workspace, resolver, now, template)
    if described.dag is not None:
        _refuse_cycle(described.dag["tasks"])


def _check_source(on: Source) -> None:
    if isinstance(on, Cron):
        schedule_policy.check(on)
    elif isinstance(on, Hook):
        policy.check_where(on.where)
    elif isinstance(on, Files):
        policy.check_pattern(on.pattern)
    elif isinstance(on, Happens):
        policy.check_events(on.events)
        policy.check_where(on.where)


def _tasks_of(template: Template) -> list[Any]:
    tasks = [template.task] if template.task is not None else (template.dag or {}).get("tasks", [])
    return tasks if isinstance(tasks, list) else []


def _refuse_fixed_ids(template: Template) -> None:
    """Refuse fixed ids: the first firing would use them up."""
    for task in _tasks_of(template):
        id_ = task.get("id") if isinstance(task, dict) else None
        if isinstance(id_, str) and "{{" not in id_:
            raise InputError("the second firing would find this id in use", where="id", hint="Leave it out.")


def _refuse_fixed_times(template: Template) -> None:
    """Refuse fixed times: they will have passed at the second firing, if not at the first."""
    for task in _tasks_of(template):
        for name, instead in (("run_at", "delay"), ("expires_at", "expires_in")):
            if isinstance(task, dict) and task.get(name) is not None:
                hint = f"Give `{instead}`, in seconds from the firing."
                raise InputError(f"a trigger fires repeatedly, but `{name}` is a fixed time", where=name, hint=hint)


def _refuse_cycle(tasks: list[dict[str, Any]]) -> None:
    edges = {task["key"]: task.get("dependencies", []) for task in tasks if task.get("key")}
    if cycle := graph.find_cycle(edges):
        raise_cycle(cycle)


@implements(Triggers.save)
async def save(
    call: Call,
    name: str,
    *,
    on: Source | Mapping[str, Any],
    task: Mapping[str, Any] | None = None,
    dag: Mapping[str, Any] | None = None,
    parameters: Mapping[str, Parameter | Mapping[str, Any]] = {},
    overlap: Overlap = "allow",
    secret: str | None = None,
) -> SavedTrigger:
    if _NAME.fullmatch(name) is None:
        raise InputError("a trigger's name is at most 100 letters, digits and . _ -", where="name")
    new = check.read(
        {"on": check.plain(on, "on"), "task": task, "dag": dag, "parameters": parameters, "overlap": overlap},
        NewTrigger,
        "trigger",
    )
    store = call.engine.store
    check_new(new, call.workspace, await call.engine.settings_cache.get(store, call.workspace), store.now())
    brought = _secret(new, secret)
    stored = await call.run(_save, call.workspace, name, new, brought)
    if stored.made not in {None, mark(brought.made)}:
        raise ConflictError(
            f"this request has already saved the trigger {name}; its secret is not stored",
            hint="Save it again under a new key, with your own secret.",
        )
    return SavedTrigger(stored.trigger, None if stored.made is None else brought.made)


def _secret(new: NewTrigger, given: str | None) -> Secret:
    if not isinstance(new.on, Hook):
        if given is not None:
            raise InputError("only a hook has a secret", where="secret")
        return Secret()
    if given is not None:
        policy.check_secret(new.on.signature, given)
        return Secret(given)
    return Secret(made=policy.secret_of(new.on.signature, secrets.token_bytes(SECRET_BYTES)))


async def _save(
    tx: Tx, engine: Engine, caller: Caller, workspace: str, name: str, new: NewTrigger, secret: Secret
) -> Stored:
    """Save a trigger. A hook keeps its secret unless another is given."""
    await engine.settings_cache.add(tx, workspace)
    await tx.advisory_lock(f"triggers:{workspace}")  # concurrent saves of the same new name
    before = await tx.one("lock_trigger", workspace=workspace, name=name)
    id_ = engine.ids.make(tx.now) if before is None else before["id"]
    kept = None if before is None else before["secret"]
    brought = secret.given or (secret.made if kept is None else None)
    in_force = (engine.secrets.seal(brought) or kept) if isinstance(new.on, Hook) else None
    source = as_json(new.on)
    fresh = before is None or before["source"] != source
    tick, at = await _times(before, new.on, id_, tx.now, fresh=fresh)
    await tx.run(
        "save_trigger",
        id=id_,
        workspace=workspace,
        name=name,
        kind=kind_of(new.on),
        source=source,
        template=as_json(Template(new.task, new.dag, new.parameters)),
        overlap=new.overlap,
        secret=in_force,
        tick_at=tick,
        next_at=at,
        after_seq=await event_log.last(tx) if fresh or before is None else before["after_seq"],
        now=tx.now,
        actor=caller.actor,
    )
    if fresh:
        await tx.run("delete_watched_files", id=id_)
    await _emit(tx, engine, caller, workspace, "trigger_saved", name, kind=kind_of(new.on))
    made = in_force is not None and brought is not None and brought == secret.made
    return Stored(await read(tx, workspace, name), mark(secret.made) if made else None)


def kind_of(on: Source) -> str:
    return str(type(on).__struct_config__.tag)


async def _times(
    before: Row | None, on: Source, id_: str, now: float, *, fresh: bool
) -> tuple[float | None, float | None]:
    """The next tick and when it fires; a schedule that stays the same keeps its place, a paused one has none."""
    if not isinstance(on, Cron) or (before is not None and before["paused_at"] is not None):
        return None, None
    if before is not None and not fresh:
        return before["tick_at"], before["next_at"]
    return next_times(on, id_, now)


def next_times(on: Cron, id_: str, after: float) -> tuple[float | None, float | None]:
    tick = schedule_policy.next_after(on, after)
    return tick, None if tick is None else tick + schedule_policy.jitter(on, id_)


@transaction(Triggers.pause)
async def pause(tx: Tx, engine: Engine, caller: Caller, workspace: str, name: str) -> Trigger:
    row = await lock(tx, workspace, name)
    if row["paused_at"] is None:
        await tx.run("pause_trigger", id=row["id"], now=tx.now)
        await _emit(tx, engine, caller, workspace, "trigger_paused", name)
    return await read(tx, workspace, name)


@transaction(Triggers.resume)
async def resume(tx: Tx, engine: Engine, caller: Caller, workspace: str, name: str) -> Trigger:
    row = await lock(tx, workspace, name)
    if row["paused_at"] is not None:
        trigger = armed_trigger(row)
        tick, at = next_times(trigger.on, trigger.id, tx.now) if isinstance(trigger.on, Cron) else (None, None)
        after = await event_log.last(tx)
        await tx.run("resume_trigger", id=row["id"], tick_at=tick, next_at=at, after_seq=after, now=tx.now)
        await tx.run("delete_watched_files", id=row["id"])  # changes in the meantime are ignored
        await _emit(tx, engine, caller, workspace, "trigger_resumed", name)
    return await read(tx, workspace, name)


@transaction(Triggers.remove)
async def remove(tx: Tx, engine: Engine, caller: Caller, workspace: str, name: str) -> bool:
    row = await tx.one("lock_trigger", workspace=workspace, name=name)
    if row is None:
        return False
    for statement in ("delete_watched_files", "delete_firings_of", "delete_trigger"):
        await tx.run(statement, id=row["id"])
    await _emit(tx, engine, caller, workspace, "trigger_removed", name)
    return True


@transaction(Triggers.fire)
async def fire_by_hand(
    tx: Tx,
    engine: Engine,
    caller: Caller,
    workspace: str,
    name: str,
    *,
    parameters: Mapping[str, Any] = {},
    facts: Mapping[str, Any] = {},
    reason: str | None = None,
) -> Firing:
    """Fire a trigger by hand, even a paused one."""
    check.fit({"parameters": parameters, "facts": facts}, "fire")
    trigger = armed_trigger(await lock(tx, workspace, name))
    event_data = {} if reason is None else {"said": reason}
    key = f"hand:{engine.ids.make(tx.now)}"
    cause = FiringCause(key, {"trigger": name, **facts}, parameters, data=event_data, by_hand=True)
    return await fire(tx, engine, caller, trigger, cause)


async def _emit(tx: Tx, engine: Engine, caller: Caller, workspace: str, verb: str, name: str, **more: Any) -> None:
    work = UnitOfWork(tx, engine, caller)
    work.emit_for(workspace, verb, data={"trigger": name, **more})
    await work.save_events()


async def read(tx: Tx, workspace: str, name: str) -> Trigger:
    return _trigger(await find(tx, workspace, name))


@reading(Triggers.get)
async def get(tx: Tx, engine: Engine, caller: Caller, workspace: str, name: str) -> Trigger:
    return await read(tx, workspace, name)


@reading(Triggers.list)
async def list_triggers(
    tx: Tx, engine: Engine, caller: Caller, workspace: str, *, after: str = "", limit: int = 100
) -> list[Trigger]:
    return [_trigger(row) for row in await tx.all("list_triggers", workspace=workspace, after=after, count=limit)]


@reading(Triggers.firings)
async def list_firings(
    tx: Tx, engine: Engine, caller: Caller, workspace: str, name: str, *, limit: int = 20
) -> list[Firing]:
    row = await find(tx, workspace, name)
    return [shown(name, each) for each in await tx.all("list_firings", trigger_id=row["id"], count=limit)]


def _trigger(row: Row) -> Trigger:
    known = armed_trigger(row)
    return record(
        Trigger,
        row,
        name=known.name,
        workspace_id=known.workspace,
        on=known.on,
        task=known.template.task,
        dag=known.template.dag,
        parameters=known.template.parameters,
        overlap=known.overlap,
    )


@reading(Triggers.preview)
async def preview(
    tx: Tx,
    engine: Engine,
    caller: Caller,
    workspace: str,
    name: str,
    *,
    parameters: Mapping[str, Any] = {},
    facts: Mapping[str, Any] = {},
    reason: str | None = None,
) -> Preview:
    """Preview a firing, with the checks of a submission."""
    check.fit({"parameters": parameters, "facts": facts}, "fire")
    trigger = armed_trigger(await find(tx, workspace, name))
    known = {**_facts_now(trigger, tx.now), **facts}
    occasion_ = FiringCause("", known, parameters, by_hand=trigger.kind != "cron")
    described = describe(trigger.template, trigger.actor if trigger.kind == "cron" else caller.actor, occasion_)
    prepare_all(described, workspace, await engine.settings_cache.load(tx, workspace), tx.now)
    return Preview(name, described.task, described.dag, next_ones(trigger, tx.now))


def _facts_now(trigger: ArmedTrigger, now: float) -> Mapping[str, Any]:
    tick = schedule_policy.next_after(trigger.on, now) if isinstance(trigger.on, Cron) else None
    return {"trigger": trigger.name} if tick is None else tick_facts(trigger.name, tick)


def tick_facts(name: str, tick: float) -> dict[str, Any]:
    return {"trigger": name, "tick": schedule_policy.shown(tick), "tick_at": tick}


def next_ones(trigger: ArmedTrigger, now: float) -> list[float]:
    if not isinstance(trigger.on, Cron):
        return []
    late = schedule_policy.jitter(trigger.on, trigger.id)
    return [tick + late for tick in itertools.islice(schedule_policy.instants(trigger.on, now - late), MAX_SHOWN)]
