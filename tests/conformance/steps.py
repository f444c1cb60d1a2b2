"""Common steps of tests of the verbs."""

import contextlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import apsw
import asyncpg
import msgspec

from shiftwork import Assignment, Queue, views
from shiftwork.maintenance.loop import run_once
from shiftwork.snapshots.snapshot_folder import SnapshotFolder
from shiftwork.store.postgres_open import split_url
from shiftwork.testing import MovedClock


async def take(queue: Queue, agent: str = "worker", **options: Any) -> Assignment:
    """Claim and start one task for this agent."""
    (assignment,) = await queue.claim(agent, start=True, **options)
    return assignment


REPORT = {"decided": "to do as asked"}
"""A decision report, without which Loki takes no result."""


async def finish(queue: Queue, agent: str = "worker", data: Any = None) -> str:
    """Claim the next task and complete it; return its id."""
    assignment = await take(queue, agent)
    await queue.complete(assignment.token, data, decision_report=REPORT)
    return assignment.id


async def pass_time_exactly(queue: Queue, clock: MovedClock, seconds: float) -> dict[str, dict[str, int]]:
    """Move the clock and run every job, also those that are not due yet: a limit is seen at its exact moment."""
    clock.advance(seconds)
    return await run_once(queue.engine, force=True)


async def states(queue: Queue, task_id: str) -> list[str]:
    """Every state the task has passed, from its history."""
    passed: list[str] = []
    for event in (await queue.tasks.history(task_id)).events:
        passed += [state for state in event.path if passed[-1:] != [state]]
    return passed


async def submit_dag(queue: Queue, edges: Mapping[str, list[str]], **fields: Any) -> dict[str, str]:
    """A DAG given as `{key: dependencies}`; the ids by key."""
    tasks = [{"key": key, "type": "code", "dependencies": above} for key, above in edges.items()]
    return {made.key or "": made.id for made in await queue.submit_dag({"tasks": tasks, **fields})}


async def statuses(queue: Queue, task_ids: Mapping[str, str]) -> dict[str, str]:
    return {key: (await queue.get(task_id)).status for key, task_id in task_ids.items()}


async def events_named(queue: Queue, name: str) -> list[str | None]:
    """The task (or DAG, where there is no task) of each event with this name, in order."""
    found = (await queue.events(limit=10_000)).events
    return [event.task_id or event.dag_id for event in found if name in event.names]


async def sql(queue: Queue, query: str) -> list[dict[str, Any]]:
    """Query the database directly."""
    return (await _ask(queue, [query]))[0]


async def _ask(queue: Queue, queries: Sequence[str]) -> list[list[dict[str, Any]]]:
    if queue.url.startswith("sqlite"):
        connection = apsw.Connection(queue.url.removeprefix("sqlite:///"), flags=apsw.SQLITE_OPEN_READONLY)
        connection.set_row_trace(lambda cursor, row: dict(zip([c[0] for c in cursor.description], row, strict=True)))
        with contextlib.closing(connection):
            return [list(connection.execute(query)) for query in queries]
    dsn, options = split_url(queue.url)
    server = await asyncpg.connect(dsn, server_settings={"search_path": options.get("schema", "public")})
    try:
        return [[dict(row) for row in await server.fetch(query)] for query in queries]
    finally:
        await server.close()


TABLES = {
    "sqlite": "select name from sqlite_master where type = 'table' and name not like 'sqlite_%' order by name",
    "postgresql": "select table_name as name from information_schema.tables where table_schema = current_schema()"
    " and table_type = 'BASE TABLE' order by table_name",
}


async def change(queue: Queue, query: str) -> None:
    """Change the database directly."""
    if queue.url.startswith("sqlite"):
        with contextlib.closing(apsw.Connection(queue.url.removeprefix("sqlite:///"))) as connection:
            connection.set_busy_timeout(10_000)
            connection.execute(query)
    else:
        await sql(queue, query)


_BY_ITSELF = frozenset({"meters", "duties", "count_marks", "count_sums", "count_changes"})
"""Tables of metrics and maintenance."""


async def everything(queue: Queue) -> dict[str, list[str]]:
    """Return all rows of all tables, to compare them, except those that processes write by themselves."""
    if not queue.url.startswith("sqlite"):
        return await _everything_at_once(queue)
    names = [row["name"] for row in await sql(queue, TABLES["sqlite"]) if row["name"] not in _BY_ITSELF]
    tables = await _ask(queue, [f"select * from {name}" for name in names])
    return {name: sorted(map(str, rows)) for name, rows in zip(names, tables, strict=True)}


async def _everything_at_once(queue: Queue) -> dict[str, list[str]]:
    """Read all tables in one query, since a query per table would take longer."""
    dsn, options = split_url(queue.url)
    server = await asyncpg.connect(dsn, server_settings={"search_path": options.get("schema", "public")})
    try:
        names = [row["name"] for row in await server.fetch(TABLES["postgresql"]) if row["name"] not in _BY_ITSELF]
        query = " union all ".join(f"select '{name}' as name, t::text as row from {name} t" for name in names)
        rows = await server.fetch(query)
    finally:
        await server.close()
    return {name: sorted(row["row"] for row in rows if row["name"] == name) for name in names}


async def viewed(queue: Queue, view: str, task_id: str) -> dict[str, Any]:
    """A task under one document's names."""
    return views.get(view).task_out(msgspec.to_builtins(await queue.get(task_id)))


async def ids_in_order(queue: Queue, agent: str = "taker") -> list[str]:
    """Return the ids of all tasks that this agent may claim, in the order of its claims."""
    await queue.agents.register(id=agent, max_concurrent_tasks=1000)
    return [assignment.id for assignment in await queue.claim(agent, 1000)]


def give_folder(queue: Queue) -> None:
    """Give a snapshot folder to a queue that has none next to its file."""
    if queue.engine.snapshots is None:
        folder = Path(os.environ["SHIFTWORK_ARTIFACTS"]).with_name("snapshots")
        queue.engine.snapshots = SnapshotFolder(folder, named=False)  # none is taken unasked


async def dead_letter(queue: Queue, agent: str = "worker", error: str = "boom", **fields: Any) -> str:
    """Dead-letter a task at its first failure; return its id."""
    task_id = (await queue.submit({"type": "code", **fields})).id
    assignment = await take(queue, agent)
    await queue.fail(assignment.token, "crash", error, retry=False)
    return task_id
