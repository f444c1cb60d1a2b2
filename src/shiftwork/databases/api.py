"""Workspaces, as the operator of a queue sees them."""

from __future__ import annotations

from shiftwork.databases.model import DatabaseInfo, WorkspaceInfo
from shiftwork.operation.declare import Namespace, operation


class Workspaces(Namespace, name="workspaces", group="Operation"):
    """The workspaces of a queue, and the databases they are in."""

    @operation("GET /api/databases", "server", envelope="databases")
    async def databases(self) -> list[DatabaseInfo]:
        """Return every database of the queue with its state, its workspaces, and how late its maintenance is."""

    @operation("GET /api/workspaces", "server", envelope="workspaces")
    async def list(self) -> list[WorkspaceInfo]:
        """Return every workspace with its database and its numbers of tasks."""
