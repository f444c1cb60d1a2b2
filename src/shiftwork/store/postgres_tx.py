"""A transaction on PostgreSQL. What a verb only writes is gathered and sent together: each round trip costs more."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import asyncpg

from shiftwork.model.errors import InputError
from shiftwork.store import postgres_schema, statements
from shiftwork.store.postgres_schema import PUBLIC, lock_name
from shiftwork.store.store import Row

ADVISORY_LOCK = "select pg_advisory_xact_lock(hashtextextended($1, 0))"
UUID_CHARS = 36
COPY_FROM = 8
"""Rows from which an insert is a COPY: half the server's time and a fifth of ours (10 against 22 us a row)."""

NO_NOTICE = (asyncpg.ProgramLimitExceededError, asyncpg.LockNotAvailableError)
"""What a notice may meet, a full queue or a lock, and nothing else that we send last."""

_PLACEHOLDER = re.compile(r"\$(\d+)")
_WRITING = re.compile(r"\b(?:insert into|(?<!do )(?<!for )update|delete from) (\w+)")
_WORD = re.compile(r"\w+")
_TELLING = re.compile(r"insert(?!.*\breturning\b)", re.DOTALL)


class _PendingStatement(NamedTuple):
    """A statement that is yet to be sent."""

    text: str
    values: Sequence[Any]


class _TablesTouched(NamedTuple):
    """Which tables a statement writes, and every word in it: among these are all the tables it can see."""

    writes: frozenset[str]
    words: frozenset[str]
    can_wait: bool


class PostgresTx:
    """A transaction on one connection, begun by the first statement that needs another after it."""

    copies = True
    """Whether many rows are written by COPY."""

    def __init__(self, connection: Any, now: float, begin: str, settings: str = "", schema: str = PUBLIC) -> None:
        self.now = now
        self.wakes: set[int] = set()
        self.ended: set[str] = set()
        self.told_ends: set[str] = set()
        """Those of them that are announced to other processes."""
        self.begun = False
        self.added: Counter[str] = Counter()
        """By table, the rows that were inserted in bulk."""
        self._connection = connection
        self._begin = begin
        self._settings = settings
        self._schema = schema
        self._statements = postgres_schema.load(schema)
        self._late: list[_PendingStatement] = []
        self._written: frozenset[str] = frozenset()

    async def all(self, name: str, /, **parameters: Any) -> Sequence[Row]:
        await self.go_on(asking=True)
        text, values = self._bind(name, parameters)
        rows: Sequence[Row] = await self._connection.fetch(text, *values)
        return rows

    async def one(self, name: str, /, **parameters: Any) -> Row | None:
        await self.go_on(asking=True)
        text, values = self._bind(name, parameters)
        row: Row | None = await self._connection.fetchrow(text, *values)
        return row

    async def run(self, name: str, /, **parameters: Any) -> None:
        text, values = self._bind(name, parameters)
        if _reach(name).can_wait:
            await self._write_later(name, text, values)
        else:
            await self.go_on()
            await self._connection.execute(text, *values)

    async def insert(self, name: str, rows: Sequence[tuple[Any, ...]], /) -> None:
        statement = self._statements[name]
        for table in _reach(name).writes:
            self.added[table] += len(rows)
        if self.copies and len(rows) >= COPY_FROM and statement.target is not None:
            columns = [column.name for column in statement.columns]
            await self.go_on()
            await self._connection.copy_records_to_table(
                statement.target, records=rows, columns=columns, schema_name=self._schema
            )
        elif len(rows) == 1:
            await self._write_later(name, statement.single, rows[0])
        elif rows:
            await self._write_later(name, statement.text, list(zip(*rows, strict=True)))

    async def _write_later(self, name: str, text: str, values: Sequence[Any]) -> None:
        """Parts of one statement do not see each other's writes: what could is sent after them."""
        reach = _reach(name)
        if self._written & reach.words:
            await self.go_on()
        self._late.append(_PendingStatement(text, values))
        self._written |= reach.writes

    async def go_on(self, *, asking: bool = False) -> None:
        """Begin, and send what was only written so far: a statement follows at once, which may be a question.

        The beginning travels with it where it is sent with values or for an answer, not as a plain message or a COPY:
        should it fail, the server would pass over those.
        """
        if not self.begun:
            self.begun = True
            if self._settings or not (self._late[0].values if self._late else asking):
                await self._connection.execute(self._begin + self._settings)
            else:
                self._connection.begin_with_next(self._begin)
        await self.flush()

    async def flush(self, within_sec: float | None = None) -> None:
        """Send what was only written so far, as one statement: a round trip for all."""
        if self._late:
            text, values = self._all_late()
            await self._connection.execute(text, *values, timeout=within_sec)

    def can_tell(self) -> bool:
        """Whether what was only written so far can tell others of itself."""
        return bool(self._late) and _TELLING.match(self._late[0].text) is not None

    async def flush_and_tell(self, channel: str, payload: str, within_sec: float) -> bool:
        """The same, and others hear of it when it is committed; False where they cannot be told so."""
        text, values = self._all_late()
        reporting = f"{text} returning pg_notify('{channel}', ${len(values) + 1}) is null"
        try:
            await self._connection.execute(reporting, *values, payload, timeout=within_sec)
        except NO_NOTICE:  # then nothing of the statement was done
            await self._connection.execute(text, *values, timeout=within_sec)
            return False
        return True

    def _all_late(self) -> tuple[str, list[Any]]:
        late, self._late, self._written = self._late, [], frozenset()
        return _together(*(part.text for part in late)), [value for part in late for value in part.values]

    async def advisory_lock(self, name: str, /) -> None:
        await self.go_on(asking=True)
        await self._connection.execute(ADVISORY_LOCK, lock_name(self._schema, name))

    def wake(self, lane: int, /) -> None:
        self.wakes.add(lane)

    def announce_end(self, ended: str, /, *, to_others: bool = True) -> None:
        self.ended.add(ended)
        if to_others:
            self.told_ends.add(ended)

    def _bind(self, name: str, parameters: dict[str, Any]) -> tuple[str, list[Any]]:
        statement = self._statements[name]
        for table, columns in statement.tables.items():
            rows = parameters.pop(table)
            turned = list(zip(*rows, strict=True)) if rows else [()] * len(columns)
            for column, values in zip(columns, turned, strict=True):
                plain = column.type in statements.PLAIN
                parameters[f"{table}.{column.name}"] = _as_text(values, column.type) if plain else values
        return statement.text, [parameters[key] for key in statement.parameters]


def _as_text(values: Sequence[Any], kind: str) -> str:
    """An array whose values need no quotes, as PostgreSQL reads it. No one may smuggle a second value into one."""
    given = [value for value in values if value is not None] if None in values else values
    if kind == "uuid" and sum(map(len, given)) != UUID_CHARS * len(given):
        raise InputError("an id of the batch is not one")
    if given is not values:
        values = ["null" if value is None else value for value in values]
    return f"{{{','.join(map(str, values))}}}"


@cache
def _reach(name: str) -> _TablesTouched:
    """A statement that only writes can wait; another may lock or read, and a `with` cannot stand inside one."""
    statement = statements.load("postgres")[name]
    writes = frozenset(_WRITING.findall(statement.text))
    words = writes if statement.target else frozenset(_WORD.findall(statement.text))  # plain rows see no table
    return _TablesTouched(writes, words, can_wait=statement.text.startswith(("insert", "update", "delete")))


@cache
def _together(*written: str) -> str:
    """Several writes as one statement, their parameters numbered on.

    The server runs the main part first and then the others from the last to the first, so they are written backwards:
    locks are taken in the order in which the verb asked for them.
    """
    texts: list[str] = []
    before = 0
    for text in written:
        texts.append(_PLACEHOLDER.sub(lambda m, before=before: f"${int(m[1]) + before}", text))  # type: ignore[misc]  # mypy cannot type the default
        before += max((int(number) for number in _PLACEHOLDER.findall(text)), default=0)
    others = ", ".join(f"part{number} as ({text})" for number, text in reversed(list(enumerate(texts[1:], 2))))
    return f"with {others} {texts[0]}" if others else texts[0]
