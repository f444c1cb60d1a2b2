"""The database that survives every crash, and the faults that its statements meet."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import apsw

from shiftwork.store.sqlite import _open_writer


class Crash(BaseException):
    """The process crashes here."""


class Endless(BaseException):
    """The run does not end."""


@cache
def _empty_queue() -> bytes:
    """A migrated database without tasks: applying the migrations for each seed would take longer than the seed."""
    connection = _open_writer(":memory:", None, 0, migrate_schema=True)
    return connection.serialize("main")


MAX_STATEMENTS = 150_000
"""A run that needs more does not end."""


STATEMENTS = 512
"""Prepared ones that are kept. The most that apsw can: with its own 100 a third were prepared anew."""


class Disk:
    """One SQLite database in memory, with real transactions: a process that crashes inside one has changed nothing."""

    def __init__(self) -> None:
        self.connection = apsw.Connection(":memory:", statementcachesize=STATEMENTS)
        self.connection.deserialize("main", _empty_queue())
        self.connection.pragma("foreign_keys", 1)
        self.connection.exec_trace = self._before
        self.statements = 0
        self.doom: BaseException | None = None
        """What a statement meets: the next commit, or one some statements from now."""
        self.doom_in: int | None = 0
        self.dead = False
        """Whether the process whose turn it is has crashed: none of its statements is run any more."""
        self._quiet = False
        self._digest = hashlib.blake2b()

    def _before(self, _cursor: Any, sql: str, bindings: Any) -> bool:
        if self._quiet:
            return True
        if self.dead:
            raise Crash
        self.statements += 1
        if self.statements > MAX_STATEMENTS:
            raise Endless
        self._digest.update(f"{sql}{bindings}".encode())
        if self.doom is not None and self._is_reached(sql):
            doom, self.doom = self.doom, None
            self.dead = isinstance(doom, Crash)
            raise doom
        return True

    def _is_reached(self, sql: str) -> bool:
        if self.doom_in is None:
            return sql == "commit"
        self.doom_in -= 1
        return self.doom_in <= 0 and not sql.startswith("rollback")

    @property
    def digest(self) -> str:
        """Return a digest of all statements with their values, in order."""
        return self._digest.hexdigest()[:16]

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Run an observer's statements without faults, and leave them out of the digest."""
        before, self._quiet = self._quiet, True
        try:
            yield
        finally:
            self._quiet = before

    def lose_open_transaction(self) -> None:
        """Roll back the open transaction, as recovery does after a crash."""
        self.dead = False
        with self.quiet():
            if self.connection.in_transaction:
                self.connection.execute("rollback")

    def close(self) -> None:
        self.connection.exec_trace = None
        self.connection.close()
