"""The demo's output: a line per event and, on a terminal, a live table."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from shiftwork.model.task import Task

COLOURS = {
    "ready": "cyan",
    "running": "yellow",
    "retrying": "magenta",
    "completed": "green",
    "failed": "red",
    "dead_lettered": "red",
}


class Screen:
    """Plain lines without a terminal, and no output if quiet. Rich honours `NO_COLOR`."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._console = Console(quiet=quiet, highlight=False, soft_wrap=True)
        moving = self._console.is_terminal and not self._console.is_dumb_terminal and not quiet
        self._live = Live(console=self._console, refresh_per_second=12, transient=False) if moving else None

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def say(self, text: str = "", style: str = "") -> None:
        self._console.print(text, style=style, markup=False)

    def show(self, tasks: Sequence[Task]) -> None:
        if self._live is not None:
            self._live.update(_table(tasks))


def _table(tasks: Sequence[Task]) -> Table:
    table = Table("task", "status", "agent", "progress", "attempts", "cost")
    table.columns[0].no_wrap = True
    for task in tasks:
        indent = "  " if task.parent_id else ""
        done = 100.0 if task.status == "completed" else float((task.progress or {}).get("pct", 0))
        table.add_row(
            f"{indent}{task.title}",
            f"[{COLOURS.get(task.status, 'dim')}]{task.status}[/]",
            task.claim.agent_id or (task.result.worker_id if task.result else None) or "",
            ProgressBar(100, done, width=20),
            str(task.fence),
            f"{task.cost_usd:.2f}" if task.cost_usd else "",
        )
    return table
