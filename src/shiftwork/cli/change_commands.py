"""Commands that change one task: `rerun`, `update`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
import msgspec

from shiftwork.cli import params, printing
from shiftwork.cli.exit_codes import ExitCode, code_of
from shiftwork.cli.shell import Command, Shell, message, refuse, with_queue

if TYPE_CHECKING:
    from shiftwork.client import AnyQueue
    from shiftwork.model.outcome import Outcome


def outcomes(shell: Shell, done: list[Outcome]) -> int:
    """Print the outcome of each task; the exit code is that of the first refusal."""
    refused = [outcome.error for outcome in done if outcome.error is not None]

    def text() -> None:
        rows = [(o.task_id, o.status) for o in done if o.error is None]
        if rows or not refused:
            printing.table(["task", "status"], rows, "nothing to do")
        for error in refused:
            click.echo(printing.clean(message(error.as_dict())), err=True)

    shell.answer([_outcome(o) for o in done], text)
    return code_of(refused[0]) if refused else ExitCode.OK


def _outcome(outcome: Outcome) -> dict[str, Any]:
    known = msgspec.structs.asdict(outcome)
    return {name: value for name, value in known.items() if value not in (None, False)}


def show_outcome(shell: Shell, outcome: Outcome) -> None:
    shell.answer(_outcome(outcome), lambda: click.echo(f"{outcome.task_id} {outcome.status}"))


@click.command(cls=Command)
@click.argument("task")
@click.option("--from-step", metavar="NAME", help="Keep the finished steps before this one, and repeat the rest.")
@click.option(
    "--payload",
    "-p",
    multiple=True,
    type=params.payload_part,
    callback=params.merged,
    metavar="KEY=TEXT|KEY:=JSON|JSON",
    help="The whole new payload, written as for submit. Repeatable.",
)
@click.option("--model", metavar="NAME", help="Use this model, if an agent has it.")
@click.option("--downstream", is_flag=True, help="Also rerun everything in its DAG that depends on it.")
@with_queue()
async def rerun(shell: Shell, queue: AnyQueue, *, task: str, **again: Any) -> None:
    """Run an ended task again as a new task, and print its id."""
    show_outcome(shell, await queue.tasks.rerun(task, **again))


_LISTS = frozenset({"tags", "dependencies"})
_CHANGES = frozenset({"priority", "deadline", "run_at", "expires_at", "timeout_sec", "max_attempts"}) | {
    *("estimated_cost_usd", "clear"),
    *_LISTS,
}


def _anything(**fields: Any) -> None:
    if all(fields[name] in (None, ()) for name in _CHANGES):
        refuse("there is nothing to change")


@click.command(cls=Command)
@click.argument("task")
@click.option("--priority", type=params.NUMBER, help="0 (first) to 100 (last).")
@click.option("--deadline", type=params.when, help="ISO time, or from now: 15m, 2h, 3d.")
@click.option("--at", "run_at", type=params.when, help="Start not before this ISO time, or from now: 15m, 2h, 3d.")
@click.option("--expires", "expires_at", type=params.when, help="Cancel it if it has not started by then; like --at.")
@click.option("--timeout", "timeout_sec", type=params.NUMBER, help="Timeout of an attempt, in seconds.")
@click.option("--max-attempts", type=int, help="Attempts before it is a dead letter.")
@click.option(
    "--estimated-cost", "estimated_cost_usd", type=params.NUMBER, help="Dollars an agent must have left to take it."
)
@click.option("--tag", "tags", multiple=True, help="Its tags from now on. Repeatable.")
@click.option("--depends", "dependencies", multiple=True, metavar="TASK", help="A task it depends on. Repeatable.")
@click.option(
    "--clear",
    multiple=True,
    metavar="FIELD",
    help="Empty deadline, run_at, expires_at, timeout_sec, tags or dependencies.",
)
@click.option("--note", help="The reason, recorded in the history.")
@click.option("--version", type=int, help="Only if the task is still at this version.")
@with_queue(check=_anything)
async def update(
    shell: Shell, queue: AnyQueue, *, task: str, note: str | None, version: int | None, **fields: Any
) -> None:
    """Change a task that no one holds."""
    changes = params.given_fields(fields, queue.now())
    for name in _LISTS.intersection(changes.get("clear", ())):
        changes["clear"].remove(name)
        changes[name] = []
    if note is not None:
        changes["note"] = note
    show_outcome(shell, await queue.tasks.update(task, changes, version=version))
