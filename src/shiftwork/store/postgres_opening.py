"""The way to a PostgreSQL server: its address, a pool of sessions as we want them, and the schema."""

from __future__ import annotations

import asyncio
from functools import lru_cache
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit, urlunsplit

import asyncpg

from shiftwork.model.errors import InputError, StoreReadOnly, StoreUnsuitable
from shiftwork.store import migrate
from shiftwork.store.postgres_schema import PUBLIC, check_schema, lock_name, migration_text, quoted
from shiftwork.store.postgres_sessions import Session, session_name
from shiftwork.store.postgres_tx import ADVISORY_LOCK

OLDEST_SERVER = 14
MIGRATION_LOCK = "migrate"
CONNECT_SEC = 10.0
ADDRESS = "Write postgresql://user@host:port/database."
SESSION = {
    "jit": "off",
    "random_page_cost": "1.1",
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "plan_cache_mode": "force_generic_plan",
    "idle_in_transaction_session_timeout": "10s",
}
"""Our statements reach few rows by index. Without statistics, right after a bulk load, the planner would rather read
the whole table for a batch of 500; and it would plan each batch anew, since it sees how long it is (0.3 ms a claim). A
process that is stopped in the middle must not hold its locks forever: the whole fleet may wait for them."""

SET_LOCAL = "".join(f"; set local {name} = '{value}'" for name, value in SESSION.items())
"""The same for one transaction: a pooler hands the connection on. It costs 0.15 ms each time, so only there."""

_DEFAULT_SCHEMA = """
select coalesce((select nspname from pg_namespace where oid = (
  select relnamespace from pg_class where oid = to_regclass('migrations'))), current_schema())::text"""

REMEMBERED = 16_384
"""Ids kept in both forms: one task's id crosses the wire fifteen times from its claim to its result (10 us a task)."""


def split_url(url: str) -> tuple[str, dict[str, str]]:
    """The driver's address, and the options that are ours: `pgbouncer`, `listen` and `schema`."""
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise InputError(f"the address cannot be used: {error}", where="url", hint=ADDRESS) from error
    ours: dict[str, str] = {}
    theirs: list[tuple[str, str]] = []
    for key, value in parse_qsl(parts.query, keep_blank_values=True):
        if key in {"pgbouncer", "listen"}:
            ours[key] = unquote(value)
        elif key == "schema":
            ours[key] = check_schema(value)
        else:
            theirs.append((key, value))
    if "," in parts.netloc and not any(key == "target_session_attrs" for key, _ in theirs):
        theirs.append(("target_session_attrs", "read-write"))  # several hosts: only the primary takes work
    return urlunsplit(parts._replace(query=urlencode(theirs))), ours


async def connect(
    dsn: str, *, pool_size: int, behind_pooler: bool, allowed: bool, schema: str | None = None
) -> tuple[Any, str]:
    """A pool whose database has the queue's tables, and the schema they are in."""
    try:
        async with asyncio.timeout(CONNECT_SEC):
            pool = await asyncpg.create_pool(
                dsn,
                min_size=1,
                max_size=pool_size,
                timeout=CONNECT_SEC,
                command_timeout=30,
                statement_cache_size=0 if behind_pooler else 512,
                server_settings=session_name(dsn, schema or PUBLIC) | ({} if behind_pooler else SESSION),
                connection_class=Session,
                init=_set_up,
                reset=_keep,
            )
    except asyncpg.InterfaceError:
        raise  # the driver's own word for what it was given, though it is a ValueError, too
    except (ValueError, OverflowError) as error:  # a port that is not a number, or above 65535
        raise InputError(f"the address cannot be used: {error}", where="url", hint=ADDRESS) from error
    try:
        home, is_current = await _look(pool, schema)
        if not is_current:
            await _migrate(dsn, home, behind_pooler=behind_pooler, allowed=allowed)
    except BaseException:
        pool.terminate()
        raise
    return pool, home


async def _keep(_connection: Any) -> None:
    """We leave no session state behind, so there is nothing to reset, and a round trip is saved."""


async def _set_up(connection: Any) -> None:
    """Ids are text on our side, as they are in SQLite. Binary, since COPY takes no other form."""
    async with connection.transaction():
        await connection.set_type_codec(
            "uuid", schema="pg_catalog", encoder=_uuid_to_bytes, decoder=_uuid_from_bytes, format="binary"
        )


@lru_cache(REMEMBERED)
def _uuid_to_bytes(text: str) -> bytes:
    return bytes.fromhex(text.replace("-", ""))


@lru_cache(REMEMBERED)
def _uuid_from_bytes(raw: bytes) -> str:
    h = raw.hex()
    return f"{h[:8]}-{h[8:12]}-{h[12:16]}-{h[16:20]}-{h[20:]}"


async def _migrate(dsn: str, schema: str, *, behind_pooler: bool, allowed: bool) -> None:
    """On a connection of its own: a migration may take longer than a verb may."""
    kept = 0 if behind_pooler else 100
    name = {"application_name": "shiftwork migrate"}
    connection = await asyncpg.connect(dsn, timeout=CONNECT_SEC, statement_cache_size=kept, server_settings=name)
    try:
        async with connection.transaction():
            if not allowed:
                migrate.refuse_unmigrated(migrate.missing("postgres", await done(connection, schema)))
            await connection.execute(ADVISORY_LOCK, lock_name(schema, MIGRATION_LOCK))
            await _create_schema(connection, schema)
            await connection.execute(f"set local search_path = {quoted(schema)}")  # what is created is created there
            await connection.execute(migrate.LEDGER)
            for migration in migrate.missing("postgres", await done(connection, schema)):
                await connection.execute(migration_text(migration.text, schema))
                await connection.execute(
                    "insert into migrations values ($1, $2, $3)",
                    migration.number,
                    migration.name,
                    migration.checksum,
                )
    except asyncpg.DuplicateTableError as error:
        raise _taken(schema, str(error)) from error
    finally:
        await connection.close()


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


async def _look(pool: Any, named: str | None) -> tuple[str, bool]:
    """The schema of the queue, and whether it is up to date.

    Nothing is written, so that a role that may not create tables can open a migrated queue.
    """
    async with pool.acquire() as connection, connection.transaction():
        version = connection.get_server_version()
        if version.major < OLDEST_SERVER:
            raise StoreUnsuitable(f"PostgreSQL {version.major} is too old")
        schema = named or await default_schema(connection)
        return schema, not migrate.missing("postgres", await done(connection, schema))


async def default_schema(connection: Any) -> str:
    """Where the role's search path finds a queue, or else creates one."""
    found: str | None = await connection.fetchval(_DEFAULT_SCHEMA)
    if found is None:
        raise StoreUnsuitable(
            "the search path of this role names no schema that exists",
            where="url",
            hint="Name the queue's schema in the address: ?schema=shiftwork.",
        )
    return found


async def done(connection: Any, schema: str) -> list[tuple[int, str, str]]:
    """The migrations a database has had in this schema."""
    ledger = f"{quoted(schema)}.migrations"
    if await connection.fetchval("select to_regclass($1)", ledger) is None:
        return []
    try:
        rows = await connection.fetch(f"select number, name, checksum from {ledger} order by number")  # noqa: S608  # a checked name
    except asyncpg.UndefinedColumnError as error:
        raise _taken(schema, "it has a table `migrations`") from error
    return [tuple(row) for row in rows]


def _taken(schema: str, what: str) -> StoreUnsuitable:
    return StoreUnsuitable(
        f"the schema {schema!r} holds tables of another program: {what}",
        where="url",
        hint="Give the queue a schema of its own: add ?schema=shiftwork to the address.",
    )
