"""The executor of a queue on many databases: each operation runs in the database that owns its workspace."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec

from shiftwork.databases.api import Workspaces
from shiftwork.databases.health import DatabaseReport
from shiftwork.databases.model import WorkspaceInfo
from shiftwork.databases.routes import Routes
from shiftwork.engine.engine import Caller
from shiftwork.model.errors import StoreUnavailable, WorkspaceMoved, WorkspaceMoving
from shiftwork.operation.declare import Operation, operation_of
from shiftwork.operation.local import Call
from shiftwork.operation.shared import Shared

PATIENCE_SEC = 10.0
"""How long a call waits for a workspace that is being moved."""

RETRY_SEC = 0.05
_LIST = operation_of(Workspaces.list)
_DATABASES = operation_of(Workspaces.databases)


class RoutedCall(Call):
    """One caller's access to a workspace, in whichever database it is."""

    def __init__(self, routes: Routes, workspace: str, caller: Caller) -> None:
        super().__init__(routes.place(workspace), workspace, caller)
        self.routes = routes

    @property
    def shared(self) -> Shared:
        return self.routes.place(self.workspace)

    async def perform(self, operation: Operation, values: dict[str, Any]) -> Any:
        """Run an operation in the owning database. If the workspace has moved, retry: the refusal changed nothing."""
        if operation is _LIST:
            return await self._list()
        if operation is _DATABASES:
            return [each.database for each in await self.reports()]
        self.routes.require_database(self.routes.owner(self.workspace))
        loop = asyncio.get_running_loop()
        deadline = loop.time() + PATIENCE_SEC
        while True:
            try:
                self.routes.require_arrived(self.workspace)
                return await Call(self.shared, self.workspace, self.caller).perform(operation, values)
            except (WorkspaceMoved, WorkspaceMoving):
                if loop.time() > deadline:
                    raise
            except StoreUnavailable as error:
                raise _in_database(self.routes.owner(self.workspace), error) from error
            if self.caller.idempotency is not None:
                self.caller.idempotency.begin_again()
            await asyncio.sleep(RETRY_SEC)
            await self.routes.refresh()

    async def reports(self) -> list[DatabaseReport]:
        """Check all databases concurrently, so that one outage does not delay the others."""
        return await asyncio.gather(*(self.routes.report(name) for name in self.routes.databases))

    async def _list(self) -> Sequence[WorkspaceInfo]:
        """The workspaces of all databases, each as reported by its owner."""
        found: list[WorkspaceInfo] = []
        for database, there in await self.reports():
            name = database.name or ""
            if database.state == "down":
                found += [
                    WorkspaceInfo(each, database=name, state="unreachable") for each in self.routes.known_in(name)
                ]
            for each in there:
                row = self.routes.row(name, each.name)
                state = "here" if row is None else row["state"]
                to = row["peer"] if row is not None and state == "leaving" else None
                found.append(msgspec.structs.replace(each, database=name, state=state, moving_to=to))
        return sorted(found, key=lambda each: each.name)


def _in_database(name: str, error: StoreUnavailable) -> StoreUnavailable:
    """Name the database in the error, since the others are available."""
    return type(error)(
        f"the database {name} of the map: {error.what}", where=error.where, hint=error.hint, **error.facts
    )
