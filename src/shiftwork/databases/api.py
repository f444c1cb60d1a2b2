"""Workspaces, as the operator of a queue sees them."""

from __future__ import annotations

from shiftwork.databases.model import WorkspaceInfo
from shiftwork.operation.declare import Namespace, operation


class Workspaces(Namespace, name="workspaces", group="Operation"):
    """The workspaces of a queue, and the databases they are in."""

    @operation("GET /api/workspaces", "server", envelope="workspaces")
    async def list(self) -> list[WorkspaceInfo]:
        """Return every workspace with its database and its number of open tasks."""
