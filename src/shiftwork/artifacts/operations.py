"""Implements the operations on artifacts, except the transfer of bytes."""

from __future__ import annotations

from shiftwork.artifacts import artifact_rows, inputs
from shiftwork.artifacts.api import Artifacts
from shiftwork.artifacts.model import Artifact, Attached
from shiftwork.engine import read
from shiftwork.engine.assignment import Input
from shiftwork.engine.engine import Caller, Engine
from shiftwork.operation.local import reading
from shiftwork.store.store import Tx


@reading(Artifacts.info)
async def artifact_info(tx: Tx, engine: Engine, caller: Caller, workspace: str, artifact_id: str) -> Artifact:
    return artifact_rows.read(await artifact_rows.find(tx, workspace, artifact_id))


@reading(Artifacts.list)
async def list_artifacts(tx: Tx, engine: Engine, caller: Caller, workspace: str, task_id: str) -> list[Attached]:
    uuid = await read.must_find(tx, engine, workspace, task_id)
    return await artifact_rows.of_task(tx, workspace, uuid)


@reading(Artifacts.inputs)
async def list_inputs(tx: Tx, engine: Engine, caller: Caller, workspace: str, task_id: str) -> list[Input]:
    uuid = await read.must_find(tx, engine, workspace, task_id)
    return await inputs.of_task(tx, workspace, uuid)
