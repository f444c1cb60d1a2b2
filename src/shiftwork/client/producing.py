"""What producers do: submit tasks, batches and DAGs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from shiftwork.client.handle import Handle, part
from shiftwork.core.task import NewDag, NewTask, Submitted
from shiftwork.queue import check
from shiftwork.queue.face.producing import Fields
from shiftwork.queue.protection.room import when_there_is_room
from shiftwork.wire.shapes import SubmittedBatch


class Producing(Handle):
    """Verbs that bring work in."""

    async def submit(self, /, task: Fields | None = None, *, wait: float = 0, **fields: Any) -> Submitted:
        new = check.read(fields if task is None else task, NewTask, "task")
        return await when_there_is_room(lambda: self._once("/api/tasks", Submitted, new, where="task"), wait)

    async def submit_many(self, tasks: Sequence[Fields], *, wait: float = 0) -> list[Submitted]:
        if not tasks:
            return []
        new = new_tasks(tasks)
        return await when_there_is_room(lambda: self._once("/api/tasks", list[Submitted], new, where="tasks"), wait)

    async def submit_dag(self, dag: NewDag | Mapping[str, Any], *, wait: float = 0) -> list[Submitted]:
        new = check.read(dag, NewDag, "dag")
        made = await when_there_is_room(lambda: self._once("/api/dags", SubmittedBatch, new, where="dag"), wait)
        return made.tasks

    async def add_to_dag(self, dag_id: str, tasks: Sequence[Fields]) -> list[Submitted]:
        path = f"/api/dags/{part(dag_id, 'dag_id')}/tasks"
        return (await self._once(path, SubmittedBatch, {"tasks": new_tasks(tasks)})).tasks


def new_tasks(tasks: Sequence[Fields]) -> list[NewTask]:
    """A wrong field is named by its place before anything is sent."""
    return [check.read(task, NewTask, f"tasks[{place}]") for place, task in enumerate(tasks)]
