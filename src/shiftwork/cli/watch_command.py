"""`watch`: shows the live queue on one screen, until a key is pressed."""

from __future__ import annotations

import asyncio
import os
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from shiftwork.cli import params, printing
from shiftwork.cli.live_status import LiveStatus
from shiftwork.cli.shell import Command, Shell, with_queue

if TYPE_CHECKING:
    from shiftwork.client import AnyQueue
    from shiftwork.model.history import Event

SHOWN_EVENTS = 200
"""Events read at a time; for a busy queue, only the newest are shown anyway."""

BEFORE = 30
"""Past events to read, so that the first screen is not empty."""

RUNNING = 100
LINES = 200
"""The most lines of an update that is not limited by a screen."""


@click.command(cls=Command)
@click.option("--every", type=params.NumberRange(0.2, 3600), default=2.0, show_default=True, metavar="SECONDS")
@click.option("--once", is_flag=True, help="Print it once and exit (the default without a terminal).")
@with_queue()
async def watch(shell: Shell, queue: AnyQueue, *, every: float, once: bool) -> None:
    """Watch the queue: waiting and running tasks, agents, events. q quits.

    With --json, one line per update.
    """
    looks = _looks(queue)
    if shell.json:
        async for look in looks:
            printing.line(look)
            if once:
                return
            await asyncio.sleep(every)
    elif once or not sys.stdout.isatty():
        await _print(queue, await anext(looks))
    else:
        await _move(queue, looks, every)


async def _looks(queue: AnyQueue) -> AsyncIterator[LiveStatus]:
    cursor = max(0, (await queue.events("now")).next - BEFORE)
    seen_events: deque[Event] = deque(maxlen=SHOWN_EVENTS)
    while True:
        news = await queue.events(cursor, limit=SHOWN_EVENTS)
        events, cursor = news.events, news.next
        seen_events.extend(event for event in events if event.verb not in {"heartbeat", "progress"})
        yield LiveStatus(
            queue.now(),
            await queue.status(),
            (await queue.tasks.list(status=["running", "claimed", "validating"], limit=RUNNING)).tasks,
            await queue.agents.list(),
            await queue.alerts.list(open_only=True, limit=1000),
            list(seen_events),
            await queue.control.blocked(),
        )


async def _print(queue: AnyQueue, look: LiveStatus) -> None:
    from rich.console import Console  # noqa: PLC0415  # expensive

    from shiftwork.cli.watch_screen import screen  # noqa: PLC0415  # likewise

    Console(highlight=False).print(screen(queue.workspace, look, LINES))


async def _move(queue: AnyQueue, looks: AsyncIterator[LiveStatus], every: float) -> None:
    with _keys() as pressed, _shown(queue.workspace) as show:
        async for look in looks:
            show(look)
            try:
                async with asyncio.timeout(every):
                    if await pressed.get() in {"q", "Q", "\x1b"}:
                        return
            except TimeoutError:
                continue


@contextmanager
def _shown(workspace: str) -> Iterator[Callable[[LiveStatus], None]]:
    """Show an update in place, or below on a terminal that cannot move the cursor."""
    from rich.console import Console  # noqa: PLC0415  # expensive
    from rich.live import Live  # noqa: PLC0415  # likewise

    from shiftwork.cli.watch_screen import screen  # noqa: PLC0415  # likewise

    console = Console(highlight=False)
    if console.is_dumb_terminal:
        yield lambda look: console.print(screen(workspace, look, LINES))
        return
    with Live(console=console, screen=True, auto_refresh=False) as live:
        yield lambda look: live.update(screen(workspace, look, console.size.height), refresh=True)


@contextmanager
def _keys() -> Iterator[asyncio.Queue[str]]:
    """Keys as they are pressed, if there is a keyboard."""
    pressed: asyncio.Queue[str] = asyncio.Queue()
    if not params.is_typed_at():
        yield pressed
        return
    import termios  # noqa: PLC0415  # not on every system
    import tty  # noqa: PLC0415  # likewise

    keyboard, loop = sys.stdin.fileno(), asyncio.get_running_loop()
    before = termios.tcgetattr(keyboard)
    tty.setcbreak(keyboard)
    loop.add_reader(keyboard, lambda: pressed.put_nowait(os.read(keyboard, 1).decode(errors="replace")))
    try:
        yield pressed
    finally:
        loop.remove_reader(keyboard)
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)
