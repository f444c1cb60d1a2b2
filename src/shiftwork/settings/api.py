"""Settings, as callers see them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from shiftwork.model.errors import UnknownSetting
from shiftwork.model.task import Name
from shiftwork.operation.declare import Namespace, operation
from shiftwork.operation.parameters import Accepts
from shiftwork.settings.model import InForce, SettingsChanges, SettingsInForce


class Settings(Namespace, name="settings", group="Settings"):
    """The settings of a workspace and of its types of task."""

    @operation("GET /api/settings", "read")
    async def show(self, type: Name | None = None) -> SettingsInForce:
        """Return the profile, and every setting in force for the workspace or for a type, with its source."""

    @operation("PATCH /api/settings", "admin", body="changes", errors=(UnknownSetting,))
    async def apply(
        self,
        changes: Annotated[SettingsChanges | Mapping[str, Any], Accepts(SettingsChanges)],
        type: Name | None = None,
    ) -> SettingsInForce:
        """Change settings of the workspace or of a type, all or none; in force at once.

        The profile is changed first, then settings are unset, then set. A setting that the whole server reads from the
        workspace `default` needs the scope `server`.
        """

    async def change(
        self,
        values: Mapping[str, Any] | None = None,
        unset: Sequence[str] = (),
        *,
        type: str | None = None,
        profile: str | None = None,
    ) -> list[InForce]:
        """Change several settings, and perhaps the profile, all or none."""
        changes = {"set": dict(values or {}), "unset": [*unset], "profile": profile}
        return (await self.apply(changes, type)).settings

    async def set(self, key: str, value: Any, type: str | None = None) -> list[InForce]:
        """Change one setting of the workspace or of a type; in force at once, recorded as an event."""
        return await self.change({key: value}, type=type)

    async def unset(self, key: str, type: str | None = None) -> list[InForce]:
        """Remove one setting of the workspace or of a type: the level above decides again."""
        return await self.change(unset=[key], type=type)

    async def profile(self) -> str:
        """Return the profile of this workspace."""
        return (await self.show()).profile

    async def use_profile(self, profile: str) -> None:
        """Choose the profile of this workspace."""
        await self.change(profile=profile)

    async def list(self, type: str | None = None) -> list[InForce]:
        """Return every setting in force for the workspace or for a type, with its source."""
        return (await self.show(type)).settings
