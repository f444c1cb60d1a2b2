"""Connects to a PostgreSQL server: its address, a pool of configured sessions, and the schema."""

from __future__ import annotations

import asyncio
from functools import lru_cache
from typing import Any, cast
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit, urlunsplit

import asyncpg

from shiftwork.model.errors import InputError, StoreUnsuitable
from shiftwork.store import migrate, postgres_migrate
from shiftwork.store.postgres_connect import CONNECT_SEC, open_connection
from shiftwork.store.postgres_errors import translate
from shiftwork.store.postgres_migrate import done
from shiftwork.store.postgres_schema import PUBLIC, check_schema
from shiftwork.store.postgres_sessions import Session, session_name

OLDEST_SERVER = 14
ADDRESS = "Write postgresql://user@host:port/database."
SESSION = {
    "jit": "off",
    "random_page_cost": "1.1",
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "max_parallel_workers_per_gather": "0",
    "plan_cache_mode": "force_generic_plan",
    "idle_in_transaction_session_timeout": "10s",
    "lock_timeout": "5s",
}
"""Our statements reach few rows by index. Without statistics, right after a bulk load, the planner would scan the whole
table for a batch of 500; and it would plan each batch again, because it sees its length (0.3 ms per claim). A generic
plan assumes that one task in 200 matches: with a million tasks it would start parallel workers to read three rows (10
ms).

A process suspended inside a transaction must not hold its locks forever: the whole fleet may be waiting for them. Nor
may its other sessions acquire them one after the other: a call that has waited this long for a lock releases the locks
it holds and starts again."""

SET_LOCAL = "".join(f"; set local {name} = '{value}'" for name, value in SESSION.items())
"""The same for one transaction, behind a pooler that shares the connection. Costs 0.15 ms each time, so only there."""

_DEFAULT_SCHEMA = """
select coalesce((select nspname from pg_namespace where oid = (
  select relnamespace from pg_class where oid = to_regclass('migrations'))), current_schema())::text"""

REMEMBERED = 16_384
"""Size of the cache of ids in both forms: a task's id crosses the wire fifteen times from claim to result (10 us a
task)."""


def split_url(url: str) -> tuple[str, dict[str, str]]:
    """Split off our own options: `pgbouncer`, `listen` and `schema`."""
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
        theirs.append(("target_session_attrs", "read-write"))  # several hosts: only the primary accepts writes
    return urlunsplit(parts._replace(query=urlencode(theirs))), ours


async def connect(
    dsn: str, *, pool_size: int, behind_pooler: bool, allowed: migrate.Allowed, schema: str | None = None
) -> tuple[Any, str]:
    """A pool whose database has the queue's tables, and the schema they are in."""
    try:
        async with asyncio.timeout(CONNECT_SEC):
            pool = await asyncpg.create_pool(
                dsn,
                min_size=1,
                max_size=pool_size,
                connect=cast(Any, open_connection),
                command_timeout=30,
                statement_cache_size=0 if behind_pooler else 512,
                server_settings=session_name(dsn, schema or PUBLIC) | ({} if behind_pooler else SESSION),
                connection_class=Session,
                init=_set_up,
                reset=_keep,
            )
    except asyncpg.InterfaceError:
        raise  # the driver's own error for a bad address, although it is a ValueError, too
    except (ValueError, OverflowError) as error:  # a port that is not a number, or above 65535
        raise InputError(f"the address cannot be used: {error}", where="url", hint=ADDRESS) from error
    try:
        home, needed = await _look(pool, schema, contract=allowed == "contract")
        if needed:
            if not allowed:
                migrate.refuse_unmigrated(needed)
            await postgres_migrate.run(dsn, home, behind_pooler=behind_pooler, contract=allowed == "contract")
    except BaseException:
        pool.terminate()
        raise
    return pool, home


async def _keep(_connection: Any) -> None:
    """Skip the reset of returned connections: we leave no session state behind, and this saves a round trip."""


async def _set_up(connection: Any) -> None:
    """Ids are text in Python, as in SQLite. The codec is binary: COPY accepts no other form."""
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


async def _look(pool: Any, named: str | None, *, contract: bool) -> tuple[str, list[migrate.Migration]]:
    """The schema of the queue, and the migrations it lacks.

    Nothing is written, so that a role that may not create tables can open a migrated queue.
    """
    async with pool.acquire() as connection, connection.transaction():
        version = connection.get_server_version()
        if version.major < OLDEST_SERVER:
            raise StoreUnsuitable(f"PostgreSQL {version.major} is too old")
        schema = named or await default_schema(connection)
        return schema, migrate.missing("postgres", await done(connection, schema), contract=contract)


async def default_schema(connection: Any) -> str:
    """The schema in which the role's search path finds a queue, or would create one."""
    found: str | None = await connection.fetchval(_DEFAULT_SCHEMA)
    if found is None:
        raise StoreUnsuitable(
            "the search path of this role names no schema that exists",
            where="url",
            hint="Name the queue's schema in the address: ?schema=shiftwork.",
        )
    return found


async def read_done(url: str) -> tuple[str, list[tuple[int, str, str]]]:
    """The schema of the queue that an address names, and the migrations applied to it."""
    dsn, options = split_url(url)
    try:
        connection = await open_connection(dsn, statement_cache_size=0)
        try:
            schema = options.get("schema") or await default_schema(connection)
            return schema, await done(connection, schema)
        finally:
            connection.terminate()
    except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as error:
        raise translate(error) from error
