"""Rebuilds indexes of PostgreSQL that keep the keys of removed rows.

Vacuum never removes a key from a GIN index, only the rows that it lists. The index over the tasks of event batches has
a key for each task, so it would grow as long as the queue is used, however short its history; the index over the words
of tasks grows with every new word.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

import asyncpg

from shiftwork.store.postgres_connect import CONNECT_SEC, open_connection
from shiftwork.store.postgres_errors import LOST, translate
from shiftwork.store.postgres_schema import lock_name, quoted

log = logging.getLogger("shiftwork.store")

INDEXES = ("idx_events_batch", "idx_search_words")
MIN_BYTES = 64 * 2**20
"""A smaller index is left as it is."""

LOCKS_MS = 30_000
"""How long a rebuild waits for older transactions before it gives up until the next run."""

_NOTE = "bytes after the last rebuild"
_GROWN = f"""
select pg_relation_size(i.oid) as size from pg_class i join pg_index x on x.indexrelid = i.oid,
  lateral (select substring(obj_description(i.oid, 'pg_class') from '^(\\d+) {_NOTE}$')::bigint as size) as rebuilt
where i.oid = to_regclass($1) and x.indisvalid and pg_has_role(i.relowner, 'usage')
  and pg_relation_size(i.oid) > greatest($2, coalesce(2 * rebuilt.size, pg_table_size(x.indrelid)))"""  # noqa: S608  # words of ours
"""An index that we may rebuild, twice as large as after its last rebuild; before the first, larger than its table."""

_LEFT_OVER = """
select c.relname from pg_class c join pg_index x on x.indexrelid = c.oid
where not x.indisvalid and c.relnamespace = to_regnamespace($1) and c.relname ~ $2"""
_TRY_LOCK = "select pg_try_advisory_lock(hashtextextended($1, 0))"


async def rebuild_grown(store: Any, *, least: int = MIN_BYTES) -> list[str]:
    """Rebuild grown indexes while others read and write, and return them; none behind a pooler, which offers no session
    of our own.
    """
    if store.direct_dsn is None:
        return []
    settings = {"application_name": "shiftwork indexes", "statement_timeout": "0", "lock_timeout": str(LOCKS_MS)}
    try:
        connection = await open_connection(store.direct_dsn, statement_cache_size=0, server_settings=settings)
        try:
            if not await connection.fetchval(_TRY_LOCK, lock_name(store.schema, "indexes")):
                return []
            return [name for name in INDEXES if await _rebuilt(connection, quoted(store.schema), name, least)]
        finally:
            await asyncio.shield(connection.close(timeout=CONNECT_SEC))
    except (asyncpg.PostgresError, *LOST) as error:
        raise translate(error) from error


async def _rebuilt(connection: Any, schema: str, name: str, least: int) -> bool:
    place = f"{schema}.{name}"
    before = await connection.fetchval(_GROWN, place, least)
    if before is None:
        return False
    for row in await connection.fetch(_LEFT_OVER, schema, f"^{name}_cc(new|old)\\d*$"):
        await connection.execute(f"drop index concurrently {schema}.{row['relname']}")
    began = time.monotonic()
    await connection.execute(f"reindex index concurrently {place}")
    after = await connection.fetchval("select pg_relation_size($1::regclass)", place)
    await connection.execute(f"comment on index {place} is '{after} {_NOTE}'")
    log.info("rebuilt %s in %.1f s: %d MiB, before %d", name, time.monotonic() - began, after >> 20, before >> 20)
    return True
