"""The schema of a PostgreSQL database that holds a queue: every statement names it, so no session state is needed.

Qualified names also work behind a pooler and on a caller's connection, whatever its search path is.
"""

from __future__ import annotations

import re
from functools import cache

from shiftwork.model.errors import InputError
from shiftwork.store import migrate, statements
from shiftwork.store.statements import Statement

PUBLIC = "public"
MAX_CHARS = 48
"""Notification channels and session names contain it, and PostgreSQL cuts names at 63 characters."""

_NAME = re.compile(r"[a-z_][a-z0-9_]*")
_CREATED = re.compile(
    r"\bcreate (?:or replace )?(?:table|view|materialized view|function) (?:if not exists )?(\w+)\b(?!\.)"
)
_USED = re.compile(r"\b(from|join|into|update|using) (\w+)\b(?!\.)", re.IGNORECASE)
PARTS = re.compile(r"(?:\bwith(?: recursive)?|,) (\w+)(?: ?\([^()]*\))? as (?:(?:not )?materialized )?\(")
"""Named parts of a statement; none has the name of a table, or it would be qualified."""

EVENT_NUMBERS = "events_seq_seq"
"""The sequence of an identity column, as PostgreSQL names it."""

_AS_CLASS = re.compile(r"'(\w+)'::regclass")
_OWN_SCHEMA = re.compile(r"\bcreate schema factory\s*;")
_IN_OWN_SCHEMA = re.compile(r"\bfactory\.(\w+)")


def check_schema(name: str) -> str:
    """The name if it is valid; otherwise an error that says why not."""
    if not _NAME.fullmatch(name) or len(name) > MAX_CHARS:
        raise InputError(
            f"{name!r} cannot be the schema of a queue",
            where="url",
            hint=f"Use lower-case letters, digits and underscores, at most {MAX_CHARS}, beginning with a letter.",
        )
    if name.startswith("pg_") or name == "information_schema":
        raise InputError(f"{name!r} is a schema of PostgreSQL itself", where="url", hint="Choose another name.")
    return name


def quoted(schema: str) -> str:
    return '"' + schema.replace('"', '""') + '"'


def channels(schema: str) -> tuple[str, str]:
    """The channels for ready work and ended tasks: a database has one set of channels for all its schemas."""
    return ("task_ready", "task_ended") if schema == PUBLIC else (f"task_ready_{schema}", f"task_ended_{schema}")


def lock_name(schema: str, name: str) -> str:
    """The name of an advisory lock: a database has one set for all its schemas."""
    return name if schema == PUBLIC else f"{schema}.{name}"


@cache
def load(schema: str) -> dict[str, Statement]:
    """All statements, for a queue in this schema."""
    return {name: _qualify(statement, schema) for name, statement in statements.load("postgres").items()}


def _qualify(statement: Statement, schema: str) -> Statement:
    return statement._replace(text=qualify(statement.text, schema), single=qualify(statement.single, schema))


def qualify(text: str, schema: str) -> str:
    """A statement with the schema before each of the queue's tables, views and functions."""
    ours, place = relations(), quoted(schema)
    text = _USED.sub(lambda m: f"{m[1]} {place}.{m[2]}" if m[2] in ours else m[0], text)
    return _AS_CLASS.sub(lambda m: f"'{place}.{m[1]}'::regclass" if m[1] in ours else m[0], text)


@cache
def relations() -> frozenset[str]:
    """The tables, views, functions and sequences of a queue that statements name, as the migrations create them."""
    texts = [migrate.LEDGER, *(migration.text for migration in migrate.migrations("postgres"))]
    return frozenset({EVENT_NUMBERS, *(name for text in texts for name in _CREATED.findall(text))})


def migration_text(text: str, schema: str) -> str:
    """A migration for a queue in this schema, which must come first in the search path.

    In `public`, one view has a schema of its own, as its document requires. Elsewhere all objects share one schema.
    """
    if schema == PUBLIC:
        return text
    return _IN_OWN_SCHEMA.sub(r"factory_\1", _OWN_SCHEMA.sub("", text))
