"""The last part of a move: inserts staged rows into the tables of the new database, once it owns the workspace.

This is one transaction, which any process can run: if the mover died after the switch, the next process that routes to
the workspace does it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import asyncpg
import msgspec

from shiftwork.databases.moved_tables import BULK, SETTLED, UNGUARDED, MovedTable, Side, literal, names, read_tables
from shiftwork.engine.engine import Engine
from shiftwork.engine.event_log import SPREAD, Stretch
from shiftwork.engine.lanes import TARGETED
from shiftwork.model.errors import StoreUnsuitable
from shiftwork.search import index
from shiftwork.store import crash_points
from shiftwork.store.postgres_connect import CONNECT_SEC, open_connection
from shiftwork.store.postgres_errors import LOST, translate
from shiftwork.store.postgres_schema import lock_name
from shiftwork.store.store import Store, Tx
from shiftwork.triggers import maintenance as triggers

PAGE = 2_000
"""How many event numbers to process together."""

TAIL = "tail"
LANES = "lanes"
LANE_COLUMNS = (
    *("signature", "workspace", "type", "capabilities", "models", "fallback", "rate", "target_agent_id", "mixed"),
    *("share", "serial"),
)


async def connect(store: Any, workspace: str, purpose: str) -> Side:
    """Open a separate connection to the database of a store, without the time limit of operations."""
    named = {"application_name": f"shiftwork {purpose}", "shiftwork.mover": workspace, "jit": "off"}
    if store.direct_dsn is None:
        raise StoreUnsuitable(
            "a workspace cannot be moved through a pooler",
            where="map",
            hint="Add the server's own address: &listen=postgresql://…",
        )
    connection = await open_connection(store.direct_dsn, statement_cache_size=0, server_settings=named)
    return Side(connection, store.schema, workspace)


async def activate(store: Store, workspace: str) -> bool:
    """Insert the staged rows of a moved workspace into the tables; False if that was done before."""
    try:
        side = await connect(store, workspace, "arrival")
        try:
            return await activate_on(side, store.now())
        finally:
            await asyncio.shield(side.connection.close(timeout=CONNECT_SEC))
    except (asyncpg.PostgresError, *LOST) as error:
        raise translate(error) from error


async def activate_on(side: Side, now: float, known: Sequence[MovedTable] = ()) -> bool:
    """Activate on an existing connection. The staging tables are dropped later.

    `known` are the tables of the database, if already read: writes are paused meanwhile.
    """
    tables = known or await read_tables(side.connection, side.schema)
    async with side.connection.transaction():
        return await _activate(side, now, [table for table in tables if table.name not in BULK])


async def _activate(side: Side, now: float, tables: Sequence[MovedTable]) -> bool:
    do, routes = side.connection.execute, side.place("routes")
    mine = f"where workspace = {literal(side.workspace)}"
    row = await side.connection.fetchrow(f"select state, peer from {routes} {mine} for update")
    if row is None or row["state"] != "arriving":
        return False
    await do(f"update {routes} set state = 'here', changed_at = $1 {mine}", now)
    await _make_lanes(side)
    await do("; ".join([_insert_staged(side, table) for table in await _staged_tables(side, tables)]))
    tail = side.place(side.stage(TAIL))
    await do(
        f"insert into {side.place('meters')} as m (workspace, name, labels, value, moved_at) "
        f"select {literal(side.workspace)}, name, labels, value, $1 from {tail} "
        "on conflict (workspace, name, labels) do update set value = m.value + excluded.value",
        now,
    )
    await do(f"update {side.place('count_marks')} set whole = false, generation = generation + 1")
    data = msgspec.json.encode({"from": row["peer"]}).decode()
    await do(
        f"insert into {side.place('events')} (at, workspace, verb, actor, data) "
        f"values ($1, {literal(side.workspace)}, 'workspace_moved', 'system', $2)",
        now,
        data,
    )
    return True


async def _staged_tables(side: Side, tables: Sequence[MovedTable]) -> list[MovedTable]:
    """The tables with staged rows, and those whose rows are always replaced."""
    checks = [
        f"select {literal(table.name)} where exists (select 1 from {side.place(side.stage(table.name))})"
        for table in tables
    ]
    found = {row[0] for row in await side.connection.fetch(" union all ".join(checks))} | UNGUARDED
    return [table for table in tables if table.name in found]


async def insert_settled(side: Side, tasks: MovedTable) -> None:
    """Insert the tasks that no maintenance job reads, before the database owns the workspace."""
    async with side.connection.transaction():
        await _make_lanes(side)
        delete = f"delete from {side.place(side.stage(tasks.name))} t where {SETTLED}"
        await side.connection.execute(f"{_insert_staged(side, tasks, SETTLED)}; {delete}")


async def _make_lanes(side: Side) -> None:
    """Create the workspace's lanes in this database, and a table that maps old lane ids to new ones."""
    do, lanes, staged = side.connection.execute, side.place("lanes"), side.place(side.stage(LANES))
    await do("select pg_advisory_xact_lock(hashtextextended($1, 0))", lock_name(side.schema, "lanes"))
    columns = names(LANE_COLUMNS)
    for condition, first in ((f"id < {TARGETED}", 0), (f"id >= {TARGETED}", TARGETED)):
        await do(
            f"insert into {lanes} (id, {columns}) "
            f"select (select coalesce(max(id), {first}) from {lanes} where {condition}) "
            f"+ row_number() over (order by id), {columns} from {staged} c "
            f"where {condition} and not exists (select 1 from {lanes} l where l.signature = c.signature)"
        )
    await do(
        f"create temp table lane_map on commit drop as select c.id as old, l.id as new from {staged} c "
        f"join {lanes} l on l.signature = c.signature; analyze lane_map"
    )


def _insert_staged(side: Side, table: MovedTable, condition: str = "true") -> str:
    """The statements that insert staged rows into the table."""
    here, staged = side.place(table.name), side.place(side.stage(table.name))
    values = ["m.new" if column == "lane" else f't."{column}"' for column in table.copied]
    rows = f"{staged} t left join lane_map m on m.old = t.lane" if "lane" in table.copied else f"{staged} t"
    into = f"insert into {here} ({names(table.copied)}) overriding system value"
    text = f"{into} select {', '.join(values)} from {rows} where {condition}"
    if table.name in UNGUARDED:  # a job may have written rows of the workspace here before
        return f"delete from {here} where {side.condition(table)}; {text}"
    return text


async def drop_staging(side: Side) -> None:
    """Drop the staging tables."""
    prefix = side.stage("")
    found = await side.connection.fetch(
        "select relname from pg_class where relnamespace = $1::text::regnamespace and relkind = 'r' "
        "and starts_with(relname, $2)",
        side.home,
        prefix,
    )
    for row in found:
        await side.connection.execute(f"drop table {side.place(row['relname'])}")


async def finish(engine: Engine, workspace: str, first: int, last: int) -> None:
    """Process the workspace's last events that the jobs of its old database had not read: fire triggers, index tasks.

    This can be repeated, since a trigger fires once per event.
    """
    while first < last:
        upto = min(first + PAGE, last)
        await _finish_page(engine, workspace, first, upto)
        first = upto
    await crash_points.named(
        "arrival", engine.store.run(lambda tx: tx.run("finish_arrival", workspace=workspace, upto=None))
    )


async def _finish_page(engine: Engine, workspace: str, first: int, upto: int) -> None:
    stretch = Stretch(upto, upto + SPREAD - 1)

    async def find(tx: Tx) -> tuple[list[triggers.EventMatch], list[index.Entry]]:
        rows = await tx.all("events_upto", after=first, workspace=workspace, **stretch._asdict())
        followers, _ = await triggers.followers(tx)
        mine = [each for each in followers if each.trigger.workspace == workspace]
        texts = await index.read_texts(tx, await index.changed_tasks(tx, first, stretch, workspace))
        return await triggers.hits(tx, mine, rows), [index.entry(row) for row in texts]

    hits, entries = await engine.store.read(find)
    for hit in hits:
        await triggers.fire_match(engine, hit)

    async def write(tx: Tx) -> None:
        await index.save(tx, entries)
        await tx.run("finish_arrival", workspace=workspace, upto=upto)

    await crash_points.named("arrival", engine.store.run(write))
