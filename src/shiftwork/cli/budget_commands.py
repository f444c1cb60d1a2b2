"""`budgets` and `costs`: ceilings and spending."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from shiftwork.cli import params, printing
from shiftwork.cli.groups import listing
from shiftwork.cli.shell import Command, Shell, refuse, with_queue

if TYPE_CHECKING:
    from shiftwork.budgets.model import Budget, Costs
    from shiftwork.client import AnyQueue

KINDS = ["agent", "day", "dag", "tree"]


@listing("budgets", covers={"costs": "costs"})
def budgets() -> None:
    """Show and set budgets of agents, days, DAGs and task trees. Without a subcommand: the list."""


@budgets.shows("list")
def _table(found: list[Budget]) -> None:
    """List budgets: spent, granted to running work, and left."""
    columns = ["budget", "of", "ceiling", "spent", "granted", "left", ""]
    printing.table(columns, [_row(budget) for budget in found], "no budgets")


def _row(budget: Budget) -> tuple[object, ...]:
    return (
        budget.kind,
        budget.id,
        printing.usd(budget.ceiling_usd) or "no limit",
        printing.usd(budget.spent_usd),
        printing.usd(budget.granted_usd),
        printing.usd(budget.remaining_usd),
        "holds work back" if budget.holds_back else "",
    )


def _sensible(*, kind: str, name: str | None, ceiling: float | None, no_ceiling: bool) -> None:
    if (ceiling is None) != no_ceiling:
        refuse("give either --ceiling or --no-ceiling")
    if (name is None) != (kind == "day"):
        refuse("every day has the same budget: leave the id out" if kind == "day" else f"which {kind}? Give its id")


@budgets.command("set")
@click.argument("kind", type=click.Choice(KINDS))
@click.argument("name", metavar="[ID]", required=False)
@click.option("--ceiling", type=params.NUMBER, metavar="USD", help="The maximum total cost, in dollars.")
@click.option("--no-ceiling", is_flag=True, help="No ceiling.")
@with_queue(check=_sensible)
async def set_(
    shell: Shell, queue: AnyQueue, *, kind: Any, name: str | None, ceiling: float | None, no_ceiling: bool
) -> None:
    """Set the budget of an agent, every day, a DAG, or a task with all it spawns."""
    del no_ceiling  # that is a ceiling of None
    changed = await queue.budgets.set(kind, name, ceiling_usd=ceiling)
    shell.answer(changed, lambda: _table([changed]))


@click.command(cls=Command)
@click.option(
    "--by",
    type=click.Choice(["task", "dag", "type", "agent", "model", "day"]),
    default="type",
    show_default=True,
    help="What to group by.",
)
@click.option("--since", type=params.duration, metavar="DURATION", help="Only the last 15m, 2h, 3d [default: all].")
@click.option("--limit", type=int, default=100, show_default=True, help="Maximum number of groups.")
@with_queue()
async def costs(shell: Shell, queue: AnyQueue, *, by: Any, since: float | None, limit: int) -> None:
    """Show costs by group, highest first."""
    found = await queue.budgets.costs(by, since=None if since is None else queue.now() - since, limit=limit)
    shell.answer(found, lambda: _costs(by, found))


def _costs(by: str, found: Costs) -> None:
    rows = [(c.value, printing.usd(c.cost_usd), c.attempts, c.tokens_in, c.tokens_out) for c in found.costs]
    printing.table([by, "cost", "attempts", "tokens in", "tokens out"], rows, "no costs")
    click.echo(f"{printing.usd(found.total_usd)} in all, {printing.usd(found.daily_spend_usd)} today (UTC)", err=True)
