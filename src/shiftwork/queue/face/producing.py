"""What producers do: submit tasks, batches and DAGs."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from shiftwork import tracing
from shiftwork.core.errors import TooLarge
from shiftwork.core.task import NewDag, NewTask, Submitted
from shiftwork.queue import check
from shiftwork.queue.face.handle import Handle
from shiftwork.queue.prepare import Plans, Prepared, prepare, traced
from shiftwork.queue.protection.room import when_there_is_room
from shiftwork.queue.submit import DagFields, ceiling, lanes_of, submit

Fields = NewTask | Mapping[str, Any]


async def let_others(new: NewTask) -> None:
    """Have others take their turn after a schema was looked through, which takes a while; a batch may have hundreds."""
    if new.output is not None and new.output.validation_schema is not None:
        await asyncio.sleep(0)


class Producing(Handle):
    """Verbs that bring work in."""

    async def submit(self, task: Fields | None = None, *, wait: float = 0, **fields: Any) -> Submitted:
        """Submit one task, given as a `NewTask`, a mapping, or keyword arguments; `wait` so long for room."""
        prepared = (await self._prepare([fields if task is None else task]))[0]
        return await when_there_is_room(functools.partial(self._submit_one, prepared), wait)

    async def _submit_one(self, prepared: Prepared) -> Submitted:
        if self.caller.once is not None or prepared.new.key is not None or prepared.new.dependencies:
            return (await self._submit([prepared], DagFields()))[0]
        item = prepared._replace(request_id=self.caller.request_id)
        answer: Submitted = await self._coalescer(Producing._submit_lone).call(item)
        return answer

    async def submit_many(self, tasks: Sequence[Fields], *, wait: float = 0) -> list[Submitted]:
        """Submit a batch, all or nothing. Tasks may depend on each other by their local `key`."""
        prepared = await self._prepare(tasks)
        return await when_there_is_room(functools.partial(self._submit, prepared, DagFields()), wait)

    async def submit_dag(self, dag: NewDag | Mapping[str, Any], *, wait: float = 0) -> list[Submitted]:
        """Submit tasks and edges as one DAG, all or nothing. Every answer names the DAG."""
        fields = check.read(dag, NewDag, "dag")
        check.text(fields.title, "dag.title")
        check.text(fields.created_by, "dag.created_by")
        together = DagFields(
            together=True,
            title=fields.title,
            created_by=fields.created_by,
            budget_ceiling=ceiling(fields.budget_ceiling_usd),
        )
        tasks = [
            msgspec.structs.replace(task, created_by=fields.created_by) if task.created_by is None else task
            for task in fields.tasks
        ]
        prepared = await self._prepare(tasks)
        return await when_there_is_room(functools.partial(self._submit, prepared, together), wait)

    async def add_to_dag(self, dag_id: str, tasks: Sequence[Fields]) -> list[Submitted]:
        """Add tasks to an existing DAG."""
        return await self._submit(await self._prepare(tasks), DagFields(join=self._find_dag(dag_id)))

    async def _prepare(self, tasks: Sequence[Fields]) -> list[Prepared]:
        resolver = await self._engine.book.get(self._engine.store, self.workspace)
        most = resolver.settings().bounds.batch
        if len(tasks) > most:
            raise TooLarge(f"{len(tasks)} tasks in one batch, at most {most}", where="tasks")
        alone = len(tasks) == 1
        prepared: list[Prepared] = []
        plans: Plans = {}
        with tracing.span("submit", "producer", tasks=len(tasks)):
            origin = tracing.current()
            for place, task in enumerate(tasks):
                where = "task" if alone else f"tasks[{place}]"
                new = traced(check.read(task, NewTask, where), origin)
                prepared.append(prepare(new, self.workspace, resolver, where, plans))
                await let_others(new)
        return prepared

    async def _submit_lone(self, batch: Sequence[Prepared]) -> list[Submitted]:
        return await self._submit(batch, DagFields())

    async def _submit(self, batch: Sequence[Prepared], dag: DagFields) -> list[Submitted]:
        if not batch:
            return []
        lanes = await self._engine.lanes.intern(self._engine.store, lanes_of(batch))
        return await self._run(submit, self.workspace, batch, lanes, dag)
