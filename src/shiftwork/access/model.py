"""Tokens, as callers see them."""

from __future__ import annotations

from typing import Literal

import msgspec

TokenScope = Literal["read", "submit", "work", "operate", "admin", "server"]


class TokenInfo(msgspec.Struct, frozen=True):
    """A token as a reader sees it."""

    id: str
    name: str
    workspace_id: str
    scopes: list[str]
    status: Literal["active", "expired", "revoked"]
    created_at: float
    created_by: str
    expires_at: float | None
    revoked_at: float | None


class NewToken(msgspec.Struct, frozen=True):
    """A new token: the only time that its secret is shown."""

    id: str
    name: str
    workspace_id: str
    scopes: list[str]
    secret: str
    created_at: float
    created_by: str
    expires_at: float | None

    def __repr__(self) -> str:
        """Without the secret, which must not appear in a log or a traceback."""
        return f"NewToken(id={self.id!r}, name={self.name!r}, scopes={self.scopes!r})"


class Me(msgspec.Struct, frozen=True):
    """The caller's identity on a server, and the server's time."""

    workspace: str
    scopes: list[str]
    token: str | None
    now: float
