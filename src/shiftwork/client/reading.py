"""What anybody may look at: tasks, DAGs, dead letters, agents, events, and how the queue stands."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

from shiftwork.client.handle import Handle, batches, part
from shiftwork.core import ids
from shiftwork.core.errors import NotFound
from shiftwork.core.task import Dag, Result, Task
from shiftwork.queue.agents import Agent
from shiftwork.queue.dags import DagPage
from shiftwork.queue.face.observing import BridgeInfo, Transition
from shiftwork.queue.face.reading import DeadLetter, Page
from shiftwork.queue.observation.alerts import Alert
from shiftwork.queue.observation.explain import Explanation
from shiftwork.queue.observation.failures import By, Pattern
from shiftwork.queue.observation.metrics import Metrics
from shiftwork.queue.observation.status import Status
from shiftwork.queue.protection.capacity import Backpressure
from shiftwork.queue.read import Attempt, Event
from shiftwork.wire.shapes import (
    AgentList,
    AlertList,
    BridgeList,
    EventPage,
    FailureList,
    History,
    LetterList,
    Listed,
    MetricSnapshots,
    TaskList,
)

FOLLOW_SEC = 20.0


class Reading(Handle):
    """Verbs that change nothing."""

    # -- tasks -----------------------------------------------------------------------------------------------------

    async def get(self, task_id: str) -> Task:
        return await self._get(f"/api/tasks/{part(task_id, 'task_id')}", Task)

    async def get_many(self, task_ids: Sequence[str]) -> list[Task]:
        found: list[Task] = []
        for batch in batches(task_ids):
            found += (await self._post("/api/batch/get", TaskList, {"task_ids": batch})).tasks
        return found

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
        statuses = [status] if isinstance(status, str) else [*(status or [])]
        place: dict[str, Any] = {"issue": issue, "tag": tag, "dag": dag, "parent": parent}
        page: dict[str, Any] = {"since": since, "until": until, "after": after, "limit": limit}
        page |= {"newest": True} if newest else {}
        return await self._get("/api/tasks", Page, status=statuses, type=type, agent=agent, **place, **page)

    async def result(self, task_id: str) -> Result:
        return await self._get(f"/api/tasks/{part(task_id, 'task_id')}/result", Result)

    async def history(self, task_id: str, *, limit: int = 1000) -> list[Event]:
        path = f"/api/tasks/{part(task_id, 'task_id')}/history"
        try:
            return (await self._get(path, History, limit=limit)).events
        except NotFound:
            if ids.parse(task_id) is None:
                raise
            return []  # nothing has happened to a task that is not there

    async def attempts(self, task_id: str) -> list[Attempt]:
        path = f"/api/tasks/{part(task_id, 'task_id')}/history"
        return (await self._get(path, History, limit=1)).attempts

    async def transitions(self, task_id: str) -> list[Transition]:
        path = f"/api/tasks/{part(task_id, 'task_id')}/history"
        return (await self._get(path, History, limit=1)).transitions

    async def explain(self, task_id: str) -> Explanation:
        return await self._get(f"/api/tasks/{part(task_id, 'task_id')}/explain", Explanation)

    async def tag_counts(self, tag: str) -> dict[str, int]:
        return await self._get(f"/api/tags/{part(tag, 'tag')}", dict[str, int])

    async def dag(self, dag_id: str) -> Dag:
        return await self._get(f"/api/dags/{part(dag_id, 'dag_id')}", Dag)

    async def dags(self, *, status: str | None = None, after: str | None = None, limit: int = 100) -> DagPage:
        return await self._get("/api/dags", DagPage, status=status, after=after, limit=limit)

    # -- dead letters ----------------------------------------------------------------------------------------------

    async def dead_letters(
        self,
        *,
        reviewed_too: bool = False,
        signature: str | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> list[DeadLetter]:
        query: dict[str, Any] = {"reviewed_too": reviewed_too, "signature": signature, "after": after, "limit": limit}
        return (await self._get("/api/dead-letters", LetterList, **query)).dead_letters

    async def failure_groups(self, *, limit: int = 100) -> list[dict[str, Any]]:
        return (await self._get("/api/dead-letters/groups", Listed, limit=limit)).items

    async def reviews(self, task_id: str) -> list[dict[str, Any]]:
        return (await self._get(f"/api/dead-letters/{part(task_id, 'task_id')}/reviews", Listed)).items

    # -- the fleet and the queue -----------------------------------------------------------------------------------

    async def agents(self) -> list[Agent]:
        return (await self._get("/api/agents", AgentList)).agents

    async def agent(self, agent_id: str) -> Agent:
        return await self._get(f"/api/agents/{part(agent_id, 'agent_id')}", Agent)

    async def runtimes(self) -> list[dict[str, Any]]:
        return (await self._get("/api/runtimes", Listed)).items

    async def backpressure(self) -> Backpressure:
        return await self._get("/api/queue/backpressure", Backpressure)

    async def status(self, *, fresh: bool = False) -> Status:
        return await self._get("/api/queue", Status, fresh=fresh or None)

    async def alerts(
        self, after: int = 0, *, open_only: bool = False, kind: str | None = None, limit: int = 100
    ) -> list[Alert]:
        query: dict[str, Any] = {"after": after, "open_only": open_only or None, "kind": kind, "limit": limit}
        return (await self._get("/api/alerts", AlertList, **query)).alerts

    async def failures(self, by: By = "signature", *, since: float | None = None, limit: int = 50) -> list[Pattern]:
        return (await self._get("/api/failures", FailureList, by=by, since=since, limit=limit)).failures

    async def metrics(self) -> Metrics:
        return await self._get("/api/metrics", Metrics)

    async def metric_snapshots(self, *, since: float | None = None, limit: int = 10) -> list[Metrics]:
        return (await self._get("/api/metrics/snapshots", MetricSnapshots, since=since, limit=limit)).snapshots

    async def bridges(self) -> list[BridgeInfo]:
        return (await self._get("/api/bridges", BridgeList)).bridges

    async def duties(self) -> list[dict[str, Any]]:
        return (await self._get("/api/duties", Listed)).items

    # -- events ----------------------------------------------------------------------------------------------------

    async def events(self, after: int = 0, *, limit: int = 1000) -> tuple[list[Event], int]:
        page = await self._get("/api/events", EventPage, after=after, limit=limit)
        return page.events, page.next

    async def newest_event(self) -> int:
        return (await self._get("/api/events", EventPage, after="now", limit=1)).next

    async def follow(self, after: int = 0, *, poll_sec: float = 0.05) -> AsyncIterator[Event]:
        while True:
            page = await self._get("/api/events", EventPage, after=after, limit=1000, wait_sec=FOLLOW_SEC)
            for event in page.events:
                yield event
            after = page.next
            if not page.events:
                await asyncio.sleep(poll_sec)  # a server about to stop does not wait
