"""Tells PostgreSQL's planner of tables that have grown since it was last told.

A connection keeps its plans. Those made while a table was empty, as a queue is that has been worked off and vacuumed,
read all of it, some once for each of its rows, and are kept until somebody analyses the table. The server does that
within a minute or two: time enough for a load of 100,000 tasks, of which every claim then takes half a minute.
So whoever adds many rows looks, and analyses what has outgrown its statistics; that ends all older plans.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Any

LARGE = 500
"""Rows from which a transaction looks before it commits: whoever sees them then has new plans."""

SOME = 200
"""Rows of small transactions, of this process, after which it looks."""

LOOK_EVERY_SEC = 1.0

GROWN = """
select c.oid::regclass::text as name
from unnest($1::text[]) as added(name) join pg_class c on c.oid = added.name::regclass
where pg_relation_size(c.oid) > (16 + 4 * c.relpages) * current_setting('block_size')::bigint"""
"""Tables of more than 16 pages that are five times as large as the planner believes, or larger."""


class Growth:
    """Rows that this process has added to each table in small transactions since it last looked."""

    def __init__(self) -> None:
        self._added: Counter[str] = Counter()

    def note(self, added: Counter[str]) -> bool:
        """Whether it is worth a look by now."""
        self._added += added
        return self._added.total() >= SOME

    def take(self) -> set[str]:
        """The tables to look at; counting begins anew."""
        tables = set(self._added)
        self._added.clear()
        return tables


async def tell_planner(connection: Any, tables: Collection[str]) -> None:
    """Analyse those of these tables that have outgrown what the planner knows, inside of a transaction or not."""
    grown = await connection.fetch(GROWN, sorted(tables))
    if grown:
        # Whoever has the lock, the server's own analysis or another loader, is doing just this.
        await connection.execute(f"analyze (skip_locked) {', '.join(row['name'] for row in grown)}")
