"""Workspaces, the databases they are in, and what a move came to."""

from __future__ import annotations

from typing import Literal

import msgspec


class WorkspaceInfo(msgspec.Struct, frozen=True):
    """A workspace and where it is."""

    name: str
    profile: str
    created_at: float
    open_tasks: int
    """Tasks that are not finished."""
    database: str | None = None
    """Its database, by its name in the map; None for a queue on one database."""
    state: Literal["here", "leaving", "arriving"] = "here"
    moving_to: str | None = None


class Moved(msgspec.Struct, frozen=True):
    """What a move came to."""

    workspace: str
    source: str
    target: str
    generation: int
    rows: int
    checksum: str
    """Over all rows, equal in both databases before the switch."""
    copied_sec: float
    """How long rows were copied while the workspace took writes."""
    paused_sec: float
    """How long its writes had to wait."""
