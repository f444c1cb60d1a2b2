"""Updates PostgreSQL's planner statistics for tables that have grown.

A connection caches its plans. Plans made while a table was empty, such as a drained and vacuumed queue, scan the whole
table, some once per row, and are kept until the table is analysed. Autovacuum does that within a minute or two: long
enough to load 100,000 tasks, after which every claim takes half a minute. So a transaction that adds many rows checks
the tables and analyses those that have outgrown their statistics; this invalidates all older plans.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import asyncpg

from shiftwork.store.postgres_schema import PUBLIC, quoted

log = logging.getLogger("shiftwork.store")

LARGE = 500
"""A transaction that adds this many rows checks before it commits: every reader of the rows then has new plans."""

SOME = 200
"""Rows of this process's transactions after which it checks, outside of them."""

LOOK_EVERY_SEC = 1.0

GROWN = """
select added.name, c.oid::regclass::text as place
from unnest($1::text[], $2::bigint[]) as added(name, rows) join pg_class c on c.oid = to_regclass($3 || added.name),
  lateral (select pg_relation_size(c.oid) / current_setting('block_size')::bigint as pages) as now
where now.pages > 16 and (now.pages > 16 + 4 * c.relpages or c.reltuples < added.rows)
  and pg_has_role(c.relowner, 'usage')"""
"""Tables of more than 16 pages that we may analyse and that the planner believes to be at most a fifth as large; or to
have fewer rows than one transaction has added, because an ANALYZE could not see those yet."""


class TableGrowth:
    """Counts the rows that this process has added to each table since the last check."""

    def __init__(self) -> None:
        self._rows = 0
        self._largest: dict[str, int] = {}

    def record(self, added: Mapping[str, int]) -> bool:
        """Whether a check is worthwhile."""
        for table, rows in added.items():
            self._rows += rows
            self._largest[table] = max(rows, self._largest.get(table, 0))
        return self._rows >= SOME

    def take(self) -> dict[str, int]:
        """By table, the most rows that one transaction has added; resets the count."""
        largest, self._largest, self._rows = self._largest, {}, 0
        return largest


async def tell_planner(connection: Any, added: Mapping[str, int], schema: str = PUBLIC) -> list[str]:
    """Analyse tables that have outgrown their statistics, inside a transaction, which continues even if this fails.

    Returns these tables. One that is being analysed elsewhere is skipped and checked again later.
    """
    grown = await connection.fetch(GROWN, list(added), list(added.values()), f"{quoted(schema)}.")
    if grown:
        places = ", ".join(row["place"] for row in grown)
        try:
            await connection.execute(f"savepoint growth; analyze (skip_locked) {places}; release growth")
        except asyncpg.PostgresError as error:
            if connection.is_closed():
                raise
            log.info("could not update the planner's statistics: %s", error)
            await connection.execute("rollback to growth")
    return [row["name"] for row in grown]
