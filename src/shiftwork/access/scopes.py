"""Token scopes and what each of them allows."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

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
