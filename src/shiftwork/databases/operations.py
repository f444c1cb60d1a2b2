"""Implements the operations on workspaces in one database; `routed_executor.py` combines all databases."""

from __future__ import annotations

from shiftwork.databases import health
from shiftwork.databases.api import Workspaces
from shiftwork.databases.model import DatabaseInfo, WorkspaceInfo
from shiftwork.engine.engine import Caller, Engine
from shiftwork.operation.local import Call, implements, reading
from shiftwork.store.store import Tx


@reading(Workspaces.list)
async def list_workspaces(tx: Tx, engine: Engine, caller: Caller, workspace: str) -> list[WorkspaceInfo]:
    return await health.workspaces(tx)


@implements(Workspaces.databases)
async def list_databases(call: Call) -> list[DatabaseInfo]:
    return [(await health.report(call.engine)).database]
