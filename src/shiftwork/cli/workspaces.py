"""`workspaces`: lists workspaces and their databases, and moves them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from shiftwork.cli import printing
from shiftwork.cli.groups import listing
from shiftwork.cli.shell import Shell, current, refuse, with_queue
from shiftwork.model.errors import InputError

if TYPE_CHECKING:
    from shiftwork.client import AnyQueue
    from shiftwork.databases.model import DatabaseInfo, WorkspaceInfo


@listing("workspaces")
def workspaces() -> None:
    """List workspaces, and move one to another database of the map. Without a subcommand: the list."""


@workspaces.shows("list")
def table(found: Sequence[WorkspaceInfo]) -> None:
    """List every workspace with its database and its numbers of tasks."""
    columns = ["workspace", "database", "profile", "open tasks", "ready", "running", "dead letters", "created"]
    printing.table(columns, [_row(each) for each in found], "no workspaces")


@workspaces.shows("databases")
def _databases(found: Sequence[DatabaseInfo]) -> None:
    """List the databases of the map. State, workspaces, open tasks, and how late maintenance is."""
    columns = ["database", "state", "workspaces", "open tasks", "answered", "maintenance", "error"]
    printing.table(columns, [_database(each) for each in found])


def _database(found: DatabaseInfo) -> tuple[object, ...]:
    name = found.name or "the only one"
    answered = None if found.answered_in_ms is None else f"{found.answered_in_ms:.0f} ms"
    late = f"{found.maintenance_late_sec:.0f} s late" if found.maintenance_late_sec else None
    shown = f"{name} (default)" if found.is_default and found.name else name
    return shown, found.state, found.workspaces, found.open_tasks, answered, late, found.error


def _row(found: WorkspaceInfo) -> tuple[object, ...]:
    where = found.database if found.moving_to is None else f"{found.database}, moving to {found.moving_to}"
    if found.state == "unreachable":
        where = f"{where}, down"
    created = None if found.created_at is None else printing.when(found.created_at)
    counts = found.open_tasks, found.ready, found.running, found.dead_lettered
    return found.name, where, found.profile, *counts, created


def _check(*, to: str | None, resume: bool, undo: bool, **_: Any) -> None:
    if (to is not None) + resume + undo != 1:
        refuse("give one of --to, --resume and --undo")
    current().refuse_server()


@workspaces.command("move")
@click.argument("name", metavar="WORKSPACE")
@click.option("--to", metavar="DATABASE", help="The target database, by its name in the map.")
@click.option("--resume", is_flag=True, help="Finish a move that was interrupted.")
@click.option("--undo", is_flag=True, help="Give up a move that has not switched yet.")
@with_queue(check=_check)
async def move_(shell: Shell, queue: AnyQueue, *, name: str, to: str | None, undo: bool, **_: bool) -> None:
    """Move a workspace to another database of the map while it is in use.

    Rows are copied while work continues. Writes wait only while the last changes are copied and the workspace is
    switched, after both copies were compared by checksum.
    """
    from shiftwork.databases import move  # noqa: PLC0415  # no store for `--help`
    from shiftwork.queue import Queue  # noqa: PLC0415  # likewise

    routes = queue.routes if isinstance(queue, Queue) else None
    if routes is None:
        hint = "Name the map: --store shiftwork+map:/path/map.toml."
        raise InputError("a workspace is moved between the databases of a map", where="--store", hint=hint)

    def tell(step: str) -> None:
        if not shell.json:
            click.echo(step, err=True)

    if undo:
        await move.undo(routes, name, tell)
        shell.answer({"workspace": name, "undone": True}, lambda: click.echo(f"{name}: stays in {routes.owner(name)}"))
        return
    moved = await (move.resume(routes, name, tell) if to is None else move.move(routes, name, to, tell))
    if moved is None:
        shell.answer({"workspace": name, "finished": True}, lambda: click.echo(f"{name}: is in {routes.owner(name)}"))
        return
    line = f"{moved.rows} rows, checksum {moved.checksum}, writes waited {moved.paused_sec:.1f} s"
    shell.answer(moved, lambda: click.echo(f"{name}: {moved.source} to {moved.target}, {line}"))
