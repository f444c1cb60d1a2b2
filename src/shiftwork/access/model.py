"""Tokens, as callers see them, and their scopes with what each of them allows."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, Literal

import msgspec

MEANING: dict[str, str] = {
    "read": "read everything of the workspace; change nothing",
    "submit": "submit work",
    "work": "claim tasks, and write under claims made with the same token",
    "operate": "cancel, change, review, pause and purge; with `work`, write under any claim",
    "admin": "everything of the workspace, including settings and tokens",
    "server": "the server itself: snapshots, quotas and the settings all workspaces share; no other scope includes it",
}

SCOPES = tuple(MEANING)
SERVER: Final = "server"
"""The scope of a server's operator. A workspace's admin neither has nor grants it: tenants must not affect each
other."""


def allows(scopes: Collection[str], needed: str) -> bool:
    """Whether these scopes include the required one: admin includes all of its workspace, and every scope includes
    reading.
    """
    if needed == "read":
        return any(scope in MEANING for scope in scopes)
    return needed in scopes or (needed != SERVER and "admin" in scopes)


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
