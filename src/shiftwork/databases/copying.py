"""Copies the rows of a workspace into another database: all rows once, then changed rows in rounds.

Large tables are copied into place. The others, which maintenance jobs read, are copied into staging tables. Both sides
are compared in full while work continues; from then on each round compares the rows that it replaces.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from shiftwork.databases import activation, changes
from shiftwork.databases.moved_tables import BULK, Digest, MovedTable, Side, copy_ids, literal, names, pipe
from shiftwork.model.errors import CopyDiffers

ROUNDS = 10
SHORT_SEC = 0.5
"""Changed rows are copied in rounds, while work continues, until a round is this short."""

PLANS = ("enable_seqscan", "enable_hashjoin", "enable_mergejoin")
"""Planner settings turned off while changed rows are read by key, since tables may lack statistics."""


class Copy:
    """The rows of one workspace in the old database (a) and their copy in the new one (b)."""

    def __init__(self, a: Side, b: Side, tables: Sequence[MovedTable]) -> None:
        self._a = a
        self._b = b
        self._tables = tables
        self._tracked = [table for table in tables if not table.is_whole]
        self._tasks = next(table for table in tables if table.name == "tasks")
        self._change_query: Any = None
        self._temp_tables: set[str] = set()
        """Tables with temporary tables, which are reused: creating them takes as long as copying a few rows."""
        self.digests: dict[str, Digest] | None = None
        """The digests of copied rows by table, once both sides have been compared in full."""

    async def run(self) -> None:
        """Copy while work continues, until little is left, and compare both sides in full."""
        await self.remove()
        await self._create_staging_tables()
        await changes.install(self._a, self._tracked)
        self._change_query = await changes.prepare_change_query(self._a, self._tracked)
        await self._copy_all()
        await self._catch_up()
        await self._insert_settled()
        await self._compare()
        await self._catch_up()
        await self._insert_settled()
        await self._catch_up()

    async def remove(self) -> None:
        """Remove the copy."""
        a, b = self._a, self._b
        await a.find_ids(a.place("tasks"), a.place("dead_letters"))
        await copy_ids(a, b)
        for table in self._tables:
            if table.name in BULK or table is self._tasks:
                await b.connection.execute(f"delete from {b.place(table.name)} where {b.condition(table)}")
        await b.forget_counts()
        await activation.drop_staging(b)

    @asynccontextmanager
    async def last_round(self) -> AsyncIterator[int]:
        """Copy the last changes while writes are paused; yields the number of rows. The block reads this snapshot."""
        async with self._round():
            yield await self._copy_changed()

    @asynccontextmanager
    async def _round(self) -> AsyncIterator[None]:
        """Open a transaction on each side. The new one commits first: a crash may repeat changes, but loses none."""
        async with self._a.connection.transaction(isolation="repeatable_read"), self._b.connection.transaction():
            yield

    async def _insert_settled(self) -> None:
        await activation.insert_settled(self._b, self._tasks)

    def _copied(self, table: MovedTable) -> str:
        """The table into which rows are copied."""
        return table.name if table.name in BULK else self._b.stage(table.name)

    async def _create_staging_tables(self) -> None:
        b = self._b
        staged = [table for table in self._tables if table.name not in BULK]
        for table in staged:
            place = b.place(b.stage(table.name))
            await b.connection.execute(f"create table {place} (like {b.place(table.name)})")
            if table.is_whole:
                dropped = set(table.columns) - set(table.copied)
                await b.connection.execute("".join(f"alter table {place} drop column {each};" for each in dropped))
            else:
                await b.connection.execute(f"alter table {place} add primary key ({names(table.key)})")
        lanes, tail = b.place(b.stage(activation.LANES)), b.place(b.stage(activation.TAIL))
        await b.connection.execute(
            f"create table {lanes} (like {b.place('lanes')}); alter table {lanes} add primary key (id); "
            f"create table {tail} (name text, labels text, value float8)"
        )

    async def _copy_all(self) -> None:
        a, b = self._a, self._b
        async with a.connection.transaction(isolation="repeatable_read"):
            await a.find_ids(a.place("tasks"), a.place("dead_letters"))
            for table in self._tables:
                query = f"select {names(table.copied)} from {a.own_rows(table)} t"
                await pipe(a, query, b, self._copied(table), table.copied, b.schema)
        for table in self._tables:
            await b.connection.execute(f"analyze {b.place(self._copied(table))}")

    async def _catch_up(self) -> None:
        """Copy changed rows in rounds, until a round is short."""
        for _ in range(ROUNDS):
            began = time.perf_counter()
            async with self._round():
                await self._copy_changed()
            if time.perf_counter() - began < SHORT_SEC:
                return

    async def _compare(self) -> None:
        """Copy the changed rows, and compare all rows of the same snapshot."""
        a, b = self._a, self._b
        async with a.connection.transaction(isolation="repeatable_read"):
            async with b.connection.transaction():
                await self._copy_changed()
            await a.find_ids(a.place("tasks"), a.place("dead_letters"))
            await copy_ids(a, b)
            self.digests = {table.name: await self._compared(table) for table in self._tables}

    async def _compared(self, table: MovedTable) -> Digest:
        a, b = self._a, self._b
        copy = b.own_rows(table) if table.name in BULK else b.place(b.stage(table.name))
        mine, other = await asyncio.gather(
            a.digest(table, a.own_rows(table), a.place("lanes")),
            b.digest(table, copy, b.place(b.stage(activation.LANES))),
        )
        if table is self._tasks:
            other = other.plus(await b.digest(table, b.own_rows(table), b.place("lanes")))
        return _same(table, mine, other)

    async def _copy_changed(self) -> int:
        """Replace the rows that changed since the last round; later changes are for the next one."""
        a, b = self._a, self._b
        await self._copy_lanes()
        for side in (a, b):
            await side.connection.execute(";".join(f"set local {plan} = off" for plan in PLANS))
        found = {row[0] for row in await self._change_query.fetch()}
        rows = 0
        for table in self._tables:
            if table.name in found:
                rows += await self._replace_changed(table)
            elif table.is_whole:
                rows += await self._replace_all(table)
        for side in (a, b):
            await side.connection.execute(";".join(f"set local {plan} to default" for plan in PLANS))
        return rows

    async def _copy_lanes(self) -> None:
        a, b = self._a, self._b
        columns = ("id", *activation.LANE_COLUMNS)
        await b.connection.execute(f"delete from {b.place(b.stage(activation.LANES))}")
        query = f"select {names(columns)} from {a.place('lanes')} where workspace = {literal(a.workspace)}"
        await pipe(a, query, b, b.stage(activation.LANES), columns, b.schema)

    async def _replace_changed(self, table: MovedTable) -> int:
        a, b, columns, key = self._a, self._b, names(table.copied), names(table.key)
        changed, copy = a.place(a.changes(table.name)), b.place(self._copied(table))
        keys, incoming = f"keys_{table.name}", f"incoming_{table.name}"
        if table.name not in self._temp_tables:
            await b.connection.execute(
                f"create temp table {keys} on commit delete rows as select {key} from {copy} limit 0; "
                f"create temp table {incoming} (like {copy}) on commit delete rows"
            )
            self._temp_tables.add(table.name)
        await pipe(a, f"select distinct {key} from {changed}", b, keys, table.key, None)
        mine = f"(select t.* from {a.place(table.name)} t where ({key}) in (select {key} from {changed}) "
        mine += f"and {a.membership(table)})"
        rows = await pipe(a, f"select {columns} from {mine} t", b, incoming, table.copied, None)
        here, (old, new) = await asyncio.gather(
            a.digest(table, mine, a.place("lanes")), self._swap(table, copy, keys, incoming)
        )
        _same(table, here, new)
        if self.digests is not None:
            self.digests[table.name] = self.digests[table.name].replaced(old, new)
        await a.connection.execute(f"delete from {changed}")
        return rows

    async def _swap(self, table: MovedTable, copy: str, keys: str, incoming: str) -> tuple[Digest, Digest]:
        """Replace the rows with these keys by the incoming ones; returns the digests before and after."""
        b, columns, key = self._b, names(table.copied), names(table.key)
        lanes = b.place(b.stage(activation.LANES))
        those = f"t where ({key}) in (select {key} from {keys}) returning t.*"
        old = await b.digest(table, "gone", lanes, f"with gone as (delete from {copy} {those})")
        if table is self._tasks:
            settled = f"with gone as (delete from {b.place(table.name)} {those})"
            old = old.plus(await b.digest(table, "gone", b.place("lanes"), settled))
        put = f"insert into {copy} ({columns}) overriding system value select {columns} from {incoming} returning *"
        return old, await b.digest(table, "put", lanes, f"with put as ({put})")

    async def _replace_all(self, table: MovedTable) -> int:
        a, b, copy = self._a, self._b, self._b.place(self._copied(table))
        await b.connection.execute(f"delete from {copy}")
        mine = f"(select t.* from {a.place(table.name)} t where {a.membership(table)})"
        query = f"select {names(table.copied)} from {mine} t"
        rows = await pipe(a, query, b, self._copied(table), table.copied, b.schema)
        new = _same(table, await a.digest(table, mine, ""), await b.digest(table, copy, ""))
        if self.digests is not None:
            self.digests[table.name] = new
        return rows


def _same(table: MovedTable, mine: Digest, other: Digest) -> Digest:
    if mine != other:
        raise CopyDiffers(
            f"the copy of {table.name} differs: {mine.rows} rows here, {other.rows} there",
            hint="Undo the move, and report this; the workspace stays in its database.",
        )
    return mine
