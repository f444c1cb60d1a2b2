"""Workers in real processes, killed, stopped and disconnected: nothing is lost or accepted twice."""

import asyncio
import functools
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import asyncpg
import msgspec
import pytest

from shiftwork import Queue
from shiftwork.agents.known_process import process_of
from shiftwork.model.errors import InputError
from shiftwork.model.reports import TaskResult
from shiftwork.worker import Worker, worker_processes
from shiftwork.worker.child_process import refusal
from shiftwork.worker.outbox import StoredResult, default_folder
from shiftwork.worker.worker_processes import IDLE, Fleet
from tests.outages.relay import relay_to
from tests.services import Postgres
from tests.worker.command_runner import alive
from tests.worker.mills import Mill, done_once, kill_a_child, running_mill, stop, submit
from tests.worker.started import Started
from tests.worker.steps import PATIENCE_SEC, beat_fast, knows, until, until_status, verbs

OPEN_TRANSACTIONS = """
select count(*) from pg_stat_activity
where datname = current_database() and xact_start is not null and pid <> pg_backend_pid()"""


@pytest.fixture
def mill(store_url: str, tmp_path: Path) -> Iterator[Mill]:
    with running_mill(store_url, tmp_path) as made:
        yield made


async def stop_outside_of_a_transaction(queue: Queue, process: subprocess.Popen[bytes]) -> None:
    """Stop a process outside of a transaction, since one stopped during a write would block other writers."""
    while True:
        process.send_signal(signal.SIGSTOP)
        await until(lambda: _stands_still(process.pid))
        if not await _holds_locks(queue):
            return
        process.send_signal(signal.SIGCONT)


async def _holds_locks(queue: Queue) -> bool:
    if queue.url.startswith("postgresql"):
        connection = await asyncpg.connect(queue.url)
        try:
            return bool(await connection.fetchval(OPEN_TRANSACTIONS))
        finally:
            await connection.close()
    try:
        async with asyncio.timeout(1):
            await queue.agents.heartbeat("mill")
    except TimeoutError:
        return True
    return False


def _stands_still(pid: int) -> bool:
    """Return whether all threads have stopped: each stops at its next kernel entry, and may take a lock before."""
    stats = [stat.read_text(encoding="ascii", errors="replace") for stat in Path(f"/proc/{pid}/task").glob("*/stat")]
    return all(stat.rpartition(")")[2].split()[0] == "T" for stat in stats)


async def _present(queue: Queue, count: int) -> bool:
    """Whether this many worker processes have announced themselves."""
    return [runtime.status for runtime in await queue.runtimes.list()] == ["active"] * count


@pytest.mark.requirement("C-096", "C-156", "C-267")
async def test_killed_child_is_replaced_and_its_tasks_are_completed(shop: Queue, mill: Mill) -> None:
    await shop.settings.set("maintenance.presence_sec", 600)  # else a neighbour may be as quick as the fleet
    fleet = mill.start(2)
    lost = await kill_a_child(shop, mill)
    returned = [event for event in (await shop.tasks.history(lost[0])).events if event.verb == "failed"]
    assert returned[0].actor.startswith("fleet:")
    assert "ended with signal SIGKILL" in mill.log()
    assert await stop(fleet) == 0
    assert {agent.id for agent in await shop.agents.list()} == {"mill-1", "mill-2"}


async def test_tasks_of_a_killed_single_worker_are_completed_by_others(shop: Queue, mill: Mill) -> None:
    await shop.settings.set("retry.strategy", "immediate")
    lone = mill.start(1)
    (task,) = await submit(shop, mill)
    assert await mill.holder(task) == lone.pid
    lone.kill()  # not waited for: it is dead, and still in the table of processes
    other = mill.start(1)
    assert await mill.holder(task, 2) == other.pid
    mill.go()
    await until_status(shop, task, "completed")
    assert [e.actor for e in (await shop.tasks.history(task)).events if e.verb == "failed"] == ["maintenance:presence"]
    assert (await shop.get(task)).attempts == 1


async def test_late_result_of_a_resumed_process_changes_nothing(shop: Queue, mill: Mill) -> None:
    await beat_fast(shop, 1.2)
    await shop.settings.set("on_stale", "reclaim")
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
    assert "stopped: 1 lost in " in mill.log()


async def test_fleet_stops_without_losing_tasks(shop: Queue, mill: Mill) -> None:
    fleet = mill.start(2)
    tasks = await submit(shop, mill, 6)
    await until(lambda: sum(len(mill.holders(task)) for task in tasks) == 4)
    fleet.send_signal(signal.SIGTERM)
    await until(lambda: mill.log().count("stopping: 2 running handlers") == 2)
    mill.go()
    assert await asyncio.to_thread(fleet.wait, PATIENCE_SEC) == 0
    statuses = sorted([(await shop.get(task)).status for task in tasks])
    assert statuses == ["completed"] * 4 + ["ready"] * 2


async def test_crash_loop_is_slowed_down_and_logged(shop: Queue, mill: Mill) -> None:
    await shop.settings.set("max_reclaims", None)
    await shop.settings.set("retry.strategy", "immediate")
    fleet = mill.start(2)
    bursts = await submit(shop, mill, 1, "burst")
    await until(lambda: "2 crashes in a row; restarting in 1 s" in mill.log())
    await shop.batch.cancel(bursts)
    mill.go()
    tasks = await submit(shop, mill)
    await until(lambda: done_once(shop, tasks))
    assert "ended with exit code 7" in mill.log()
    assert await stop(fleet) == 0


@pytest.mark.parametrize("code", [0, 3])
async def test_exit_code_of_a_handler_is_not_taken_for_an_orderly_end(
    sqlite_url: str, tmp_path: Path, code: int
) -> None:
    """A process reports why it ends; one that a handler ended has not, and is replaced."""
    async with Queue.open(sqlite_url) as queue:
        with running_mill(sqlite_url, tmp_path) as mill:
            (task,) = await submit(queue, mill, 1, "leave", code=code)
            fleet = mill.start(2, until_idle=True)
            assert await asyncio.to_thread(fleet.wait, PATIENCE_SEC) == 0
            assert f"ended with exit code {code} after" in mill.log()
            assert (await queue.get(task)).status == "completed"


async def test_process_whose_agent_is_offline_is_not_replaced(sqlite_url: str, tmp_path: Path) -> None:
    async with Queue.open(sqlite_url) as queue:
        with running_mill(sqlite_url, tmp_path) as mill:
            fleet = mill.start(2)
            for agent in ("mill-1", "mill-2"):
                await until(functools.partial(knows, queue, agent))
                await queue.agents.set_status(agent, "offline")
            assert await asyncio.to_thread(fleet.wait, PATIENCE_SEC) == 0
            assert "restarting" not in mill.log()


async def test_fleet_survives_a_child_killed_by_unnamed_signal(sqlite_url: str, tmp_path: Path) -> None:
    async with Queue.open(sqlite_url) as queue:
        with running_mill(sqlite_url, tmp_path) as mill:
            fleet = mill.start(2)
            (task,) = await submit(queue, mill)
            victim = await mill.holder(task)
            os.kill(victim, signal.SIGRTMIN + 1)
            assert await mill.holder(task, 2) != victim
            assert f"ended with signal {signal.SIGRTMIN + 1} after" in mill.log()
            mill.go()
            await until_status(queue, task, "completed")
            assert await stop(fleet) == 0


@pytest.mark.parametrize("processes", ["1", "2"])
def test_worker_without_handlers_is_refused(sqlite_url: str, tmp_path: Path, processes: str) -> None:
    (tmp_path / "bare.py").write_text("from shiftwork.worker import Worker\nworker = Worker()\n")
    started = Started(tmp_path / "started")
    try:
        line = [sys.executable, "-m", "shiftwork", "--store", sqlite_url, "work", "bare:worker"]
        refused = started.spawn([*line, "--processes", processes], tmp_path)
        assert refused.wait(PATIENCE_SEC) == 2
        assert "this worker has no handlers" in started.log()
    finally:
        started.end()


@pytest.mark.parametrize(
    ("option", "value", "what"),
    [
        ("--work-dir", "/dev/null/x", "cannot work in /dev/null/x"),
        ("--type", "", "type"),
        ("--capability", "", "capabilit"),
        ("--agent", "a" * 254, "at most 255 are allowed"),
    ],
)
def test_invalid_configuration_ends_a_fleet_once(
    sqlite_url: str, tmp_path: Path, option: str, value: str, what: str
) -> None:
    started = Started(tmp_path / "started")
    try:
        line = [sys.executable, "-m", "shiftwork", "--store", sqlite_url, "work", "--type", "x", option, value]
        refused = started.spawn([*line, "--processes", "2", "--until-idle", "--", "true"], tmp_path)
        assert refused.wait(PATIENCE_SEC) == 2
        (found,) = [line for line in started.log().splitlines() if line.startswith("error: ")]
        assert what in found
        assert "restarting" not in started.log()
    finally:
        started.end()


async def test_refused_replacement_leaves_the_others_working(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The arguments of the fleet worked before; a later failure may be temporary, as during a deployment."""
    ends = iter([(1, ""), (1, refusal(InputError("halfway"))), (0, IDLE)])
    monkeypatch.setattr(worker_processes, "CRASH_SEC", 0.0)
    monkeypatch.setattr(Fleet, "_run_child", lambda *_: asyncio.sleep(0, next(ends)))
    assert await Fleet("", Worker("a"), sqlite_url, 1, None, until_idle=True).run() == 0
    assert list(ends) == []


async def test_processes_of_a_killed_fleet_stop_gracefully(shop: Queue, mill: Mill) -> None:
    fleet = mill.start(2)
    tasks = await submit(shop, mill, 4)
    children = {await mill.holder(task) for task in tasks}
    assert len(children) == 2
    fleet.kill()
    await until(lambda: mill.log().count("stopping: 2 running handlers") == 2)
    mill.go()
    await until(lambda: not any(alive(child) for child in children))
    assert await done_once(shop, tasks)


SLOW_START = """
import pathlib, sys, os, time
if "shiftwork.worker.load_worker" in sys.orig_argv:
    pathlib.Path(f"{os.getpid()}.starting").touch()
    while not pathlib.Path("go").exists():
        time.sleep(0.01)
"""


def _starting(folder: Path) -> list[int]:
    return [int(note.stem) for note in folder.glob("*.starting")]


@pytest.mark.parametrize("file", ["sitecustomize.py", "bare.py"])
async def test_interrupt_during_start_leaves_no_traceback(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    """A terminal interrupts all of them, before Python imports its first module or during the last import."""
    app = "from shiftwork.worker import Worker\nworker = Worker()\nworker.handler('x')(print)\n"
    (tmp_path / "bare.py").write_text(app)
    (tmp_path / file).write_text(SLOW_START + (app if file == "bare.py" else ""))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    started = Started(tmp_path / "started")
    try:
        line = [sys.executable, "-m", "shiftwork", "--store", sqlite_url, "work", "bare:worker", "--processes", "2"]
        fleet = started.spawn(line, tmp_path)
        await until(lambda: len(_starting(tmp_path)) == 2)
        for child in _starting(tmp_path):  # not the fleet as well, which would end them at once
            os.kill(child, signal.SIGINT)
        (tmp_path / "go").touch()
        async with Queue.open(sqlite_url) as queue:
            await until(lambda: _present(queue, 2))
        os.killpg(fleet.pid, signal.SIGINT)
        assert await asyncio.to_thread(fleet.wait, PATIENCE_SEC) == 0
        assert "Traceback" not in started.log()
        assert "restarting" not in started.log()
    finally:
        started.end()


async def test_outbox_result_of_a_dead_worker_is_submitted_by_another(shop: Queue, mill: Mill) -> None:
    """Finished work is not reclaimed: its claim stays valid until the result is submitted, and nothing is repeated."""
    first = mill.start(1)
    (task,) = await submit(shop, mill)
    assert await mill.holder(task) == first.pid
    mill.start(1)
    await until(lambda: _present(shop, 2))
    (token,) = [note.name.rpartition(".")[0] for note in mill.folder.glob(f"{task}.*")]
    folder = default_folder(shop.url)
    assert folder is not None
    folder.mkdir(parents=True)
    result = StoredResult(token, TaskResult("finished"), by=process_of(first.pid))
    (folder / "whole").write_bytes(msgspec.json.encode(result))
    (folder / "whole").rename(folder / f"{token}.json")
    first.kill()
    await until_status(shop, task, "completed")
    assert (await shop.result(task)).data == "finished"
    assert await verbs(shop, task) == ["submitted", "claimed", "completed"]
    await until(lambda: not list(folder.iterdir()))


async def test_noisy_or_unresponsive_handler_still_ends(shop: Queue, mill: Mill) -> None:
    (loud,) = await submit(shop, mill, 1, "chatter")
    (deaf,) = await submit(shop, mill, 1, "deaf")
    lone = mill.start(1)
    await mill.holder(deaf)
    await until_status(shop, loud, "completed")
    await shop.cancel(deaf)
    await until_status(shop, deaf, "cancelled")
    assert await stop(lone) == 0


@pytest.fixture(scope="module")
def own_server() -> Iterator[Postgres]:
    with Postgres.start(durable=True) as server:
        yield server


@asynccontextmanager
async def cut_off_while_at_work(
    server: Postgres, tmp_path: Path, background: int = 0
) -> AsyncIterator[tuple[Queue, Mill, list[str], Path]]:
    """A single worker holds two tasks, the server stops, the handlers finish: their results are in the outbox."""
    if not server.running:
        server.start_again()
    url = server.dsn(server.create_database())
    folder = default_folder(url)
    assert folder is not None
    with running_mill(url, tmp_path) as mill:
        async with Queue.open(url) as queue:
            mill.start(1)
            tasks = await submit(queue, mill, 2)
            for task in tasks:
                await mill.holder(task)
            for _ in range(background):
                mill.start(1)
            await until(lambda: _present(queue, 1 + background))
            await asyncio.to_thread(server.stop)
            mill.go()
            await until(lambda: len(list(folder.glob("*.json"))) == 2)
            yield queue, mill, tasks, folder


@pytest.mark.requirement("C-262")
async def test_results_finished_during_an_outage_are_submitted(own_server: Postgres, tmp_path: Path) -> None:
    async with cut_off_while_at_work(own_server, tmp_path) as (queue, mill, tasks, folder):
        await asyncio.to_thread(own_server.start_again)
        await until(lambda: done_once(queue, tasks))
        await until(lambda: not list(folder.iterdir()))
        for task in tasks:
            assert await verbs(queue, task) == ["submitted", "claimed", "completed"]
            assert (await queue.result(task)).data == mill.holders(task)[0]


async def test_outbox_result_survives_its_worker(own_server: Postgres, tmp_path: Path) -> None:
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


async def test_outbox_result_survives_its_worker_next_to_another(own_server: Postgres, tmp_path: Path) -> None:
    """The other worker reconnects first, and sees that the process is gone."""
    async with cut_off_while_at_work(own_server, tmp_path, background=1) as (queue, mill, tasks, folder):
        (killed,) = {pid for task in tasks for pid in mill.holders(task)}
        os.kill(killed, signal.SIGKILL)
        await asyncio.to_thread(own_server.start_again)
        await until(lambda: done_once(queue, tasks))
        for task in tasks:
            assert await verbs(queue, task) == ["submitted", "claimed", "completed"]
            assert (await queue.result(task)).data == killed
        await until(lambda: not list(folder.iterdir()))


async def test_results_finished_during_a_silent_network_are_submitted(postgres_url: str, tmp_path: Path) -> None:
    """The connections are dropped silently, and for a while there are no new ones."""
    async with relay_to(postgres_url) as (relay, url), await Queue.open(postgres_url) as queue:
        await queue.settings.set("operation_max_sec", 2)
        folder = default_folder(url)
        assert folder is not None
        with running_mill(url, tmp_path) as mill:
            mill.start(1)
            tasks = await submit(queue, mill, 2)
            for task in tasks:
                await mill.holder(task)
            relay.silent = True
            relay.drop()
            mill.go()
            await until(lambda: len(list(folder.glob("*.json"))) == 2)
            relay.silent = False
            await until(lambda: done_once(queue, tasks))
            await until(lambda: not list(folder.iterdir()))
            for task in tasks:
                assert await verbs(queue, task) == ["submitted", "claimed", "completed"]
            (later,) = await submit(queue, mill)
            await until_status(queue, later, "completed")


def _below(pid: int) -> list[int]:
    """Return the process and all its descendants."""
    parents: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = stat.read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
            parents.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    found = [pid]
    for each in found:
        found += parents.get(each, [])
    return found


def _arguments(pids: list[int]) -> str:
    lines = []
    for pid in pids:
        with suppress(OSError):  # it has ended
            lines.append(Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " "))
    return "\n".join(lines)


async def test_fleet_processes_do_not_show_the_store_password(
    postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = postgres_url.replace("postgres@", "postgres:opensesame@")
    assert "opensesame" in secret
    monkeypatch.setenv("SHIFTWORK_STORE", secret)
    started = Started(tmp_path / "started")
    try:
        async with Queue.open(postgres_url) as queue:
            tasks = await queue.submit_many([{"type": "code"}] * 2)
            line = [sys.executable, "-m", "shiftwork", "work", "--type", "code", "--processes", "2"]
            fleet = started.spawn([*line, "--work-dir", "work", "--", "sleep", "600"], tmp_path)
            for task in tasks:
                await until_status(queue, task.id, "running")
            await until(
                lambda: _arguments(_below(fleet.pid)).count("sleep 600") >= 2 + 1
            )  # the fleet's own, and theirs
            shown = _arguments(_below(fleet.pid))
            assert shown.count("shiftwork.worker.load_worker") == 2
            assert "opensesame" not in shown
            for task in tasks:
                await queue.cancel(task.id)
            assert await stop(fleet) == 0
    finally:
        started.end()


async def test_processes_of_prove_do_not_show_the_store_password(
    postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHIFTWORK_STORE", postgres_url.replace("postgres@", "postgres:opensesame@"))
    started = Started(tmp_path / "started")
    try:
        line = [sys.executable, "-m", "shiftwork", "prove", "--minutes", "1", "--workers", "2"]
        prove = started.spawn(line, tmp_path)
        await until(lambda: _arguments(_below(prove.pid)).count("shiftwork.prove.process") == 3)  # and a server
        assert "opensesame" not in _arguments(_below(prove.pid))
    finally:
        started.end()
