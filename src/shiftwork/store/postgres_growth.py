"""Updates PostgreSQL's planner statistics for tables that have grown.

A connection keeps its plans. Those made while a table was empty, as a queue is that has been worked off and vacuumed,
read all of it, some once for each of its rows, and are kept until someone analyses the table. The server does that
within a minute or two: time enough for a load of 100,000 tasks, of which every claim then takes half a minute.
So anyone who adds many rows looks, and analyses what has outgrown its statistics; that ends all older plans.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import asyncpg

from shiftwork.store.postgres_schema import PUBLIC, quoted

log = logging.getLogger("shiftwork.store")

LARGE = 500
"""Rows from which a transaction looks before it commits: anyone who sees them then has new plans."""

SOME = 200
"""Rows of this process's transactions after which it checks, outside of them."""

LOOK_EVERY_SEC = 1.0

GROWN = """
select added.name, c.oid::regclass::text as place
from unnest($1::text[], $2::bigint[]) as added(name, rows) join pg_class c on c.oid = to_regclass($3 || added.name),
  lateral (select pg_relation_size(c.oid) / current_setting('block_size')::bigint as pages) as now
where now.pages > 16 and (now.pages > 16 + 4 * c.relpages or c.reltuples < added.rows)
  and pg_has_role(c.relowner, 'usage')"""
"""Tables that we may analyse, of more than 16 pages, of which the planner believes that they are a fifth as large, or
less; or that they have fewer rows than one transaction has added, as when they were analysed by someone who could not
see those yet."""


class TableGrowth:
    """Rows that this process has added to each table since it last looked."""

    def __init__(self) -> None:
        self._rows = 0
        self._largest: dict[str, int] = {}

    def record(self, added: Mapping[str, int]) -> bool:
        """Whether it is worth a look by now."""
        for table, rows in added.items():
            self._rows += rows
            self._largest[table] = max(rows, self._largest.get(table, 0))
        return self._rows >= SOME

    def take(self) -> dict[str, int]:
        """By table, the most rows that one transaction has added; counting begins anew."""
        largest, self._largest, self._rows = self._largest, {}, 0
        return largest


async def tell_planner(connection: Any, added: Mapping[str, int], schema: str = PUBLIC) -> list[str]:
    """Analyse what has outgrown the planner's knowledge, inside a transaction, which continues whatever comes of it.

    The tables that had. One that someone else is analysing is passed over: it is worth another look later.
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
