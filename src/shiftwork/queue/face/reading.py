"""What anybody may look at: tasks, DAGs, dead letters, agents, events, and how the queue stands."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec

from shiftwork.core import ids
from shiftwork.core.errors import InputError, NotFound
from shiftwork.core.states import FINAL, STORED
from shiftwork.core.task import Dag, Failed, Result, Task, dollars
from shiftwork.queue import agents, check, held_claims, log, read, tokens
from shiftwork.queue.agents import Agent
from shiftwork.queue.face.observing import Observing
from shiftwork.queue.observation import explain, maintenance
from shiftwork.queue.observation.explain import Explanation
from shiftwork.queue.read import Attempt, Event
from shiftwork.queue.tokens import TokenInfo
from shiftwork.store.store import Row, Tx


class Page(msgspec.Struct, frozen=True):
    """A page of tasks; `next` is the cursor of the following one."""

    tasks: list[Task]
    next: str | None


class DeadLetter(msgspec.Struct, frozen=True):
    """A dead letter with its history."""

    task_id: str
    dag_id: str
    type: str
    tool_name: str | None
    payload: dict[str, Any]
    error: str | None
    reason: str | None
    retry_count: int
    failure_history: list[Failed]
    total_cost_usd: float
    dead_lettered_at: float
    reviewed: bool
    resolution: str | None
    poison_pill: bool
    signature: str
    round: int
    external_id: str | None = None


class Reading(Observing):
    """Verbs that change nothing."""

    async def get(self, task_id: str) -> Task:
        """One task, whole."""
        found = await self.get_many([task_id])
        if not found:
            raise NotFound(f"there is no task {task_id!r}", task_id=task_id)
        return found[0]

    async def get_many(self, task_ids: Sequence[str]) -> list[Task]:
        """Those of the tasks that there are."""

        async def load(tx: Tx) -> list[Task]:
            found = await read.find_many(tx, self.workspace, task_ids)
            return await read.tasks(tx, self._engine, self.workspace, [uuid for uuid in found if uuid is not None])

        return await self._read(load)

    async def tasks(  # noqa: PLR0913  # a filter each, all optional and by name
        self,
        *,
        status: str | Sequence[str] | None = None,
        type: str | None = None,  # noqa: A002  # the task's word
        agent: str | None = None,
        issue: str | None = None,
        tag: str | None = None,
        dag: str | None = None,
        parent: str | None = None,
        since: float | None = None,
        until: float | None = None,
        after: str | None = None,
        limit: int = 100,
        newest: bool = False,
    ) -> Page:
        """Tasks in the order of their creation, or with `newest` in the opposite one, a page at a time."""
        statuses = [status] if isinstance(status, str) else [*(status or [])]
        unknown = [s for s in statuses if s not in STORED]
        if unknown:
            raise InputError(
                f"there is no status {unknown[0]!r}", where="status", mend="One of " + ", ".join(STORED) + "."
            )
        count = check.page(limit)
        for where, named in (("after", after), ("parent", parent)):
            if named is not None:
                check.name(named, where)

        async def load(tx: Tx) -> Page:
            rows = await tx.all(
                "list_newest_tasks" if newest else "list_tasks",
                workspace=self.workspace,
                after=None if after is None else await read.find(tx, self.workspace, after),
                type=type,
                agent=agent,
                issue=issue,
                dag=None if dag is None else self._find_dag(dag),
                parent=None if parent is None else await read.find(tx, self.workspace, parent),
                since=since,
                until=until,
                tag=tag,
                any_status=not statuses,
                statuses=msgspec.json.encode(statuses).decode(),
                count=count,
            )
            tasks = await read.tasks(tx, self._engine, self.workspace, [row["id"] for row in rows])
            return Page(tasks, tasks[-1].id if len(rows) == count else None)

        return await self._read(load)

    async def dag(self, dag_id: str) -> Dag:
        """A DAG with its tasks, shape, counts and money."""
        uuid = self._find_dag(dag_id)
        return await self._read(lambda tx: read.dag(tx, self.workspace, uuid))

    async def tag_counts(self, tag: str) -> dict[str, int]:
        """How many tasks with this tag are in each state, and how many are done."""
        rows = await self._read(lambda tx: tx.all("tag_counts", workspace=self.workspace, tag=tag))
        counts = {row["status"]: int(row["total"]) for row in rows}
        done = sum(total for status, total in counts.items() if status in FINAL)
        return {**counts, "done": done, "total": sum(counts.values())}

    async def result(self, task_id: str) -> Result:
        """What the task came to."""
        task = await self.get(task_id)
        if task.result is None:
            raise NotFound(
                f"task {task.id} has no result yet: it is {task.status}", task_id=task.id, status=task.status
            )
        return task.result

    async def history(self, task_id: str, *, limit: int = 1000) -> list[Event]:
        """Every event of one task, oldest first."""

        async def load(tx: Tx) -> list[Event]:
            uuid = await read.find(tx, self.workspace, task_id)
            rows = await tx.all("events_of_task", id=uuid, after=0, count=check.count(limit, "limit", 10_000))
            return [read.event(row) for row in rows if row["workspace"] == self.workspace]

        return await self._read(load)

    async def attempts(self, task_id: str) -> list[Attempt]:
        """Every attempt at a task that has ended, oldest first."""

        async def load(tx: Tx) -> list[Attempt]:
            uuid = await read.must_find(tx, self._engine, self.workspace, task_id)
            return [read.attempt(row) for row in await tx.all("read_attempts", items=[(uuid,)])]

        return await self._read(load)

    async def explain(self, task_id: str) -> Explanation:
        """Why a task is not running, and what would change that."""

        async def load(tx: Tx) -> Explanation:
            return await explain.explain(tx, self._engine, self.workspace, await read.find(tx, self.workspace, task_id))

        return await self._read(load)

    async def agents(self) -> list[Agent]:
        return await self._read(lambda tx: agents.read_agents(tx, self._engine, self.workspace))

    async def agent(self, agent_id: str) -> Agent:
        """One agent."""
        name = check.name(agent_id, "agent_id")
        found = await self._read(lambda tx: agents.read_agents(tx, self._engine, self.workspace, name))
        if not found:
            raise NotFound(f"there is no agent {agent_id!r}", agent_id=agent_id)
        return found[0]

    async def runtimes(self) -> list[dict[str, Any]]:
        return await self._read(lambda tx: agents.read_runtimes(tx, self._engine, self.workspace))

    async def dead_letters(
        self,
        *,
        reviewed_too: bool = False,
        signature: str | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> list[DeadLetter]:
        """Dead letters that wait for a decision, or all of them."""
        count, cursor = check.page(limit), check.cursor(after)

        async def load(tx: Tx) -> list[DeadLetter]:
            rows = await tx.all(
                "list_dead_letters",
                workspace=self.workspace,
                reviewed_too=reviewed_too,
                signature=signature,
                after=cursor,
                count=count,
            )
            tasks = await read.tasks(tx, self._engine, self.workspace, sorted({row["task_id"] for row in rows}))
            by_id = {task.id: task for task in tasks}
            return [_letter(row, by_id[ids.show_task(row["task_id"])]) for row in rows]

        return await self._read(load)

    async def failure_groups(self, *, limit: int = 100) -> list[dict[str, Any]]:
        """Open dead letters grouped by what they have in common, the largest group first."""
        rows = await self._read(lambda tx: tx.all("letter_groups", workspace=self.workspace, count=limit))
        return [{**dict(row), "total": int(row["total"])} for row in rows]

    async def reviews(self, task_id: str) -> list[dict[str, Any]]:
        """Who decided what about a task, and why."""

        async def load(tx: Tx) -> Sequence[Row]:
            uuid = await read.must_find(tx, self._engine, self.workspace, task_id)
            return await tx.all("reviews_of", id=uuid)

        rows = await self._read(load)
        return [
            {k: row[k] for k in ("round", "at", "actor", "decision", "note")}
            | {"change": msgspec.json.decode(row["change"]) if row["change"] else None}
            for row in rows
        ]

    # -- for doors -------------------------------------------------------------------------------------------------

    async def find_token(self, secret: str) -> TokenInfo | None:
        """Whoever has this secret, of any workspace; None when it is not known, has expired or was revoked."""
        token_id = tokens.id_in(secret)
        return None if token_id is None else await self._read(lambda tx: tokens.find(tx, token_id, secret))

    async def current_token(self, task_id: str, *, agent_id: str | None = None, runtime_id: str | None = None) -> str:
        """The claim token that a write by the task's id alone means, made by whoever it names."""

        async def load(tx: Tx) -> str:
            uuid = await read.find(tx, self.workspace, task_id)
            return (await held_claims.current(tx, self.caller, uuid, agent_id, runtime_id)).text

        return await self._read(load)

    async def claims_made(self, who: str, request_id: str) -> list[Task]:
        """What an agent or a runtime holds by the claim of one request: the answer when that claim is sent again."""
        return await self._read(
            lambda tx: held_claims.made(tx, self._engine, self.caller, self.workspace, who, request_id)
        )

    # -- events ----------------------------------------------------------------------------------------------------

    async def events(self, after: int = 0, *, limit: int = 1000) -> tuple[list[Event], int]:
        """Events after a cursor, and the next cursor. Whoever goes on from there sees every event once."""
        part = await log.read(self._engine.store, after, check.count(limit, "limit", 10_000), self.workspace)
        return [read.event(row) for row in part.rows], part.last

    async def newest_event(self) -> int:
        """The cursor of now: whatever is committed from now on stands behind it."""
        return await log.newest(self._engine.store)

    async def follow(self, after: int = 0, *, poll_sec: float = 0.05) -> AsyncIterator[Event]:
        """Events as they come, each once, for ever."""
        while True:
            found, after = await self.events(after)
            for event in found:
                yield event
            if not found:
                await asyncio.sleep(poll_sec)

    async def duties(self) -> list[dict[str, Any]]:
        """When each maintenance job last ran, how long it took and what it did; if it is late or rests, and why."""
        return maintenance.shown(await self._read(lambda tx: tx.all("list_duties")), self._engine.store.now())


def _letter(row: Row, task: Task) -> DeadLetter:
    return DeadLetter(
        task_id=task.id,
        dag_id=task.dag_id,
        type=row["type"],
        tool_name=task.tool_name,
        payload=task.payload,
        error=row["error"],
        reason=row["reason"],
        retry_count=row["attempts"],
        failure_history=task.failure_history,
        total_cost_usd=dollars(row["cost"]),
        dead_lettered_at=row["dead_lettered_at"],
        reviewed=bool(row["reviewed"]),
        resolution=row["resolution"],
        poison_pill=bool(row["poison_pill"]),
        signature=row["signature"],
        round=row["round"],
        external_id=task.external_id,
    )
