"""`bridge`: the same tasks in the files and streams of other systems."""

from __future__ import annotations

import asyncio
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
from shiftwork.cli.shell import Answer, Shell, current

if TYPE_CHECKING:
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


async def _loki(shell: Shell, *, folder: Path, take_new: bool, two_way: bool, once: bool, most: int) -> Answer:
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
    return None


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
