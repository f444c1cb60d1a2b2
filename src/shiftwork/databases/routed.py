"""The executor of a queue on many databases: each operation runs in the database that owns its workspace."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec

from shiftwork.databases.api import Workspaces
from shiftwork.databases.model import WorkspaceInfo
from shiftwork.databases.routes import Routes
from shiftwork.engine.engine import Caller
from shiftwork.model.errors import WorkspaceMoved, WorkspaceMoving
from shiftwork.operation.declare import Operation, operation_of
from shiftwork.operation.local import Call, Shared

PATIENCE_SEC = 10.0
"""How long a call waits for a workspace that is being moved."""

LOOK_AGAIN_SEC = 0.05
_LIST = operation_of(Workspaces.list)


class RoutedCall(Call):
    """One caller's access, wherever its workspace is now."""

    def __init__(self, routes: Routes, workspace: str, caller: Caller) -> None:
        super().__init__(routes.place(workspace), workspace, caller)
        self.routes = routes

    @property
    def shared(self) -> Shared:
        return self.routes.place(self.workspace)

    async def perform(self, operation: Operation, values: dict[str, Any]) -> Any:
        """Run it where the workspace is, and again where it went meanwhile: what was refused has changed nothing."""
        if operation is _LIST:
            return await self._list()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + PATIENCE_SEC
        while True:
            try:
                self.routes.require_arrived(self.workspace)
                return await Call(self.shared, self.workspace, self.caller).perform(operation, values)
            except (WorkspaceMoved, WorkspaceMoving):
                if loop.time() > deadline:
                    raise
            if self.caller.idempotency is not None:
                self.caller.idempotency.begin_again()
            await asyncio.sleep(LOOK_AGAIN_SEC)
            await self.routes.refresh()

    async def _list(self) -> Sequence[WorkspaceInfo]:
        """The workspaces of all databases, each as its owner has it."""
        found: list[WorkspaceInfo] = []
        for name, shared in self.routes.databases.items():
            there: list[WorkspaceInfo] = await Call(shared, "", self.caller).perform(_LIST, {})
            for each in there:
                row = self.routes.row(name, each.name)
                if self.routes.owner(each.name) == name:
                    state = "here" if row is None else row["state"]
                    to = row["peer"] if row is not None and state == "leaving" else None
                    found.append(msgspec.structs.replace(each, database=name, state=state, moving_to=to))
        return sorted(found, key=lambda each: each.name)
