"""A transaction on SQLite: statements on one connection, with the engine's errors translated to ours."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import chain
from types import TracebackType
from typing import Any

import apsw
import msgspec

from shiftwork.model.errors import (
    BadText,
    InputError,
    StoreDamaged,
    StoreError,
    StoreFull,
    StoreLocked,
    StoreReadOnly,
    StoreUnavailable,
)
from shiftwork.store import statements
from shiftwork.store.store import AlikeRows, Row, Rows

AT_ONCE = 32
"""Rows per insert: single-row inserts take half as long again (12 instead of 7.6 us a task)."""

_ERRORS: tuple[tuple[type[apsw.Error], type[StoreError]], ...] = (
    (apsw.FullError, StoreFull),
    (apsw.ReadOnlyError, StoreReadOnly),
    (apsw.BusyError, StoreLocked),
    (apsw.LockedError, StoreLocked),
    (apsw.NotADBError, StoreDamaged),
    (apsw.CorruptError, StoreDamaged),
    (apsw.PermissionsError, StoreReadOnly),
    (apsw.CantOpenError, StoreUnavailable),
    (apsw.IOError, StoreUnavailable),
)
_ENCODE = msgspec.json.Encoder().encode


def translate(error: apsw.Error | UnicodeDecodeError, where: str | None = None) -> StoreError:
    """The queue's own error for an error of the engine, or for stored text that the driver cannot decode."""
    if isinstance(error, UnicodeDecodeError):
        return StoreDamaged(f"a row holds text that is not UTF-8: {error}", where=where)
    for theirs, ours in _ERRORS:
        if isinstance(error, theirs):
            return ours(f"SQLite: {error}", where=where)
    return StoreError(f"SQLite: {error}", where=where)


class _PlainValues:
    """A value that the driver cannot write is the caller's mistake, not the store's."""

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, UnicodeEncodeError):
            raise BadText("text holds a lone surrogate") from None
        if isinstance(error, OverflowError):
            raise InputError(f"a number is too large: {error}") from None


_PLAIN_VALUES = _PlainValues()


class SqliteTx:
    """A transaction on one connection; its coroutines never suspend."""

    def __init__(self, connection: apsw.Connection, now: float) -> None:
        self.now = now
        self.wakes: set[int] = set()
        self.ended: set[str] = set()
        self.tells_end = False
        self._connection = connection
        self._statements = statements.load("sqlite")
        self._names: dict[str, tuple[str, ...]] = {}

    async def all(self, name: str, /, **parameters: Any) -> Sequence[Row]:
        statement = self._statements[name]
        for table in statement.tables:
            parameters[table] = _ENCODE(parameters[table]).decode()
        cursor = self._connection.cursor()
        with _PLAIN_VALUES:
            cursor.execute(statement.text, parameters)
        try:
            names = [column[0] for column in cursor.get_description()]
        except apsw.ExecutionCompleteError:
            return []
        try:
            return [dict(zip(names, row, strict=True)) for row in cursor]
        except UnicodeDecodeError as error:
            cursor.close(force=True)  # an unfinished read would keep this connection from writing
            raise translate(error) from error

    async def one(self, name: str, /, **parameters: Any) -> Row | None:
        rows = await self.all(name, **parameters)
        return rows[0] if rows else None

    async def alone(self, name: str, /, **parameters: Any) -> None:
        """Never done: many verbs share a commit here, and a statement costs no round trip."""

    def stay_open(self) -> None:
        """Nothing to do: the transaction always stays open."""

    async def run(self, name: str, /, **parameters: Any) -> None:
        await self.all(name, **parameters)

    async def insert(self, name: str, rows: Rows, /) -> None:
        if not rows:
            return
        if isinstance(rows, AlikeRows):
            rows = list(rows)
        statement, cursor = self._statements[name], self._connection.cursor()
        whole = len(rows) - len(rows) % AT_ONCE
        with _PLAIN_VALUES:
            if whole:
                many = (tuple(chain.from_iterable(rows[n : n + AT_ONCE])) for n in range(0, whole, AT_ONCE))
                cursor.executemany(_several(statement.text, len(statement.columns), AT_ONCE), many)
            if whole < len(rows):
                cursor.executemany(statement.text, rows[whole:])

    async def advisory_lock(self, name: str, /) -> None:
        """Nothing to do: there is only one writer."""

    def wake(self, lane: int, /) -> None:
        self.wakes.add(lane)

    def announce_end(self, *ended: str, to_others: bool = True) -> None:
        self.ended.update(ended)
        self.tells_end = self.tells_end or to_others


@cache
def _several(text: str, columns: int, rows: int) -> str:
    marks = f"({', '.join('?' for _ in range(columns))})"
    return text.replace(marks, ", ".join([marks] * rows))
