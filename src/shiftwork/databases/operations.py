"""What the operations on workspaces do, in one database; `routed.py` asks all of them."""

from __future__ import annotations

from shiftwork.databases.api import Workspaces
from shiftwork.databases.model import WorkspaceInfo
from shiftwork.engine.engine import Caller, Engine
from shiftwork.operation.local import reading
from shiftwork.store.store import Tx


@reading(Workspaces.list)
async def list_workspaces(tx: Tx, engine: Engine, caller: Caller, workspace: str) -> list[WorkspaceInfo]:
    rows = await tx.all("workspace_tasks")
    return [WorkspaceInfo(row["name"], row["profile"], row["created_at"], row["open_tasks"]) for row in rows]
