"""Functions for a fork server: calls of a server's routes and runs of its maintenance that die at a crash point.

`folder` has the artifacts and snapshots of this queue: a snapshot of another test would block one of this test.
"""

import asyncio
import hashlib
import json
import logging
import os
from typing import Any

from shiftwork import Queue
from shiftwork.maintenance.loop import run_once
from shiftwork.notifications.sender import NotificationSender
from shiftwork.store import crash_points
from shiftwork.testing import MovedClock
from tests.conformance.steps import everything, give_folder
from tests.server.endpoints import BY_NAME, CALLS, Call
from tests.server.running import Reply, Running, running


def call_all(url: str, folder: str, names: list[str]) -> None:
    """Call each of these routes once; print the points that each call passes."""
    _prepare(folder)
    asyncio.run(_call_all(url, names))


async def _call_all(url: str, names: list[str]) -> None:
    crash_points.arm(None)  # what begins before points are armed has no names
    async with running(url) as api:
        give_folder(api.state.queue)
        for name in names:
            workspace = f"{name} whole"
            call = await CALLS[name](api.state.queue.in_workspace(workspace))
            passed = crash_points.arm(None)
            reply = await _send(api, name, workspace, call)
            assert reply.status == BY_NAME[name].status, (name, reply)
            _print(passed)


def die_in_call(url: str, folder: str, name: str, workspace: str, point: str, advance_sec: float) -> None:
    """Call a route and die at this point of it. Before the call, print a hash of all rows."""
    _prepare(folder)
    asyncio.run(_die_in_call(url, name, workspace, point, advance_sec))


async def _die_in_call(url: str, name: str, workspace: str, point: str, advance_sec: float) -> None:
    async with running(url) as api:
        give_folder(api.state.queue)
        if advance_sec:
            await api.pass_time(advance_sec)
        call = await CALLS[name](api.state.queue.in_workspace(workspace))
        _print(await hash_of_rows(api.state.queue))
        crash_points.arm(point)
        reply = await _send(api, name, workspace, call)
        _print(f"the point was not reached: {reply}")
        os._exit(0)


async def hash_of_rows(queue: Queue) -> str:
    return hashlib.sha256(json.dumps(await everything(queue), sort_keys=True).encode()).hexdigest()


async def _send(api: Running, name: str, workspace: str, call: Call) -> Reply:
    route = BY_NAME[name]
    options: dict[str, Any] = {"headers": {"Idempotency-Key": workspace}}
    return await api.call(route.method, call.path(route, workspace=workspace), call.body, **options)


def maintain(url: str, folder: str, point: str | None) -> None:
    """Run every maintenance job on a queue with work for them, then send notifications; die at this point.

    If it does not die, print the points passed.
    """
    _prepare(folder)
    asyncio.run(_maintain(url, point))


async def _maintain(url: str, point: str | None) -> None:
    clock = MovedClock()
    async with Queue.open(url, clock=clock, private_sinks=True) as shared:
        queue = shared.in_workspace(maintained_workspace(point))
        wants = {"events": ["task.*"], "alerts": []}
        await queue.sinks.add("ops", "webhook", "http://127.0.0.1:9/in", wants=wants, allow_private=True)
        await queue.agents.register(id="ada", max_concurrent_tasks=3)
        await queue.settings.set("archive_after_sec", 60.0)
        await queue.submit_many([{"type": "noop"}] * 4)
        done, failed, _ = await queue.claim("ada", 3, start=True)
        await queue.complete(done.token)
        await queue.fail(failed.token, "crash")
        clock.advance(400)
        passed = crash_points.arm(point)
        await run_once(queue.engine, force=True)
        await NotificationSender(queue.engine).send_due()
        _print(passed)
        os._exit(0)


def maintained_workspace(point: str | None) -> str:
    return f"maintained until {point}".replace(":", "")


def _prepare(folder: str) -> None:
    logging.disable(logging.CRITICAL)
    os.environ |= {"SHIFTWORK_ARTIFACTS": f"{folder}/artifacts", "SHIFTWORK_SNAPSHOTS": f"{folder}/snapshots"}


def _print(what: Any) -> None:
    print(json.dumps(what), flush=True)  # noqa: T201 -- for the test that reads it
