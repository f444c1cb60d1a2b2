"""A transaction on PostgreSQL. Writes are gathered and sent together, to save round trips."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import asyncpg

from shiftwork.model.errors import InputError
from shiftwork.store import postgres_schema, statements
from shiftwork.store.postgres_driver_internals import can_begin_with_next, reach_of, together
from shiftwork.store.postgres_schema import PUBLIC, lock_name
from shiftwork.store.statements import Column, Statement
from shiftwork.store.store import AlikeRows, ByColumn, Row, Rows

ADVISORY_LOCK = "select pg_advisory_xact_lock(hashtextextended($1, 0))"
UUID_CHARS = 36
COPY_FROM = 8
"""From this many rows, an insert with many different columns uses COPY: half the server's time and a fifth of ours."""

FEW_ARRAYS = 4
"""Up to this many differing columns are sent as arrays, and shared values once: this costs the server less than a COPY,
which reads every value of every row, and it can be joined with other statements."""

NO_NOTICE = (asyncpg.ProgramLimitExceededError, asyncpg.LockNotAvailableError)
"""Errors that only a notice can cause: a full queue, or a lock."""

_TELLING = re.compile(r"insert(?!.*\breturning\b)", re.DOTALL)


class _PendingStatement(NamedTuple):
    """A statement not sent yet."""

    text: str
    values: Sequence[Any]


SendAlone = Callable[[str, Sequence[Any]], Awaitable[Sequence[Row]]]
"""Sends a statement that commits itself; raises if it is unknown whether it did."""


class PostgresTx:
    """A transaction on one connection, begun by the first statement that needs another after it."""

    copies = True
    """Whether many rows are written by COPY."""

    def __init__(self, connection: Any, now: float, begin: str, settings: str = "", schema: str = PUBLIC) -> None:
        self.now = now
        self.wakes: set[int] = set()
        self.ended: set[str] = set()
        self.told_ends: set[str] = set()
        """The ends that are announced to other processes."""
        self.begun = False
        self.send_alone: SendAlone | None = None
        """None if no statement may be a transaction of its own."""
        self.committed_alone = False
        self.added: dict[str, int] = {}
        """By table, the rows that were inserted in bulk."""
        self._connection = connection
        self._begin = begin
        self._settings = settings
        self._schema = schema
        self._statements = postgres_schema.load(schema)
        self._late: list[_PendingStatement] = []
        self._written: frozenset[str] = frozenset()
        self._may_block = False
        """Whether one of the pending statements may wait for a lock."""

    @property
    def rows_added(self) -> int:
        return sum(self.added.values())

    async def all(self, name: str, /, **parameters: Any) -> Sequence[Row]:
        await self.flush_pending(asking=True)
        text, values = self._bind(name, parameters)
        rows: Sequence[Row] = await self._connection.fetch(text, *values)
        return rows

    async def one(self, name: str, /, **parameters: Any) -> Row | None:
        await self.flush_pending(asking=True)
        text, values = self._bind(name, parameters)
        row: Row | None = await self._connection.fetchrow(text, *values)
        return row

    async def alone(self, name: str, /, **parameters: Any) -> Sequence[Row] | None:
        if self.send_alone is None or self.begun or self._late:
            return None
        rows = await self.send_alone(*self._bind(name, parameters))
        self.committed_alone = True
        return rows

    def stay_open(self) -> None:
        self.send_alone = None

    @property
    def is_done(self) -> bool:
        """Whether everything is already committed, by a standalone statement."""
        return self.committed_alone and not self.begun and not self._late

    async def run(self, name: str, /, **parameters: Any) -> None:
        text, values = self._bind(name, parameters)
        if reach_of(name).can_wait:
            await self._write_later(name, text, values)
        else:
            await self.flush_pending()
            await self._connection.execute(text, *values)

    async def insert(self, name: str, rows: Rows, /) -> None:
        statement = self._statements[name]
        if not rows:
            return
        for table in reach_of(name).writes:
            self.added[table] = self.added.get(table, 0) + len(rows)
        if len(rows) == 1:
            await self._write_later(name, statement.single, next(iter(rows)))
            return
        if isinstance(rows, AlikeRows):
            await self._write_later(
                name, _sharing(name, self._schema, _alike_sources(rows)), _alike_values(statement, rows)
            )
            return
        columns = list(zip(*rows, strict=True))
        sources = None if statement.target is None else _sources(statement.columns, columns)
        if sources is not None and 0 < len(set(sources) - {None}) <= FEW_ARRAYS:
            await self._write_later(name, _sharing(name, self._schema, sources), _values(statement, sources, columns))
        elif self.copies and len(rows) >= COPY_FROM and statement.target is not None:
            names = [column.name for column in statement.columns]
            await self.flush_pending()
            await self._connection.copy_records_to_table(
                statement.target, records=rows, columns=names, schema_name=self._schema
            )
        else:
            await self._write_later(name, statement.text, columns)

    async def _write_later(self, name: str, text: str, values: Sequence[Any]) -> None:
        """Parts of one statement do not see each other's writes, and the server runs them in any order.

        So a part that could see an earlier write is sent after it, and at most one part of a statement may wait for a
        lock: locks are taken in the verb's order.
        """
        reach = reach_of(name)
        if self._written & reach.words or (self._may_block and reach.may_block):
            await self.flush_pending()
        self._late.append(_PendingStatement(text, values))
        self._written |= reach.writes
        self._may_block = self._may_block or reach.may_block

    async def flush_pending(self, *, asking: bool = False) -> None:
        """Begin, and send the pending writes: another statement, perhaps a query, follows immediately.

        `begin` is sent with it if it has values or an answer, but not with a plain message or a COPY: if `begin`
        failed, the server would skip those.
        """
        if not self.begun:
            self.begun = True
            travels = can_begin_with_next() and not self._settings
            if not travels or not (self._late[0].values if self._late else asking):
                await self._connection.execute(self._begin + self._settings)
            else:
                self._connection.begin_with_next(self._begin)
        await self.flush()

    async def flush(self, within_sec: float | None = None) -> None:
        """Send the pending writes as one statement, in one round trip."""
        if self._late:
            text, values = self._all_late()
            await self._connection.execute(text, *values, timeout=within_sec)

    def can_tell(self) -> bool:
        """Whether the pending writes can carry the notification."""
        return bool(self._late) and _TELLING.match(self._late[0].text) is not None

    async def flush_and_notify(self, channel: str, payload: str, within_sec: float) -> bool:
        """The same, with a notice that is sent on commit; False if the notice could not be added."""
        text, values = self._all_late()
        reporting = f"{text} returning pg_notify('{channel}', ${len(values) + 1}) is null"
        try:
            await self._connection.execute(reporting, *values, payload, timeout=within_sec)
        except NO_NOTICE:  # then the statement had no effect
            await self._connection.execute(text, *values, timeout=within_sec)
            return False
        return True

    def _all_late(self) -> tuple[str, list[Any]]:
        late, self._late, self._written, self._may_block = self._late, [], frozenset(), False
        return together(*(part.text for part in late)), [value for part in late for value in part.values]

    async def advisory_lock(self, name: str, /) -> None:
        await self.flush_pending(asking=True)
        await self._connection.execute(ADVISORY_LOCK, lock_name(self._schema, name))

    def wake(self, lane: int, /) -> None:
        self.wakes.add(lane)

    def announce_end(self, *ended: str, to_others: bool = True) -> None:
        self.ended.update(ended)
        if to_others:
            self.told_ends.update(ended)

    def _bind(self, name: str, parameters: dict[str, Any]) -> tuple[str, list[Any]]:
        statement = self._statements[name]
        for table, columns in statement.tables.items():
            rows = parameters.pop(table)
            if isinstance(rows, ByColumn):
                turned: Sequence[Any] = rows
            else:
                turned = list(zip(*rows, strict=True)) if rows else [()] * len(columns)
            for column, values in zip(columns, turned, strict=True):
                plain = column.type in statements.PLAIN and not isinstance(values, str)
                parameters[f"{table}.{column.name}"] = _as_text(values, column.type) if plain else values
        return statement.text, [parameters[key] for key in statement.parameters]


def _sources(columns: Sequence[Column], values: Sequence[Sequence[Any]]) -> tuple[int | None, ...]:
    """For each column, the first one with the same values, or None if all rows share one value."""
    found: list[int | None] = []
    arrays: list[int] = []
    for place, column in enumerate(values):
        if column.count(column[0]) == len(column):
            found.append(None)
            continue
        same = (i for i in arrays if columns[i].type == columns[place].type and values[i] == column)
        if (source := next(same, place)) == place:
            arrays.append(place)
        found.append(source)
    return tuple(found)


def _alike_sources(rows: AlikeRows) -> tuple[int | None, ...]:
    """Like `_sources`, for rows that say which columns differ."""
    return tuple(rows.places[0] if place in rows.places else None for place in range(len(rows.row)))


def _alike_values(statement: Statement, rows: AlikeRows) -> list[Any]:
    """Like `_values`, for rows that say which columns differ."""
    first, others = rows.places[0], rows.places[1:]
    kind = statement.columns[first].type
    values = list(rows.row)
    values[first] = _as_text(rows.values, kind) if kind in statements.PLAIN else rows.values
    for place in reversed(others):
        del values[place]
    return values


@lru_cache(1024)
def _sharing(name: str, schema: str, sources: tuple[int | None, ...]) -> str:
    """An insert of rows that share the values of their other columns."""
    return postgres_schema.qualify(statements.write_sharing(statements.load("postgres")[name], sources), schema)


def _values(statement: Statement, sources: Sequence[int | None], columns: Sequence[Sequence[Any]]) -> list[Any]:
    """The parameters in column order: an array each, or the value that all rows share."""
    values: list[Any] = []
    for place, (source, column, given) in enumerate(zip(sources, statement.columns, columns, strict=True)):
        if source is None:
            values.append(given[0])
        elif source == place:
            values.append(_as_text(given, column.type) if column.type in statements.PLAIN else given)
    return values


def _as_text(values: Sequence[Any], kind: str) -> str:
    """A PostgreSQL array literal without quotes. Lengths are checked: a comma would split a value."""
    given = [value for value in values if value is not None] if None in values else values
    if kind == "uuid" and sum(map(len, given)) != UUID_CHARS * len(given):
        raise InputError("the batch contains an invalid id")
    if given is not values:
        values = ["null" if value is None else value for value in values]
    return f"{{{','.join(map(str, values))}}}"
