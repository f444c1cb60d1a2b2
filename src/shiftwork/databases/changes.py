"""Records which rows of a workspace change while it is copied, so that only these are copied again.

Each table gets a table of the keys that were written, which triggers fill. It is not logged: if the server restarts,
the mover has lost its connection, and a resumed move copies everything again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shiftwork.databases import guard
from shiftwork.databases.moved_tables import MovedTable, Side, literal, names

_NOTE = """
drop table if exists {changes};
create unlogged table {changes} as select {key} from {table} limit 0;
create or replace function {function}() returns trigger language plpgsql security definer as $$
begin
  if tg_op <> 'INSERT' {of_old} then
    insert into {changes} values ({old});
  end if;
  if tg_op = 'INSERT' {of_new} then
    insert into {changes} values ({new});
  elsif tg_op = 'UPDATE' and ({old}) is distinct from ({new}) then
    insert into {changes} values ({new});
  end if;
  return null;
end $$"""


async def install(side: Side, tables: Sequence[MovedTable]) -> None:
    """Record from now on; when this is done, no transaction that writes unrecorded is left."""
    for table in tables:
        await side.connection.execute(_function(side, table))
        await guard.briefly(side.connection, _triggers(side, table))


async def remove(side: Side, tables: Sequence[MovedTable]) -> None:
    """Stop recording."""
    for table in tables:
        on = side.place(table.name)
        drops = [f"drop trigger if exists {guard.name(side.workspace, each)} on {on}" for each in _ENDINGS]
        await guard.briefly(side.connection, "; ".join(drops))
        await side.connection.execute(
            f"drop function if exists {side.place(side.noting(table.name))}; "
            f"drop table if exists {side.place(side.changes(table.name))}"
        )


_ENDINGS = ("_noted", "_noted_delete")


def _function(side: Side, table: MovedTable) -> str:
    parts = {
        "changes": side.place(side.changes(table.name)),
        "function": side.place(side.noting(table.name)),
        "table": side.place(table.name),
        "key": names(table.key),
        "old": ", ".join(f"old.{column}" for column in table.key),
        "new": ", ".join(f"new.{column}" for column in table.key),
        "of_old": _unless_of_another(side, table, "old"),
        "of_new": _unless_of_another(side, table, "new"),
    }
    text = _NOTE
    for name, value in parts.items():
        text = text.replace(f"{{{name}}}", value)
    return text


def _unless_of_another(side: Side, table: MovedTable, row: str) -> str:
    """A row of a task that is gone may be of this workspace: only what is known to be of another is left out."""
    if table.has_workspace:
        return ""
    of_another = f"id = {row}.{table.owner} and workspace <> {literal(side.workspace)}"
    return f"and not exists (select 1 from {side.place(table.parent)} where {of_another})"


def _triggers(side: Side, table: MovedTable) -> str:
    on, noting = side.place(table.name), f"execute function {side.place(side.noting(table.name))}()"
    written, deleted = (guard.name(side.workspace, each) for each in _ENDINGS)
    of_new, of_old = (side.of_others(table, row) for row in ("new", "old"))
    return (
        f"create or replace trigger {written} after insert or update on {on} for each row when ({of_new}) {noting}; "
        f"create or replace trigger {deleted} after delete on {on} for each row when ({of_old}) {noting}"
    )


async def look_for_changes(side: Side, tables: Sequence[MovedTable]) -> Any:
    """A prepared question which tables have changed keys: to plan it takes longer than to answer it."""
    looks = (
        f"select {literal(table.name)} where exists (select 1 from {side.place(side.changes(table.name))})"
        for table in tables
    )
    async with side.connection.transaction():  # else the driver leaves one open
        return await side.connection.prepare(" union all ".join(looks))
