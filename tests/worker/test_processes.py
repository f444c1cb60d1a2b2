"""Workers in real processes, killed, stopped and cut off: nothing is lost, and nothing is accepted twice."""

import asyncio
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from shiftwork import Queue
from shiftwork.worker.outbox import default_folder
from tests.services import Postgres
from tests.worker.mills import Mill, done_once, kill_a_child, running_mill, stop, submit
from tests.worker.steps import PATIENCE_SEC, beat_fast, until, until_status, verbs


@pytest.fixture
def mill(store_url: str, tmp_path: Path) -> Iterator[Mill]:
    with running_mill(store_url, tmp_path) as made:
        yield made


async def stop_outside_of_a_transaction(queue: Queue, process: subprocess.Popen[bytes]) -> None:
    """On SQLite a process that is stopped while it writes lets nobody else write; that is not the case meant here."""
    while True:
        process.send_signal(signal.SIGSTOP)
        await until(lambda: _stands_still(process.pid))
        with suppress(TimeoutError):
            async with asyncio.timeout(1):
                await queue.agent_heartbeat("mill")
                return
        process.send_signal(signal.SIGCONT)


def _stands_still(pid: int) -> bool:
    """The signal is sent to all threads, and each stops when it next meets the kernel: one may still take a lock."""
    stats = [stat.read_text(encoding="ascii", errors="replace") for stat in Path(f"/proc/{pid}/task").glob("*/stat")]
    return all(stat.rpartition(")")[2].split()[0] == "T" for stat in stats)


@pytest.mark.requirement("C-096", "C-156", "C-267")
async def test_a_killed_child_is_replaced_and_its_tasks_are_done_by_others_without_cost(
    shop: Queue, mill: Mill
) -> None:
    fleet = mill.start(2)
    lost = await kill_a_child(shop, mill)
    returned = [event for event in await shop.history(lost[0]) if event.verb == "lease_expired"]
    assert returned[0].actor.startswith("fleet:")
    assert "ended with signal SIGKILL" in mill.log()
    assert await stop(fleet) == 0
    assert {agent.id for agent in await shop.agents()} == {"mill-1", "mill-2"}


async def test_the_tasks_of_a_lone_worker_that_was_killed_are_handed_back_by_others(shop: Queue, mill: Mill) -> None:
    lone = mill.start(1)
    (task,) = await submit(shop, mill)
    assert await mill.holder(task) == lone.pid
    lone.kill()  # not waited for: it is dead, and still in the table of processes
    other = mill.start(1)
    assert await mill.holder(task, 2) == other.pid
    mill.go()
    await until_status(shop, task, "completed")
    assert [e.actor for e in await shop.history(task) if e.verb == "lease_expired"] == ["duty:presence"]
    assert (await shop.get(task)).attempts == 0


async def test_a_zombie_that_comes_back_changes_nothing(shop: Queue, mill: Mill) -> None:
    await beat_fast(shop, 1.2)
    await shop.set_setting("on_stale", "reclaim")
    zombie = mill.start(1)
    (task,) = await submit(shop, mill)
    await mill.holder(task)
    await stop_outside_of_a_transaction(shop, zombie)
    other = mill.start(1)
    assert await mill.holder(task, 2) == other.pid
    mill.go()
    await until_status(shop, task, "completed")
    zombie.send_signal(signal.SIGCONT)
    assert await stop(zombie) == 0
    assert (await shop.result(task)).data == other.pid
    assert await done_once(shop, [task])
    assert "lost=1" in mill.log()


async def test_a_fleet_is_stopped_with_nothing_lost(shop: Queue, mill: Mill) -> None:
    fleet = mill.start(2)
    tasks = await submit(shop, mill, 6)
    await until(lambda: sum(len(mill.holders(task)) for task in tasks) == 4)
    fleet.send_signal(signal.SIGTERM)
    await until(lambda: mill.log().count("stopping: 2 running handlers") == 2)
    mill.go()
    assert await asyncio.to_thread(fleet.wait, PATIENCE_SEC) == 0
    statuses = sorted([(await shop.get(task)).status for task in tasks])
    assert statuses == ["completed"] * 4 + ["ready"] * 2


async def test_a_crash_loop_is_slowed_down_and_reported(shop: Queue, mill: Mill) -> None:
    await shop.set_setting("max_reclaims", None)
    fleet = mill.start(2)
    bursts = await submit(shop, mill, 1, "burst")
    await until(lambda: "2 crashes in a row; a new one starts in 1 s" in mill.log())
    await shop.cancel_many(bursts)
    mill.go()
    tasks = await submit(shop, mill)
    await until(lambda: done_once(shop, tasks))
    assert "ended with exit code 7" in mill.log()
    assert await stop(fleet) == 0


async def test_what_prints_much_or_hears_nothing_ends_all_the_same(shop: Queue, mill: Mill) -> None:
    (loud,) = await submit(shop, mill, 1, "chatter")
    (deaf,) = await submit(shop, mill, 1, "deaf")
    lone = mill.start(1)
    await mill.holder(deaf)
    await until_status(shop, loud, "completed")
    await shop.cancel(deaf)
    await until_status(shop, deaf, "cancelled")
    assert await stop(lone) == 0


# -- cut off from PostgreSQL -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def own_server() -> Iterator[Postgres]:
    with Postgres.start(durable=True) as server:
        yield server


@asynccontextmanager
async def cut_off_while_at_work(server: Postgres, tmp_path: Path) -> AsyncIterator[tuple[Queue, Mill, list[str], Path]]:
    """A lone worker holds two tasks, the server goes away, the handlers finish: their results are in the outbox."""
    if not server.running:
        server.start_again()
    url = server.dsn(server.create_database())
    folder = default_folder(url)
    assert folder is not None
    with running_mill(url, tmp_path) as mill:
        async with await Queue.open(url) as queue:
            mill.start(1)
            tasks = await submit(queue, mill, 2)
            for task in tasks:
                await mill.holder(task)
            await asyncio.to_thread(server.stop)
            mill.go()
            await until(lambda: len(list(folder.glob("*.json"))) == 2)
            yield queue, mill, tasks, folder


@pytest.mark.requirement("C-262")
async def test_results_finished_while_the_server_was_away_are_delivered(own_server: Postgres, tmp_path: Path) -> None:
    async with cut_off_while_at_work(own_server, tmp_path) as (queue, mill, tasks, folder):
        await asyncio.to_thread(own_server.start_again)
        await until(lambda: done_once(queue, tasks))
        await until(lambda: not list(folder.iterdir()))
        for task in tasks:
            assert await verbs(queue, task) == ["submitted", "claimed", "completed"]
            assert (await queue.result(task)).data == mill.holders(task)[0]


async def test_a_result_in_the_outbox_outlives_its_worker(own_server: Postgres, tmp_path: Path) -> None:
    async with cut_off_while_at_work(own_server, tmp_path) as (queue, mill, tasks, folder):
        (killed,) = {pid for task in tasks for pid in mill.holders(task)}
        mill.end()
        await asyncio.to_thread(own_server.start_again)
        next_one = mill.start(1, until_idle=True)
        assert await asyncio.to_thread(next_one.wait, PATIENCE_SEC) == 0
        for task in tasks:
            assert await verbs(queue, task) == ["submitted", "claimed", "completed"]
            assert (await queue.result(task)).data == killed
        assert list(folder.iterdir()) == []
