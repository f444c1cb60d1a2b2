"""`tokens`: access tokens for HTTP and their scopes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from shiftwork.access.model import MEANING, SCOPES
from shiftwork.cli import params, printing
from shiftwork.cli.groups import listing
from shiftwork.cli.shell import Shell, with_queue

if TYPE_CHECKING:
    from shiftwork.access.model import TokenInfo
    from shiftwork.client import AnyQueue

_SCOPES = " ".join(f"{scope}: {meaning}." for scope, meaning in MEANING.items())


@listing("tokens")
def tokens() -> None:
    """Create, list and revoke tokens of the workspace. Without a subcommand: the list."""


@tokens.command()
@click.argument("name")
@click.option(
    "--scope", "scopes", multiple=True, required=True, type=click.Choice(SCOPES), help=f"Repeatable. {_SCOPES}"
)
@click.option("--expires", type=params.when, metavar="WHEN", help="ISO time, or from now: 12h, 30d [default: never].")
@with_queue(create=True)
async def create(
    shell: Shell, queue: AnyQueue, *, name: str, scopes: tuple[str, ...], expires: params.When | None
) -> None:
    """Create a token with a NAME that says whose it is. Its secret is shown once."""
    made = await queue.tokens.create(name, scopes, expires_at=None if expires is None else expires.at(queue.now()))
    shell.answer(made, lambda: click.echo(made.secret))
    if not shell.json:
        click.echo(f"This is token {made.id}. Keep its secret: it will not be shown again.", err=True)


@tokens.shows("list")
def _table(found: list[TokenInfo]) -> None:
    """List the tokens, oldest first, including revoked and expired ones."""
    columns = ["token", "name", "status", "scopes", "created", "by", "expires"]
    printing.table(columns, [_row(each) for each in found], "no tokens")


def _row(found: TokenInfo) -> tuple[object, ...]:
    created, expires = printing.when(found.created_at), printing.when(found.expires_at) or "never"
    return found.id, found.name, found.status, found.scopes, created, found.created_by, expires


@tokens.shows("revoke")
@click.argument("token_id", metavar="ID")
def _revoked(found: TokenInfo) -> None:
    printing.echo(f"{found.id} {found.name} revoked")
