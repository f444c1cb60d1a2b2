"""`agents`: lists agents and changes their status and budget."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from shiftwork.cli import params, printing
from shiftwork.cli.groups import listing
from shiftwork.cli.shell import Shell, with_queue

if TYPE_CHECKING:
    from shiftwork.agents.model import Agent, AgentStatus
    from shiftwork.client import AnyQueue


@listing(
    "agents",
    covers={"update": "agents budget", "deregister": "agents offline", "rebalance": "rebalance"},
)
def agents() -> None:
    """Show, stop, start and fund agents. Without a subcommand: the list."""


@agents.shows("list")
def _table(found: list[Agent], now: float) -> None:
    """List the agents with their claims, abilities and budgets."""
    columns = ["agent", "status", "holds", "types", "capabilities", "models", "left", "spent", "seen"]
    printing.table(columns, [_row(agent, now) for agent in found], "no agents")


def _row(agent: Agent, now: float) -> tuple[object, ...]:
    most = "" if agent.max_concurrent_tasks is None else f"/{agent.max_concurrent_tasks}"
    return (
        agent.id,
        agent.status,
        f"{agent.current_tasks}{most}",
        "any" if agent.types is None else agent.types,
        agent.capabilities,
        agent.models_available,
        printing.usd(agent.budget_remaining_usd) or "no limit",
        printing.usd(agent.spent_usd),
        printing.ago(agent.last_heartbeat, now),
    )


def _status_command(name: str, status: AgentStatus, text: str) -> None:
    @with_queue()
    async def change(shell: Shell, queue: AnyQueue, *, agent: str) -> None:
        await queue.agents.set_status(agent, status)
        shell.answer({"agent": agent, "status": status}, lambda: click.echo(f"{printing.clean(agent)} {status}"))

    change.__doc__ = text
    agents.command(name)(click.argument("agent")(change))


_status_command("drain", "draining", "Let an agent finish the tasks it holds, and give it no new ones.")
_status_command("activate", "active", "Let an agent take work again.")
_status_command("offline", "offline", "Mark an agent as offline.")


@agents.command()
@click.argument("agent")
@click.argument("usd", type=params.NUMBER, required=False)
@click.option("--no-limit", is_flag=True, help="No budget.")
@with_queue()
async def budget(shell: Shell, queue: AnyQueue, *, agent: str, usd: float | None, no_limit: bool) -> None:
    """Set an agent's remaining budget, in dollars."""
    if (usd is None) != no_limit:
        raise click.UsageError("give either USD or --no-limit", click.get_current_context())
    await queue.agents.set_budget(agent, usd)
    text = "no limit" if usd is None else f"{printing.usd(usd)} left"
    shell.answer({"agent": agent, "remaining_usd": usd}, lambda: click.echo(f"{printing.clean(agent)} {text}"))
