"""A starting worker reclaims the tasks of dead processes at once, and none of live ones."""

import asyncio
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from shiftwork import Client, Queue
from shiftwork.agents.known_process import Process
from shiftwork.model.errors import InputError
from shiftwork.worker import Context, Worker
from shiftwork.worker.local_runtimes import Note, Roster
from tests.client.serving import served
from tests.server.running import Running
from tests.worker.command_runner import CommandRunner, ask, desk_on
from tests.worker.mills import running_mill, submit
from tests.worker.steps import PATIENCE_SEC, until, until_status, verbs

SLEEP = ["sh", "-c", "touch begun; sleep 600"]


@pytest.fixture
def server(store_url: str) -> Iterator[Running]:
    with served(store_url) as running:
        yield running


@pytest.fixture
def commands(server: Running, tmp_path: Path) -> Iterator[CommandRunner]:
    with desk_on(server.url, tmp_path) as made:
        yield made


async def begun(queue: Queue, mcp_server: CommandRunner, task_id: str) -> None:
    await until_status(queue, task_id, "running")
    await until((mcp_server.work_dir / task_id / "begun").exists)


async def recovered(queue: Queue) -> None:
    """Lost tasks return at once and without cost, to distinguish them from expired leases."""
    await queue.settings.change({"recover": "requeue", "runtime_offline_sec": 3600, "heartbeat_timeout_sec": 3600})


@pytest.mark.requirement("A-079")
@pytest.mark.parametrize("processes", ["1", "2"])
async def test_killed_runner_recovers_its_task_after_restart(
    shop: Queue, commands: CommandRunner, processes: str
) -> None:
    await recovered(shop)
    task = await ask(shop, "x")
    first = commands.start(SLEEP, "--agent", "ada", "--processes", processes)
    await begun(shop, commands, task)
    os.killpg(first.pid, signal.SIGKILL)
    await asyncio.to_thread(first.wait)
    commands.run(["echo", "done"], "--agent", "ada", "--processes", processes)
    assert (await shop.result(task)).text == "done"
    (note,) = [failure.note for failure in (await shop.get(task)).failure_history]
    assert note is not None
    assert note.endswith("restarted")


async def test_unnamed_runner_recovers_tasks_of_another_on_its_machine(shop: Queue, commands: CommandRunner) -> None:
    await recovered(shop)
    task = await ask(shop, "x")
    first = commands.start(SLEEP)
    await begun(shop, commands, task)
    first.kill()
    await asyncio.to_thread(first.wait)
    commands.run(["echo", "done"])
    assert (await shop.result(task)).text == "done"


async def test_live_runner_of_the_same_name_keeps_its_task(shop: Queue, commands: CommandRunner) -> None:
    await recovered(shop)
    task = await ask(shop, "x")
    commands.start(["sh", "-c", "touch begun; while [ ! -e go ]; do sleep 0.05; done; echo mine"], "--agent", "ada")
    await begun(shop, commands, task)
    commands.run(["echo", "stolen"], "--agent", "ada")
    assert (await shop.get(task)).status == "running"
    (commands.work_dir / task / "go").touch()
    await until_status(shop, task, "completed")
    assert (await shop.result(task)).text == "mine"
    assert (await verbs(shop, task)).count("claimed") == 1


async def test_worker_ending_normally_leaves_no_roster_file(server: Running) -> None:
    worker = Worker()
    worker.handler("code")(print)
    await worker.run(server.url, until_idle=True)
    async with Client.open(server.url) as client:
        assert list(Roster(client.url, "default")._folder.iterdir()) == []  # where its notes would be


async def test_roster_files_of_another_host_are_ignored(server: Running) -> None:
    """Machines that share a home directory may not share its locks, so only leases end their claims."""
    async with Client.open(server.url) as client:
        roster = Roster(client.url, "default")
        entry = roster.enter("theirs")
        assert entry is not None
        elsewhere = Process("another machine", os.getpid(), "1")
        entry.write(Note("theirs", "another host", elsewhere))
        entry.close(remove=False)
        assert list(roster.of_dead_workers()) == []
        entry = roster.enter("theirs")
        assert entry is not None
        entry.write(Note("theirs", socket.gethostname(), elsewhere))  # before this machine was booted
        entry.close(remove=False)
        assert [runtime_id for runtime_id, _ in roster.of_dead_workers()] == ["theirs"]


async def test_runtime_id_in_use_is_refused(shop: Queue, store_url: str) -> None:
    """As with the same id on two machines: the second sees that the first is alive."""
    go = asyncio.Event()
    first, second = Worker("first"), Worker("second")

    @first.handler("code")
    async def code(ctx: Context) -> str:
        await go.wait()
        return "mine"

    second.handler("code")(lambda _: "stolen")
    made = await shop.submit(type="code")
    running = asyncio.create_task(first.run(store_url, runtime_id="daemon-1"))
    await until_status(shop, made.id, "running")
    with pytest.raises(InputError, match="works as the runtime 'daemon-1'"):
        await second.run(store_url, runtime_id="daemon-1")
    go.set()
    await until_status(shop, made.id, "completed")
    first.stop()
    await running
    assert (await shop.result(made.id)).data == "mine"


async def test_second_local_process_with_the_same_runtime_id_is_refused(server: Running) -> None:
    first, second = Worker("first"), Worker("second")
    for worker in (first, second):
        worker.handler("code")(print)
    running = asyncio.create_task(first.run(server.url, runtime_id="daemon-1"))
    async with Client.open(server.url) as client:
        await until(lambda: _is_there(client, "daemon-1"))
        with pytest.raises(InputError, match="a process of this machine works as the runtime 'daemon-1'"):
            await second.run(server.url, runtime_id="daemon-1")
    first.stop()
    await running


async def _is_there(client: Client, runtime_id: str) -> bool:
    return runtime_id in [each.id for each in await client.runtimes.list()]


async def test_command_line_sets_the_runtime_id(shop: Queue, commands: CommandRunner) -> None:
    commands.run(["true"], "--runtime", "pod-7")
    commands.run(["true"], "--runtime", "pod-8", "--processes", "2")
    assert {each.id for each in await shop.runtimes.list()} == {"pod-7", "pod-8-1", "pod-8-2"}


@pytest.mark.parametrize("over_http", [False, True], ids=["at the store", "over HTTP"])
async def test_until_idle_completes_tasks_of_a_killed_process(
    shop: Queue, store_url: str, server: Running, tmp_path: Path, *, over_http: bool
) -> None:
    """Also where its retry has a delay."""
    await shop.settings.change({"retry.strategy": "fixed", "retry.initial_delay_sec": 1, "retry.jitter": False})
    with running_mill(server.url if over_http else store_url, tmp_path) as mill:
        (task,) = await submit(shop, mill)
        first = mill.start(1)
        await mill.holder(task)
        first.kill()
        await asyncio.to_thread(first.wait)
        mill.go()
        second = mill.start(1, until_idle=True)
        assert await asyncio.to_thread(second.wait, PATIENCE_SEC) == 0
    assert (await shop.get(task)).status == "completed"
