"""Moves a workspace to another database while it is in use.

Rows are copied and compared by checksum while work continues. Then writes to the workspace are paused, the last changes
are copied and compared, and one transaction in the old database gives up ownership: from then on that database refuses
its writes. So there is always exactly one owner, and a move whose process was killed can be resumed or undone.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

import asyncpg
import msgspec

from shiftwork.databases import activation, changes, guard
from shiftwork.databases.copying import Copy
from shiftwork.databases.model import Moved
from shiftwork.databases.moved_tables import BULK, SETTLED, MovedTable, Side, copy_ids, literal, read_tables
from shiftwork.databases.routes import Routes
from shiftwork.engine.engine import Engine
from shiftwork.model.errors import ConflictError, NotFound, StoreError
from shiftwork.observe import maintenance as observe
from shiftwork.observe import meters
from shiftwork.search import index
from shiftwork.search import maintenance as search
from shiftwork.store import crash_points
from shiftwork.store.postgres_errors import LOST, translate
from shiftwork.store.postgres_migrate import done
from shiftwork.store.store import Tx
from shiftwork.triggers import maintenance as triggers

log = logging.getLogger("shiftwork.databases")
T = TypeVar("T")
Step = Callable[[str], None]

NUMBERED = ("events", "alerts", "signals", "reviews")
AHEAD = 10_000_000
"""The gap between the event numbers of the old and the new database: the most events during a move."""

CATCH_UP_SEC = 120.0


async def move(routes: Routes, workspace: str, target: str, step: Step = lambda _: None) -> Moved:
    """Move a workspace to this database."""
    routes.check_database(target)
    await routes.refresh()
    source = routes.owner(workspace)
    row = routes.row(source, workspace)
    if row is not None and row["state"] == "leaving":
        raise ConflictError(
            f"a move of {workspace!r} to {row['peer']} was not finished", hint="Run it with --resume or --undo."
        )
    if source == target:
        raise ConflictError(f"the workspace {workspace!r} is already in the database {target}", hint="Nothing to do.")
    return await _run(_Move(routes, workspace, source, target, step).run())


async def resume(routes: Routes, workspace: str, step: Step = lambda _: None) -> Moved | None:
    """Finish an interrupted move; None if only the old copy had to be removed."""
    await routes.refresh()
    owner = routes.owner(workspace)
    row = routes.row(owner, workspace)
    if row is None:
        raise NotFound(f"the workspace {workspace!r} is not being moved")
    if row["state"] == "leaving":
        return await _run(_Move(routes, workspace, owner, row["peer"], step).run())
    await _run(_Move(routes, workspace, row["peer"], owner, step).clean_up())
    return None


async def undo(routes: Routes, workspace: str, step: Step = lambda _: None) -> None:
    """Undo a move that has not switched yet: the workspace stays in its old database."""
    await routes.refresh()
    owner = routes.owner(workspace)
    row = routes.row(owner, workspace)
    if row is None or row["state"] != "leaving":
        raise ConflictError(
            f"the workspace {workspace!r} is in the database {owner} and is not being moved",
            hint="To move it to another database, pass --to.",
        )
    await _run(_Move(routes, workspace, owner, row["peer"], step).undo())


async def _run(moving: Coroutine[Any, Any, T]) -> T:
    try:
        return await crash_points.named("move", moving)
    except (asyncpg.PostgresError, *LOST) as error:
        raise translate(error) from error


class _Move:
    """One move, with a separate connection to each of the two databases."""

    def __init__(self, routes: Routes, workspace: str, source: str, target: str, step: Step) -> None:
        self._routes = routes
        self._workspace = workspace
        self._names = source, target
        self._engines = routes.databases[source].engine, routes.databases[target].engine
        self._step = step
        self._generation = 0
        self._tables: list[MovedTable] = []
        self._a: Side
        self._b: Side

    def _reached(self, what: str) -> None:
        self._step(what)
        crash_points.reach(what)

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[None]:
        """Open both connections. A lock in the old database keeps other processes from moving the workspace."""
        sides: list[Side] = []
        try:
            sides.append(await activation.connect(self._engines[0].store, self._workspace, "move"))
            sides.append(await activation.connect(self._engines[1].store, self._workspace, "move"))
            self._a, self._b = sides
            lock = f"{self._a.home} mover {self._workspace}"
            if not await self._a.connection.fetchval("select pg_try_advisory_lock(hashtextextended($1, 0))", lock):
                raise ConflictError(f"another process is moving the workspace {self._workspace!r}", hint="Wait for it.")
            self._tables = await read_tables(self._a.connection, self._a.schema)
            yield
        finally:
            for side in sides:
                side.connection.terminate()

    async def run(self) -> Moved:
        async with self._connected():
            began = time.perf_counter()
            await self._check()
            await self._announce()
            self._reached("announced")
            await guard.install(self._b, [each for each in self._tables if each.has_workspace])
            await guard.install(self._a, self._tables)
            self._reached("guarded")
            marker = await self._raise_numbers()
            self._reached("numbers raised")
            copy = await self._copy()
            there = await read_tables(self._b.connection, self._b.schema)
            self._reached("copied")
            copied_sec, began = time.perf_counter() - began, time.perf_counter()
            async with guard.paused(self._a):
                self._reached("paused")
                async with copy.last_round() as rest:
                    await self._save_unread_tail(marker)
                self._reached("verified")
                await self._switch()
                self._reached("switched")
                await activation.activate_on(self._b, self._engines[1].store.now(), there)
            paused_sec = time.perf_counter() - began
            self._reached("activated")
            await self._routes.refresh()
            await self._routes.finish()
            await self._remove_old()
            self._reached("old copy removed")
        digests = copy.digests or {}
        total = hashlib.sha256(msgspec.json.encode(sorted((name, str(each.total)) for name, each in digests.items())))
        return Moved(
            workspace=self._workspace,
            source=self._names[0],
            target=self._names[1],
            generation=self._generation,
            rows=sum(each.rows for each in digests.values()),
            rest_rows=rest,
            checksum=total.hexdigest(),
            copied_sec=round(copied_sec, 3),
            paused_sec=round(paused_sec, 3),
        )

    async def clean_up(self) -> None:
        """Finish a move that has switched."""
        async with self._connected():
            await activation.activate(self._engines[1].store, self._workspace)
            await self._routes.refresh()
            await self._routes.finish()
            await self._remove_old()

    async def undo(self) -> None:
        async with self._connected():
            await Copy(self._a, self._b, self._tables).remove()
            now = self._engines[0].store.now()
            await self._set_route(self._b, "left", self._names[0], now)
            await changes.remove(self._a, self._tables)
            await guard.remove(self._a, self._tables)
            await self._set_route(self._a, "here", self._names[1], now)
        await self._routes.refresh()

    async def _check(self) -> None:
        a, b = self._a, self._b
        if await done(a.connection, a.schema) != await done(b.connection, b.schema):
            raise ConflictError("the two databases have different schemas", hint="Run `shiftwork migrate` on both.")
        mine = literal(self._workspace)
        if not await a.connection.fetchval(f"select count(*) from {a.place('workspaces')} where name = {mine}"):
            raise NotFound(f"there is no workspace {self._workspace!r}", where="workspace")
        if await b.connection.fetchval(f"select count(*) from {b.place('workspaces')} where name = {mine}"):
            raise ConflictError(f"the database {self._names[1]} has a workspace of this name", hint="Remove it there.")

    async def _announce(self) -> None:
        """Record the move in both databases; a resumed move keeps its generation."""
        rows = [self._routes.row(name, self._workspace) for name in self._names]
        resumed = rows[0] is not None and rows[0]["state"] == "leaving"
        highest = max((row["generation"] for row in rows if row is not None), default=0)
        self._generation = highest if resumed else highest + 1
        now = self._engines[0].store.now()
        await self._set_route(self._b, "arriving", self._names[0], now)
        await self._set_route(self._a, "leaving", self._names[1], now)

    async def _set_route(self, side: Side, state: str, peer: str, now: float) -> None:
        generation = self._generation or None
        await side.connection.execute(
            f"insert into {side.place('routes')} as r (workspace, generation, state, peer, changed_at) "
            "values ($1, coalesce($2::bigint, 1), $3, $4, $5) on conflict (workspace) do update set "
            "generation = coalesce($2::bigint, r.generation), state = $3, peer = $4, first_event = null, "
            "changed_at = $5",
            *(self._workspace, generation, state, peer, now),
        )

    async def _raise_numbers(self) -> int:
        """Make event numbers in the new database continue after those of the old one, so that cursors stay valid.

        The jobs that read its log must get past this point before events with the old numbers are inserted.
        """
        for table in NUMBERED[:3]:
            await self._widen_key(table)
        for table in NUMBERED:
            last = await self._last_number(self._a, table)
            own = await self._last_number(self._b, table)
            await self._b.connection.execute(
                "select setval(pg_get_serial_sequence($1, 'seq'), $2)", self._b.place(table), max(own, last + AHEAD)
            )
        text = (
            f"insert into {self._b.place('events')} (at, workspace, verb, actor) "
            "values ($1, '', 'workspace_moved', 'system') returning seq"
        )
        marker: int = await self._b.connection.fetchval(text, self._engines[1].store.now())
        try:
            await _catch_up(self._engines[1], marker)
        except TimeoutError:
            hint = "Wait until its search index and metrics have caught up, then resume or undo the move."
            raise ConflictError(f"the jobs of {self._names[1]} are far behind its events", hint=hint) from None
        return marker

    async def _last_number(self, side: Side, table: str) -> int:
        sequence = await side.connection.fetchval("select pg_get_serial_sequence($1, 'seq')", side.place(table))
        last: int = await side.connection.fetchval(f"select last_value from {sequence}")
        return last

    async def _widen_key(self, table: str) -> None:
        """Add the workspace to the key: rows keep their numbers, which another workspace may have used here."""
        b, place, made = self._b, self._b.place(table), f"{table}_moved_key"
        columns = await b.connection.fetchval(
            "select indnkeyatts from pg_index where indrelid = $1::text::regclass and indisprimary", place
        )
        if columns > 1:
            return
        await b.connection.execute(f"drop index if exists {b.place(made)}")
        await b.connection.execute(f"create unique index concurrently {made} on {place} (seq, workspace)")
        await guard.briefly(
            b.connection,
            f"alter table {place} drop constraint {table}_pkey, "
            f"add constraint {table}_pkey primary key using index {made}",
        )

    async def _copy(self) -> Copy:
        """Copy while work continues, after the jobs of the old database have read its log."""
        with suppress(TimeoutError):  # the new database's jobs process what is left
            await _catch_up(self._engines[0], await self._last_number(self._a, "events"))
        copy = Copy(self._a, self._b, self._tables)
        await copy.run()
        await observe.count(self._engines[0].store)  # the rest is counted while writes are paused
        return copy

    async def _save_unread_tail(self, marker: int) -> None:
        """Save which events of the workspace the jobs of the old database have not read, and their metrics."""
        last = await self._last_number(self._a, "events")
        if last >= marker:
            raise StoreError("more events came during the move than it has numbers for", hint="Undo it and try again.")
        a, b, workspace = self._a, self._b, self._workspace

        folded, indexed, fired = await a.connection.fetchrow(
            f"select (select coalesce(max(folded_to), 0) from {a.place('meter_marks')}), "
            f"(select coalesce(max(read_to), 0) from {a.place('search_marks')}), "
            f"(select coalesce(max(seq), $1) from {a.place('trigger_cursor')})",
            last,
        )
        first = min(indexed, fired)
        sums = await self._engines[0].store.read(lambda tx: meters.count(tx, folded, last, workspace))
        tail = b.place(b.stage(activation.TAIL))
        rows = [(each.name, msgspec.json.encode(each.labels).decode(), value) for each, value in sums.items()]
        await b.connection.executemany(f"insert into {tail} values ($1, $2, $3)", rows)
        await b.connection.execute(
            f"update {b.place('routes')} set first_event = $2, last_event = $3 where workspace = $1",
            *(workspace, first, last),
        )

    async def _switch(self) -> None:
        """Give up ownership: from this commit on, the new database owns the workspace and this one refuses writes."""
        a = self._a
        async with a.connection.transaction():
            deletes = [
                f"delete from {a.place(table.name)} t where {a.membership(table)}"
                + (f" and not ({SETTLED})" if table.name == "tasks" else "")
                for table in reversed(self._tables)  # children first
                if table.name not in BULK
            ]
            await a.connection.execute("; ".join(deletes))
            await self._set_route(a, "left", self._names[1], self._engines[0].store.now())

    async def _remove_old(self) -> None:
        a, b = self._a, self._b
        await b.find_ids(b.place("tasks"), b.place("dead_letters"))
        await copy_ids(b, a)
        for table in self._tables:
            if table.name in BULK or table.name == "tasks":
                await a.connection.execute(f"delete from {a.place(table.name)} where {a.condition(table)}")
        await a.forget_counts()
        await activation.drop_staging(b)
        await changes.remove(a, self._tables)
        await guard.remove(a, self._tables, keep_refusing=True)
        await guard.remove(self._b, self._tables)


async def _catch_up(engine: Engine, number: int) -> None:
    """Wait until the jobs that read the log reach this number; other processes may run them too."""
    async with asyncio.timeout(CATCH_UP_SEC):
        while not await _have_read(engine, number):  # noqa: ASYNC110  # nothing announces it
            await asyncio.sleep(0.05)


async def _have_read(engine: Engine, number: int) -> bool:
    """Run the jobs that read the log; returns whether all have reached this number."""
    store = engine.store
    await store.run(meters.mark_seen)
    await observe.count(store)
    await store.run(lambda tx: search.elect(tx, engine))
    await search.fill(engine)
    await triggers.follow(engine)

    async def positions(tx: Tx) -> Sequence[int]:
        followers, cursor = await triggers.followers(tx)
        if not followers:
            await tx.run("move_trigger_cursor", seq=number)
        mark = await meters.read_mark(tx)
        return mark.folded_to, await index.read_mark(tx), cursor if followers else number

    return min(await store.run(positions)) >= number
