"""Records which rows of a workspace change while it is copied, so that only they are copied again.

Triggers write the keys of changed rows to an unlogged table per table: if the server restarts, the mover loses its
connection, and a resumed move copies everything again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shiftwork.databases import guard
from shiftwork.databases.moved_tables import MovedTable, Side, literal, names

_RECORD = """
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
    """Start recording; when this returns, no transaction with unrecorded writes is open."""
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
            f"drop function if exists {side.place(side.recorder(table.name))}; "
            f"drop table if exists {side.place(side.changes(table.name))}"
        )


_ENDINGS = ("_noted", "_noted_delete")


def _function(side: Side, table: MovedTable) -> str:
    parts = {
        "changes": side.place(side.changes(table.name)),
        "function": side.place(side.recorder(table.name)),
        "table": side.place(table.name),
        "key": names(table.key),
        "old": ", ".join(f"old.{column}" for column in table.key),
        "new": ", ".join(f"new.{column}" for column in table.key),
        "of_old": _unless_of_another(side, table, "old"),
        "of_new": _unless_of_another(side, table, "new"),
    }
    text = _RECORD
    for name, value in parts.items():
        text = text.replace(f"{{{name}}}", value)
    return text


def _unless_of_another(side: Side, table: MovedTable, row: str) -> str:
    """Skip rows known to belong to another workspace; a row of a deleted task may belong to this one."""
    if table.has_workspace:
        return ""
    of_another = f"id = {row}.{table.owner} and workspace <> {literal(side.workspace)}"
    return f"and not exists (select 1 from {side.place(table.parent)} where {of_another})"


def _triggers(side: Side, table: MovedTable) -> str:
    on, recorder = side.place(table.name), f"execute function {side.place(side.recorder(table.name))}()"
    written, deleted = (guard.name(side.workspace, each) for each in _ENDINGS)
    of_new, of_old = (side.trigger_condition(table, row) for row in ("new", "old"))
    return (
        f"create or replace trigger {written} after insert or update on {on} for each row when ({of_new}) {recorder}; "
        f"create or replace trigger {deleted} after delete on {on} for each row when ({of_old}) {recorder}"
    )


async def prepare_change_query(side: Side, tables: Sequence[MovedTable]) -> Any:
    """Prepare the query for the tables with changed keys, since planning takes longer than running it."""
    checks = (
        f"select {literal(table.name)} where exists (select 1 from {side.place(side.changes(table.name))})"
        for table in tables
    )
    async with side.connection.transaction():  # otherwise the driver leaves one open
        return await side.connection.prepare(" union all ".join(checks))
