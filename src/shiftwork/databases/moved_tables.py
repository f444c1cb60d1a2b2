"""How a move finds, copies and compares the rows of a workspace in each table, in SQL."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

from shiftwork.store import catalogue
from shiftwork.store.postgres_schema import quoted

BULK = frozenset(
    {
        *("events", "bodies", "attempts", "archive", "tombstones", "costs", "tags", "steps", "edges"),
        *("search_entries", "search_words"),
    }
)
"""Tables with most of the rows, which no maintenance job scans: they are copied while work continues."""

SETTLED = (
    "t.block_check_at is null and (t.status in ('completed', 'cancelled', 'dead_lettered') or t.status = 'ready' "
    "and t.hold is null and t.target_agent_id is null and t.budget_id is null and t.rerank_at is null "
    "and t.deadline is null and t.expires_at is null)"
)
"""Tasks that no maintenance job scans for: they have ended, or wait only for a claim. They are also copied into place
while work continues, and removed from the old database after the switch."""

OF_A_DATABASE = frozenset(
    {
        *("lanes", "meter_marks", "trigger_cursor", "artifact_mark", "artifact_litter", "public_urls"),
        *("result_listeners",),
    }
)
"""Tables that are not moved, since their rows belong to one database. Lanes are matched by their signatures."""

SEARCH = {"search_entries", "search_words"}
UNGUARDED = frozenset({"meters", "metric_snapshots", *SEARCH})
"""Written by log-reading jobs for all workspaces at once; rows of a workspace that has left are not read."""

WHOLE = frozenset({"reviews"})

OWNERS = ("workspace", "task_id", "dependent", "root_id", "trigger_id")
"""Columns that identify the rows of a workspace; the first one that a table has is used."""

IDS = "moving_ids"
"""A temporary table with the ids of all tasks of the workspace, including archived and purged ones."""


class MovedTable(NamedTuple):
    """A table with rows of several workspaces."""

    name: str
    columns: tuple[str, ...]
    key: tuple[str, ...]
    owner: str

    @property
    def has_workspace(self) -> bool:
        """Whether each row names its workspace."""
        return self.owner in {"workspace", "name"}

    @property
    def parent(self) -> str:
        """The table that names the workspace of this table's rows."""
        return "triggers" if self.owner == "trigger_id" else "tasks"

    @property
    def is_whole(self) -> bool:
        """Whether all rows are copied each time, since they are few and have no key common to both databases."""
        return self.name in WHOLE

    @property
    def copied(self) -> tuple[str, ...]:
        """The columns to copy: all but the number of a review, which the target database assigns."""
        return tuple(column for column in self.columns if (self.name, column) != ("reviews", "seq"))


class Digest(NamedTuple):
    """The number of rows and the sum of their hashes, which can be updated for changed rows."""

    rows: int = 0
    total: int = 0

    def plus(self, more: Digest) -> Digest:
        return Digest(self.rows + more.rows, self.total + more.total)

    def replaced(self, old: Digest, new: Digest) -> Digest:
        """The digest after the old rows were replaced by the new ones."""
        return Digest(self.rows - old.rows + new.rows, self.total - old.total + new.total)


def short_hash(workspace: str) -> str:
    return hashlib.sha256(workspace.encode()).hexdigest()[:10]


def literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def names(columns: tuple[str, ...]) -> str:
    return ", ".join(quoted(column) for column in columns)


async def read_tables(connection: Any, schema: str) -> list[MovedTable]:
    """Every table with rows of workspaces, with its columns in this database; parents come first.

    A key includes the workspace if possible, since two databases use the same event numbers.
    """
    wanted = {table.name for table in catalogue.tables()} - OF_A_DATABASE | SEARCH
    rows = await connection.fetch(
        """
        select c.relname as name, array_agg(a.attname::text order by a.attname) as columns, (
          select array_agg(k.attname::text order by k.attname) from pg_index i
          join pg_attribute k on k.attrelid = c.oid and k.attnum = any (i.indkey)
          where i.indrelid = c.oid and i.indisprimary
        ) as key
        from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
        where c.relnamespace = $1::text::regnamespace and c.relkind = 'r' and c.relname = any ($2)
        group by c.oid, c.relname order by c.relname""",
        quoted(schema),
        sorted(wanted),
    )
    return sorted((_table(row) for row in rows), key=lambda table: (not table.has_workspace, table.name))


def _table(row: Any) -> MovedTable:
    owner = "name" if row["name"] == "workspaces" else next(each for each in OWNERS if each in row["columns"])
    key = {*row["key"], owner} if owner == "workspace" else set(row["key"])
    return MovedTable(row["name"], tuple(row["columns"]), tuple(sorted(key)), owner)


class Side:
    """One of the two databases of a move: a separate connection, and the schema of the queue."""

    def __init__(self, connection: Any, schema: str, workspace: str) -> None:
        self.connection = connection
        self.schema = schema
        self.workspace = workspace

    @property
    def home(self) -> str:
        return quoted(self.schema)

    def place(self, table: str) -> str:
        return f"{self.home}.{table}"

    def stage(self, table: str) -> str:
        """The staging table in the new database, used until it owns the workspace."""
        return f"arriving_{self._hash}_{table}"

    def changes(self, table: str) -> str:
        """The table of keys that changed in the old database since they were copied."""
        return f"leaving_{self._hash}_{table}"

    def recorder(self, table: str) -> str:
        """The trigger function that records changed keys."""
        return f"note_{self._hash}_{table}"

    @property
    def _hash(self) -> str:
        return short_hash(self.workspace)

    def trigger_condition(self, table: MovedTable, row: str) -> str:
        """The condition of a trigger of the workspace: its own rows, if rows name one, but no writes of the mover."""
        mine = literal(self.workspace)
        by_others = f"current_setting('shiftwork.mover', true) is distinct from {mine}"
        return f"{row}.{table.owner} = {mine} and {by_others}" if table.has_workspace else by_others

    def condition(self, table: MovedTable) -> str:
        """The condition for the rows of the workspace."""
        if table.has_workspace:
            return f"{table.owner} = {literal(self.workspace)}"
        if table.owner == "trigger_id":
            return (
                f"trigger_id in (select id from {self.place('triggers')} where workspace = {literal(self.workspace)})"
            )
        return f"{table.owner} in (select id from {IDS})"

    def membership(self, table: MovedTable) -> str:
        """The same condition for a few rows `t`, checked for each row."""
        mine = literal(self.workspace)
        if table.has_workspace:
            return f"t.{table.owner} = {mine}"
        if table.owner == "trigger_id":
            return f"exists (select 1 from {self.place('triggers')} where id = t.trigger_id and workspace = {mine})"
        places = (("tasks", "id"), ("archive", "id"), ("tombstones", "task_id"), ("dead_letters", "task_id"))
        checks = [
            f"exists (select 1 from {self.place(name)} p where p.{key} = t.{table.owner} and p.workspace = {mine})"
            for name, key in places
        ]
        return f"({' or '.join(checks)})"

    async def find_ids(self, tasks: str, letters: str) -> None:
        """Collect all task ids, from these tables of tasks and of dead letters."""
        mine = f"where workspace = {literal(self.workspace)}"
        await self.connection.execute(
            f"drop table if exists {IDS}; create temp table {IDS} as select id from {tasks} {mine} "
            f"union select task_id from {letters} {mine} "
            f"union select id from {self.place('archive')} {mine} "
            f"union select task_id from {self.place('tombstones')} {mine}; analyze {IDS}"
        )

    async def digest(self, table: MovedTable, rows: str, lanes: str, first: str = "") -> Digest:
        """The digest of these rows, or of those that `first` changes; a lane is hashed by its signature."""
        columns = [
            f"(select signature from {lanes} l where l.id = t.lane)" if column == "lane" else f"t.{quoted(column)}"
            for column in table.copied
        ]
        hashed = f"hashtextextended(row({', '.join(columns)})::text, 0)"
        text = f"{first} select count(*), coalesce(sum({hashed}), 0)::text from {rows} t"
        count, total = await self.connection.fetchrow(text)
        return Digest(count, int(total))

    async def forget_counts(self) -> None:
        """Drop the kept counts of the workspace once its rows and events are deleted: some ends were not counted yet.

        The new generation makes a job start again that has read those events.
        """
        async with self.connection.transaction():
            await self.connection.execute(f"update {self.place('count_marks')} set generation = generation + 1")
            for table in ("count_sums", "count_changes"):
                await self.connection.execute(
                    f"delete from {self.place(table)} where workspace = {literal(self.workspace)}"
                )

    def own_rows(self, table: MovedTable) -> str:
        return f"(select * from {self.place(table.name)} where {self.condition(table)})"


async def copy_ids(source: Side, target: Side) -> None:
    """Copy the collected ids to the other side."""
    await target.connection.execute(f"drop table if exists {IDS}; create temp table {IDS} (id uuid)")
    await pipe(source, f"select id from {IDS}", target, IDS, ("id",), None)
    await target.connection.execute(f"analyze {IDS}")


async def pipe(source: Side, query: str, target: Side, table: str, columns: tuple[str, ...], schema: str | None) -> int:
    """Copy a query's result from one database into a table of the other; returns the number of rows."""
    parts: asyncio.Queue[bytes | None] = asyncio.Queue(16)

    async def read() -> str:
        try:
            found: str = await source.connection.copy_from_query(query, output=parts.put, format="binary")
            return found
        finally:
            await parts.put(None)

    async def received() -> AsyncIterator[bytes]:
        while (part := await parts.get()) is not None:
            yield part

    reading = asyncio.create_task(read())
    try:
        await target.connection.copy_to_table(
            table, source=received(), columns=columns, format="binary", schema_name=schema
        )
        return int((await reading).split()[-1])
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
