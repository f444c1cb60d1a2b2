"""The last part of a move: rows that wait in the new database come into its tables, once it owns the workspace.

Any process may do it, and all of it is one transaction: if the mover died after the switch, the next one that looks
for the workspace does it.
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
from shiftwork.store.postgres_connecting import CONNECT_SEC, open_connection
from shiftwork.store.postgres_errors import LOST, translate
from shiftwork.store.postgres_schema import lock_name
from shiftwork.store.store import Store, Tx
from shiftwork.triggers import maintenance as triggers

PAGE = 2_000
"""Numbers of events that are looked at together."""

TAIL = "tail"
LANES = "lanes"
LANE_COLUMNS = (
    *("signature", "workspace", "type", "capabilities", "models", "fallback", "rate", "target_agent_id", "mixed"),
    *("share", "serial"),
)


async def connect(store: Any, workspace: str, purpose: str) -> Side:
    """A connection of its own to the database of a store; what it does takes longer than an operation may."""
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
    """Put the rows of a workspace that has arrived into the tables; False where that was done."""
    try:
        side = await connect(store, workspace, "arrival")
        try:
            return await activate_on(side, store.now())
        finally:
            await asyncio.shield(side.connection.close(timeout=CONNECT_SEC))
    except (asyncpg.PostgresError, *LOST) as error:
        raise translate(error) from error


async def activate_on(side: Side, now: float, known: Sequence[MovedTable] = ()) -> bool:
    """The same on a connection that there is. The tables in which rows have waited are dropped later.

    `known` are the tables of the database, where they have been read: writes wait for this.
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
    await do("; ".join([_taken_in(side, table) for table in await _waiting(side, tables)]))
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


async def _waiting(side: Side, tables: Sequence[MovedTable]) -> list[MovedTable]:
    """The tables for which rows wait, or may be to be replaced."""
    looks = [
        f"select {literal(table.name)} where exists (select 1 from {side.place(side.stage(table.name))})"
        for table in tables
    ]
    found = {row[0] for row in await side.connection.fetch(" union all ".join(looks))} | UNGUARDED
    return [table for table in tables if table.name in found]


async def settle(side: Side, tasks: MovedTable) -> None:
    """Put the tasks into place at which no job looks, before the database owns the workspace."""
    async with side.connection.transaction():
        await _make_lanes(side)
        there = f"delete from {side.place(side.stage(tasks.name))} t where {SETTLED}"
        await side.connection.execute(f"{_taken_in(side, tasks, SETTLED)}; {there}")


async def _make_lanes(side: Side) -> None:
    """The lanes of the workspace under numbers of this database, and a table that leads from the old to the new."""
    do, lanes, came = side.connection.execute, side.place("lanes"), side.place(side.stage(LANES))
    await do("select pg_advisory_xact_lock(hashtextextended($1, 0))", lock_name(side.schema, "lanes"))
    columns = names(LANE_COLUMNS)
    for those, first in ((f"id < {TARGETED}", 0), (f"id >= {TARGETED}", TARGETED)):
        await do(
            f"insert into {lanes} (id, {columns}) "
            f"select (select coalesce(max(id), {first}) from {lanes} where {those}) + row_number() over (order by id), "
            f"{columns} from {came} c "
            f"where {those} and not exists (select 1 from {lanes} l where l.signature = c.signature)"
        )
    await do(
        f"create temp table lane_map on commit drop as select c.id as old, l.id as new from {came} c "
        f"join {lanes} l on l.signature = c.signature; analyze lane_map"
    )


def _taken_in(side: Side, table: MovedTable, those: str = "true") -> str:
    """Statements that put the rows that wait into the table."""
    here, came = side.place(table.name), side.place(side.stage(table.name))
    values = ["m.new" if column == "lane" else f't."{column}"' for column in table.copied]
    rows = f"{came} t left join lane_map m on m.old = t.lane" if "lane" in table.copied else f"{came} t"
    into = f"insert into {here} ({names(table.copied)}) overriding system value"
    text = f"{into} select {', '.join(values)} from {rows} where {those}"
    if table.name in UNGUARDED:  # a job may have written here for the workspace while it was away
        return f"delete from {here} where {side.condition(table)}; {text}"
    return text


async def drop_stage(side: Side) -> None:
    """Remove the tables in which rows have waited."""
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
    """Do for the last events of the workspace what the jobs of its old database had not done: fire triggers, index.

    Each trigger fires once for an event, so that it may be done again.
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

    async def look(tx: Tx) -> tuple[list[triggers.EventMatch], list[index.Entry]]:
        rows = await tx.all("events_upto", after=first, workspace=workspace, **stretch._asdict())
        followers, _ = await triggers.followers(tx)
        mine = [each for each in followers if each.trigger.workspace == workspace]
        texts = await index.read_texts(tx, await index.changed_tasks(tx, first, stretch, workspace))
        return await triggers.hits(tx, mine, rows), [index.entry(row) for row in texts]

    hits, entries = await engine.store.read(look)
    for hit in hits:
        await triggers.fire_match(engine, hit)

    async def write(tx: Tx) -> None:
        await index.save(tx, entries)
        await tx.run("finish_arrival", workspace=workspace, upto=upto)

    await crash_points.named("arrival", engine.store.run(write))
