"""Brings the schema of a PostgreSQL database up to date while others work on it.

A new queue is created in one transaction. An existing one gets a transaction per migration, which gives up quickly and
retries if it cannot get its locks, and its indexes are built concurrently.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg

from shiftwork.model.errors import StoreLocked, StoreReadOnly, StoreUnsuitable
from shiftwork.store import migrate
from shiftwork.store.postgres_connect import open_connection
from shiftwork.store.postgres_schema import lock_name, migration_text, quoted

log = logging.getLogger("shiftwork.store")

MIGRATION_LOCK = "migrate"
TURN_SEC = 0.2
"""How often to check whether another process has finished migrating. We do not wait for the lock: a waiting transaction
would block a concurrent index build."""

LOCKS_SEC = 60.0
"""How long a migration tries to get the locks of its tables."""

_TRY_LOCK = "select pg_try_advisory_xact_lock(hashtextextended($1, 0))"
_INVALID = """
select 1 from pg_index i join pg_class c on c.oid = i.indexrelid
where not i.indisvalid and c.relname = $1 and c.relnamespace = to_regnamespace($2)"""


async def run(dsn: str, schema: str, *, behind_pooler: bool, contract: bool = False) -> None:
    """Apply missing migrations, one process at a time. On connections of their own: they may take longer than a verb
    may.
    """
    async with (
        _connected(dsn, behind_pooler=behind_pooler) as holder,
        _turn(holder, schema),
        _connected(dsn, behind_pooler=behind_pooler) as connection,
    ):
        try:
            await _run(connection, schema, contract=contract)
        except asyncpg.DuplicateTableError as error:
            raise taken(schema, str(error)) from error


@asynccontextmanager
async def _turn(holder: Any, schema: str) -> AsyncIterator[None]:
    """The lock, held by a transaction.

    Each attempt is a transaction of its own: a concurrent index build waits for every transaction that had a snapshot,
    even if it no longer has. A prepared statement keeps its snapshot until the next statement.
    """
    while True:
        async with holder.transaction():
            if await holder.fetchval(_TRY_LOCK, lock_name(schema, MIGRATION_LOCK)):
                await holder.execute("select 1")
                yield
                return
        await asyncio.sleep(TURN_SEC)


@asynccontextmanager
async def _connected(dsn: str, *, behind_pooler: bool) -> AsyncIterator[Any]:
    kept = 0 if behind_pooler else 100
    name = {"application_name": "shiftwork migrate"}
    connection = await open_connection(dsn, statement_cache_size=kept, server_settings=name)
    try:
        yield connection
    finally:
        await connection.close()


async def _run(connection: Any, schema: str, *, contract: bool) -> None:
    had = await done(connection, schema)
    needed = [
        migration._replace(text=migration_text(migration.text, schema))
        for migration in migrate.missing("postgres", had, contract=contract)
    ]
    if not had:
        async with connection.transaction():
            await _create(connection, schema, needed)
        return
    begun = {number for number, _, _ in had}
    for migration in needed:
        await _apply(connection, migration, schema, skip=1 if migration.number in begun else 0)


async def _create(connection: Any, schema: str, needed: list[migrate.Migration]) -> None:
    await _create_schema(connection, schema)
    await connection.execute(f"set local search_path = {quoted(schema)}")  # new objects are created there
    await connection.execute(migrate.LEDGER)
    for migration in needed:
        await connection.execute(f"{migration.text}\n;{migrate.record(migration)}")


async def _apply(connection: Any, migration: migrate.Migration, schema: str, *, skip: int) -> None:
    began = time.monotonic()
    for step in migrate.steps(migration, f"{quoted(schema)}.")[skip:]:
        if step.builds is None:
            await _change(connection, migration, step, schema)
        else:
            await _build(connection, step, schema)
    log.info("migration %s took %.2f s", migration.title, time.monotonic() - began)


async def _change(connection: Any, migration: migrate.Migration, step: migrate.Step, schema: str) -> None:
    """Run one transaction, retried while others lock its tables: they wait behind it for a moment at most."""
    until = time.monotonic() + LOCKS_SEC
    while True:
        try:
            async with connection.transaction():
                for text in (*migrate.settings(quoted(schema)), *step.statements):
                    await connection.execute(text)
        except (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError) as error:
            if time.monotonic() > until:
                raise StoreLocked(
                    f"migration {migration.title} did not get its locks within {LOCKS_SEC:g} s: {error}",
                    hint="End the transaction that holds the table (`shiftwork doctor` names old ones), and try again.",
                ) from error
            log.info("migration %s waits for its locks: %s", migration.title, error)
            await asyncio.sleep(migrate.LOCK_TIMEOUT_SEC)
        else:
            return


async def _build(connection: Any, step: migrate.Step, schema: str) -> None:
    """Build an index without blocking others; an invalid index left by a killed process is dropped."""
    if await connection.fetchval(_INVALID, step.builds, quoted(schema)):
        await connection.execute(f"drop index concurrently {quoted(schema)}.{step.builds}")
    (text,) = step.statements
    await connection.execute(text)


async def _create_schema(connection: Any, schema: str) -> None:
    if await connection.fetchval("select to_regnamespace($1)", quoted(schema)) is not None:
        return
    try:
        await connection.execute(f"create schema {quoted(schema)}")
    except asyncpg.InsufficientPrivilegeError as error:
        raise StoreReadOnly(
            f"there is no schema {schema!r}, and this role may not create it",
            where="url",
            hint=f"Have its owner run: create schema {schema} authorization <role>",
        ) from error


async def done(connection: Any, schema: str) -> list[tuple[int, str, str]]:
    """The migrations applied in this schema."""
    ledger = f"{quoted(schema)}.migrations"
    if await connection.fetchval("select to_regclass($1)", ledger) is None:
        return []
    try:
        rows = await connection.fetch(f"select number, name, checksum from {ledger} order by number")  # noqa: S608  # a checked name
    except asyncpg.UndefinedColumnError as error:
        raise taken(schema, "it has a table `migrations`") from error
    return [tuple(row) for row in rows]


def taken(schema: str, what: str) -> StoreUnsuitable:
    return StoreUnsuitable(
        f"the schema {schema!r} holds tables of another program: {what}",
        where="url",
        hint="Give the queue a schema of its own: add ?schema=shiftwork to the address.",
    )
