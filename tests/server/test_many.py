"""Several servers on one store: any of them can die at any time."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import aiohttp
import pytest

from shiftwork import Queue
from tests.server.processes import ServerProcess, servers
from tests.worker.steps import until

TASKS = 60


class Daemon:
    """An agent written by hand: it uses another server if its own is down."""

    def __init__(self, http: aiohttp.ClientSession, urls: list[str], name: str) -> None:
        self._http = http
        self._urls = urls
        self._name = name
        self.accepted: list[str] = []

    async def call(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        while True:
            try:
                async with self._http.post(self._urls[0] + path, json=body) as answer:
                    return answer.status, await answer.json()
            except (aiohttp.ClientError, TimeoutError):
                self._urls = [*self._urls[1:], self._urls[0]]
                await asyncio.sleep(0)

    async def work(self) -> None:
        while True:
            _, claimed = await self.call("/api/tasks/claim", {"agent_id": self._name, "start": True, "wait_sec": 25})
            for held in claimed["assignments"]:
                status, output = await self.call(f"/api/tasks/{held['task']['id']}/complete", {"token": held["token"]})
                if status == 200 and not output.get("repeated"):
                    self.accepted.append(output["task_id"])


async def _submit(http: aiohttp.ClientSession, server: ServerProcess, count: int) -> list[str]:
    async with http.post(server.url + "/api/tasks", json=[{"type": "noop"}] * count) as answer:
        assert answer.status == 201
        return [task["id"] for task in await answer.json()]


async def _in_state(queue: Queue, status: str, count: int) -> None:
    async def enough() -> bool:
        return (await queue.status()).counts.get(status, 0) >= count

    await until(enough)


async def _claim_has_looked(queue: Queue) -> None:
    async def known() -> bool:
        return bool(await queue.agents.list())

    await until(known)


async def test_waiting_claim_is_woken_by_submit_at_another_server(postgres_dsn: str) -> None:
    async with servers(postgres_dsn, 2) as (here, there), aiohttp.ClientSession() as http:

        async def claim() -> Any:
            async with http.post(here.url + "/api/tasks/claim", json={"agent_id": "a", "wait_sec": 25}) as answer:
                return await answer.json()

        async with Queue.open(postgres_dsn) as queue:
            await queue.settings.set("fallback_poll_sec", 3600)  # so that only the event can wake it
        claiming = asyncio.create_task(claim())
        async with Queue.open(postgres_dsn) as queue:
            await _claim_has_looked(queue)
        [task_id] = await _submit(http, there, 1)
        claimed = await claiming
        assert [held["task"]["id"] for held in claimed["assignments"]] == [task_id]


@pytest.mark.parametrize("victim", [0, 1])
async def test_killing_one_of_two_servers_loses_and_repeats_no_task(store_url: str, victim: int) -> None:
    async with servers(store_url, 2) as pair, aiohttp.ClientSession() as http, await Queue.open(store_url) as queue:
        await queue.settings.set("heartbeat_timeout_sec", 2)
        await queue.settings.set("heartbeat_interval_sec", 1)
        await queue.settings.set("max_attempts", 10)
        urls = [server.url for server in pair]
        daemons = [Daemon(http, urls[n % 2 :] + urls[: n % 2], f"agent-{n}") for n in range(6)]
        working = [asyncio.create_task(daemon.work()) for daemon in daemons]
        ids = await _submit(http, pair[1 - victim], TASKS // 2)
        await _in_state(queue, "completed", TASKS // 6)
        await pair[victim].kill()
        ids += await _submit(http, pair[1 - victim], TASKS // 2)
        await _in_state(queue, "completed", TASKS)
        for task in working:
            task.cancel()
        await asyncio.gather(*working, return_exceptions=True)
        done = Counter(task_id for daemon in daemons for task_id in daemon.accepted)
        assert set(done) <= set(ids)
        assert max(done.values()) == 1
        accepted = [a for task_id in ids for a in await queue.tasks.attempts(task_id) if a.outcome == "completed"]
        assert len(accepted) == TASKS


async def test_maintenance_runs_once_with_several_servers(store_url: str) -> None:
    """A retry that is due is promoted by one of them: one event, one more attempt."""
    async with servers(store_url, 3), await Queue.open(store_url) as queue:
        await queue.settings.change({"retry.strategy": "fixed", "retry.initial_delay_sec": 0.2, "retry.jitter": False})
        await queue.agents.register(id="a", max_concurrent_tasks=20)
        made = await queue.submit_many([{"type": "noop"}] * 20)
        for held in await queue.claim("a", 20, start=True):
            await queue.fail(held.token, "crash")
        await _in_state(queue, "ready", 20)
        for task in made:
            promoted = [event for event in (await queue.tasks.history(task.id)).events if event.verb == "promoted"]
            assert len(promoted) == 1


async def test_stopping_server_answers_waiting_claims_and_exits_cleanly(store_url: str) -> None:
    async with (
        servers(store_url, 1) as (server,),
        aiohttp.ClientSession() as http,
        await Queue.open(store_url) as queue,
    ):

        async def claim() -> Any:
            async with http.post(server.url + "/api/tasks/claim", json={"agent_id": "a", "wait_sec": 25}) as answer:
                return answer.status, await answer.json()

        claiming = asyncio.create_task(claim())
        await _claim_has_looked(queue)
        assert await server.stop() == 0
        status, reply = await claiming
        assert (status, reply["assignments"]) == (200, [])
