"""What a caller needs for an operation besides its scope: rules that look at what is asked for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from shiftwork.access.api import Tokens
from shiftwork.access.authenticator import require
from shiftwork.access.scopes import SERVER
from shiftwork.model.errors import Forbidden
from shiftwork.operation.declare import operation_of
from shiftwork.server.ask import Ask
from shiftwork.settings.api import Settings
from shiftwork.settings.model import OF_SERVER

Rule = Callable[[Ask, dict[str, Any]], Awaitable[None]]
"""Given the request and the operation's parameters by name; raises Forbidden."""

_rules: dict[str, Rule] = {}


def guards(method: Any) -> Callable[[Rule], Rule]:
    """Register the rule of an operation."""

    def register(rule: Rule) -> Rule:
        _rules[operation_of(method).name] = rule
        return rule

    return register


def rule_of(operation: str) -> Rule | None:
    return _rules.get(operation)


@guards(Tokens.create)
async def _create_token(ask: Ask, values: dict[str, Any]) -> None:
    if SERVER in values["scopes"]:
        require(ask.who, SERVER)


@guards(Tokens.revoke)
async def _revoke_token(ask: Ask, values: dict[str, Any]) -> None:
    if ask.who.may(SERVER):
        return
    known = next((token for token in await ask.queue.tokens.list() if token.id == values["token_id"]), None)
    if known is not None and SERVER in known.scopes:
        require(ask.who, SERVER)


@guards(Settings.apply)
async def _change_settings(ask: Ask, values: dict[str, Any]) -> None:
    changes = values["changes"]
    groups = {key.partition(".")[0] for key in [*changes.set, *changes.unset]}
    if ask.queue.workspace == "default" and groups & {*OF_SERVER}:
        require(ask.who, SERVER)
    _check_folder(ask, changes.set.get("claim_folder"))


def _check_folder(ask: Ask, folder: Any) -> None:
    """Claims write into this folder of the server's machine: its operator says which ones there are."""
    if isinstance(folder, str) and Path(folder).resolve() not in ask.house.claim_folders:
        raise Forbidden(
            "this server was not started with this folder",
            where="claim_folder",
            hint="Its operator allows it with `serve --claim-folder FOLDER`, or sets it with `shiftwork bridge loki`.",
        )
