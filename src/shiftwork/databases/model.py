"""Workspaces, their databases, and the result of a move."""

from __future__ import annotations

from typing import Literal

import msgspec


class WorkspaceInfo(msgspec.Struct, frozen=True):
    """A workspace and its database. Counts are None while the database does not answer."""

    name: str
    profile: str | None = None
    created_at: float | None = None
    open_tasks: int | None = None
    """Tasks that are not finished."""
    ready: int | None = None
    running: int | None = None
    """Tasks that an agent holds."""
    dead_lettered: int | None = None
    database: str | None = None
    """The name of its database in the map; None for a queue on one database."""
    state: Literal["here", "leaving", "arriving", "unreachable"] = "here"
    moving_to: str | None = None


class DatabaseInfo(msgspec.Struct, frozen=True):
    """One database of a queue, and its health."""

    name: str | None
    """Its name in the map; None for a queue on one database."""
    state: Literal["up", "read_only", "down"]
    """`read_only` if it answers but accepts no writes."""
    is_default: bool
    """Whether new workspaces are created here."""
    workspaces: int
    open_tasks: int | None = None
    ready: int | None = None
    running: int | None = None
    dead_lettered: int | None = None
    answered_in_ms: float | None = None
    maintenance_late_sec: float | None = None
    """For how long the latest of its maintenance jobs has been late; 0 if none is."""
    error: str | None = None
    """Why it is not `up`."""


class Moved(msgspec.Struct, frozen=True):
    """The result of a move."""

    workspace: str
    source: str
    target: str
    generation: int
    rows: int
    rest_rows: int
    """Rows copied while writes were paused."""
    checksum: str
    """The checksum of all rows, equal in both databases before the switch."""
    copied_sec: float
    """How long the copy took while the workspace accepted writes."""
    paused_sec: float
    """How long writes were paused."""
