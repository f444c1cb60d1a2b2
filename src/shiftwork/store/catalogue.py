"""Every table of the queue with its columns and their types, read from the migrations themselves.

Code that reads or writes whole queues uses it, so that no table or column added later is forgotten.
"""

from __future__ import annotations

import re
from functools import cache
from typing import NamedTuple

import apsw

from shiftwork.store import migrate
from shiftwork.store.statements import Column, only

OF_THE_STORE = frozenset({"migrations", "duties", "routes"})
"""Tables about the database itself, not its queue: its migrations, its maintenance runs, and the workspaces that
moved."""

DERIVED = ("search_", "count_")
"""Name prefixes of tables that are derived from the others and are never copied."""

DISTRUST_COUNTS = "update count_marks set whole = false, generation = generation + 1"
"""Run it after writing rows without events: finished tasks are then counted again."""

SHARED_TABLES = frozenset({"workspaces", "meters", "meter_marks", "metric_snapshots"})
"""Tables that get rows as soon as a queue is opened and its maintenance jobs run, before it is used."""

_STRICT = re.compile(r"\)\s*strict\b")
_AT = re.compile(r"<at ([\w.]+)>")
_TYPE = re.compile(r"<(\w+)>")


class Table(NamedTuple):
    """One table; `number` is the column that the database itself numbers, if any."""

    name: str
    columns: tuple[Column, ...]
    number: str | None

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    def places(self, kind: str) -> tuple[int, ...]:
        """Where the columns of this type are in a row."""
        return tuple(place for place, column in enumerate(self.columns) if column.type == kind)


@cache
def tables() -> tuple[Table, ...]:
    """The tables that hold the queue, by name."""
    made = apsw.Connection(":memory:")
    try:
        for migration in migrate.sources():
            for statement in migrate.statements_of(_with_types(migration.text)):
                made.execute(statement)
        known = "select name, sql from sqlite_schema where type = 'table' and name not like 'sqlite_%' order by name"
        found = [(str(name), str(text)) for name, text in made.execute(known)]
        return tuple(_table(made, name, text) for name, text in found if _is_copied(name))
    finally:
        made.close()


def _is_copied(name: str) -> bool:
    return name not in OF_THE_STORE and not name.startswith(DERIVED)


def _with_types(text: str) -> str:
    """A migration for SQLite, with the types as written: a table that is not strict accepts any type name."""
    return _TYPE.sub(r"\1", _AT.sub(r"\1", _STRICT.sub(")", only(text, "sqlite"))))


def _table(made: apsw.Connection, name: str, text: str) -> Table:
    rows = list(made.execute("select name, type, pk from pragma_table_info(?)", (name,)))
    columns = tuple(Column(str(column), str(kind).lower()) for column, kind, _ in rows)
    numbered = "autoincrement" in text
    return Table(name, columns, next((str(column) for column, _, key in rows if key), None) if numbered else None)
