"""`python -m bench.upgrade`: migrate a large queue on PostgreSQL under writes, and time each migration.

Creates the schema of an older version and fills it. A writer keeps changing a task and adding events; its longest
transaction shows the longest time that a migration held a lock.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import time
from typing import Any

import asyncpg

from bench.stores import SERVER
from shiftwork.store import migrate
from shiftwork.store.open_store import open_store
from tests.services import Postgres

FILL = (
    """insert into tasks (id, workspace, type, status, lane, rank, ordered_at, priority, boost, path_weight, dag_id,
         root_id, max_attempts, created_at, updated_at, finished_at)
       select id, 'default', 'code', case when i % 50 = 0 then 'ready' else 'completed' end, 1, i, i, 50, 0, 0, id,
         id, 3, i, i, case when i % 50 = 0 then null else i end
       from (select i, lpad(to_hex(i), 32, '0')::uuid as id from generate_series(1, {tasks}) i) made""",
    """insert into bodies select lpad(to_hex(i), 32, '0')::uuid, json_build_object('payload', repeat('x', 100))
       from generate_series(1, {tasks}) i""",
    """insert into attempts (task_id, fence, round, agent_id, claimed_at, ended_at, outcome, counted, cost)
       select lpad(to_hex(i), 32, '0')::uuid, 1, 1, 'agent', i, i, 'completed', false, 0
       from generate_series(1, {tasks}) i where i % 50 <> 0""",
    """insert into events (at, workspace, task_id, dag_id, verb, actor)
       select i, 'default', id, id, verb, 'agent:a'
       from (select i, lpad(to_hex(i), 32, '0')::uuid as id from generate_series(1, {tasks}) i) made,
         unnest(array['submitted', 'claimed', 'completed']) verb""",
    """insert into archive (id, workspace, status, type, archived_at, task)
       select lpad(to_hex(i + 1000000000000), 32, '0')::uuid, 'default', 'completed', 'code', i,
         json_build_object('note', repeat('x', 200))
       from generate_series(1, {tasks} / 5) i""",
)
WRITE = (
    "update tasks set updated_at = updated_at + 1 where id = lpad(to_hex(50), 32, '0')::uuid",
    "insert into events (at, workspace, verb, actor) values (0, 'default', 'message', 'agent:a')",
)


class Writer:
    """Runs short transactions, one after the other."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self.took: list[tuple[float, float]] = []
        """The end and the duration of each."""

    async def write(self) -> None:
        connection = await asyncpg.connect(self._dsn)
        while True:
            began = time.perf_counter()
            async with connection.transaction():
                for statement in WRITE:
                    await connection.execute(statement)
            self.took.append((time.perf_counter(), time.perf_counter() - began))
            await asyncio.sleep(0.002)

    def longest(self, since: float, until: float) -> float:
        """Return the longest transaction that ended or was under way in this time."""
        return max((took for end, took in self.took if end >= since and end - took <= until), default=0.0)


class Times(logging.Handler):
    """Records when each migration ended, from the store's log."""

    def __init__(self) -> None:
        super().__init__()
        self.ended: list[tuple[str, float]] = []

    def emit(self, record: logging.LogRecord) -> None:
        if " took " in record.getMessage():
            self.ended.append((str(record.args[0] if isinstance(record.args, tuple) else ""), time.perf_counter()))


async def measure(dsn: str, tasks: int, before: int) -> None:
    connection = await asyncpg.connect(dsn)
    began = time.perf_counter()
    await _fill(connection, tasks, before)
    size = await connection.fetchval("select pg_size_pretty(pg_database_size(current_database()))")
    await connection.close()
    print(f"{tasks} tasks, {size}, filled in {time.perf_counter() - began:.0f} s", flush=True)  # its answer
    times, writer = Times(), Writer(dsn)
    logger = logging.getLogger("shiftwork.store")
    logger.setLevel(logging.INFO)
    logger.addHandler(times)
    writing = asyncio.create_task(writer.write())
    await asyncio.sleep(5)
    start = time.perf_counter()
    print(f"at rest: longest write {writer.longest(0, start) * 1000:.0f} ms", flush=True)  # likewise
    await (await open_store(dsn, migrate_schema="contract")).close()
    await asyncio.sleep(1)
    writing.cancel()
    print("| migration | seconds | longest write |\n|---|---|---|")  # likewise
    for title, end in times.ended:
        longest = writer.longest(start, end) * 1000
        print(f"| {title} | {end - start:.2f} | {longest:.0f} ms |")  # likewise
        start = end


async def _fill(connection: Any, tasks: int, before: int) -> None:
    await connection.execute("set synchronous_commit = off")
    await connection.execute(migrate.LEDGER)
    for migration in migrate.migrations("postgres"):
        if migration.number < before:
            for statement in (*migrate.statements_of(migration.text), migrate.record(migration)):
                await connection.execute(statement)
    for text in FILL:
        await connection.execute(text.format(tasks=tasks))
    await connection.execute("vacuum (analyze)")
    await connection.execute("checkpoint")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.upgrade", description=__doc__)
    parser.add_argument("--tasks", type=int, default=5_000_000)
    parser.add_argument("--before", type=int, default=40, help="the first migration to measure (%(default)s)")
    options = parser.parse_args()
    with Postgres.start(settings=SERVER) as server:
        asyncio.run(measure(server.dsn(server.create_database()), options.tasks, options.before))


if __name__ == "__main__":
    main()
