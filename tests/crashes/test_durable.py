"""kill -9 at every kind of point of a task with steps and effects: stored work is kept, and nothing happens twice."""

import asyncio
import os
import re
import signal
import socket
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from shiftwork import Queue
from tests.conftest import DEEP
from tests.crashes.fork_server import ForkServer
from tests.crashes.ten_steps import EFFECTS, STEPS, lines, worker_on

TOTAL = sum(number * number for number in range(STEPS))
KILLED = -signal.SIGKILL
PARTS = 2


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ForkServer]:
    with ForkServer("tests.crashes.ten_steps", XDG_STATE_HOME=str(tmp_path / "state")) as started:
        yield started


async def work(server: ForkServer, url: str, outside: Path, deadly: int | str) -> int:
    """Run a worker in a process that dies at this point (0: never); return its exit code."""
    return await asyncio.to_thread(server.run, "work", url, str(outside), deadly)


async def submit(queue: Queue, **fields: Any) -> str:
    return (await queue.submit({"type": "code", "retry": {"strategy": "immediate"}, **fields})).id


async def reclaim_all(queue: Queue) -> None:
    """Reclaim the tasks of the killed process."""
    for runtime in await queue.runtimes.list():
        await queue.runtimes.report_gone(runtime.id)


async def check(queue: Queue, task_id: str, outside: Path, stored: set[int]) -> None:
    """`stored` are the steps whose results were stored before a kill."""
    done = Counter(lines(outside))
    ran = {number: done[f"ran {number}"] for number in range(STEPS)}
    assert {number: ran[number] for number in stored} == dict.fromkeys(stored, 1)
    assert sorted(ran.values()) in ([1] * STEPS, [1] * (STEPS - 1) + [2])  # only what was in flight runs again
    keys = [f"{task_id}/e{number}" for number in EFFECTS]
    assert {key: done[f"effect {key}"] for key in keys} == dict.fromkeys(keys, 1)
    assert (await queue.result(task_id)).data == TOTAL
    assert [event.verb for event in (await queue.tasks.history(task_id)).events].count("completed") == 1
    assert [step.status for step in await queue.steps.list(task_id)] == ["done"] * STEPS
    assert [effect.status for effect in await queue.effects.list(task_id)] == ["done"] * len(EFFECTS)


def chosen(names: list[str]) -> list[tuple[int, str]]:
    """Each kind of point where it is first and last passed, with its number from 1; every point if DEEP."""
    numbered = list(enumerate(names, 1))
    first = {re.sub(r"\d+", "", name): number for number, name in reversed(numbered)}
    last = {re.sub(r"\d+", "", name): number for number, name in numbered}
    return [each for each in numbered if DEEP or each[0] in {*first.values(), *last.values()}]


async def points_of_a_whole_run(server: ForkServer, queue: Queue, outside: Path) -> list[str]:
    await submit(queue)
    assert await work(server, queue.url, outside, 0) == 0
    return lines(outside.with_suffix(".points"))


@pytest.mark.requirement("R-013", "R-032", "R-060", "C-253")
@pytest.mark.parametrize("part", range(PARTS))
async def test_worker_killed_at_any_kind_of_point_repeats_no_step_or_effect(
    store_url: str, server: ForkServer, tmp_path: Path, part: int
) -> None:
    async with Queue.open(store_url) as queue:
        names = await points_of_a_whole_run(server, queue, tmp_path / "whole")
        assert {f"step {number}: run" for number in range(STEPS)} < set(names)
        for number, name in chosen(names)[part::PARTS]:
            outside = tmp_path / f"outside-{number}"
            task_id = await submit(queue)
            assert await work(server, store_url, outside, number) == KILLED, name
            await reclaim_all(queue)
            stored = {step.place - 1 for step in await queue.steps.list(task_id) if step.status == "done"}
            assert await work(server, store_url, outside, 0) == 0
            await check(queue, task_id, outside, stored)


@pytest.mark.parametrize("happened", [True, False])
async def test_effect_without_verify_waits_for_an_operator_after_kill(
    store_url: str, server: ForkServer, tmp_path: Path, *, happened: bool
) -> None:
    outside = tmp_path / "outside"
    async with Queue.open(store_url) as queue:
        task_id = await submit(queue, type="blind")
        deadly = f"effect {task_id}/e: {'done' if happened else 'not done'}"
        assert await work(server, store_url, outside, deadly) == KILLED
        await reclaim_all(queue)
        assert await work(server, store_url, outside, 0) == 0
        assert (await queue.get(task_id)).failure_reason == "effect_unknown"
        (alert,) = await queue.alerts.list(kind="effect_unknown")
        await queue.effects.resolve(alert.data["key"], happened=happened, result="by hand")
        assert await work(server, store_url, outside, 0) == 0
        assert (await queue.result(task_id)).data == ("by hand" if happened else f"{task_id}/e")
        assert lines(outside) == [f"effect {task_id}/e"]


@asynccontextmanager
async def serving(server: ForkServer, store_url: str, port: int, deadly: str | int) -> AsyncIterator[str]:
    """A server that dies at a point, if one is given, otherwise at the end."""
    with server.start("serve_until_dead", store_url, port, deadly) as child:
        url = await asyncio.to_thread(child.read_line)
        assert url.startswith("http://")
        yield url
        if not deadly:
            os.kill(child.pid, signal.SIGKILL)
        assert await asyncio.to_thread(child.wait) == KILLED


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


MOMENTS = ("nothing written", "not committed", "committed")


@pytest.mark.parametrize("verb", ["steps.complete", "effects.begin", "effects.finish", "batch.complete"])
async def test_server_killed_under_its_worker_loses_no_step(
    store_url: str, server: ForkServer, tmp_path: Path, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    port = free_port()
    async with Queue.open(store_url) as queue:
        for moment in MOMENTS:
            outside = tmp_path / moment
            task_id = await submit(queue)
            async with serving(server, store_url, port, f"{verb}: {moment}") as url:
                working = asyncio.create_task(worker_on(outside).run(url, until_idle=True))
            async with serving(server, store_url, port, 0):
                await working
            await check(queue, task_id, outside, set(range(STEPS)))
