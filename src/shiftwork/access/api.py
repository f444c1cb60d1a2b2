"""Tokens, as callers see them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta

from shiftwork.access.model import Me, NewToken, TokenInfo, TokenScope
from shiftwork.model.errors import ConflictError, NotFound
from shiftwork.model.task import Name
from shiftwork.model.times import Time
from shiftwork.operation.declare import Namespace, operation
from shiftwork.operation.parameters import Accepts

Scopes = Annotated[Sequence[str], Accepts(Annotated[list[TokenScope], Meta(min_length=1)])]


class Tokens(Namespace, name="tokens", group="Access"):
    """Access tokens of this workspace for HTTP."""

    @operation("POST /api/tokens", "admin", status=201, errors=(ConflictError,))
    async def create(self, name: Name, scopes: Scopes, *, expires_at: Time | None = None) -> NewToken:
        """Create a token for this workspace. Its secret is only in this answer.

        Only a caller with the scope `server` can grant the scope `server`.
        """

    @operation("DELETE /api/tokens/{token_id}", "admin", errors=(NotFound,))
    async def revoke(self, token_id: Name) -> TokenInfo:
        """Revoke a token, on every server within two seconds. Only the scope `server` revokes a token with `server`."""

    @operation("GET /api/tokens", "admin", envelope="tokens")
    async def list(self) -> list[TokenInfo]:
        """Return the tokens of this workspace without their secrets, oldest first, including expired and revoked
        ones.
        """


class Account(Namespace, name="account", group="Access"):
    """The caller of a server; served over HTTP alone."""

    @operation("GET /api/me", "read")
    async def me(self) -> Me:
        """Return the caller's identity on this server, and the server's time."""
