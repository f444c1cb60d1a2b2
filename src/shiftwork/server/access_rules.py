"""Access rules beyond scopes, which check the request's values."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from shiftwork.access.api import Tokens
from shiftwork.access.authenticator import require
from shiftwork.access.model import SERVER
from shiftwork.model.errors import Forbidden
from shiftwork.notifications.api import Sinks
from shiftwork.operation.declare import operation_of
from shiftwork.server.request_context import RequestContext
from shiftwork.settings.api import Settings
from shiftwork.settings.model import OF_SERVER

Rule = Callable[[RequestContext, dict[str, Any]], Awaitable[None]]
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
async def _create_token(context: RequestContext, values: dict[str, Any]) -> None:
    if SERVER in values["scopes"]:
        require(context.who, SERVER)


@guards(Tokens.revoke)
async def _revoke_token(context: RequestContext, values: dict[str, Any]) -> None:
    if context.who.may(SERVER):
        return
    known = next((token for token in await context.queue.tokens.list() if token.id == values["token_id"]), None)
    if known is not None and SERVER in known.scopes:
        require(context.who, SERVER)


@guards(Sinks.add)
@guards(Sinks.update)
async def _private_sink(context: RequestContext, values: dict[str, Any]) -> None:
    """Refuse private addresses: the server's operator, not a workspace's admin, decides what it may reach."""
    if values["allow_private"] is True and not context.queue.engine.private_sinks:
        raise Forbidden(
            "this server sends to public addresses only",
            where="allow_private",
            hint="Its operator can allow others by starting it with --private-sinks.",
        )


@guards(Settings.apply)
async def _change_settings(context: RequestContext, values: dict[str, Any]) -> None:
    changes = values["changes"]
    groups = {key.partition(".")[0] for key in [*changes.set, *changes.unset]}
    if context.queue.workspace == "default" and groups & {*OF_SERVER}:
        require(context.who, SERVER)
    _check_folder(context, changes.set.get("claim_folder"))


def _check_folder(context: RequestContext, folder: Any) -> None:
    """Claims write into this folder on the server's machine, so its operator must allow it."""
    if isinstance(folder, str) and Path(folder).resolve() not in context.state.claim_folders:
        raise Forbidden(
            "this server may not write claims into this folder",
            where="claim_folder",
            hint="Its operator allows it with `serve --claim-folder FOLDER`, or sets it with `shiftwork bridge loki`.",
        )
