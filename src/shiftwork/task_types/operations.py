"""Implements the operations on task types."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from shiftwork.engine.engine import Caller, Engine
from shiftwork.engine.unit_of_work import UnitOfWork
from shiftwork.limits import window_policy
from shiftwork.limits.operations import remove_limit, set_limit
from shiftwork.model import check
from shiftwork.model.errors import InputError, NotFound
from shiftwork.model.keys import Key
from shiftwork.operation.local import Call, implements, reading
from shiftwork.settings.resolve import DeclaredType, Resolver, check_value, mentioned, merge, source_of_code
from shiftwork.store.store import Row, Tx
from shiftwork.task_types import policy
from shiftwork.task_types.api import Types
from shiftwork.task_types.model import TaskType, TypeDeclaration, TypeDrift, TypeOptions
from shiftwork.task_types.policy import Digests
from shiftwork.validation.policy import check_schema


class _Stored(NamedTuple):
    """A stored type."""

    declared: TypeDeclaration
    digest: str
    superseded: tuple[str, ...]
    by_operator: bool
    changed_at: float
    changed_by: str


def _stored(row: Row) -> _Stored:
    options = {**msgspec.json.decode(row["settings"]), **msgspec.json.decode(row["limits"])}
    declared = TypeDeclaration(
        name=row["name"],
        payload_schema=_decoded(row["payload_schema"]),
        result_schema=_decoded(row["result_schema"]),
        options=msgspec.convert(options, TypeOptions),
    )
    superseded = tuple(msgspec.json.decode(row["superseded"]))
    return _Stored(declared, row["digest"], superseded, row["by_operator"], row["changed_at"], row["changed_by"])


def _decoded(text: str | None) -> Any:
    return None if text is None else msgspec.json.decode(text)


async def _read(tx: Tx, workspace: str) -> dict[str, _Stored]:
    return {row["name"]: _stored(row) for row in await tx.all("read_types", workspace=workspace)}


@reading(Types.list)
async def list_types(tx: Tx, engine: Engine, caller: Caller, workspace: str) -> list[TaskType]:
    return await _shown(tx, engine, workspace, await _read(tx, workspace))


@reading(Types.get)
async def get_type(tx: Tx, engine: Engine, caller: Caller, workspace: str, name: str) -> TaskType:
    found = (await _read(tx, workspace)).get(name)
    if found is None:
        hint = "Start a worker that declares it, or save its schemas with `shiftwork types save`."
        raise NotFound(f"there is no type {name!r}", hint=hint, name=name)
    return (await _shown(tx, engine, workspace, {name: found}))[0]


@implements(Types.save)
async def save(
    call: Call,
    name: str,
    *,
    payload_schema: Mapping[str, Any] | None = None,
    result_schema: Mapping[str, Any] | None = None,
) -> TaskType:
    new = TypeDeclaration(
        name=name,
        payload_schema=None if payload_schema is None else dict(payload_schema),
        result_schema=None if result_schema is None else dict(result_schema),
    )
    _check(new, "")
    try:
        return await call.run(_save, call.workspace, new)
    finally:
        call.engine.settings_cache.forget(call.workspace)


async def _save(tx: Tx, engine: Engine, caller: Caller, workspace: str, new: TypeDeclaration) -> TaskType:
    await tx.advisory_lock(f"types:{workspace}")
    before = (await _read(tx, workspace)).get(new.name)
    if before is not None:
        new = msgspec.structs.replace(new, options=before.declared.options)
    work = UnitOfWork(tx, engine, caller)
    await _write(work, workspace, new, before, by_operator=True)
    await _renew(tx, engine, workspace)
    await work.save_events()
    stored = await _read(tx, workspace)
    return (await _shown(tx, engine, workspace, {new.name: stored[new.name]}))[0]


@implements(Types.remove)
async def remove(call: Call, name: str) -> bool:
    try:
        return await call.run(_remove, call.workspace, name)
    finally:
        call.engine.settings_cache.forget(call.workspace)


async def _remove(tx: Tx, engine: Engine, caller: Caller, workspace: str, name: str) -> bool:
    await tx.advisory_lock(f"types:{workspace}")
    if await tx.one("remove_type", workspace=workspace, name=name) is None:
        return False
    await tx.run("drop_declarations_of_type", workspace=workspace, name=name)
    await _limit(tx, engine, caller, workspace, TypeDeclaration(name=name))
    await _renew(tx, engine, workspace)
    work = UnitOfWork(tx, engine, caller)
    work.emit_for(workspace, "type_removed", data={"type": name})
    await work.save_events()
    return True


@implements(Types.declare)
async def declare(call: Call, agent_id: str, types: Sequence[TypeDeclaration | Mapping[str, Any]]) -> list[TaskType]:
    declared: dict[str, TypeDeclaration] = {}
    for place, each in enumerate(types):
        new = check.read(each, TypeDeclaration, f"types[{place}]")
        _check(new, f"types[{place}].")
        declared[new.name] = new
        await asyncio.sleep(0)  # checking a schema takes a while
    try:
        return await call.run(_declare, call.workspace, agent_id, list(declared.values()))
    finally:
        call.engine.settings_cache.forget(call.workspace)


def _check(new: TypeDeclaration, where: str) -> None:
    check.fit(new, where.rstrip(".") or "type")
    for name in ("payload_schema", "result_schema"):
        schema = getattr(new, name)
        if schema is not None:
            check_schema(schema, f"{where}{name}")
    for key, value in new.options.settings().items():
        check_value(key, value)
    limit = new.options.limit()
    if limit and (problem := window_policy.problem(window_policy.Limit(**limit))) is not None:
        raise InputError(f"{problem}, from the options of type {new.name!r}", where=f"{where}options")


async def _declare(
    tx: Tx, engine: Engine, caller: Caller, workspace: str, agent_id: str, types: list[TypeDeclaration]
) -> list[TaskType]:
    await tx.advisory_lock(f"types:{workspace}")
    await _check_settings(tx, engine, workspace, types)
    stored = await _read(tx, workspace)
    await _record(tx, workspace, agent_id, types)
    live = await _live(tx, workspace)
    work = UnitOfWork(tx, engine, caller)
    changed = False
    for new in types:
        before = stored.get(new.name)
        others = [each for agent, each in live.get(new.name, {}).items() if agent != agent_id]
        if before is None or _replaces(new, before, others):
            pinned = before is not None and before.by_operator
            await _write(work, workspace, _kept_schemas(new, before), before, by_operator=pinned)
            await _limit(tx, engine, caller, workspace, new)
            changed = True
    if changed:
        await _renew(tx, engine, workspace)
        await work.save_events()
        stored = await _read(tx, workspace)
    return await _shown(tx, engine, workspace, {new.name: stored[new.name] for new in types})


async def _check_settings(tx: Tx, engine: Engine, workspace: str, types: list[TypeDeclaration]) -> None:
    """Refuse options that do not work together with the settings of the workspace and of the type."""
    levels = {}
    for new in types:
        level: dict[str, Any] = {}
        for key, value in new.options.settings().items():
            level = merge(level, check_value(key, value))
        levels[new.name] = DeclaredType(level, None, None)
    await engine.settings_cache.check_declared(tx, workspace, levels)


def _replaces(new: TypeDeclaration, before: _Stored, others: list[Digests]) -> bool:
    digest = policy.digests(_kept_schemas(new, before)).whole
    still = policy.is_declared(before.digest, others)
    return policy.replaces(digest, before.digest, before.superseded, still_declared=still)


def _kept_schemas(new: TypeDeclaration, before: _Stored | None) -> TypeDeclaration:
    """A worker's declaration, with the schemas that an operator saved."""
    if before is None or not before.by_operator:
        return new
    kept = before.declared
    return msgspec.structs.replace(new, payload_schema=kept.payload_schema, result_schema=kept.result_schema)


async def _record(tx: Tx, workspace: str, agent_id: str, types: list[TypeDeclaration]) -> None:
    """Replace this agent's declarations, and remove those of agents that have ended."""
    await tx.run("drop_declarations", workspace=workspace, agent_id=agent_id)
    rows = [(workspace, new.name, agent_id, *policy.digests(new), tx.now) for new in types]
    await tx.insert("insert_declarations", rows)


async def _live(tx: Tx, workspace: str) -> dict[str, dict[str, Digests]]:
    """The declarations of active agents, by type and agent."""
    found: dict[str, dict[str, Digests]] = {}
    for row in await tx.all("live_declarations", workspace=workspace):
        digests = Digests(row["payload"], row["result"], row["options"])
        found.setdefault(row["name"], {})[row["agent_id"]] = digests
    return found


async def _write(
    work: UnitOfWork, workspace: str, new: TypeDeclaration, before: _Stored | None, *, by_operator: bool
) -> None:
    digests = policy.digests(new)
    old = None if before is None else policy.digests(before.declared)
    if old == digests and before is not None and before.by_operator == by_operator:
        return
    superseded = [] if before is None else policy.superseded_by(digests.whole, before.digest, before.superseded)
    await work.tx.run(
        "save_type",
        workspace=workspace,
        name=new.name,
        payload_schema=_text(new.payload_schema),
        result_schema=_text(new.result_schema),
        settings=_text(new.options.settings()),
        limits=_text(new.options.limit()),
        digest=digests.whole,
        superseded=_text(superseded),
        by_operator=by_operator,
        now=work.now,
        actor=work.caller.actor,
    )
    parts = ["payload_schema", "result_schema", "options"] if old is None else policy.differing(digests, old)
    data = {"type": new.name, "changed": parts, "set_by": "operator" if by_operator else "worker"}
    work.emit_for(workspace, "type_saved", data=data)


def _text(value: Any) -> str | None:
    return None if value is None else msgspec.json.encode(value).decode()


async def _renew(tx: Tx, engine: Engine, workspace: str) -> None:
    """Make every process read the types again. This is the last write, so that a version is always complete."""
    await engine.settings_cache.add(tx, workspace)
    await tx.run("renew_types", workspace=workspace, version=secrets.token_hex(8))


async def _limit(tx: Tx, engine: Engine, caller: Caller, workspace: str, new: TypeDeclaration) -> None:
    """Set the limit that the code declares, or remove its earlier one; an operator's limit stays."""
    key, asked = Key(type=new.name).text, new.options.limit()
    code = caller._replace(actor=source_of_code(new.name))
    before = await _limit_row(tx, workspace, key)
    if before is not None and before["set_by"] != code.actor:
        return
    if asked:
        await set_limit(tx, engine, code, workspace, key, **asked)
    elif before is not None:
        await remove_limit(tx, engine, code, workspace, key)


async def _limit_row(tx: Tx, workspace: str, key: str) -> Row | None:
    rows = await tx.all("list_limits", workspace=workspace)
    return next((row for row in rows if row["key"] == key), None)


async def _shown(tx: Tx, engine: Engine, workspace: str, types: Mapping[str, _Stored]) -> list[TaskType]:
    live = await _live(tx, workspace)
    resolver = await engine.settings_cache.as_written(tx, workspace)
    limits = {row["key"]: row for row in await tx.all("list_limits", workspace=workspace)}
    return [
        TaskType(
            name=name,
            payload_schema=each.declared.payload_schema,
            result_schema=each.declared.result_schema,
            options=each.declared.options,
            set_by="operator" if each.by_operator else "worker",
            changed_at=each.changed_at,
            changed_by=each.changed_by,
            drift=[
                *_drift_of_workers(each.declared, live.get(name, {})),
                *_drift_of_settings(each.declared, resolver),
                *_drift_of_limit(each.declared, limits),
            ],
        )
        for name, each in sorted(types.items())
    ]


_OTHERWISE = {
    "payload_schema": "another payload schema",
    "result_schema": "another result schema",
    "options": "other options",
}


def _drift_of_workers(current: TypeDeclaration, live: Mapping[str, Digests]) -> list[TypeDrift]:
    known = policy.digests(current)
    return [
        TypeDrift(part, f"{agent} declares {_OTHERWISE[part]}", agent)
        for agent, declared in live.items()
        for part in policy.differing(declared, known)
    ]


def _drift_of_settings(current: TypeDeclaration, resolver: Resolver) -> list[TypeDrift]:
    """Options of the code that a setting of the type overrides."""
    declared = mentioned(current.options.settings())
    return [
        TypeDrift(each.key, f"{each.key} is {_text(each.value)} from {each.source}; the code declares {_text(value)}")
        for each in (resolver.in_force(current.name) if declared else ())
        if (value := declared.get(each.key, each.value)) != each.value
    ]


def _drift_of_limit(current: TypeDeclaration, limits: Mapping[str, Row]) -> list[TypeDrift]:
    declared, row = current.options.limit(), limits.get(Key(type=current.name).text)
    if not declared:
        return []
    terms = {} if row is None else msgspec.json.decode(row["terms"])
    if row is None:
        return [TypeDrift("limit", "the limit that the code declares was removed")]
    found = {name: value for name, value in terms.items() if value is not None}
    if row["set_by"] == source_of_code(current.name) or found == declared:
        return []
    what = f"the limit is {_text(found)}, set by {row['set_by']}, not {_text(declared)} as declared"
    return [TypeDrift("limit", what)]
