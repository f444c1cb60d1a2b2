"""Commands for waits: `wait` for agents; `signal`, `approvals`, `approve`, `answer` for people and programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
import msgspec

from shiftwork.cli import change_commands, params, printing
from shiftwork.cli.claim_commands import under_claim
from shiftwork.cli.exit_codes import ExitCode
from shiftwork.cli.shell import Answer, Command, Shell, refuse, with_queue
from shiftwork.model.states import State

if TYPE_CHECKING:
    from shiftwork.client import AnyQueue
    from shiftwork.model.task import Failures, Wait
    from shiftwork.waits.model import ApprovalRequest, WaitResult


@click.command(cls=Command)
@click.option("--until", type=params.when, help="Until this time: ISO, or from now: 15m, 2h, 3d.")
@click.option("--signal", metavar="NAME", help="Until this signal is sent.")
@click.option("--ask", "question", metavar="TEXT", help="Until a person has answered this.")
@click.option("--schema", type=params.json_object, metavar="JSON", help="A JSON Schema for the answer.")
@click.option("--timeout", "timeout_sec", type=params.duration, help="How long at most: 90s, 15m, 2h, 3d.")
@click.option("--task", "tasks", multiple=True, metavar="TASK", help="Until this task is done. Repeatable.")
@click.option(
    "--failures",
    type=click.Choice(["wait", "return"]),
    default="wait",
    show_default=True,
    help="return: the tasks are done once they have ended, failed or not.",
)
@under_claim
@click.argument("name", metavar="[NAME]", required=False)
async def wait(
    shell: Shell,
    queue: AnyQueue,
    token: str,
    *,
    name: str | None,
    tasks: tuple[str, ...],
    failures: Failures,
    **terms: Any,
) -> Answer:
    """Wait under a NAME and print the result.

    While the wait is open, the slot is freed and this exits with code 4: end the agent, too. The task is handed out
    again later, and the same command then prints the signal's data or the answer, or exits with code 4 again and
    reports that the wait expired. Without a NAME, it waits for tasks, and exits with 0 once they are all done.
    """
    if bool(name) == bool(tasks):
        refuse("give a NAME, or tasks with --task")
    if tasks:
        reply = await queue.waits.request(token, tasks=tasks, failures=failures)
        shell.answer({"status": reply.status, "failed": reply.failed}, lambda: _print_tasks(reply))
        return None if reply.status == State.RUNNING else ExitCode.CONFLICT
    found = await queue.waits.wait(token, name or "", **params.given_fields(terms, queue.now()))
    shell.answer(found, lambda: _print(found))
    return None if found.status == "met" else ExitCode.CONFLICT


def _print_tasks(reply: WaitResult) -> None:
    click.echo(f"the task is {reply.status}")
    for each in reply.failed:
        click.echo(printing.clean(f"{each.task_id} is {each.status}: {each.reason}: {each.error or ''}"))


def _print(wait: Wait) -> None:
    if wait.status == "met":
        click.echo(_text(wait.value))
    elif wait.status == "expired":
        click.echo(printing.clean(f"{wait.name}: expired"), err=True)
    else:
        click.echo(printing.clean(f"{wait.name}: the task waits"), err=True)


def _text(value: Any) -> str:
    """The result for a script: text unchanged, nothing as nothing, anything else as JSON."""
    if value is None:
        return ""
    return printing.clean(value) if isinstance(value, str) else msgspec.json.encode(value).decode()


@click.command(cls=Command)
@click.argument("name")
@click.option("--data", type=params.word_or_json, metavar="VALUE", help="The value: JSON, or a word.")
@click.option("--task", help="Only to this task.")
@with_queue()
async def signal(shell: Shell, queue: AnyQueue, *, name: str, data: Any, task: str | None) -> None:
    """Send the signal NAME to tasks that wait for it. It is kept for a day for later waits."""
    sent = await queue.waits.signal(name, data, task=task)
    shell.answer(sent, lambda: click.echo(printing.clean(f"signal {sent.name}: {_woken(sent.freed)}")))


def _woken(count: int) -> str:
    return {0: "no task was waiting for it", 1: "1 task continues"}.get(count, f"{count} tasks continue")


@click.command(cls=Command)
@click.option("--kind", type=click.Choice(["approval", "question"]), help="Only these.")
@click.option("--type", help="Of tasks of this type.")
@click.option("--task", help="Of this task.")
@click.option("--after", metavar="TASK", help="Continue after this task.")
@click.option("--limit", type=int, default=100, show_default=True, help="Maximum number to show.")
@with_queue()
async def approvals(shell: Shell, queue: AnyQueue, **conditions: Any) -> None:
    """List open requests to people. Approvals that guards require, and questions of agents."""
    found = await queue.approvals.list(**conditions)
    columns = ["task", "kind", "type", "what", "asked", "expires", "revision"]
    now = queue.now()
    shell.answer(
        found, lambda: printing.table(columns, [_row(asked, now) for asked in found], "no open questions or approvals")
    )


def _row(asked: ApprovalRequest, now: float) -> tuple[object, ...]:
    what = asked.question or asked.title or msgspec.json.encode(asked.payload).decode()
    age, end = printing.ago(asked.asked_at, now), printing.ago(asked.expires_at, now)
    return (asked.task_id, asked.kind, asked.type, printing.clip(what), age, end, asked.revision)


@click.command(cls=Command)
@click.argument("task")
@click.option("--reject", is_flag=True, help="Reject it: the task is cancelled.")
@click.option("--note", help="The reason, recorded in the history.")
@click.option("--revision", help="Only if the work is still this revision, which `approvals` shows.")
@click.option("--version", type=int, help="Only if the task is still at this version.")
@with_queue()
async def approve(shell: Shell, queue: AnyQueue, *, task: str, reject: bool, **stated: Any) -> None:
    """Approve a task that a guard has stopped, or cancel it with --reject."""
    decide = queue.approvals.reject if reject else queue.approvals.approve
    change_commands.show_outcome(shell, await decide(task, **stated))


@click.command(cls=Command)
@click.argument("task")
@click.option("--data", type=params.word_or_json, required=True, metavar="VALUE", help="The answer: JSON, or a word.")
@with_queue()
async def answer(shell: Shell, queue: AnyQueue, *, task: str, data: Any) -> None:
    """Answer a task's question. `approvals` lists them."""
    change_commands.show_outcome(shell, await queue.approvals.answer(task, data))
