"""`bridge loki` and `bridge redis`: the same tasks in the files and streams of other systems."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shiftwork import logs
from shiftwork.cli import printing
from shiftwork.cli.groups import Group
from shiftwork.cli.shell import Answer, Shell, current, refuse, with_queue

if TYPE_CHECKING:
    from shiftwork.client import AnyQueue
    from shiftwork.compat.bridges.loki.bridge import PassReport
    from shiftwork.settings.model import Settings


@click.group(cls=Group)
def bridge() -> None:
    """Mirror the queue in the files and streams of other systems, and apply their changes."""


@bridge.command()
@click.argument("folder", metavar="DIR", type=click.Path(file_okay=False, resolve_path=True, path_type=Path))
@click.option("--import", "take_new", is_flag=True, help="First submit the tasks that are only in the files.")
@click.option("--two-way", is_flag=True, help="Read scripts' changes of the files, and claim under their lock.")
@click.option("--once", is_flag=True, help="Bring both up to date, then end.")
@click.option("--most", type=click.IntRange(1, 100_000), default=1000, show_default=True, help="Tasks in each file.")
def loki(**options: Any) -> Answer:
    """Mirror the queue in the files of DIR, a `.loki` folder, until stopped.

    --two-way stays in force until the setting claim_folder is unset, even while no bridge runs.
    """
    logs.set_up(json=False)
    return asyncio.run(_loki(current(), **options))


async def _loki(shell: Shell, *, folder: Path, take_new: bool, two_way: bool, once: bool, most: int) -> None:
    from shiftwork.compat.bridges.loki.bridge import Bridge  # noqa: PLC0415  # no bridge for `--help`
    from shiftwork.upkeep import upkeep  # noqa: PLC0415  # nor here

    async with await shell.open_database(create=True) as queue:
        settings = (await queue.engine.settings_cache.get(queue.engine.store, queue.workspace)).settings()
        over = Bridge(queue, folder, settings.lock_timeout_sec, two_way=two_way, most=most)
        await over.open()
        if two_way:
            _warn(settings)
        stopped = None if once else listen_for_stop()
        report = await over.run_until_stable(take_new=take_new)
        shell.answer(report, lambda: _print_report(report))
        sys.stdout.flush()
        if stopped is not None:
            await until_stopped(stopped, over.run(), *upkeep(queue))


def _warn(settings: Settings) -> None:
    """Problems that keep scripts from working here, or from keeping their claims."""
    silence = settings.heartbeat_timeout_sec
    if settings.lease.mode == "heartbeat" and silence is not None:
        what = f"scripts send no heartbeats, and work is taken away after {silence:g} s of silence"
        click.echo(f"warning: {what}; use the profile loki", err=True)
    missing = [name for name in ("flock", "jq") if shutil.which(name) is None]
    if missing:
        click.echo(f"warning: the document's claim script needs {' and '.join(missing)}, not found here", err=True)


def _print_report(report: PassReport) -> None:
    printing.table(["file", "tasks"], [(f"{queue}.json", count) for queue, count in report.tasks.items()])
    for what, count in report.taken.items():
        click.echo(f"{what} from the files: {count}")
    if report.strays:
        click.echo(f"in the files and not in the queue: {report.strays} (--import submits them)")
    if report.refused:
        click.echo(f"refused: {report.refused}, kept in logs/shiftwork-refused.jsonl")
    for what in report.broken:
        click.echo(printing.clean(f"left untouched: {what}"))


def listen_for_stop() -> asyncio.Event:
    """Set when the process is asked to stop. Installed before it reports that it runs: a stop may follow at once."""
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    return stopped


CANCEL_AGAIN_SEC = 1.0


async def until_stopped(stopped: asyncio.Event, *endless: Coroutine[Any, Any, None]) -> None:
    """Run until the process is asked to stop, or one of these fails."""
    tasks = [asyncio.ensure_future(each) for each in (*endless, stopped.wait())]
    done, running = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    while running:
        # More than once: before Python 3.12 `asyncio.wait_for`, which redis-py awaits, swallows a cancellation that
        # arrives together with its result.
        for task in running:
            task.cancel()
        _, running = await asyncio.wait(running, timeout=CANCEL_AGAIN_SEC)
    for task in done:
        task.result()


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
@click.option("--withdraw", is_flag=True, help="Withdraw unread entries, then exit.")
@click.option("--once", is_flag=True, help="Bring both sides up to date, then end.")
@click.option("--no-duties", is_flag=True, help="Leave maintenance to servers and workers.")
def redis(*, withdraw: bool, once: bool, no_duties: bool, **options: Any) -> Answer:
    """Carry work between the queue and stream:task, stream:result and stream:dlq of a Redis server, until stopped."""
    if withdraw and options["role"] == "worker":
        refuse("--withdraw is for the role orchestrator, which offers work")
    logs.set_up(json=False)
    return asyncio.run(_redis(current(), options, withdraw=withdraw, once=once, maintenance=not no_duties))


async def _redis(shell: Shell, options: dict[str, Any], *, withdraw: bool, once: bool, maintenance: bool) -> None:
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


def _print(shell: Shell, what: str, value: Any) -> None:
    shell.answer({what: value}, lambda: click.echo(f"{what}: {value}"))
    sys.stdout.flush()


@bridge.command("list")
@with_queue()
async def list_(shell: Shell, queue: AnyQueue) -> None:
    """List the bridges to streams, when each last polled, and its entries in progress."""
    found = await queue.control.bridges()
    columns = ["bridge", "role", "last poll", "unread", "taken", "taken in"]
    rows = [(b.name, b.role, printing.when(b.seen_at), b.unread, b.taken, b.taken_in) for b in found]
    shell.answer(found, lambda: printing.table(columns, rows, "no bridges"))
