"""Measures statements on a large database: their plan, the rows they read, and their steps."""

import json
from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

import apsw
import asyncpg

from shiftwork.engine.lane_merge import START
from shiftwork.store import postgres as store
from shiftwork.store import postgres_tx, statements
from shiftwork.store.postgres_open import SET_LOCAL
from shiftwork.store.sqlite_tx import SqliteTx

NOW = 1_765_800_000.0
PLACE = dict(zip(("rank", "ordered_at", "id"), START, strict=True))
CLAIM = {
    "agent": "a", "runtime": "a", "status": "running", "started_at": NOW, "ack_by": None, "run_until": NOW,
    "lease_until": None, "lease_check_at": NOW, "granted": 0, "charged": False, "now": NOW, "holder": None,
}  # fmt: skip
AGENTS = """insert into agents (workspace, id, capabilities, models, max_concurrent_tasks, status, poll_interval_sec,
  announced, registered_at, last_heartbeat) values ('default', 'a', '[]', '[]', null, 'active', 1, {yes}, 0, 0),
  ('default', 'agent-7', '[]', '[]', 100, 'active', 1, {yes}, 0, 0)"""
"""One that may hold as much as it likes, and one whose claims are counted."""


class Hot(NamedTuple):
    """A statement as the verbs send it, the index it must use (or one of several), and how many rows it may read."""

    name: str
    parameters: dict[str, Any]
    path: str
    rows: int


def plan_of(connection: apsw.Connection, name: str, parameters: dict[str, Any]) -> list[str]:
    """SQLite's plan, line by line."""
    statement = statements.load("sqlite")[name]
    values = {key: "[]" if key in statement.tables else value for key, value in parameters.items()}
    return [str(row[3]) for row in connection.execute(f"explain query plan {statement.text}", values)]


def steps(connection: apsw.Connection, name: str, parameters: dict[str, Any]) -> int:
    """How many steps SQLite's machine takes, in hundreds."""
    taken = 0

    def count() -> bool:
        nonlocal taken
        taken += 100
        return False

    connection.set_progress_handler(count, 100)
    coroutine = SqliteTx(connection, NOW).all(name, **parameters)
    try:
        coroutine.send(None)
    except StopIteration:
        return taken
    finally:
        connection.set_progress_handler(None)
    raise AssertionError("a statement does not wait")


async def explain(connection: asyncpg.Connection, hot: Hot, mode: str) -> dict[str, Any]:
    """PostgreSQL's plan as executed, inside a transaction as the store begins it, which is then rolled back."""
    await prepare(connection, hot, "hot")
    try:
        return await explain_prepared(connection, hot, "hot", mode)
    finally:
        await connection.execute("deallocate hot")


async def prepare(connection: asyncpg.Connection, hot: Hot, name: str) -> None:
    text, _ = _bound(hot)
    await connection.execute(f"prepare {name} as {text}")


async def explain_prepared(
    connection: asyncpg.Connection, hot: Hot, name: str, mode: str = "force_generic_plan"
) -> dict[str, Any]:
    """The same for a prepared statement, which may have a cached generic plan."""
    _, values = _bound(hot)
    await connection.execute(store.BEGIN + SET_LOCAL)
    try:
        await connection.execute(f"set local plan_cache_mode = {mode}")
        given = f"({', '.join(map(literal, values))})" if values else ""
        answer = await connection.fetchval(f"explain (analyze, buffers, format json) execute {name}{given}")
    finally:
        await connection.execute("rollback")
    plan: dict[str, Any] = json.loads(answer)[0]["Plan"]
    return plan


def _bound(hot: Hot) -> tuple[str, list[Any]]:
    return postgres_tx.PostgresTx(None, NOW, store.BEGIN)._bind(hot.name, dict(hot.parameters))


def literal(value: Any) -> str:
    """A value as SQL, for EXECUTE takes no parameters."""
    if value is None:
        return "null"
    if isinstance(value, bool | int | float):
        return str(value)
    if isinstance(value, list | tuple):
        return "'{" + ",".join(map(str, value)) + "}'"
    return f"'{value}'"


class Read(NamedTuple):
    """What a plan of PostgreSQL uses and reads of some tables."""

    indexes: set[str]
    scans: set[str]
    rows: int


def read_of(plan: dict[str, Any], tables: Collection[str]) -> Read:
    nodes = list(walk(plan))
    scans = [node for node in nodes if node.get("Relation Name") in tables and "Scan" in node["Node Type"]]
    return Read(
        {node["Index Name"] for node in nodes if "Index Name" in node},
        {node["Node Type"] for node in scans},
        sum(rows_of(node) for node in scans),
    )


def walk(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for inner in node.get("Plans", ()):
        yield from walk(inner)


def rows_of(node: dict[str, Any]) -> int:
    """Return the rows that a scan returned or discarded."""
    thrown = sum(node.get(f"Rows Removed by {what}", 0) for what in ("Filter", "Index Recheck", "Join Filter"))
    return int((node["Actual Rows"] + thrown) * node["Actual Loops"])
