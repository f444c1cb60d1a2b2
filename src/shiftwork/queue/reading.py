"""What anybody may look at: tasks, DAGs, dead letters, agents, events, and how the queue stands."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec

from shiftwork.core import ids
from shiftwork.core.errors import InputError, NotFound
from shiftwork.core.states import FINAL, STORED, WAITING
from shiftwork.core.task import Dag, Failed, Result, Task, dollars
from shiftwork.queue import agents, check, explain, read
from shiftwork.queue.agents import Agent
from shiftwork.queue.explain import Explanation
from shiftwork.queue.handle import Handle
from shiftwork.queue.read import Event
from shiftwork.store.store import Row, Tx

LARGEST_PAGE = 1000


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


class Status(msgspec.Struct, frozen=True):
    """How the queue stands."""

    calculated_at: float
    counts: dict[str, int]
    types: dict[str, dict[str, int]]
    tiers: dict[str, int]
    depth: dict[str, int]
    workers: dict[str, int]
    paused: list[str]
    tombstones: int
    archived: int


class Reading(Handle):
    """Verbs that change nothing."""

    async def get(self, task_id: str) -> Task:
        """One task, whole."""
        found = await self.get_many([task_id])
        if not found:
            raise NotFound(f"there is no task {task_id!r}", task_id=task_id)
        return found[0]

    async def get_many(self, task_ids: Sequence[str]) -> list[Task]:
        async def load(tx: Tx) -> list[Task]:
            uuids = [await read.find(tx, self.workspace, t) for t in task_ids]
            return await read.tasks(tx, self._engine, self.workspace, uuids)

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
    ) -> Page:
        """Tasks in the order of their creation, a page at a time."""
        statuses = [status] if isinstance(status, str) else [*(status or [])]
        unknown = [s for s in statuses if s not in STORED]
        if unknown:
            raise InputError(
                f"there is no status {unknown[0]!r}", where="status", mend="One of " + ", ".join(STORED) + "."
            )
        count = check.count(limit, "limit", LARGEST_PAGE)

        async def load(tx: Tx) -> Page:
            rows = await tx.all(
                "list_tasks",
                workspace=self.workspace,
                after=ids.parse(after) if after else None,
                type=type,
                agent=agent,
                issue=issue,
                dag=self._find_dag(dag) if dag else None,
                parent=ids.parse(parent) if parent else None,
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

    async def explain(self, task_id: str) -> Explanation:
        """Why a task is not running, and what would change that."""

        async def load(tx: Tx) -> Explanation:
            return await explain.explain(tx, self._engine, self.workspace, await read.find(tx, self.workspace, task_id))

        return await self._read(load)

    async def agents(self) -> list[Agent]:
        return await self._read(lambda tx: agents.read_agents(tx, self._engine, self.workspace))

    async def runtimes(self) -> list[dict[str, Any]]:
        return await self._read(lambda tx: agents.read_runtimes(tx, self.workspace))

    async def dead_letters(
        self,
        *,
        reviewed_too: bool = False,
        signature: str | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> list[DeadLetter]:
        """Dead letters that wait for a decision, or all of them."""
        count = check.count(limit, "limit", LARGEST_PAGE)

        async def load(tx: Tx) -> list[DeadLetter]:
            rows = await tx.all(
                "list_dead_letters",
                workspace=self.workspace,
                reviewed_too=reviewed_too,
                signature=signature,
                after=ids.parse(after) if after else None,
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
        uuid = await self._find(task_id)
        rows = await self._read(lambda tx: tx.all("reviews_of", id=uuid))
        return [
            {k: row[k] for k in ("round", "at", "actor", "decision", "note")}
            | {"change": msgspec.json.decode(row["change"]) if row["change"] else None}
            for row in rows
        ]

    async def status(self) -> Status:
        """Counts of everything, as of now."""
        return await self._read(lambda tx: _status(tx, self.workspace))

    # -- events ----------------------------------------------------------------------------------------------------

    async def events(self, after: int = 0, *, limit: int = 1000) -> tuple[list[Event], int]:
        """Events after a cursor, and the next cursor. Whoever goes on from there sees every event once."""
        count = check.count(limit, "limit", 10_000)
        numbers = await self._read(lambda tx: tx.all("event_numbers", after=after, count=count))
        if not numbers:
            return [], after
        last = int(numbers[-1]["seq"])
        if last - after != len(numbers):
            # A number is missing: its transaction is still open, or was rolled back. Wait for those open now.
            await self._engine.store.settle_events()
        rows = await self._read(lambda tx: tx.all("events_upto", after=after, last=last, workspace=self.workspace))
        return [read.event(row) for row in rows], last

    async def follow(self, after: int = 0, *, poll_sec: float = 0.05) -> AsyncIterator[Event]:
        """Events as they come, each once, for ever."""
        while True:
            found, after = await self.events(after)
            for event in found:
                yield event
            if not found:
                await asyncio.sleep(poll_sec)

    async def duties(self) -> list[dict[str, Any]]:
        """When each duty last ran, how long it took and what it did."""
        rows = await self._read(lambda tx: tx.all("list_duties"))
        return [{**dict(row), "counts": msgspec.json.decode(row["counts"] or "{}")} for row in rows]


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
    )


async def _status(tx: Tx, workspace: str) -> Status:
    counts: dict[str, int] = defaultdict(int)
    types: dict[str, dict[str, int]] = defaultdict(dict)
    for row in await tx.all("status_counts", workspace=workspace):
        counts[row["status"]] += int(row["total"])
        types[row["type"]][row["status"]] = int(row["total"])
    tiers = {row["tier"]: int(row["total"]) for row in await tx.all("tier_depth", workspace=workspace)}
    workers = await tx.all("list_agents", workspace=workspace)
    alive = [a for a in workers if a["status"] in {"active", "draining"}]
    gates = await tx.all("read_gates", workspace=workspace)
    stones = await tx.one("tombstone_count", workspace=workspace)
    archived = await tx.one("archive_count", workspace=workspace)
    return Status(
        calculated_at=tx.now,
        counts=dict(counts),
        types=dict(types),
        tiers=tiers,
        depth={
            "high": tiers.get("critical", 0) + tiers.get("high", 0),
            "medium": tiers.get("normal", 0),
            "low": tiers.get("low", 0) + tiers.get("background", 0),
            "total": sum(counts.get(status, 0) for status in WAITING),
        },
        workers={
            "active": sum(1 for a in alive if a["current_tasks"]),
            "idle": sum(1 for a in alive if not a["current_tasks"]),
            "failed": sum(1 for a in workers if a["status"] == "failed"),
            "offline": sum(1 for a in workers if a["status"] == "offline"),
        },
        paused=[gate["scope"] for gate in gates],
        tombstones=int(stones["total"]) if stones else 0,
        archived=int(archived["total"]) if archived else 0,
    )
