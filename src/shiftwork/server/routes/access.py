"""Serves who the caller is."""

from __future__ import annotations

from shiftwork.access.api import Account
from shiftwork.access.model import Me
from shiftwork.server.ask import Ask
from shiftwork.server.handlers import serves


@serves(Account.me)
async def me(ask: Ask) -> Me:
    return Me(ask.queue.workspace, sorted(ask.who.scopes), ask.who.name, ask.queue.now())
