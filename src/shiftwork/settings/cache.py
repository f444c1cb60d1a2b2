"""Settings in force per workspace, as this process knows them."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from typing import Any

import msgspec

from shiftwork.model import check
from shiftwork.model.errors import InputError
from shiftwork.settings.model import InForce
from shiftwork.settings.resolve import Resolver, check_value, drop, load_profile, merge
from shiftwork.store.store import Row, Store, Tx

log = logging.getLogger("shiftwork.engine")
FRESH_SEC = 1.0
"""How long a change made by another process may go unnoticed."""


class SettingsCache:
    """Keeps each workspace's settings resolved; a change in this process is seen at once."""

    def __init__(self, profile: str) -> None:
        self.default_profile = load_profile(profile).name
        self._known: dict[str, tuple[float, Resolver]] = {}
        self._recorded: set[str] = set()

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
            profile, own, types = self._sort(found[0]["profile"], [row for row in found if row["key"] is not None])
            self._known[name] = time.monotonic() + FRESH_SEC, Resolver(load_profile(profile), own, types)
        return {name: self._known[name][1] for name in asked}

    async def get(self, store: Store, workspace: str) -> Resolver:
        """For use before a verb."""
        known = self._known.get(workspace)
        if known is not None and time.monotonic() < known[0]:
            return known[1]
        return await store.read(lambda tx: self.load(tx, workspace))

    async def _load(self, tx: Tx, workspace: str) -> Resolver:
        profile, values, types = await self._levels(tx, workspace)
        return Resolver(load_profile(profile), values, types)

    async def _levels(self, tx: Tx, workspace: str) -> tuple[str, dict[str, Any], dict[str, dict[str, Any]]]:
        row = await tx.one("read_workspace", name=workspace)
        if row:
            self._recorded.add(workspace)
        return self._sort(row["profile"] if row else None, await tx.all("read_settings", workspace=workspace))

    def _sort(
        self, profile: str | None, settings: Iterable[Row]
    ) -> tuple[str, dict[str, Any], dict[str, dict[str, Any]]]:
        """The workspace's own settings, and those of each type."""
        own: dict[str, Any] = {}
        types: dict[str, dict[str, Any]] = {}
        for setting in settings:
            level = own if setting["scope"] == "" else types.setdefault(setting["scope"], {})
            level.update(merge(level, _stored(setting["key"], setting["value"])))
        return profile or self.default_profile, own, types

    async def change(
        self, tx: Tx, workspace: str, scope: str, key: str, value: Any, actor: str, *, unset: bool
    ) -> None:
        """Set or clear one key, refusing what would not work together with the rest."""
        change = check_value(key, value) if not unset else {}
        profile, own, types = await self._levels(tx, workspace)
        level = own if scope == "" else types.get(scope, {})
        level = drop(level, key) if unset else merge(level, change)
        own, types = (level, types) if scope == "" else (own, {**types, scope: level})
        Resolver(load_profile(profile), own, types)  # raises before anything is written
        await tx.run("drop_setting", workspace=workspace, scope=scope, key=key, below=f"{key}.%")
        if not unset:
            text = msgspec.json.encode(value).decode()
            await tx.run("save_setting", workspace=workspace, scope=scope, key=key, value=text, now=tx.now, actor=actor)

    async def in_force(self, tx: Tx, workspace: str, scope: str) -> list[InForce]:
        """As this transaction sees them, its own changes included."""
        return (await self.as_written(tx, workspace)).in_force(scope or None)

    async def as_written(self, tx: Tx, workspace: str) -> Resolver:
        """What `of` knows a moment later: with the changes of this transaction."""
        return await self._load(tx, workspace)

    async def add(self, tx: Tx, workspace: str) -> None:
        """Record a workspace with the profile of new ones; one that exists keeps its own."""
        if workspace in self._recorded:
            return
        await tx.run("add_workspace", name=workspace, profile=self.default_profile, now=tx.now)

    def has(self, workspace: str) -> bool:
        """Whether it is known that the workspace is recorded."""
        return workspace in self._recorded

    def mark_recorded(self, workspace: str) -> None:
        """A transaction that recorded the workspace is committed."""
        self._recorded.add(workspace)

    async def use_profile(self, tx: Tx, workspace: str, profile: str) -> None:
        _, own, types = await self._levels(tx, workspace)
        Resolver(load_profile(profile), own, types)
        await tx.run("add_workspace", name=workspace, profile=profile, now=tx.now)
        await tx.run("set_profile", name=workspace, profile=profile)

    def forget(self, workspace: str) -> None:
        self._known.pop(workspace, None)


def _stored(key: str, value: str) -> dict[str, Any]:
    """A setting of another version that means nothing here is left out: it must not lock its workspace."""
    try:
        return check_value(key, msgspec.json.decode(value))
    except InputError as error:
        log.warning("a stored setting is not used: %s", error)
        return {}


def check_workspace(name: str) -> str:
    return check.name(name, "workspace")
