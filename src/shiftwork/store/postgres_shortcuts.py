"""Where the PostgreSQL store goes beyond what the driver and the server document, and how it does without.

- **A transaction begins with its first statement** (`begin_with_next`): the messages of `begin` are written to the
  driver's transport, `Connection._transport`, without a Sync of their own, and the driver passes over their answer.
  Neither is part of asyncpg's interface. It was tried with the versions in `TRIED`; with another one `begin` is sent by
  itself: one round trip more for each transaction.
- **Several writes are one statement** (`together`), as parts of a `with`. The server's manual says that parts see the
  tables as they were before, and run in no defined order. So a part touches no table that an earlier one writes, and
  at most one of them may wait for a lock (`TablesTouched.may_block`). Tables are read from the text of a statement
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
    """Whether the driver is one that it was tried with."""
    return asyncpg.__version__.startswith(TRIED)


@cache
def unanswered(text: str) -> bytes:
    """Parse, Bind and Execute of a statement without parameters, as the protocol writes them."""
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
    """A statement that only writes can wait; another may lock or read, and a `with` cannot stand inside one."""
    statement = statements.load("postgres")[name]
    writes = frozenset(_WRITING.findall(statement.text))
    words = writes if statement.target else frozenset(_WORD.findall(statement.text))  # plain rows see no table
    return TablesTouched(
        writes,
        words,
        can_wait=statement.text.startswith(("insert", "update", "delete")),
        may_block=not statement.own_rows and not _is_plain_insert(statement),
    )


def _is_plain_insert(statement: Statement) -> bool:
    """New rows, under keys of their own: no one else has them."""
    return statement.text.startswith("insert") and "on conflict" not in statement.text


@cache
def together(*written: str) -> str:
    """Several writes as one statement, their parameters numbered on. The server runs them in no order to rely on."""
    texts: list[str] = []
    before = 0
    for text in written:
        texts.append(_PLACEHOLDER.sub(lambda m, before=before: f"${int(m[1]) + before}", text))  # type: ignore[misc]  # mypy cannot type the default
        before += max((int(number) for number in _PLACEHOLDER.findall(text)), default=0)
    others = ", ".join(f"part{number} as ({text})" for number, text in enumerate(texts[1:], 2))
    return f"with {others} {texts[0]}" if others else texts[0]
