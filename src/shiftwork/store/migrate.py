"""Numbered SQL migrations: those that exist, those a database has applied, and the steps to bring it up to date.

Files are never changed once released; a database keeps the checksum of each next to its number. A migration adds to the
schema, so that programs of the version before work with it. One that takes something away, or lets programs write what
older ones cannot read, is a contract: its name ends in `_needs_0040`, the migration that a program must know to work
with it. Opening a queue applies no contract to one that exists: `shiftwork migrate --contract` does.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Container, Sequence
from functools import cache
from importlib import resources
from typing import Literal, NamedTuple

from shiftwork.model.errors import StoreNeedsMigration, StoreNewer, StoreUnsuitable
from shiftwork.store.statements import Dialect, write_schema

_FILE = re.compile(r"(\d{4})_(\w+)\.sql")

_NEEDS = re.compile(r"\w+_needs_(\d{4})")
_INDEX = re.compile(r"(create (?:unique )?index) (?:if not exists )?((\w+) on )(\w+)")
_TABLE = re.compile(r"create table (?:if not exists )?(\w+)")
_STATEMENT = re.compile(r"(?:\$\$.*?\$\$|create trigger [^;]*\bbegin\b.*?;\s*end\b|[^;])+", re.DOTALL)

LEDGER = """
create table if not exists migrations (
  number int primary key,
  name text not null,
  checksum text not null
)"""

UNFINISHED = "indexes"
"""The checksum of a migration whose indexes are still being built."""

LOCK_TIMEOUT_SEC = 1
"""Kept short: while a migration waits for the lock of a table, all later transactions wait behind it."""


class Migration(NamedTuple):
    number: int
    name: str
    text: str
    checksum: str

    @property
    def title(self) -> str:
        return f"{self.number:04d}_{self.name}"

    @property
    def is_contract(self) -> bool:
        return needs(self.name) is not None


class Step(NamedTuple):
    """The statements of one transaction, or one that cannot run in a transaction: a concurrent index build."""

    statements: tuple[str, ...]
    builds: str | None = None


@cache
def migrations(dialect: Dialect) -> tuple[Migration, ...]:
    """All migrations in order, written for one database."""
    return tuple(source._replace(text=write_schema(source.text, dialect)) for source in sources())


@cache
def sources() -> tuple[Migration, ...]:
    """All migrations in order, as they are in their files."""
    found: list[Migration] = []
    for file in (resources.files("shiftwork.store") / "migrations").iterdir():
        if match := _FILE.fullmatch(file.name):
            source = file.read_text(encoding="utf-8")
            checksum = hashlib.sha256(source.encode()).hexdigest()[:16]
            found.append(Migration(int(match[1]), match[2], source, checksum))
    return tuple(sorted(found))


def needs(name: str) -> int | None:
    """The migration that a program must know to work with this one; None if the previous version works with it."""
    found = _NEEDS.fullmatch(name)
    return int(found[1]) if found else None


Done = Sequence[tuple[int, str, str]]
"""The migrations applied to a database: number, name and checksum."""

Allowed = bool | Literal["contract"]
"""Whether opening a queue may change its schema, and whether contracts are applied, too."""


def missing(dialect: Dialect, done: Done, *, contract: bool = False) -> list[Migration]:
    """The migrations that a database lacks, after checking that this version can work with those it has.

    Contracts are included for a new database, or on request.
    """
    known = {m.number: m for m in migrations(dialect)}
    for number, name, checksum in done:
        if number not in known:
            _refuse_newer(known, number, name)
        elif checksum not in {known[number].checksum, UNFINISHED}:
            raise StoreUnsuitable(
                f"migration {number:04d}_{name} of the database differs from the one of this version",
                hint="A development version created the database; export it and start with a new one.",
            )
    had = {number for number, _, checksum in done if checksum != UNFINISHED}
    every = contract or not done
    return [m for m in known.values() if m.number not in had and (every or not m.is_contract)]


def _refuse_newer(known: Container[int], number: int, name: str) -> None:
    """Refuse a newer migration, unless it says that programs like this one can work with it."""
    needed = needs(name)
    if needed is not None and needed not in known:
        raise StoreNewer(f"the database has migration {number:04d}_{name}, which this version cannot work with")


def refuse_other(dialect: Dialect, done: Done) -> None:
    """For code that reads or writes every table: it must know all of them."""
    refuse_unmigrated(missing(dialect, done))
    known = {m.number for m in migrations(dialect)}
    for number, name, _ in done:
        if number not in known:
            raise StoreNewer(f"the database has migration {number:04d}_{name}, which this version does not know")


def is_same_schema(one: Done, other: Done) -> bool:
    """Whether schemas match, ignoring contracts, since no copied row has anything that these remove."""
    return [m for m in one if needs(m[1]) is None] == [m for m in other if needs(m[1]) is None]


def refuse_unmigrated(needed: Sequence[Migration]) -> None:
    """Refuse an unmigrated database, on connections that may not change the schema."""
    if needed and needed[0].number == sources()[0].number:
        raise StoreNeedsMigration(
            "there is no queue in this database yet",
            hint="Check the address, or create a queue here with `shiftwork migrate` or the first submit.",
        )
    if needed:
        raise StoreNeedsMigration(f"the database lacks migration {needed[0].title}")


def indexes(dialect: Dialect) -> dict[str, str]:
    """Every index of the schema by name, with the statement that creates it."""
    texts = [text for migration in migrations(dialect) for text in statements_of(migration.text)]
    return {named[3]: text for text in texts if (named := _INDEX.match(text))}


def statements_of(text: str) -> list[str]:
    """The single statements of a migration; a semicolon that does not end one is only allowed between `$$`."""
    bare = re.sub(r"--[^\n]*", "", text)
    return [part.strip() for part in _STATEMENT.findall(bare) if part.strip()]


def steps(migration: Migration, place: str = "") -> list[Step]:
    """The steps of a migration for PostgreSQL in use: an index of a table with rows is built concurrently.

    `place` goes before the table, as `"schema".`.
    """
    found = statements_of(migration.text)
    created = {table[1] for text in found if (table := _TABLE.match(text))}
    later = [text for text in found if (named := _INDEX.match(text)) and named[4] not in created]
    first = tuple(text for text in found if text not in later)
    if not later:
        return [Step((*first, record(migration)))]
    builds = [
        Step((_INDEX.sub(rf"\1 concurrently if not exists \2{place}\4", text),), builds=name[3])
        for text in later
        if (name := _INDEX.match(text))
    ]
    finish = f"update {place}migrations set checksum = '{migration.checksum}' where number = {migration.number}"  # noqa: S608  # our own words
    return [Step((*first, record(migration, UNFINISHED))), *builds, Step((finish,))]


def record(migration: Migration, checksum: str | None = None) -> str:
    """The statement that records a migration in the ledger of the first schema in the search path."""
    row = f"{migration.number}, '{migration.name}', '{checksum or migration.checksum}'"
    return f"insert into migrations values ({row})"  # noqa: S608  # our own words


def settings(schema: str) -> tuple[str, str]:
    """The first statements of a migration's transaction."""
    return f"set local search_path = {schema}", f"set local lock_timeout = '{LOCK_TIMEOUT_SEC}s'"


def script(dialect: Dialect, needed: Sequence[Migration], done: Done, schema: str = "") -> str:
    """The SQL that brings a database up to date, to be run with `psql` or `sqlite3`."""
    if not needed:
        return ""
    if dialect == "sqlite" or not done:
        begin = ["begin", *([f"create schema if not exists {schema}", *settings(schema)] if schema else [])]
        texts = [part for m in needed for part in (*statements_of(m.text), record(m))]
        return _lines([*begin, LEDGER.strip(), *texts, "commit"])
    unfinished = {number for number, _, checksum in done if checksum == UNFINISHED}
    left = [step for m in needed for step in steps(m, f"{schema}.")[m.number in unfinished :]]
    return "".join(
        _lines(step.statements if step.builds else ["begin", *settings(schema), *step.statements, "commit"])
        for step in left
    )


def _lines(statements: Sequence[str]) -> str:
    return "".join(f"{text};\n" for text in statements)
