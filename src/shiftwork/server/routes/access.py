"""Serves the caller's identity."""

from __future__ import annotations

from shiftwork.access.api import Account
from shiftwork.access.model import Me
from shiftwork.server.endpoint import serves
from shiftwork.server.request_context import RequestContext


@serves(Account.me)
async def me(context: RequestContext) -> Me:
    return Me(context.queue.workspace, sorted(context.who.scopes), context.who.name, context.queue.now())
