"""`accounts`: accounts at providers, their windows, and when they can be used again."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import click

from shiftwork.cli import params, printing
from shiftwork.cli.groups import listing
from shiftwork.cli.shell import Shell, with_queue

if TYPE_CHECKING:
    from shiftwork.accounts.model import Account, Window
    from shiftwork.client import AnyQueue

_WINDOW = re.compile(r"(?P<length>[^=]+)=(?P<amount>[\d.]+(?:e\d+)?)(?P<unit>tokens|usd|tasks)")
_NAMES = {60.0: "minute", 18_000.0: "five_hour", 86_400.0: "day", 604_800.0: "seven_day"}


def _window(text: str) -> dict[str, Any]:
    """`5h=2000000tokens`."""
    found = _WINDOW.fullmatch(text.strip())
    if found is None:
        raise click.BadParameter(
            f"{text!r} is not LENGTH=AMOUNT and a unit. Write 5h=2000000tokens, 7d=40usd, 1m=20tasks."
        )
    length = params.duration(found["length"])
    name = _NAMES.get(length, f"{length:g}_sec")
    return {"name": name, "length_sec": length, "unit": found["unit"], "capacity": float(found["amount"])}


@listing("accounts")
def accounts() -> None:
    """Show accounts at providers and their windows, and set, remove and renew them. Without a subcommand: the list."""


@accounts.shows("list")
def _table(found: list[Account], now: float) -> None:
    """List the accounts, and how far each of their windows is used."""
    columns = ["provider", "account", "state", "running", "window", "used", "resets"]
    printing.table(columns, [row for each in found for row in _rows(each, now)], "no accounts")


def _rows(account: Account, now: float) -> list[tuple[object, ...]]:
    state = {"available": "available", "refused": "credentials refused"}.get(account.state)
    state = state or f"paused until {printing.when(account.until)}"
    head = (account.provider, account.account, state, account.running)
    windows = [_columns(window, now) for window in account.windows] or [(None, None, None)]
    return [(*(head if not place else ("", "", "", "")), *window) for place, window in enumerate(windows)]


def _columns(window: Window, now: float) -> tuple[object, ...]:
    name = window.name if window.model is None else f"{window.name} ({window.model})"
    amount = "" if window.unit is None else f" ({window.used:g} of {window.capacity:g} {window.unit})"
    return name, f"{window.utilization:.0%}{amount}", printing.ago(window.resets_at, now)


@accounts.command("set")
@click.argument("provider")
@click.argument("account")
@click.option(
    "--window",
    "windows",
    multiple=True,
    required=True,
    type=_window,
    metavar="LENGTH=AMOUNT",
    help="A window and what it holds: 5h=2000000tokens, 7d=40usd, 1m=20tasks. Repeatable.",
)
@with_queue(create=True)
async def set_account(
    shell: Shell, queue: AnyQueue, *, provider: str, account: str, windows: tuple[dict[str, Any], ...]
) -> None:
    """Set the windows of an account whose sizes you know. Windows that its provider reports need not be set."""
    found = [await queue.accounts.set(provider, account, windows=windows)]
    shell.answer(found, lambda: _table(found, queue.now()))


@accounts.shows("remove")
def _removed(removed: bool, provider: str, account: str) -> None:  # noqa: FBT001  # the answer
    """Remove the windows of an account."""
    printing.echo(f"{provider} {account}: {'windows removed' if removed else 'had no windows'}")


@accounts.shows("renew")
def _renewed(renewed: bool, provider: str, account: str) -> None:  # noqa: FBT001  # the answer
    """Use an account again after renewing credentials that were refused."""
    printing.echo(f"{provider} {account} {'is in use again' if renewed else 'was not held back'}")


@accounts.command()
@click.argument("claim", metavar="TOKEN")
@click.option("--headers", type=params.json_value, metavar="JSON", help="The headers of a provider's answer.")
@click.option("--windows", type=params.json_value, metavar="JSON", default=[], help="Windows and how far each is used.")
@with_queue()
async def report(shell: Shell, queue: AnyQueue, *, claim: str, headers: Any, windows: Any) -> None:
    """Report how far the windows of a claim's account are used. TOKEN is the claim's."""
    done = await queue.accounts.report(claim, headers=headers, windows=windows)
    shell.answer(done, lambda: click.echo("reported"))
