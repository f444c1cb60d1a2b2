"""Caches the settings in force of each workspace."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from shiftwork.model import check
from shiftwork.model.errors import InputError
from shiftwork.settings.model import InForce
from shiftwork.settings.resolve import DeclaredType, Resolver, check_value, drop, load_profile, merge
from shiftwork.store.store import Row, Store, Tx

log = logging.getLogger("shiftwork.engine")
FRESH_SEC = 1.0
"""How long a change made by another process may go unnoticed."""


class _Levels(NamedTuple):
    """The levels from which a workspace's settings are resolved."""

    profile: str
    own: dict[str, Any]
    types: dict[str, dict[str, Any]]
    declared: Mapping[str, DeclaredType]

    def resolver(self) -> Resolver:
        return Resolver(load_profile(self.profile), self.own, self.types, self.declared)


class SettingsCache:
    """Keeps each workspace's settings resolved; changes in this process are visible at once."""

    def __init__(self, profile: str) -> None:
        self.default_profile = load_profile(profile).name
        self._known: dict[str, tuple[float, Resolver]] = {}
        self._recorded: set[str] = set()
        self._declared: dict[str, tuple[str, Mapping[str, DeclaredType]]] = {}
        """The types of each workspace, with the version read."""

    async def load(self, tx: Tx, workspace: str) -> Resolver:
        """For use inside a verb."""
        known = self._known.get(workspace)
        if known is not None and time.monotonic() < known[0]:
            return known[1]
        resolver = await self._load(tx, workspace)
        self._known[workspace] = time.monotonic() + FRESH_SEC, resolver
        return resolver

    async def load_many(self, tx: Tx, workspaces: Iterable[str]) -> dict[str, Resolver]:
        """The same for many, in one statement."""
        asked = list(workspaces)
        late = [name for name in asked if name not in self._known or time.monotonic() >= self._known[name][0]]
        rows: dict[str, list[Row]] = {}
        for row in await tx.all("settings_of_many", items=[(name,) for name in late]) if late else []:
            rows.setdefault(row["name"], []).append(row)
        for name, found in rows.items():
            declared = await self._types(tx, name, found[0]["types_version"])
            levels = self._sort(found[0]["profile"], [row for row in found if row["key"] is not None], declared)
            self._known[name] = time.monotonic() + FRESH_SEC, levels.resolver()
        return {name: self._known[name][1] for name in asked}

    async def get(self, store: Store, workspace: str) -> Resolver:
        """For use before a verb."""
        known = self._known.get(workspace)
        if known is not None and time.monotonic() < known[0]:
            return known[1]
        return await store.read(lambda tx: self.load(tx, workspace))

    async def _load(self, tx: Tx, workspace: str) -> Resolver:
        return (await self._levels(tx, workspace)).resolver()

    async def _levels(self, tx: Tx, workspace: str) -> _Levels:
        row = await tx.one("read_workspace", name=workspace)
        if row:
            self._recorded.add(workspace)
        declared = await self._types(tx, workspace, row["types_version"] if row else None)
        settings = await tx.all("read_settings", workspace=workspace)
        return self._sort(row["profile"] if row else None, settings, declared)

    async def _types(self, tx: Tx, workspace: str, version: str | None) -> Mapping[str, DeclaredType]:
        """The types of a workspace; read again only if their version has changed."""
        if version is None:
            return {}
        known = self._declared.get(workspace)
        if known is None or known[0] != version:
            rows = await tx.all("read_types", workspace=workspace)
            known = self._declared[workspace] = version, {row["name"]: _declared(row) for row in rows}
        return known[1]

    def _sort(self, profile: str | None, settings: Iterable[Row], declared: Mapping[str, DeclaredType]) -> _Levels:
        """The workspace's own settings, and those of each type."""
        own: dict[str, Any] = {}
        types: dict[str, dict[str, Any]] = {}
        for setting in settings:
            level = own if setting["scope"] == "" else types.setdefault(setting["scope"], {})
            level.update(merge(level, _stored(setting["key"], setting["value"])))
        return _Levels(profile or self.default_profile, own, types, declared)

    async def change(
        self, tx: Tx, workspace: str, scope: str, key: str, value: Any, actor: str, *, unset: bool
    ) -> None:
        """Set or clear one key; refuses values that conflict with the others."""
        change = check_value(key, value) if not unset else {}
        levels = await self._levels(tx, workspace)
        level = levels.own if scope == "" else levels.types.get(scope, {})
        level = drop(level, key) if unset else merge(level, change)
        changed = {"own": level} if scope == "" else {"types": {**levels.types, scope: level}}
        levels._replace(**changed).resolver()  # raises before anything is written
        await tx.run("drop_setting", workspace=workspace, scope=scope, key=key, below=f"{key}.%")
        if not unset:
            text = msgspec.json.encode(value).decode()
            await tx.run("save_setting", workspace=workspace, scope=scope, key=key, value=text, now=tx.now, actor=actor)

    async def in_force(self, tx: Tx, workspace: str, scope: str) -> list[InForce]:
        """The settings as this transaction sees them, including its own changes."""
        return (await self.as_written(tx, workspace)).in_force(scope or None)

    async def as_written(self, tx: Tx, workspace: str) -> Resolver:
        """Update the cache with the changes of this transaction."""
        return await self._load(tx, workspace)

    async def add(self, tx: Tx, workspace: str) -> None:
        """Record a workspace with the default profile; an existing one keeps its own."""
        if workspace in self._recorded:
            return
        await tx.run("add_workspace", name=workspace, profile=self.default_profile, now=tx.now)

    def has(self, workspace: str) -> bool:
        """Whether the workspace is known to be recorded."""
        return workspace in self._recorded

    def forget_recorded(self, workspace: str) -> None:
        """Forget that a workspace is recorded: the transaction may be rolled back."""
        self._recorded.discard(workspace)

    def mark_recorded(self, workspace: str) -> None:
        """Remember that a workspace is recorded: the transaction is committed."""
        self._recorded.add(workspace)

    async def use_profile(self, tx: Tx, workspace: str, profile: str) -> None:
        (await self._levels(tx, workspace))._replace(profile=profile).resolver()
        await tx.run("add_workspace", name=workspace, profile=profile, now=tx.now)
        await tx.run("set_profile", name=workspace, profile=profile)

    async def check_declared(self, tx: Tx, workspace: str, declared: Mapping[str, DeclaredType]) -> None:
        """Refuse types whose settings conflict with the others."""
        (await self._levels(tx, workspace))._replace(declared=declared).resolver()

    def forget(self, workspace: str) -> None:
        self._known.pop(workspace, None)


def _stored(key: str, value: str) -> dict[str, Any]:
    """Leave out another version's unknown settings: they must not make the workspace unusable."""
    try:
        return check_value(key, msgspec.json.decode(value))
    except InputError as error:
        log.warning("ignoring a stored setting: %s", error)
        return {}


def _declared(row: Row) -> DeclaredType:
    level: dict[str, Any] = {}
    for key, value in msgspec.json.decode(row["settings"]).items():
        level.update(merge(level, _stored(key, msgspec.json.encode(value).decode())))
    payload, result = row["payload_schema"], row["result_schema"]
    return DeclaredType(level, payload and payload.encode(), result and result.encode())


def check_workspace(name: str) -> str:
    return check.name(name, "workspace")
