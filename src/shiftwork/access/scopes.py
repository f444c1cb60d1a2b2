"""Token scopes and what each of them allows."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

MEANING: dict[str, str] = {
    "read": "look at everything of the workspace; change nothing",
    "submit": "bring work in",
    "work": "claim tasks, and write under claims that were made with the same token",
    "operate": "cancel, change, review, pause and purge; with `work`, write under any claim",
    "admin": "everything of the workspace: also settings and tokens",
    "server": "the server itself: snapshots, quotas and the settings all workspaces share; no other scope includes it",
}

SCOPES = tuple(MEANING)
SERVER: Final = "server"
"""Of the operator of a server. A workspace's admin neither has it nor gives it: tenants of one server are strangers."""


def allows(scopes: Collection[str], needed: str) -> bool:
    """Whether these scopes allow what needs one: admin allows all of its workspace, and every scope allows reading."""
    if needed == "read":
        return any(scope in MEANING for scope in scopes)
    return needed in scopes or (needed != SERVER and "admin" in scopes)
