"""Loads the named statements of `engine/sql` and of each feature's `queries.sql`, and writes each for a dialect.

A statement is written once for both databases. Differences are marked in the text:

- `-- name: x` begins a statement; the comment lines after it describe it;
- `-- name: x (postgres)` is a marked override, with its reason;
- `-- part: x` defines text that replaces `{x}` in the statements of all files, and in later parts of its own file;
- `-- rows items: id uuid, fence bigint` makes `{items}` a table of the batch's rows;
- `-- insert tasks: id uuid, ...` is a bulk insert of rows in that column order;
- `-- save tasks by id uuid: status text, ...` is an update of rows by their keys, in that column order, keys first;
- `-- own rows: why` says that it changes only rows that its transaction has locked or inserted, so it never waits;
- `{postgres: ...}` and `{sqlite: ...}` apply to one database only;
- `:name` is a parameter.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Literal, NamedTuple, cast

Dialect = Literal["sqlite", "postgres"]

_NAME = re.compile(r"^-- name: (\w+)(?: \((sqlite|postgres)\))?$")
_PART = re.compile(r"^-- part: (\w+)$")
_ROWS = re.compile(r"^-- rows (\w+): (.+)$")
_INSERT = re.compile(r"^-- insert (\w+): (.+)$")
_SAVE = re.compile(r"^-- save (\w+) by ([^:]+): (.+)$")
_OWN = re.compile(r"^-- own rows: \S")
_ONLY = re.compile(r"\{(postgres|sqlite|pg|lite): ?([^{}]*)\}")
_TAGS = {"postgres": {"postgres", "pg"}, "sqlite": {"sqlite", "lite"}}
"""The short tags occur in released migrations, whose text never changes."""

_TABLE = re.compile(r"\{(\w+)\}")
_LEADING = re.compile(r"from \{(\w+)\} join\b")
"""SQLite keeps the order of a cross join. Otherwise, after ANALYZE, it would scan the table and parse the batch's JSON
for each row: 150 ms instead of 0.2 for the attempts of 100 tasks."""

_PARAMETER = re.compile(r"(?<![:\w]):([a-z_]+)\b")
_SQLITE_TYPES = {
    "uuid": "text",
    "float": "real",
    "bigint": "integer",
    "int": "integer",
    "boolean": "integer",
    "json": "text",
    "text": "text",
}
_POSTGRES_TYPES = {"float": "double precision"}

PLAIN = frozenset({"uuid", "int", "bigint"})
"""Column types of a batch that are sent to PostgreSQL as one text: the values need no quotes, and the driver takes a
microsecond for each element of an array."""

_READABLE_TIME = {"postgres": r"to_timestamp(\1)", "sqlite": r"strftime('%Y-%m-%dT%H:%M:%fZ', \1, 'unixepoch')"}


class Column(NamedTuple):
    name: str
    type: str


class Source(NamedTuple):
    """A statement as written in the file."""

    name: str
    text: str
    tables: dict[str, tuple[Column, ...]]
    insert: tuple[str, tuple[Column, ...]] | None
    own_rows: bool = False


class Statement(NamedTuple):
    """A statement ready for one database; `parameters` in the order of their placeholders."""

    name: str
    text: str
    parameters: tuple[str, ...]
    tables: dict[str, tuple[Column, ...]]
    columns: tuple[Column, ...]
    target: str | None = None
    """The table of a plain bulk insert, for which the fastest way of the database may be used."""
    single: str = ""
    """An insert of one row: PostgreSQL's driver takes 0.15 ms longer to write a task as arrays of one."""
    own_rows: bool = False
    """Whether it changes only rows that its transaction has locked or inserted."""


@cache
def load(dialect: Dialect) -> dict[str, Statement]:
    """All statements for one database, by name."""
    chosen: dict[str, Source] = {}
    for source, only in _sources():
        if only is None:
            chosen.setdefault(source.name, source)
        elif only == dialect:
            chosen[source.name] = source
    return {name: _write(source, dialect) for name, source in chosen.items()}


@cache
def columns_of(name: str) -> tuple[str, ...]:
    """The columns that an insert or a save takes, in the order of its rows."""
    source = next(source for source, only in _sources() if source.name == name and only is None)
    columns = source.insert[1] if source.insert else source.tables["items"]
    return tuple(column.name for column in columns)


@cache
def _sources() -> Sequence[tuple[Source, Dialect | None]]:
    texts = [file.read_text(encoding="utf-8") for file in files()]
    parts: dict[str, str] = {}
    for text in texts:
        _read_parts(text, parts)
    return [parsed for text in texts for parsed in _parse(text, parts)]


def files() -> Iterator[Traversable]:
    """The engine's files, and the one of each feature; a statement has one name among all of them."""
    package = resources.files("shiftwork")
    yield from (file for file in (package / "engine" / "sql").iterdir() if file.name.endswith(".sql"))
    yield from (file for folder in package.iterdir() if (file := folder / "queries.sql").is_file())


def _read_parts(text: str, parts: dict[str, str]) -> None:
    for heading, lines in _blocks(text):
        if part := _PART.match(heading):
            parts[part[1]] = _source(part[1], [_fill_in(line, parts) for line in lines]).text


def _parse(text: str, parts: dict[str, str]) -> Iterator[tuple[Source, Dialect | None]]:
    for heading, lines in _blocks(text):
        if named := _NAME.match(heading):
            written = [_fill_in(line, parts) for line in lines]
            yield _source(named[1], written), cast("Dialect | None", named[2])


def _blocks(text: str) -> Iterator[tuple[str, list[str]]]:
    """Each heading with the lines below it."""
    heading, lines = "", list[str]()
    for line in text.splitlines():
        if _NAME.match(line) or _PART.match(line):
            yield heading, lines
            heading, lines = line, []
        else:
            lines.append(line)
    yield heading, lines


def _fill_in(line: str, parts: dict[str, str]) -> str:
    return _TABLE.sub(lambda m: parts.get(m[1], m[0]), line)


def _source(name: str, lines: list[str]) -> Source:
    tables: dict[str, tuple[Column, ...]] = {}
    insert: tuple[str, tuple[Column, ...]] | None = None
    own_rows = False
    kept: list[str] = []
    for line in lines:
        if table := _ROWS.match(line):
            tables[table[1]] = _columns(table[2])
        elif target := _INSERT.match(line):
            insert = target[1], _columns(target[2])
        elif target := _SAVE.match(line):
            keys, saved = _columns(target[2]), _columns(target[3])
            tables["items"] = (*keys, *saved)
            kept.append(_write_save(target[1], keys, saved))
        elif _OWN.match(line):
            own_rows = True
        elif not line.lstrip().startswith("--"):
            kept.append(line)
    return Source(name, "\n".join(kept).strip().rstrip(";"), tables, insert, own_rows)


def _write_save(table: str, keys: Sequence[Column], saved: Sequence[Column]) -> str:
    assignments = ", ".join(f"{c.name} = items.{c.name}" for c in saved)
    matched = " and ".join(f"{table}.{c.name} = items.{c.name}" for c in keys)
    return f"update {table} set {assignments} from {{items}} where {matched}"  # noqa: S608  # names come from our own files


def _columns(text: str) -> tuple[Column, ...]:
    return tuple(Column(*part.split()) for part in text.split(","))


def _write(source: Source, dialect: Dialect) -> Statement:
    if source.insert:
        return _write_insert(source, dialect)
    text = only(source.text, dialect)
    if dialect == "postgres":
        return _write_postgres(source, text)
    text = _LEADING.sub(r"from {\1} cross join", text)
    text = _TABLE.sub(lambda m: _json_table(m[1], source.tables[m[1]]), text)
    return Statement(source.name, text, tuple(dict.fromkeys(_PARAMETER.findall(text))), source.tables, ())


def _write_postgres(source: Source, text: str) -> Statement:
    order: list[str] = []

    def place(parameter: str) -> str:
        if parameter not in order:
            order.append(parameter)
        return f"${order.index(parameter) + 1}"

    def table(match: re.Match[str]) -> str:
        columns = source.tables[match[1]]
        arrays = ", ".join(f"{place(f'{match[1]}.{c.name}')}{_cast(c)}" for c in columns)
        return f"unnest({arrays}) as {match[1]}({', '.join(c.name for c in columns)})"

    text = _TABLE.sub(table, text)
    text = _PARAMETER.sub(lambda m: place(m[1]), text)
    return Statement(source.name, text, tuple(order), source.tables, (), own_rows=source.own_rows)


def _json_table(name: str, columns: tuple[Column, ...]) -> str:
    fields = ", ".join(f"value ->> {i} as {c.name}" for i, c in enumerate(columns))
    return f"(select {fields} from json_each(:{name})) as {name}"  # noqa: S608  # names come from our own files


def _write_insert(source: Source, dialect: Dialect) -> Statement:
    assert source.insert is not None
    table, columns = source.insert
    names = ", ".join(c.name for c in columns)
    into = f"insert into {table} ({names})"
    typed = [f"${i}::{_pg_type(c.type)}" for i, c in enumerate(columns, 1)]
    marks = typed if dialect == "postgres" else ["?"] * len(columns)
    single = many = f"{into} values ({', '.join(marks)}) {source.text}".rstrip()
    if dialect == "postgres":
        arrays = ", ".join(f"{mark}[]" for mark in marks)
        many = f"{into} select * from unnest({arrays}) {source.text}".rstrip()  # noqa: S608  # names come from our own files
    return Statement(source.name, many, (), {}, columns, None if source.text else table, single)


def write_sharing(statement: Statement, sources: Sequence[int | None]) -> str:
    """A bulk insert for PostgreSQL in which a column is an array, equals an earlier column, or has one value for all
    rows.

    `sources` gives for each column the index of the column with its array, or None. Parameters come in column order.
    """
    sent = [place for place, source in enumerate(sources) if source in {None, place}]
    number = {place: f"${i}" for i, place in enumerate(sent, 1)}
    arrays = [place for place in sent if sources[place] is not None]
    values = ", ".join(
        f"{number[place]}::{_pg_type(column.type)}" if source is None else f"given.{statement.columns[source].name}"
        for place, (column, source) in enumerate(zip(statement.columns, sources, strict=True))
    )
    given = ", ".join(f"{number[place]}{_cast(statement.columns[place])}" for place in arrays)
    named = ", ".join(statement.columns[place].name for place in arrays)
    into = f"insert into {statement.target} ({', '.join(column.name for column in statement.columns)})"
    return f"{into} select {values} from unnest({given}) as given({named})"  # noqa: S608  # names come from our own files


def _cast(column: Column) -> str:
    """The expression that turns a parameter into the array of a batch's column."""
    kind = f"::{_pg_type(column.type)}[]"
    return f"::text{kind}" if column.type in PLAIN else kind


def _pg_type(name: str) -> str:
    return _POSTGRES_TYPES.get(name, name)


def only(text: str, dialect: Dialect) -> str:
    """The text for one database: its tags resolved, the other's removed."""
    keep = _TAGS[dialect]
    return _ONLY.sub(lambda m: m[2] if m[1] in keep else "", text)


def write_schema(text: str, dialect: Dialect) -> str:
    """A migration's text for one database: `<uuid>` and the like become column types, `<at x>` a readable time."""
    text = only(text, dialect)
    text = re.sub(r"<at ([\w.]+)>", _READABLE_TIME[dialect], text)
    types = _SQLITE_TYPES if dialect == "sqlite" else _POSTGRES_TYPES
    return re.sub(r"<(\w+)>", lambda m: types.get(m[1], m[1]), text)
