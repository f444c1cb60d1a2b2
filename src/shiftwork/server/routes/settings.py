"""Settings in force, where they come from, and their change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from shiftwork.core.errors import Forbidden, UnknownSetting
from shiftwork.core.resolve import InForce
from shiftwork.core.scopes import SERVER
from shiftwork.core.settings import OF_SERVER
from shiftwork.server.ask import Ask
from shiftwork.server.door import Doors, Query
from shiftwork.wire.access import require
from shiftwork.wire.shapes import SettingInForce, SettingsBody, SettingsList

door = Doors("Settings")


class SettingsQuery(Query):
    type: str | None = None
    """As they are for tasks of this type."""


@door("GET /api/settings", "read", query=SettingsQuery, answer=SettingsList)
async def show_settings(ask: Ask) -> Any:
    """Every setting in force, and where it comes from."""
    return await _listed(ask, await ask.queue.settings(ask.query.type))


async def _listed(ask: Ask, found: list[InForce]) -> SettingsList:
    return SettingsList([SettingInForce(*setting) for setting in found], await ask.queue.profile())


@door(
    "PATCH /api/settings",
    "admin",
    body=SettingsBody,
    query=SettingsQuery,
    answer=SettingsList,
    errors=(UnknownSetting,),
)
async def change_settings(ask: Ask, body: SettingsBody) -> Any:
    """Change settings of the workspace or of a type, all together or none; in force at once.

    What the whole server takes from the workspace `default` needs the scope `server`.
    """
    if ask.queue.workspace == "default" and {key.partition(".")[0] for key in [*body.set, *body.unset]} & {*OF_SERVER}:
        require(ask.who, SERVER)
    _check_folder(ask, body.set.get("claim_folder"))
    changed = await ask.queue.change_settings(body.set, body.unset, type=ask.query.type, profile=body.profile)
    return await _listed(ask, changed)


def _check_folder(ask: Ask, folder: Any) -> None:
    """Claims write into this folder of the server's machine, so its operator says which there are."""
    if isinstance(folder, str) and Path(folder).resolve() not in ask.house.claim_folders:
        raise Forbidden(
            "this server was not started with this folder",
            where="claim_folder",
            mend="Its operator allows it with `serve --claim-folder FOLDER`, or sets it with `shiftwork bridge loki`.",
        )
