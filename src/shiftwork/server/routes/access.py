"""Tokens, and who the caller is."""

from __future__ import annotations

from typing import Any

from shiftwork.core.errors import ConflictError, NotFound
from shiftwork.core.scopes import SERVER
from shiftwork.queue.tokens import NewToken, TokenInfo
from shiftwork.server.ask import Ask
from shiftwork.server.door import Doors
from shiftwork.wire.access import require
from shiftwork.wire.shapes import Me, TokenBody, TokenList

door = Doors("Access")


@door("GET /api/me", "read", answer=Me)
async def me(ask: Ask) -> Any:
    """Who the caller is to this server, and what time it is there."""
    return Me(ask.queue.workspace, sorted(ask.who.scopes), ask.who.name, ask.queue.now())


@door("POST /api/tokens", "admin", body=TokenBody, answer=NewToken, status=201, errors=(ConflictError,))
async def create_token(ask: Ask, body: TokenBody) -> Any:
    """Make a token for this workspace. Its secret is answered once and never again.

    The scope `server` is given by the operator of the server alone.
    """
    if SERVER in body.scopes:
        require(ask.who, SERVER)
    return await ask.queue.create_token(body.name, body.scopes, expires_at=body.expires_at)


@door("GET /api/tokens", "admin", answer=TokenList)
async def list_tokens(ask: Ask) -> Any:
    """All tokens of this workspace, without their secrets."""
    return TokenList(await ask.queue.tokens())


@door("DELETE /api/tokens/{token_id}", "admin", answer=TokenInfo, errors=(NotFound,))
async def revoke_token(ask: Ask) -> Any:
    """Let a token open no more doors; in force on every server within a second or two."""
    if not ask.who.may(SERVER):
        known = {token.id: token for token in await ask.queue.tokens()}.get(ask.path["token_id"])
        if known is not None and SERVER in known.scopes:
            require(ask.who, SERVER)
    return await ask.queue.revoke_token(ask.path["token_id"])
