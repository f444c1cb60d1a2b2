"""What a token may do: five scopes, and which of them opens what."""

from __future__ import annotations

from collections.abc import Collection

MEANING: dict[str, str] = {
    "read": "look at everything of the workspace; change nothing",
    "submit": "bring work in",
    "work": "claim tasks, and write under claims that were made with the same token",
    "operate": "cancel, change, review, pause and purge; with `work`, write under any claim",
    "admin": "everything: also settings and tokens",
}

SCOPES = tuple(MEANING)


def allows(scopes: Collection[str], needed: str) -> bool:
    """Whether somebody with these scopes may do what needs one: admin opens all, and every scope lets one look."""
    if needed == "read":
        return any(scope in MEANING for scope in scopes)
    return needed in scopes or "admin" in scopes
