"""Reads which migrations a database lacks, without changing anything."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import NamedTuple

from shiftwork.store import migrate
from shiftwork.store.statements import Dialect

_CREATES = re.compile(r"create (?:or replace )?(?:virtual )?(?:table|view|schema) (?:if not exists )?([\w.]+)")
_CHANGES = re.compile(r"(?:alter table|update|delete from|drop table|insert into) (\w+)")
_BUILDS = re.compile(r"create (?:unique )?index (\w+)")


class Lacking(NamedTuple):
    """The migrations that a database lacks, and those it has."""

    dialect: Dialect
    schema: str
    done: migrate.Done
    needed: list[migrate.Migration]

    @property
    def script(self) -> str:
        """The SQL that brings it up to date."""
        return migrate.script(self.dialect, self.needed, self.done, self.schema)


class Effect(NamedTuple):
    """What a migration does to a database, by the names of tables, views and indexes."""

    migration: str
    creates: list[str]
    changes: list[str]
    indexes: list[str]


async def look(url: str, *, contract: bool = False) -> Lacking:
    """Read the state of a database. Nothing is written, and no file is created."""
    if url.startswith("sqlite:"):
        from shiftwork.store.sqlite import read_done  # noqa: PLC0415  # only what is used is loaded

        path = Path(url.removeprefix("sqlite:///"))
        done = await asyncio.to_thread(read_done, path)
        return Lacking("sqlite", "", done, migrate.missing("sqlite", done, contract=contract))
    from shiftwork.store.postgres_open import read_done as read_server  # noqa: PLC0415  # an extra
    from shiftwork.store.postgres_schema import migration_text, quoted  # noqa: PLC0415  # likewise

    schema, had = await read_server(url)
    needed = migrate.missing("postgres", had, contract=contract)
    texts = [migration._replace(text=migration_text(migration.text, schema)) for migration in needed]
    return Lacking("postgres", quoted(schema), had, texts)


def effect(migration: migrate.Migration) -> Effect:
    texts = migrate.statements_of(migration.text)
    creates, changes, indexes = (
        list(dict.fromkeys(found[1] for text in texts if (found := pattern.match(text))))
        for pattern in (_CREATES, _CHANGES, _BUILDS)
    )
    return Effect(migration.title, creates, [name for name in changes if name not in creates], indexes)
