"""SIGTERM and SIGINT reach every worker of a process, and the program keeps its own handlers."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from shiftwork import Queue
from shiftwork.worker import Context, Worker
from tests.worker.started import Started
from tests.worker.steps import PATIENCE_SEC, knows, until

NUMBERS = (signal.SIGTERM, signal.SIGINT)
THREE = """
import asyncio, sys
from shiftwork import Worker

async def main():
    workers = [Worker(f"w-{number}") for number in range(3)]
    for worker in workers:
        worker.handler("code")(print)
    await asyncio.gather(*(worker.run(sys.argv[1]) for worker in workers))
    print("all three ended")

asyncio.run(main())
"""


@pytest.fixture
def _handlers_restored() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in NUMBERS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def idle_worker(name: str) -> Worker:
    worker = Worker(name)
    worker.handler("code")(print)
    return worker


@pytest.mark.parametrize("number", NUMBERS)
async def test_signal_stops_every_worker_of_a_process(
    shop: Queue, store_url: str, tmp_path: Path, number: signal.Signals
) -> None:
    (tmp_path / "three.py").write_text(THREE)
    started = Started(tmp_path / "started")
    try:
        program = started.spawn([sys.executable, "three.py", store_url], tmp_path)
        for name in ("w-0", "w-1", "w-2"):
            await until(lambda name=name: knows(shop, name))  # type: ignore[misc]  # the default binds it
        await until(lambda: _listens(program, number))
        program.send_signal(number)
        assert await asyncio.to_thread(program.wait, PATIENCE_SEC) == 0, started.log()
        assert "all three ended" in started.log()
    finally:
        started.end()
    assert {agent.status for agent in await shop.agents.list()} == {"offline"}


def _listens(program: subprocess.Popen[bytes], number: signal.Signals) -> bool:
    """Return whether the process handles the signal."""
    status = Path(f"/proc/{program.pid}/status").read_text()
    (caught,) = [line.split()[1] for line in status.splitlines() if line.startswith("SigCgt")]
    return bool(int(caught, 16) >> (number - 1) & 1)


@pytest.mark.usefixtures("_handlers_restored")
async def test_signal_stops_a_worker_in_another_thread(shop: Queue, store_url: str) -> None:
    background = threading.Thread(target=lambda: asyncio.run(idle_worker("beside").run(store_url)))
    background.start()
    running = asyncio.create_task(idle_worker("main").run(store_url))
    for name in ("beside", "main"):
        await until(lambda name=name: knows(shop, name))  # type: ignore[misc]  # the default binds it
    await until(lambda: signal.getsignal(signal.SIGTERM) not in {signal.SIG_DFL, None})
    os.kill(os.getpid(), signal.SIGTERM)
    await running
    await asyncio.to_thread(background.join, PATIENCE_SEC)
    assert not background.is_alive()


@pytest.mark.usefixtures("_handlers_restored")
async def test_signal_handlers_of_the_program_are_restored_after_last_worker(shop: Queue, store_url: str) -> None:
    heard: list[int] = []

    def own(number: int, _frame: object) -> None:
        heard.append(number)

    for number in NUMBERS:
        signal.signal(number, own)
    first, second = idle_worker("first"), idle_worker("second")
    running = asyncio.create_task(second.run(store_url))
    await until(lambda: knows(shop, "second"))
    await first.run(store_url, until_idle=True)
    assert [signal.getsignal(number) is own for number in NUMBERS] == [False, False]  # the second still listens
    second.stop()
    await running
    for number in NUMBERS:
        os.kill(os.getpid(), number)
    await until(lambda: heard == [signal.SIGTERM, signal.SIGINT])


@pytest.mark.usefixtures("_handlers_restored")
async def test_signal_handler_set_on_the_loop_is_restored(store_url: str) -> None:
    loop, heard = asyncio.get_running_loop(), asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, heard.set)
    try:
        await idle_worker("first").run(store_url, until_idle=True)
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(heard.wait(), PATIENCE_SEC)
    finally:
        loop.remove_signal_handler(signal.SIGTERM)


async def test_worker_runs_in_its_own_thread(shop: Queue, store_url: str) -> None:
    worker = Worker("beside")

    @worker.handler("code")
    async def code(ctx: Context) -> str:
        return threading.current_thread().name

    made = await shop.submit(type="code")
    run = lambda: asyncio.run(worker.run(store_url, until_idle=True))  # noqa: E731  # a thread's target
    background = threading.Thread(target=run, name="own thread")
    background.start()
    await asyncio.to_thread(background.join, PATIENCE_SEC)
    assert (await shop.result(made.id)).data == "own thread"
