"""A program killed before its commit has submitted nothing; one killed after it has."""

import asyncio
import sys
from asyncio.subprocess import PIPE, Process

import apsw
import asyncpg
import pytest

from shiftwork import Queue
from tests.services.postgres import execute


@pytest.fixture
def own_table(store_url: str) -> str:
    if store_url.startswith("sqlite"):
        apsw.Connection(store_url.removeprefix("sqlite:///")).execute("create table orders (note text)")
    else:
        execute(store_url, "create table orders (note text)")
    return store_url


async def start(url: str) -> Process:
    command = (sys.executable, "-m", "tests.transactions.submitter", url, url)
    return await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE)


async def reached(process: Process, where: str) -> None:
    assert process.stdout is not None
    assert (await asyncio.wait_for(process.stdout.readline(), 60)).decode().strip() == where


async def resume(process: Process) -> None:
    assert process.stdin is not None
    process.stdin.write(b"\n")
    await process.stdin.drain()


async def own_rows(url: str) -> int:
    if url.startswith("sqlite"):
        return int(str(apsw.Connection(url.removeprefix("sqlite:///")).execute("select count(*) from orders").get))
    connection = await asyncpg.connect(url)
    try:
        return int(await connection.fetchval("select count(*) from orders"))
    finally:
        await connection.close()


async def test_kill_before_the_commit_submits_nothing(own_table: str) -> None:
    process = await start(own_table)
    await reached(process, "submitted")
    process.kill()
    await process.wait()
    async with Queue.open(own_table) as queue:
        task = await queue.submit(type="code", idempotency_key="once")  # waits until the server has noticed
        assert not task.duplicate
        assert [each.id for each in (await queue.tasks.list()).tasks] == [task.id]
    assert await own_rows(own_table) == 0


async def test_task_survives_a_kill_after_the_commit(own_table: str) -> None:
    process = await start(own_table)
    await reached(process, "submitted")
    await resume(process)
    await reached(process, "committed")
    process.kill()
    await process.wait()
    async with Queue.open(own_table) as queue:
        (task,) = (await queue.tasks.list()).tasks
        assert task.status == "ready"
        assert (await queue.submit(type="code", idempotency_key="once")).id == task.id
    assert await own_rows(own_table) == 1
