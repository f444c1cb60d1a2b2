"""Refuses writes to a workspace in a database that does not own it, with triggers, so that even a process with an old
route cannot write there.

While a workspace is moved, each transaction that writes to it holds a shared lock; the mover takes it exclusively to
switch. If the mover dies, the database releases the lock, and writes continue in the old database.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import asyncpg

from shiftwork.databases.moved_tables import UNGUARDED, MovedTable, Side, literal, short_hash
from shiftwork.model.errors import ConflictError

TRIES = 100
LOCK_MS = 200
"""Creating a trigger takes a lock that blocks writers, so each attempt waits this long, then tries again."""

DRAIN_SEC = 8
"""How long to wait for open transactions of the workspace."""

_CHECK = """
create or replace function {place}.refuse_moved(moved text) returns void language plpgsql as $$
declare
  found record;
begin
  if current_setting('shiftwork.mover', true) = moved then
    return;
  end if;
  if not pg_try_advisory_xact_lock_shared(hashtextextended('{place} move ' || moved, 0)) then
    raise exception 'the workspace % is being moved', moved using errcode = 'object_in_use';
  end if;
  select state, peer into found from {place}.routes where workspace = moved for share;
  if found.state = 'left' then
    raise exception 'the workspace % is in the database % now', moved, found.peer
      using errcode = 'object_not_in_prerequisite_state';
  elsif found.state = 'arriving' then
    raise exception 'the workspace % is being moved', moved using errcode = 'object_in_use';
  end if;
end $$;
create or replace function {place}.guard_moved() returns trigger language plpgsql as $$
begin
  if tg_op = 'DELETE' then
    perform {place}.refuse_moved(tg_argv[0]) from {place}.routes where workspace = tg_argv[0] and state = 'leaving';
    return old;
  end if;
  perform {place}.refuse_moved(tg_argv[0]);
  return new;
end $$"""

_OF_TASKS = """
create or replace function {place}.guard_moved_{owner}() returns trigger language plpgsql as $$
begin
  perform {place}.refuse_moved(tg_argv[0]) from {place}.{parent}
  where id = case tg_op when 'DELETE' then old.{owner} else new.{owner} end and workspace = tg_argv[0];
  if tg_op = 'DELETE' then
    return old;
  end if;
  return new;
end $$"""


def name(workspace: str, ending: str = "") -> str:
    """The name of a trigger for this workspace."""
    return f"moved_{short_hash(workspace)}{ending}"


async def install(side: Side, tables: Sequence[MovedTable]) -> None:
    """Guard every table; when this returns, no transaction with unguarded writes is open."""
    place = side.home
    await side.connection.execute(_CHECK.replace("{place}", place))
    for owner, parent in sorted({(table.owner, table.parent) for table in tables if not table.has_workspace}):
        text = _OF_TASKS.replace("{place}", place).replace("{owner}", owner).replace("{parent}", parent)
        await side.connection.execute(text)
    for table in tables:
        if table.name not in UNGUARDED:
            await briefly(side.connection, _triggers(side, table))


def _triggers(side: Side, table: MovedTable) -> str:
    on, moved = side.place(table.name), literal(side.workspace)
    ending = "" if table.has_workspace else f"_{table.owner}"
    call = f"execute function {side.home}.guard_moved{ending}({moved})"
    return (
        f"create or replace trigger {name(side.workspace)} before insert or update on {on} for each row "
        f"when ({side.trigger_condition(table, 'new')}) {call};"
        f"create or replace trigger {name(side.workspace, '_delete')} before delete on {on} for each row "
        f"when ({side.trigger_condition(table, 'old')}) {call}"
    )


async def remove(side: Side, tables: Sequence[MovedTable], *, keep_refusing: bool = False) -> None:
    """Remove the guard; with `keep_refusing`, keep what refuses writes to a workspace that has left."""
    for table in tables:
        if table.name in UNGUARDED or (keep_refusing and table.has_workspace):
            continue
        on = side.place(table.name)
        drops = [f"drop trigger if exists {name(side.workspace, each)} on {on}" for each in ("", "_delete")]
        await briefly(side.connection, "; ".join(drops))


async def briefly(connection: Any, text: str) -> None:
    for tries in range(TRIES):
        try:
            await connection.execute(f"begin; set local lock_timeout = {LOCK_MS}; {text}; commit")
        except (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError):
            await connection.execute("rollback")
            await asyncio.sleep(0.02 * min(tries, 25))
        else:
            return
    raise ConflictError("a long transaction holds a table of the queue", hint="End it, then resume or undo the move.")


@asynccontextmanager
async def paused(side: Side) -> AsyncIterator[None]:
    """Pause writes to the workspace. Calls wait, and are refused with a retry if that takes too long."""
    key = f"hashtextextended({literal(f'{side.home} move {side.workspace}')}, 0)"
    try:
        await side.connection.execute(f"set lock_timeout = '{DRAIN_SEC}s'; select pg_advisory_lock({key})")
    except asyncpg.LockNotAvailableError:
        raise ConflictError(
            f"transactions of the workspace did not end within {DRAIN_SEC} s", hint="Resume or undo the move."
        ) from None
    finally:
        await side.connection.execute("set lock_timeout = 0")
    try:
        yield
    finally:
        await side.connection.execute(f"select pg_advisory_unlock({key})")
