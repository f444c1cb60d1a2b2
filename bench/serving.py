"""The queue over HTTP: latencies of calls, the number of agents one server carries, and the cost of HTTP."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from bench.fleet import ROOT, Member, _end, finished
from bench.report import Bench, measurement, requirement
from bench.throughput import NOOP
from bench.times import Times
from shiftwork import Queue

AGENTS = 200


class Api:
    """One server process, and its client."""

    def __init__(self, url: str, http: aiohttp.ClientSession, member: Member) -> None:
        self.url = url
        self.http = http
        self.member = member
        self.took = 0.0
        """The milliseconds of the last call, as reported by the server."""

    async def call(self, method: str, path: str, body: Any = None) -> Any:
        async with self.http.request(method, self.url + path, json=body) as answer:
            self.took = float(answer.headers["server-timing"].partition("dur=")[2])
            answer.raise_for_status()
            return await answer.json()


@asynccontextmanager
async def served(store: str) -> AsyncIterator[Api]:
    """Start a server process on a free port; stop it afterwards."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "shiftwork", "serve", "--store", store, "--port", "0", "--json",
        cwd=ROOT, env=dict(os.environ), stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        async with asyncio.timeout(30):
            url = json.loads(await process.stdout.readline())["url"]
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(60)) as http:
            yield Api(url, http, Member(process, "server"))
    finally:
        await _end(process)


@measurement
@requirement("C-213", "C-215", "C-216")
async def http_calls(bench: Bench) -> None:
    """Measure one caller, one call at a time, on an idle server."""
    verbs = ("submit", "claim", "start", "complete", "get", "list", "status")
    times = {verb: Times() for verb in verbs}
    inside: dict[str, Times] = {verb: Times() for verb in verbs}
    async with bench.place.url() as url, served(url) as api:

        async def timed(verb: str, method: str, path: str, body: Any = None) -> Any:
            answer = await times[verb].of(api.call(method, path, body))
            inside[verb].add(api.took)
            return answer

        for _ in range(bench.size(500, 20)):
            task_id = (await timed("submit", "POST", "/api/tasks", NOOP))["id"]
            held = (await timed("claim", "POST", "/api/tasks/claim", {"agent_id": "a"}))["assignments"][0]
            under = {"token": held["token"]}
            await timed("start", "POST", f"/api/tasks/{task_id}/start", under)
            await timed("get", "GET", f"/api/tasks/{task_id}")
            await timed("complete", "POST", f"/api/tasks/{task_id}/complete", under)
            await timed("list", "GET", "/api/tasks?limit=10")
            await timed("status", "GET", "/api/queue")
    for verb in verbs:
        times[verb].show(bench, f"HTTP {verb}")
        inside[verb].show(bench, f"HTTP {verb}, in the server")
    bench.check("C-213", "HTTP submit, p99", times["submit"].at(0.99), 10, "ms")
    bench.check("C-215", "HTTP state change in the server, p99", inside["start"].at(0.99), 5, "ms")
    bench.check("C-216", "HTTP status of the queue, p99", times["status"].at(0.99), 50, "ms")
    bench.check("C-216", "HTTP task by its id, p99", times["get"].at(0.99), 50, "ms")


@measurement
@requirement("C-213", "C-214")
async def http_crowd(bench: Bench) -> None:
    """Measure 200 agents that long-poll one server while 1,000 tasks a minute arrive, then 200 a second."""
    async with bench.place.url() as url, served(url) as api:
        waits, submits = await _crowd(api, 1000 / 60, bench.size(20, 3))
        submits.show(bench, f"HTTP submit, {AGENTS} agents wait, 1,000 tasks a minute")
        waits.show(bench, f"HTTP submit to claimed by one of {AGENTS} agents, 1,000 tasks a minute")
        bench.check("C-213", f"HTTP submit with {AGENTS} agents waiting, p99", submits.at(0.99), 10, "ms")
        bench.check("C-214", f"HTTP submit to claimed, one of {AGENTS} agents, p99", waits.at(0.99), 100, "ms")
        waits, _ = await _crowd(api, 200, bench.size(10, 2))
        waits.show(bench, f"HTTP submit to claimed by one of {AGENTS} agents, 200 tasks a second")
        bench.figure("memory of the server", [api.member.memory_mib()], "MiB")


async def _crowd(api: Api, per_second: float, seconds: int) -> tuple[Times, Times]:
    waits, submits = Times(), Times()
    count = int(per_second * seconds)
    done = asyncio.Event()

    async def agent(name: str) -> None:
        while True:
            body = {"agent_id": name, "start": True, "wait_sec": 25}
            for held in (await api.call("POST", "/api/tasks/claim", body))["assignments"]:
                waits.add(1000 * (time.perf_counter() - held["task"]["payload"]["sent"]))
                await api.call("POST", f"/api/tasks/{held['task']['id']}/complete", {"token": held["token"]})
                if len(waits) == count:
                    done.set()

    async with asyncio.TaskGroup() as group:
        working = [group.create_task(agent(f"agent-{n}")) for n in range(AGENTS)]
        await asyncio.sleep(2)
        began, under_way = asyncio.get_running_loop().time(), []
        for number in range(count):
            await asyncio.sleep(max(0.0, began + number / per_second - asyncio.get_running_loop().time()))
            body = {"type": "noop", "payload": {"sent": time.perf_counter()}}
            under_way.append(group.create_task(submits.of(api.call("POST", "/api/tasks", body))))
        await asyncio.gather(*under_way)
        async with asyncio.timeout(60):
            await done.wait()
        for task in working:
            task.cancel()
    return waits, submits


@measurement
async def http_burst(bench: Bench) -> None:
    """Measure how fast 50 agents drain 5,000 tasks, one at a time each: over HTTP, and in process."""
    tasks = bench.size(5000, 200)
    rates: dict[str, list[float]] = {"HTTP": [], "in process": []}
    for _ in range(bench.repetitions):
        async with bench.place.url() as url, await Queue.open(url) as queue:
            await queue.submit_many([NOOP] * tasks)
            async with served(url) as api:
                rates["HTTP"].append(tasks / await _drain_over_http(api, queue, tasks))
        async with bench.place.url() as url, await Queue.open(url) as queue:
            await queue.submit_many([NOOP] * tasks)
            rates["in process"].append(tasks / await _drain_in_process(queue, tasks))
    for way, values in rates.items():
        bench.figure(f"drain by 50 agents, {way}", values, "tasks/s")
    ratios = [http / direct for http, direct in zip(rates["HTTP"], rates["in process"], strict=True)]
    bench.figure("drain over HTTP beside in process", ratios, "ratio")


async def _drain_over_http(api: Api, queue: Queue, tasks: int) -> float:
    async def agent(name: str) -> None:
        while held := (await api.call("POST", "/api/tasks/claim", {"agent_id": name, "start": True}))["assignments"]:
            for each in held:
                await api.call("POST", f"/api/tasks/{each['task']['id']}/complete", {"token": each["token"]})

    began = time.perf_counter()
    await asyncio.gather(*(agent(f"agent-{n}") for n in range(50)))
    await finished(queue, tasks)
    return time.perf_counter() - began


async def _drain_in_process(queue: Queue, tasks: int) -> float:
    async def agent(name: str) -> None:
        while held := await queue.claim(name, start=True):
            for each in held:
                await queue.complete(each.token)

    began = time.perf_counter()
    await asyncio.gather(*(agent(f"agent-{n}") for n in range(50)))
    await finished(queue, tasks)
    return time.perf_counter() - began


@measurement
@requirement("F-212")
async def triggers(bench: Bench) -> None:
    """Measure from an event, and from a clock tick, to the task that a trigger of the server submits."""
    waits = Times()
    cause = {"kind": "event", "events": ["task.created"], "where": {"type": "cause"}}
    async with bench.place.url() as url, served(url) as api:
        await api.call("PUT", "/api/triggers/follow", {"on": cause, "task": {"type": "effect"}})
        for number in range(bench.size(40, 5)):
            made = await api.call("POST", "/api/tasks", {"type": "cause"})
            created = (await api.call("GET", f"/api/tasks/{made['id']}"))["created_at"]
            effects: list[Any] = []
            while len(effects) <= number:
                await asyncio.sleep(0.02)
                effects = (await api.call("GET", "/api/tasks?type=effect&limit=1000"))["tasks"]
            waits.add(1000 * (effects[-1]["created_at"] - created))
        late = await _late_after_tick(api)
    bench.figure("cron: the task after its tick", [late], "ms")
    bench.check("F-212", "cron: the task after its tick", late, 1000, "ms")
    waits.show(bench, "event to the task that a trigger made of it")
    bench.check("F-212", "event to the task of a trigger, p99", waits.at(0.99), 1000, "ms")


async def _late_after_tick(api: Api) -> float:
    """Return the milliseconds from the next full minute to the task of a schedule that fires each minute."""
    cron = {"kind": "cron", "at": "* * * * *"}
    await api.call("PUT", "/api/triggers/each-minute", {"on": cron, "task": {"type": "tick"}})
    async with asyncio.timeout(90):
        made: list[Any] = []
        while not made:
            await asyncio.sleep(0.5)
            made = (await api.call("GET", "/api/tasks?type=tick&limit=1"))["tasks"]
    return 1000 * float(made[0]["created_at"] % 60)
