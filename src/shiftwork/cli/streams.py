"""`bridge redis`: foreign workers of Redis streams for this queue, or our workers for a foreign orchestrator."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from typing import TYPE_CHECKING, Any

import click

from shiftwork import logs
from shiftwork.cli import printing
from shiftwork.cli.bridging import bridge, listen_for_stop, until_stopped
from shiftwork.cli.shell import Answer, Shell, current, refuse, with_queue

if TYPE_CHECKING:
    from shiftwork.client import AnyQueue

__all__ = ["bridge"]


@bridge.command()
@click.option("--redis-url", envvar="SHIFTWORK_REDIS_URL", show_envvar=True, required=True, metavar="URL")
@click.option(
    "--role",
    type=click.Choice(["orchestrator", "worker"]),
    default="orchestrator",
    show_default=True,
    help="This queue's role: orchestrator hands out work, worker does it.",
)
@click.option("--name", default="redis", show_default=True, help="Bridges of one name share their work.")
@click.option("--prefix", default="", metavar="TEXT", help="A prefix of all stream names.")
@click.option("--type", "types", multiple=True, metavar="TYPE", help="Offer only work of this type. Repeatable.")
@click.option("--capability", "capabilities", multiple=True, help="A capability of the workers. Repeatable.")
@click.option("--ahead", type=click.IntRange(1, 100_000), default=100, show_default=True, help="Entries kept unread.")
@click.option(
    "--reclaim",
    type=click.Choice(["xautoclaim", "xclaim"]),
    help="How to reclaim entries [default: what the server supports].",
)
@click.option("--events", is_flag=True, help="Also publish the queue's events in stream:events.")
@click.option("--keep", type=click.IntRange(1), default=10_000, show_default=True, help="Results and events kept.")
@click.option("--withdraw", is_flag=True, help="Take back unread entries, then exit.")
@click.option("--once", is_flag=True, help="Bring both sides up to date, then end.")
@click.option("--no-duties", is_flag=True, help="Leave maintenance to servers and workers.")
def redis(*, withdraw: bool, once: bool, no_duties: bool, **options: Any) -> Answer:
    """Carry work between the queue and stream:task, stream:result and stream:dlq of a Redis server, until stopped."""
    if withdraw and options["role"] == "worker":
        refuse("--withdraw is for the role orchestrator, which offers work")
    logs.set_up(json=False)
    return asyncio.run(_redis(current(), options, withdraw=withdraw, once=once, maintenance=not no_duties))


async def _redis(shell: Shell, options: dict[str, Any], *, withdraw: bool, once: bool, maintenance: bool) -> Answer:
    from shiftwork.compat.bridges.redis import bridge_process  # noqa: PLC0415  # no bridge for `--help`
    from shiftwork.compat.bridges.redis.orchestrator import Orchestrator  # noqa: PLC0415  # nor here
    from shiftwork.upkeep import upkeep  # noqa: PLC0415  # nor here

    async with contextlib.AsyncExitStack() as stack:
        queue = await stack.enter_async_context(await shell.open_database(create=True))
        side = await stack.enter_async_context(bridge_process.open_side(queue, bridge_process.Options(**options)))
        if withdraw and isinstance(side, Orchestrator):
            _print(shell, "withdrawn", await side.withdraw())
        elif once:
            _print(shell, "done", await bridge_process.poll(side))
        else:
            stopped = listen_for_stop()
            _print(shell, "carrying", options["role"])
            others = upkeep(queue) if maintenance else []
            await until_stopped(stopped, bridge_process.poll_until(side, stopped), *others)
    return None


def _print(shell: Shell, what: str, value: Any) -> None:
    shell.answer({what: value}, lambda: click.echo(f"{what}: {value}"))
    sys.stdout.flush()


@bridge.command("list")
@with_queue()
async def list_(shell: Shell, queue: AnyQueue) -> Answer:
    """List the bridges to streams, when each last polled, and its entries in progress."""
    found = await queue.control.bridges()
    columns = ["bridge", "role", "last poll", "unread", "taken", "taken in"]
    rows = [(b.name, b.role, printing.when(b.seen_at), b.unread, b.taken, b.taken_in) for b in found]
    shell.answer(found, lambda: printing.table(columns, rows, "no bridges"))
    return None
