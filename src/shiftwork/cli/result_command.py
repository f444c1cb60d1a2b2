"""`result` and `submit --wait`: wait for tasks to end, show their progress, and print their results."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import click
import msgspec

from shiftwork.cli import params, printing
from shiftwork.cli.exit_codes import ExitCode, code_of
from shiftwork.cli.shell import Answer, Command, Shell, with_queue
from shiftwork.model.errors import ResultTimeout, TaskCancelled, TaskFailed

if TYPE_CHECKING:
    from shiftwork.client import AnyQueue
    from shiftwork.model.history import Event
    from shiftwork.model.task import DagResult, Result, Submitted

WAIT_SEC = 20.0
MAX_FOLLOWED = 100
"""The most tasks whose progress is shown; for more, only the results."""

DAG_CODES = {"completed": ExitCode.OK, "failed": ExitCode.TASK_FAILED, "cancelled": ExitCode.TASK_CANCELLED}
SILENT = frozenset({"heartbeat", "usage", "submitted"})
"""Events that say nothing about progress."""

wait_option = click.option(
    "--wait",
    type=params.patience,
    is_flag=False,
    flag_value=params.FOREVER,
    metavar="[SECONDS]",
    help="Wait for the result, at most this long (30, 5m); show progress, then print the result.",
)


@click.command("result", cls=Command)
@click.argument("task")
@wait_option
@with_queue()
async def result(shell: Shell, queue: AnyQueue, *, task: str, wait: float | None) -> Answer:
    """Print the result of a task or DAG; with --wait, wait for its end.

    The exit code says how it ended: 0 completed, 8 failed, 9 cancelled, 10 not ended.
    """
    if task.startswith("dag_"):
        return await wait_for_dag(shell, queue, task, wait or 0, await place_now(queue))
    await wait_for_task(shell, queue, task, wait or 0, await place_now(queue))
    return None


async def place_now(queue: AnyQueue) -> int:
    """The cursor from which events are shown as progress."""
    return (await queue.events("now", limit=1)).next


async def wait_for_task(shell: Shell, queue: AnyQueue, task: str, wait: float, after: int) -> None:
    """Print the result of one task, or the error that reports its outcome."""
    async with _showing(shell, queue, wait, after, task=task):
        found = await queue.result(task, wait=_patience(wait))
    shell.answer(_as_json(found), lambda: _print(found.output))


async def wait_for_dag(shell: Shell, queue: AnyQueue, dag_id: str, wait: float, after: int) -> Answer:
    """Print the outcome of each task of a DAG."""
    async with _showing(shell, queue, wait, after, dag=dag_id):
        found = await queue.dags.result(dag_id, wait=_patience(wait))
    shell.answer(found, lambda: _dag(found))
    return DAG_CODES[found.status]


async def wait_for_tasks(shell: Shell, queue: AnyQueue, made: Sequence[Submitted], wait: float, after: int) -> Answer:
    """Print the outcome of several tasks; the exit code is that of the first that did not complete."""
    loop = asyncio.get_running_loop()
    deadline, code = loop.time() + wait, ExitCode.OK
    ends: list[dict[str, Any]] = []
    async with _showing(shell, queue, wait, after, task=[each.id for each in made]):
        for each in made:
            try:
                found = await queue.result(each.id, wait=_patience(max(0.0, deadline - loop.time())))
                ends.append({"id": each.id, "status": "completed", "output": found.output, "error": None})
            except (TaskFailed, TaskCancelled, ResultTimeout) as error:
                code = code or code_of(error)
                ends.append({"id": each.id, "status": error.facts["status"], "output": None, "error": error.what})
    columns = ["task", "status", "result"]
    rows = [(end["id"], end["status"], end["error"] or _brief(end["output"])) for end in ends]
    shell.answer({"tasks": ends}, lambda: printing.table(columns, rows))
    return code


def _patience(wait: float) -> float | None:
    return None if wait == math.inf else wait


@asynccontextmanager
async def _showing(shell: Shell, queue: AnyQueue, wait: float, after: int, **only: Any) -> AsyncIterator[None]:
    """Show events on standard error during the wait, and those just before its end."""
    tasks = only.get("task")
    if wait == 0 or (isinstance(tasks, list) and len(tasks) > MAX_FOLLOWED):
        yield
        return
    shown = after

    async def show(seconds: float) -> bool:
        nonlocal shown
        page = await queue.events(shown, wait=seconds, **only)
        for event in page.events:
            _show(shell, event)
        shown = page.next
        return bool(page.events)

    async def follow() -> None:
        while True:
            await show(WAIT_SEC)

    following = asyncio.create_task(follow())
    try:
        yield
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        while await show(0):
            pass


def _show(shell: Shell, event: Event) -> None:
    if event.verb in SILENT:
        return
    if shell.json:
        click.echo(printing.encoded(event), err=True)
        return
    data = event.data or {}
    said = data.get("text") or data.get("progress") or event.reason or ""
    words = said if isinstance(said, str) else msgspec.json.encode(said).decode()
    what = event.path[-1] if event.path else event.verb
    parts = [printing.when(event.at), event.task_id or event.dag_id or "", what, f"by {event.actor}", words]
    click.echo(printing.clean("  ".join(part for part in parts if part)), err=True)


def _as_json(found: Result) -> dict[str, Any]:
    """The result for programs, with the agent's data unchanged."""
    return {**msgspec.structs.asdict(found), "data": msgspec.Raw(msgspec.json.encode(found.data))}


def _print(output: Any) -> None:
    click.echo(printing.clean(output) if isinstance(output, str) else printing.pretty(output))


def _dag(found: DagResult) -> None:
    click.echo(f"{found.dag_id} {found.status}")
    columns = ["task", "status", "type", "result"]
    rows = [(task.id, task.status, task.type, task.error or _brief(task.output)) for task in found.tasks]
    printing.table(columns, rows)


def _brief(output: Any) -> str:
    return (
        ""
        if output is None
        else printing.clip(output if isinstance(output, str) else msgspec.json.encode(output).decode())
    )
