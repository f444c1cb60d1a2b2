"""What starts work by itself: triggers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shiftwork.client.handle import Handle, given, new_key, part
from shiftwork.core.trigger import Fire, Firing, NewTrigger, Preview, SavedTrigger, Trigger
from shiftwork.queue import check
from shiftwork.wire.protection import Removed
from shiftwork.wire.triggers import FiringList, TriggerList


class Triggering(Handle):
    """Verbs about triggers."""

    async def save_trigger(
        self,
        /,
        name: str,
        trigger: NewTrigger | Mapping[str, Any] | None = None,
        *,
        secret: str | None = None,
        **fields: Any,
    ) -> SavedTrigger:
        new = check.read(fields if trigger is None else trigger, NewTrigger, "trigger")
        body = {**check.plain(new, "trigger"), **given(secret=secret)}
        return await self._send("PUT", _path(name), SavedTrigger, body, key=new_key())

    async def triggers(self, *, after: str = "", limit: int = 100) -> list[Trigger]:
        return (await self._get("/api/triggers", TriggerList, after=after, limit=limit)).triggers

    async def trigger(self, name: str) -> Trigger:
        return await self._get(_path(name), Trigger)

    async def firings(self, name: str, *, limit: int = 20) -> list[Firing]:
        return (await self._get(f"{_path(name)}/firings", FiringList, limit=limit)).firings

    async def pause_trigger(self, name: str) -> Trigger:
        return await self._once(f"{_path(name)}/pause", Trigger)

    async def resume_trigger(self, name: str) -> Trigger:
        return await self._once(f"{_path(name)}/resume", Trigger)

    async def remove_trigger(self, name: str) -> bool:
        return (await self._send("DELETE", _path(name), Removed, key=new_key())).removed

    async def fire_trigger(self, /, name: str, given: Fire | Mapping[str, Any] | None = None, **fields: Any) -> Firing:
        body = check.read(fields if given is None else given, Fire, "fire")
        return await self._once(f"{_path(name)}/fire", Firing, body)

    async def preview_trigger(
        self, /, name: str, given: Fire | Mapping[str, Any] | None = None, **fields: Any
    ) -> Preview:
        body = check.read(fields if given is None else given, Fire, "fire")
        return await self._post(f"{_path(name)}/preview", Preview, body)


def _path(name: str) -> str:
    return f"/api/triggers/{part(name, 'name')}"
