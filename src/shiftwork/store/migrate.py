"""Numbered SQL migrations: which there are, and which a database has had.

Files are never changed once released; the checksum of each is kept beside its number.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import NamedTuple

from shiftwork.model.errors import StoreNeedsMigration, StoreNewer, StoreUnsuitable
from shiftwork.store.statements import Dialect, write_schema

_FILE = re.compile(r"(\d{4})_(\w+)\.sql")

_INDEX = re.compile(r"create (?:unique )?index (?:if not exists )?(\w+)")

LEDGER = """
create table if not exists migrations (
  number int primary key,
  name text not null,
  checksum text not null
)"""


class Migration(NamedTuple):
    number: int
    name: str
    text: str
    checksum: str


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


def missing(dialect: Dialect, done: Sequence[tuple[int, str, str]]) -> list[Migration]:
    """What a database still needs, after checking that what it had is what we know."""
    known = {m.number: m for m in migrations(dialect)}
    for number, name, checksum in done:
        if number not in known:
            raise StoreNewer(f"the database has migration {number:04d}_{name}, which this version does not know")
        if known[number].checksum != checksum:
            raise StoreUnsuitable(
                f"migration {number:04d}_{name} of the database differs from the one of this version",
                hint="The database was made by a development version; export it and start from a fresh one.",
            )
    had = {number for number, _, _ in done}
    return [m for m in migrations(dialect) if m.number not in had]


def refuse_unmigrated(needed: Sequence[Migration]) -> None:
    """For connections that may not change the schema."""
    if needed and needed[0].number == sources()[0].number:
        raise StoreNeedsMigration(
            "there is no queue in this database yet",
            hint="Check the address, or make a queue here with `shiftwork migrate` or the first submit.",
        )
    if needed:
        raise StoreNeedsMigration(f"the database lacks migration {needed[0].number:04d}_{needed[0].name}")


def indexes(dialect: Dialect) -> dict[str, str]:
    """Every index of the schema by name, and the statement that makes it."""
    texts = [text for migration in migrations(dialect) for text in statements_of(migration.text)]
    return {named[1]: text for text in texts if (named := _INDEX.match(text))}


def statements_of(text: str) -> list[str]:
    """The single statements of a migration; none of ours holds a semicolon inside a literal or a comment."""
    bare = re.sub(r"--[^\n]*", "", text)
    return [part.strip() for part in bare.split(";") if part.strip()]
