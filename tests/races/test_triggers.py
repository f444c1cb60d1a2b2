"""Many servers on one queue: each tick, event and file fires once."""

import asyncio
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from shiftwork import Queue
from shiftwork.engine import event_log
from shiftwork.engine.event_log import Part
from shiftwork.server.folder_watch import Watching
from shiftwork.store.store import Store
from shiftwork.testing import MovedClock
from shiftwork.triggers import maintenance as job
from tests.races.fleet import Stop, handles, together

NOTE = {"type": "note", "title": "{{ tick }}"}
MINUTE = 60.0


async def notes(queue: Queue) -> list[str]:
    return sorted(str(task.title) for task in (await queue.tasks.list(type="note", limit=1000)).tasks)


async def test_each_tick_fires_once_with_several_servers(store_url: str) -> None:
    clock = MovedClock()
    async with handles(store_url, 3, clock=clock) as servers:
        for number in range(10):
            on = {"kind": "cron", "at": "* * * * *"}
            tick = {"tick": {"from": "tick"}}
            await servers[0].triggers.save(f"every-minute-{number}", on=on, task=NOTE, parameters=tick)
        for minute in range(1, 6):
            clock.advance(MINUTE)
            await together(*(job.run(server.engine) for server in servers))
            assert len(await notes(servers[0])) == 10 * minute
        assert len(set(await notes(servers[0]))) == 5


async def test_schedule_being_fired_by_another_server_is_skipped(postgres_dsn: str) -> None:
    clock = MovedClock()
    async with handles(postgres_dsn, 2, clock=clock) as (first, second):
        tick = {"tick": {"from": "tick"}}
        await first.triggers.save("x", on={"kind": "cron", "at": "* * * * *"}, task=NOTE, parameters=tick)
        clock.advance(MINUTE)
        stop = Stop(first, "advance_trigger")
        firing = asyncio.create_task(job.run(first.engine))
        await stop.wait()
        assert await job.run(second.engine) == {}
        stop.resume()
        assert await firing == {"ticks": 1}
        assert await job.run(second.engine) == {}


async def test_each_event_fires_once_with_several_servers(store_url: str) -> None:
    async with handles(store_url, 3) as servers:
        on = {"kind": "event", "events": ["task.created"], "where": {"type": "code"}}
        seen = {"tick": {"from": "task_id"}}
        await servers[0].triggers.save("watch", on=on, task=NOTE, parameters=seen)
        for _ in range(5):
            await together(
                *(server.submit(type="code") for server in servers for _ in range(4)),
                *(job.run(server.engine) for server in servers),
            )
        await job.run(servers[0].engine)
        found = await notes(servers[0])
        assert len(found) == len(set(found)) == 60


@pytest.mark.parametrize("resumed", [False, True])
async def test_trigger_saved_while_the_log_is_read_misses_no_event(
    store_url: str, monkeypatch: pytest.MonkeyPatch, *, resumed: bool
) -> None:
    async with handles(store_url, 2) as (server, other):
        on = {"kind": "event", "events": ["task.created"], "where": {"type": "never"}}
        await other.triggers.save("another", on=on, task=NOTE, parameters={"tick": {"from": "task_id"}})
        new = {**on, "where": {"type": "code"}}
        if resumed:
            await other.triggers.save("new", on=new, task=NOTE, parameters={"tick": {"from": "task_id"}})
            await other.triggers.pause("new")
        await job.run(server.engine)

        async def read_late(store: Store, after: int, count: int) -> Part:
            """The trigger and its first event come after the maintenance job has asked who follows."""
            monkeypatch.undo()
            if resumed:
                await other.triggers.resume("new")
            else:
                await other.triggers.save("new", on=new, task=NOTE, parameters={"tick": {"from": "task_id"}})
            await other.submit(type="code")
            return await event_log.read(store, after, count)

        monkeypatch.setattr(job, "event_log", SimpleNamespace(read=read_late))
        await job.run(server.engine)
        await job.run(server.engine)
        assert len(await notes(server)) == 1


async def test_two_servers_watching_one_folder_fire_once(store_url: str, tmp_path: Path) -> None:
    async with handles(store_url, 2) as servers:
        tick = {"tick": {"from": "path"}}
        await servers[0].triggers.save("in", on={"kind": "file", "pattern": "*.md"}, task=NOTE, parameters=tick)
        watching = [Watching(server, tmp_path) for server in servers]
        await together(*(each.scan() for each in watching))
        for name in ("a.md", "b.md"):
            (tmp_path / name).write_text(name)
        os.utime(tmp_path / "a.md")
        for _ in range(3):
            await together(*(each.scan() for each in watching))
        assert await notes(servers[0]) == ["a.md", "b.md"]
