"""Many WebSocket subscribers of one server while events flow; used by the tests and by the benchmark."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from contextlib import AsyncExitStack
from typing import Any, NamedTuple

import aiohttp

from tests.server.watching import Watcher, watch

BATCH = 50
EVENTS_OF_A_TASK = 6
"""Submitted, claimed with a start, completed: three rows of two names each."""


class Crowd(NamedTuple):
    """The results."""

    events: int
    seconds: float
    delays: list[float]
    """Seconds from each event to the first subscriber."""


async def send_to_subscribers(http: aiohttp.ClientSession, url: str, subscribers: int, events: int) -> Crowd:
    """Each subscriber gets each event once and in the order of the log, or this fails."""
    tasks = events // EVENTS_OF_A_TASK
    await _post(http, f"{url}/api/agents", {"id": "ada", "max_concurrent_tasks": BATCH})
    async with AsyncExitStack() as stack:
        watchers: list[Watcher] = []
        while len(watchers) < subscribers:
            few = range(min(BATCH, subscribers - len(watchers)))
            watchers += await asyncio.gather(*(stack.enter_async_context(watch(http, url)) for _ in few))
        after = watchers[0].cursor
        count = tasks * EVENTS_OF_A_TASK
        began = time.perf_counter()
        first = asyncio.create_task(_read(watchers[0], count))
        others = [asyncio.create_task(_digest(watcher, count)) for watcher in watchers[1:]]
        await _work(http, url, tasks)
        reply, delays = await first
        digests = await asyncio.gather(*others)
        seconds = time.perf_counter() - began
    assert [(each["cursor"], each["event"]) for each in reply] == await _logged(http, url, after)
    assert set(digests) <= {_digest_of(reply)}
    return Crowd(count, seconds, delays)


async def _read(watcher: Watcher, count: int) -> tuple[list[dict[str, Any]], list[float]]:
    found, delays = [], []
    for _ in range(count):
        message = await watcher.message()
        delays.append(time.time() - message["at"])
        found.append(message)
    return found, delays


async def _digest(watcher: Watcher, count: int) -> str:
    """Return a digest of everything that a subscriber received."""
    digest, receive = hashlib.sha256(), watcher.socket.receive_str
    for _ in range(count):
        digest.update((await receive()).encode())
    return digest.hexdigest()


def _digest_of(signed: list[dict[str, Any]]) -> str:
    texts = [json.dumps(each, separators=(",", ":"), ensure_ascii=False) for each in signed]
    return hashlib.sha256("".join(texts).encode()).hexdigest()


async def _work(http: aiohttp.ClientSession, url: str, tasks: int) -> None:
    for start in range(0, tasks, BATCH):
        count = min(BATCH, tasks - start)
        await _post(http, f"{url}/api/tasks", [{"type": "noop"}] * count)
        claimed = await _post(http, f"{url}/api/tasks/claim", {"agent_id": "ada", "count": count, "start": True})
        reports = [{"token": held["token"]} for held in claimed["assignments"]]
        assert len(reports) == count
        await _post(http, f"{url}/api/batch/complete", {"reports": reports})


async def _post(http: aiohttp.ClientSession, url: str, body: Any) -> Any:
    async with http.post(url, json=body) as answer:
        assert answer.ok, await answer.read()
        return await answer.json()


async def _logged(http: aiohttp.ClientSession, url: str, after: str) -> list[tuple[str, str]]:
    """Return the cursors and names of all events in the log after a cursor."""
    found: list[tuple[str, str]] = []
    while True:
        async with http.get(f"{url}/api/events?after={after}&limit=10000") as answer:
            page = await answer.json()
        for row in page["events"]:
            *most, last = row["names"]
            found += [(f"{row['seq']}-{number}", name) for number, name in enumerate(most, 1)]
            found.append((str(row["seq"]), last))
        if not page["events"]:
            return found
        after = page["next"]
