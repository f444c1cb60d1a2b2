"""Where the PostgreSQL store relies on undocumented behaviour of the driver and the server, and its fallbacks.

- **A transaction begins with its first statement** (`begin_with_next`): the messages of `begin` are written to the
  driver's transport, `Connection._transport`, without a Sync of their own, and the driver skips their answer.
  Neither is part of asyncpg's interface. It was tested with the versions in `TRIED`; with any other, `begin` is sent
  separately: one more round trip per transaction.
- **Several writes are one statement** (`together`), as parts of a `with`. The server's manual says that parts see the
  tables as they were before, and run in no defined order. So no part touches a table that an earlier one writes, and
  at most one part may wait for a lock (`TablesTouched.may_block`). Tables are read from the text of a statement
  (`reach_of`): each word may be one that it sees; it writes those after `insert into`, `update` and `delete from`.
"""

from __future__ import annotations

import re
import struct
from functools import cache
from typing import NamedTuple

import asyncpg

from shiftwork.store import statements
from shiftwork.store.statements import Statement

TRIED = ("0.32.",)
"""Versions of asyncpg with which a transaction may begin together with its first statement."""

_PLACEHOLDER = re.compile(r"\$(\d+)")
_WRITING = re.compile(r"\b(?:insert into|(?<!do )(?<!for )update|delete from) (\w+)")
_WORD = re.compile(r"\w+")


@cache
def can_begin_with_next() -> bool:
    """Whether the driver is a version it was tested with."""
    return asyncpg.__version__.startswith(TRIED)


@cache
def unanswered(text: str) -> bytes:
    """Parse, Bind and Execute messages of a statement without parameters."""
    statement = b"\0" + text.encode() + b"\0" + struct.pack("!h", 0)
    values = b"\0\0" + struct.pack("!hhh", 0, 0, 0)
    limit = b"\0" + struct.pack("!i", 0)
    messages = (b"P", statement), (b"B", values), (b"E", limit)
    return b"".join(kind + struct.pack("!i", 4 + len(body)) + body for kind, body in messages)


class TablesTouched(NamedTuple):
    """Which tables a statement writes, and every word in it: among these are all the tables it can see."""

    writes: frozenset[str]
    words: frozenset[str]
    can_wait: bool
    may_block: bool
    """Whether another transaction can make it wait: it changes rows that this one has not locked."""


@cache
def reach_of(name: str) -> TablesTouched:
    """Whether a statement can be deferred: it only writes; others may lock or read, and a `with` cannot be nested."""
    statement = statements.load("postgres")[name]
    writes = frozenset(_WRITING.findall(statement.text))
    words = writes if statement.target else frozenset(_WORD.findall(statement.text))  # plain rows read no table
    return TablesTouched(
        writes,
        words,
        can_wait=statement.text.startswith(("insert", "update", "delete")),
        may_block=not statement.own_rows and not _is_plain_insert(statement),
    )


def _is_plain_insert(statement: Statement) -> bool:
    """Whether the rows are new, under keys that no other transaction uses."""
    return statement.text.startswith("insert") and "on conflict" not in statement.text


@cache
def together(*written: str) -> str:
    """Several writes as one statement, with consecutive parameters. The server runs them in no defined order."""
    texts: list[str] = []
    before = 0
    for text in written:
        texts.append(_PLACEHOLDER.sub(lambda m, before=before: f"${int(m[1]) + before}", text))  # type: ignore[misc]  # mypy cannot type the default
        before += max((int(number) for number in _PLACEHOLDER.findall(text)), default=0)
    others = ", ".join(f"part{number} as ({text})" for number, text in enumerate(texts[1:], 2))
    return f"with {others} {texts[0]}" if others else texts[0]
