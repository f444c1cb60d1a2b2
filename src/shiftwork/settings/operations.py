"""Implements the operations on settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shiftwork.engine.engine import Caller, Engine
from shiftwork.engine.unit_of_work import UnitOfWork
from shiftwork.limits import capacity
from shiftwork.model.errors import InputError
from shiftwork.operation.local import Call, implements
from shiftwork.settings.api import Settings
from shiftwork.settings.model import SettingsChanges, SettingsInForce
from shiftwork.store.store import Tx


@implements(Settings.show)
async def show(call: Call, type: str | None = None) -> SettingsInForce:
    resolver = await call.engine.settings_cache.get(call.engine.store, call.workspace)
    profile = await call.read(lambda tx: _profile(tx, call.engine, call.workspace))
    return SettingsInForce(resolver.in_force(type), profile)


async def _profile(tx: Tx, engine: Engine, workspace: str) -> str:
    row = await tx.one("read_workspace", name=workspace)
    return str(row["profile"]) if row else engine.settings_cache.default_profile


@implements(Settings.apply)
async def apply(call: Call, changes: SettingsChanges | Mapping[str, Any], type: str | None = None) -> SettingsInForce:
    assert isinstance(changes, SettingsChanges)
    if type is not None and changes.profile is not None:
        raise InputError("a profile is for the whole workspace, not for a type", where="type")
    try:
        return await call.run(_apply, call.workspace, type or "", changes)
    finally:
        call.engine.settings_cache.forget(call.workspace)


async def _apply(
    tx: Tx, engine: Engine, caller: Caller, workspace: str, scope: str, changes: SettingsChanges
) -> SettingsInForce:
    if changes.profile is not None:
        await _use_profile(tx, engine, caller, workspace, changes.profile)
    for key in changes.unset:
        await change_setting(tx, engine, caller, workspace, scope, key, None, unset=True)
    for key, value in changes.set.items():
        await change_setting(tx, engine, caller, workspace, scope, key, value, unset=False)
    return SettingsInForce(
        await engine.settings_cache.in_force(tx, workspace, scope), await _profile(tx, engine, workspace)
    )


async def change_setting(
    tx: Tx, engine: Engine, caller: Caller, workspace: str, scope: str, key: str, value: Any, *, unset: bool
) -> None:
    """Set or unset one key for the workspace or a type; recorded, and in force at once."""
    await engine.settings_cache.add(tx, workspace)
    await engine.settings_cache.change(tx, workspace, scope, key, value, caller.actor, unset=unset)
    await capacity.begin_counting(tx, engine, workspace)
    work = UnitOfWork(tx, engine, caller)
    work.emit_for(workspace, "settings_changed", data={"scope": scope, "key": key, "value": None if unset else value})
    await work.save_events()


async def _use_profile(tx: Tx, engine: Engine, caller: Caller, workspace: str, profile: str) -> None:
    await engine.settings_cache.use_profile(tx, workspace, profile)
    await capacity.begin_counting(tx, engine, workspace)
    work = UnitOfWork(tx, engine, caller)
    work.emit_for(workspace, "settings_changed", data={"profile": profile})
    await work.save_events()
