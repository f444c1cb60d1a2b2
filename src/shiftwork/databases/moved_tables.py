"""The tables of a queue as a workspace is moved: how its rows are found, copied and compared, in SQL alone."""

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
"""Tables with most of the rows, at which no maintenance job looks by itself: they are copied while work goes on."""

SETTLED = (
    "t.block_check_at is null and (t.status in ('completed', 'cancelled', 'dead_lettered') or t.status = 'ready' "
    "and t.hold is null and t.target_agent_id is null and t.budget_id is null and t.rerank_at is null "
    "and t.deadline is null and t.expires_at is null)"
)
"""Tasks that no maintenance job looks for: they have ended, or wait for a claim and for no moment. They are copied into
place while work goes on, too, and removed when it goes on again."""

OF_A_DATABASE = frozenset(
    {
        *("lanes", "meter_marks", "trigger_cursor", "artifact_mark", "artifact_litter", "public_urls"),
        *("result_listeners",),
    }
)
"""Tables that stay: what they hold is of one database. Lanes are found again by what they are for."""

SEARCH = {"search_entries", "search_words"}
UNGUARDED = frozenset({"meters", "metric_snapshots", *SEARCH})
"""Written by jobs behind the log for all workspaces at once; what they write for one that has left is not read."""

WHOLE = frozenset({"reviews"})

OWNERS = ("workspace", "task_id", "dependent", "root_id", "trigger_id")
"""Columns by which the rows of a workspace are found, the first that a table has."""

IDS = "moving_ids"
"""A temporary table with the ids of all tasks of the workspace, also of those that are archived or removed."""


class MovedTable(NamedTuple):
    """A table with rows of workspaces."""

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
        """The table whose rows say of which workspace those of this one are."""
        return "triggers" if self.owner == "trigger_id" else "tasks"

    @property
    def is_whole(self) -> bool:
        """Whether all its rows are copied each time, since they are few and have no key that both databases share."""
        return self.name in WHOLE

    @property
    def copied(self) -> tuple[str, ...]:
        """Its columns without the number of a review, which only has to grow."""
        return tuple(column for column in self.columns if (self.name, column) != ("reviews", "seq"))


class Digest(NamedTuple):
    """How many rows there are, and the sum of their hashes, which follows the rows that change."""

    rows: int = 0
    total: int = 0

    def plus(self, more: Digest) -> Digest:
        return Digest(self.rows + more.rows, self.total + more.total)

    def replaced(self, old: Digest, new: Digest) -> Digest:
        """What it is after these rows have become those."""
        return Digest(self.rows - old.rows + new.rows, self.total - old.total + new.total)


def short_hash(workspace: str) -> str:
    return hashlib.sha256(workspace.encode()).hexdigest()[:10]


def literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def names(columns: tuple[str, ...]) -> str:
    return ", ".join(quoted(column) for column in columns)


async def read_tables(connection: Any, schema: str) -> list[MovedTable]:
    """Every table that holds rows of workspaces, with its columns as this database has them; parents come first.

    A key names the workspace where it can: two databases have used the same numbers of events.
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
    """One of the two databases of a move: a connection of its own, and the schema of the queue there."""

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
        """Where rows wait in the new database until it owns the workspace."""
        return f"arriving_{self._hash}_{table}"

    def changes(self, table: str) -> str:
        """Which rows have changed in the old database since they were copied."""
        return f"leaving_{self._hash}_{table}"

    def noting(self, table: str) -> str:
        """The function that records them."""
        return f"note_{self._hash}_{table}"

    @property
    def _hash(self) -> str:
        return short_hash(self.workspace)

    def of_others(self, table: MovedTable, row: str) -> str:
        """When a trigger of the workspace is called: what the mover itself writes is not looked at."""
        mine = literal(self.workspace)
        by_others = f"current_setting('shiftwork.mover', true) is distinct from {mine}"
        return f"{row}.{table.owner} = {mine} and {by_others}" if table.has_workspace else by_others

    def condition(self, table: MovedTable) -> str:
        """Which rows are of the workspace."""
        if table.has_workspace:
            return f"{table.owner} = {literal(self.workspace)}"
        if table.owner == "trigger_id":
            return (
                f"trigger_id in (select id from {self.place('triggers')} where workspace = {literal(self.workspace)})"
            )
        return f"{table.owner} in (select id from {IDS})"

    def membership(self, table: MovedTable) -> str:
        """The same for few rows `t`: asked for each of them."""
        mine = literal(self.workspace)
        if table.has_workspace:
            return f"t.{table.owner} = {mine}"
        if table.owner == "trigger_id":
            return f"exists (select 1 from {self.place('triggers')} where id = t.trigger_id and workspace = {mine})"
        places = (("tasks", "id"), ("archive", "id"), ("tombstones", "task_id"), ("dead_letters", "task_id"))
        looks = [
            f"exists (select 1 from {self.place(name)} p where p.{key} = t.{table.owner} and p.workspace = {mine})"
            for name, key in places
        ]
        return f"({' or '.join(looks)})"

    async def find_ids(self, tasks: str, letters: str) -> None:
        """All ids of tasks, from these tables of tasks and of dead letters."""
        mine = f"where workspace = {literal(self.workspace)}"
        await self.connection.execute(
            f"drop table if exists {IDS}; create temp table {IDS} as select id from {tasks} {mine} "
            f"union select task_id from {letters} {mine} "
            f"union select id from {self.place('archive')} {mine} "
            f"union select task_id from {self.place('tombstones')} {mine}; analyze {IDS}"
        )

    async def digest(self, table: MovedTable, rows: str, lanes: str, first: str = "") -> Digest:
        """The digest of these rows, or of those that `first` changes; a lane is hashed by what it is for."""
        columns = [
            f"(select signature from {lanes} l where l.id = t.lane)" if column == "lane" else f"t.{quoted(column)}"
            for column in table.copied
        ]
        hashed = f"hashtextextended(row({', '.join(columns)})::text, 0)"
        text = f"{first} select count(*), coalesce(sum({hashed}), 0)::text from {rows} t"
        count, total = await self.connection.fetchrow(text)
        return Digest(count, int(total))

    def own_rows(self, table: MovedTable) -> str:
        return f"(select * from {self.place(table.name)} where {self.condition(table)})"


async def copy_ids(source: Side, target: Side) -> None:
    """Give the other side the ids that were found on this one."""
    await target.connection.execute(f"drop table if exists {IDS}; create temp table {IDS} (id uuid)")
    await pipe(source, f"select id from {IDS}", target, IDS, ("id",), None)
    await target.connection.execute(f"analyze {IDS}")


async def pipe(source: Side, query: str, target: Side, table: str, columns: tuple[str, ...], schema: str | None) -> int:
    """Write what a query finds in one database into a table of the other; how many rows it was."""
    parts: asyncio.Queue[bytes | None] = asyncio.Queue(16)

    async def read() -> str:
        try:
            found: str = await source.connection.copy_from_query(query, output=parts.put, format="binary")
            return found
        finally:
            await parts.put(None)

    async def arriving() -> AsyncIterator[bytes]:
        while (part := await parts.get()) is not None:
            yield part

    reading = asyncio.create_task(read())
    try:
        await target.connection.copy_to_table(
            table, source=arriving(), columns=columns, format="binary", schema_name=schema
        )
        return int((await reading).split()[-1])
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
