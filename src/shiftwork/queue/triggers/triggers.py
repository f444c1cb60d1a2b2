"""Triggers as people keep them: saved, read, paused, resumed, removed, fired by hand; checked when they are saved."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from shiftwork.core import graph, templates
from shiftwork.core.errors import InputError, NotFound
from shiftwork.core.resolve import Resolver
from shiftwork.core.settings import Bounds
from shiftwork.core.trigger import Cron, Files, Fire, Firing, Happens, Hook, NewTrigger, Preview, Source, Trigger
from shiftwork.policy import occasion, schedule
from shiftwork.queue import check, log
from shiftwork.queue.dependencies import raise_cycle
from shiftwork.queue.engine import Caller, Engine
from shiftwork.queue.triggers.firing import Armed, Occasion, Template, armed, describe, fire, prepare_all, shown
from shiftwork.queue.work import Work, as_json
from shiftwork.store.store import Row, Tx

MOST_SHOWN = 10
"""Of the next times of a schedule."""
_BOUNDS = Bounds()


class Secret(NamedTuple):
    """What the caller brought, or what was made in case one is needed."""

    given: str | None = None
    made: str | None = None


class Stored(msgspec.Struct, frozen=True):
    """A trigger as it was saved, and the mark of the secret that was made for it, which itself is not kept here."""

    trigger: Trigger
    made: str | None = None


def mark(secret: str | None) -> str | None:
    return None if secret is None else hashlib.sha256(secret.encode()).hexdigest()


# -- checked when saved ------------------------------------------------------------------------------------------


def check_new(new: NewTrigger, workspace: str, resolver: Resolver) -> None:
    """What the trigger waits for can come, and what it creates could be submitted."""
    check.to_json(new, _BOUNDS.body_bytes, _BOUNDS, "trigger")
    _check_source(new.on)
    if (new.task is None) == (new.dag is None):
        raise InputError("a trigger creates either a task or a dag", where="task")
    template = Template(new.task, new.dag, new.parameters)
    templates.check_template(new.task if new.task is not None else new.dag, new.parameters)
    _refuse_fixed_ids(template)
    sample = Occasion("", given=templates.samples(new.parameters))
    described = describe(template, "trigger", sample)
    prepare_all(described, workspace, resolver)
    if described.dag is not None:
        _refuse_cycle(described.dag["tasks"])


def _check_source(on: Source) -> None:
    if isinstance(on, Cron):
        schedule.check(on)
    elif isinstance(on, Hook):
        occasion.check_where(on.where)
    elif isinstance(on, Files):
        occasion.check_pattern(on.pattern)
    elif isinstance(on, Happens):
        occasion.check_events(on.events)
        occasion.check_where(on.where)


def _refuse_fixed_ids(template: Template) -> None:
    """An id is taken by the first firing, and in the way of the second."""
    tasks = [template.task] if template.task is not None else (template.dag or {}).get("tasks", [])
    for task in tasks:
        id_ = task.get("id") if isinstance(task, dict) else None
        if isinstance(id_, str) and "{{" not in id_:
            raise InputError("the second firing would find this id in use", where="id", mend="Leave it out.")


def _refuse_cycle(tasks: list[dict[str, Any]]) -> None:
    edges = {task["key"]: task.get("dependencies", []) for task in tasks if task.get("key")}
    if cycle := graph.find_cycle(edges):
        raise_cycle(cycle)


# -- verbs -------------------------------------------------------------------------------------------------------


async def save(
    tx: Tx, engine: Engine, caller: Caller, workspace: str, name: str, new: NewTrigger, secret: Secret
) -> Stored:
    """Add a trigger, or change the one of this name; a hook keeps its secret until another is brought."""
    await engine.book.add(tx, workspace)
    await tx.take_turn(f"triggers:{workspace}")  # two that save the same new name at once
    before = await tx.one("lock_trigger", workspace=workspace, name=name)
    id_ = engine.ids.make(tx.now) if before is None else before["id"]
    kept = None if before is None else before["secret"]
    brought = secret.given or (secret.made if kept is None else None)
    in_force = (engine.vault.seal(brought) or kept) if isinstance(new.on, Hook) else None
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
        after_seq=await log.last(tx) if fresh or before is None else before["after_seq"],
        now=tx.now,
        actor=caller.actor,
    )
    if fresh:
        await tx.run("delete_watched_files", id=id_)
    await _tell(tx, engine, caller, workspace, "trigger_saved", name, kind=kind_of(new.on))
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
    tick = schedule.next_after(on, after)
    return tick, None if tick is None else tick + schedule.jitter(on, id_)


async def pause(tx: Tx, engine: Engine, caller: Caller, workspace: str, name: str) -> Trigger:
    """Let it fire no more until it is resumed; what happens meanwhile is nothing to it."""
    row = await lock(tx, workspace, name)
    if row["paused_at"] is None:
        await tx.run("pause_trigger", id=row["id"], now=tx.now)
        await _tell(tx, engine, caller, workspace, "trigger_paused", name)
    return await read(tx, workspace, name)


async def resume(tx: Tx, engine: Engine, caller: Caller, workspace: str, name: str) -> Trigger:
    """Let it fire again, for what comes from now on."""
    row = await lock(tx, workspace, name)
    if row["paused_at"] is not None:
        trigger = armed(row)
        tick, at = next_times(trigger.on, trigger.id, tx.now) if isinstance(trigger.on, Cron) else (None, None)
        after = await log.last(tx)
        await tx.run("resume_trigger", id=row["id"], tick_at=tick, next_at=at, after_seq=after, now=tx.now)
        await tx.run("delete_watched_files", id=row["id"])  # what changed meanwhile is seen for the first time
        await _tell(tx, engine, caller, workspace, "trigger_resumed", name)
    return await read(tx, workspace, name)


async def remove(tx: Tx, engine: Engine, caller: Caller, workspace: str, name: str) -> bool:
    """Forget a trigger with its firings; what it created stays. False where there was none."""
    row = await tx.one("lock_trigger", workspace=workspace, name=name)
    if row is None:
        return False
    for statement in ("delete_watched_files", "delete_firings_of", "delete_trigger"):
        await tx.run(statement, id=row["id"])
    await _tell(tx, engine, caller, workspace, "trigger_removed", name)
    return True


async def fire_by_hand(tx: Tx, engine: Engine, caller: Caller, workspace: str, name: str, given: Fire) -> Firing:
    """Create now what the trigger creates, paused or not."""
    trigger = armed(await lock(tx, workspace, name))
    told = {} if given.reason is None else {"said": given.reason}
    facts = {"trigger": name, **given.facts}
    key = f"hand:{engine.ids.make(tx.now)}"
    return await fire(tx, engine, caller, trigger, Occasion(key, facts, given.parameters, told=told, by_hand=True))


async def _tell(tx: Tx, engine: Engine, caller: Caller, workspace: str, verb: str, name: str, **more: Any) -> None:
    work = Work(tx, engine, caller)
    work.tell_of(workspace, verb, data={"trigger": name, **more})
    await work.save_events()


# -- reading -----------------------------------------------------------------------------------------------------


async def lock(tx: Tx, workspace: str, name: str) -> Row:
    return _there(await tx.one("lock_trigger", workspace=workspace, name=name), name)


def _there(row: Row | None, name: str) -> Row:
    if row is None:
        raise NotFound(f"there is no trigger {name!r}", where="name")
    return row


async def find(tx: Tx, workspace: str, name: str) -> Row:
    return _there(await tx.one("find_trigger", workspace=workspace, name=name), name)


async def read(tx: Tx, workspace: str, name: str) -> Trigger:
    return _trigger(await find(tx, workspace, name))


async def read_all(tx: Tx, workspace: str, after: str, count: int) -> list[Trigger]:
    return [_trigger(row) for row in await tx.all("list_triggers", workspace=workspace, after=after, count=count)]


async def firings(tx: Tx, workspace: str, name: str, count: int) -> list[Firing]:
    row = await find(tx, workspace, name)
    return [shown(name, each) for each in await tx.all("list_firings", trigger_id=row["id"], count=count)]


def _trigger(row: Row) -> Trigger:
    known = armed(row)
    return Trigger(
        name=known.name,
        workspace_id=known.workspace,
        on=known.on,
        task=known.template.task,
        dag=known.template.dag,
        parameters=known.template.parameters,
        overlap=known.overlap,
        created_at=row["created_at"],
        created_by=row["created_by"],
        updated_at=row["updated_at"],
        paused_at=row["paused_at"],
        next_at=row["next_at"],
        fired=row["fired"],
        last_fired_at=row["last_fired_at"],
    )


async def preview(tx: Tx, engine: Engine, caller: Caller, workspace: str, name: str, given: Fire) -> Preview:
    """What a firing would create now, checked as if it were submitted, and the next times of a schedule."""
    trigger = armed(await find(tx, workspace, name))
    facts = {**_facts_now(trigger, tx.now), **given.facts}
    occasion_ = Occasion("", facts, given.parameters, by_hand=trigger.kind != "cron")
    described = describe(trigger.template, trigger.actor if trigger.kind == "cron" else caller.actor, occasion_)
    prepare_all(described, workspace, await engine.book.of(tx, workspace))
    return Preview(name, described.task, described.dag, next_ones(trigger, tx.now))


def _facts_now(trigger: Armed, now: float) -> Mapping[str, Any]:
    tick = schedule.next_after(trigger.on, now) if isinstance(trigger.on, Cron) else None
    return {"trigger": trigger.name} if tick is None else tick_facts(trigger.name, tick)


def tick_facts(name: str, tick: float) -> dict[str, Any]:
    return {"trigger": name, "tick": schedule.shown(tick), "tick_at": tick}


def next_ones(trigger: Armed, now: float) -> list[float]:
    if not isinstance(trigger.on, Cron):
        return []
    late = schedule.jitter(trigger.on, trigger.id)
    return [tick + late for tick in itertools.islice(schedule.instants(trigger.on, now - late), MOST_SHOWN)]
