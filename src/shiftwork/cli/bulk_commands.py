"""Commands that change all tasks that match: `cancel`, `retry`, `priority`, `purge`. They count first, and ask."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from shiftwork.cli import change_commands, params, printing
from shiftwork.cli.exit_codes import ExitCode
from shiftwork.cli.shell import Answer, Command, Shell, filled, refuse, together, with_queue
from shiftwork.model.errors import ShiftworkError
from shiftwork.model.states import CLAIMED_STATES, STORED, WAITING

if TYPE_CHECKING:
    from shiftwork.bulk.model import Action, BulkPage, BulkResult
    from shiftwork.client import AnyQueue
    from shiftwork.model.outcome import Outcome

CONDITIONS = ("status", "type", "tag", "agent", "issue", "dag", "since", "until", "search", "failure_reason")
_DONE = {"cancel": "cancelled", "retry": "retried", "set_priority": "changed", "purge": "purged"}
_DOES = {"cancel": "cancels", "retry": "retries", "set_priority": "changes the priority of", "purge": "purges"}

conditions = together(
    click.option("--status", multiple=True, metavar="STATUS", help="In this state; several with commas. Repeatable."),
    click.option("--type", callback=filled, help="Of this type."),
    click.option("--tag", callback=filled, help="With this tag."),
    click.option("--agent", callback=filled, help="Held by this agent, or targeted at it."),
    click.option("--issue", callback=filled, help="Of this issue."),
    click.option("--dag", callback=filled, help="Of this DAG."),
    click.option("--since", type=params.past, help="Created since then: ISO time, or 15m, 2h, 3d ago."),
    click.option("--until", type=params.past, help="Created before then: ISO time, or 15m, 2h, 3d ago."),
    click.option(
        "--search", metavar="TEXT", callback=filled, help="Containing these words in title, payload, tags or errors."
    ),
    click.option("--failure-reason", metavar="REASON", callback=filled, help="Whose last failure had this reason."),
)
"""Selects tasks."""

_confirmation = together(
    click.option("--dry-run", is_flag=True, help="Only count."),
    click.option("--yes", is_flag=True, help="Do not ask."),
)


def where(given: dict[str, Any], now: float) -> dict[str, Any]:
    """The given conditions, as the queue takes them."""
    names = {"failure_reason": "reason"}
    found = {name: value for name, value in params.given_fields(given, now).items() if name in CONDITIONS}
    return {names.get(name, name): value for name, value in found.items()}


def _is_given(given: dict[str, Any]) -> bool:
    return any(given.get(name) not in (None, ()) for name in CONDITIONS)


def _either(*, tasks: tuple[str, ...], **given: Any) -> None:
    """Tasks by their ids, or by conditions."""
    if bool(tasks) == _is_given(given):
        refuse("name either tasks or conditions such as --status, --type or --dag")


async def change_all(
    shell: Shell, queue: AnyQueue, action: Action, meant: dict[str, Any], *, yes: bool, dry_run: bool, **more: Any
) -> Answer:
    """Count, ask, and change page by page."""
    change = getattr(queue.bulk, action)
    count: BulkResult = await change(meant, dry_run=True, **more)
    if dry_run:
        shell.answer(count, lambda: click.echo(_counted(count)))
        return None
    if count.matched and not yes and not _is_confirmed(shell, _counted(count)):
        return ExitCode.FAILED
    done: BulkResult = await change(meant, progress=_Progress(count.matched), **more)
    word = await _done_word(queue, action)
    shell.answer(done, lambda: _show(done, word))
    return None


async def _done_word(queue: AnyQueue, action: Action) -> str:
    """Print the outcome; a purge cancels or deletes."""
    if action != "purge":
        return _DONE[action]
    mode = next(each.value for each in await queue.settings.list() if each.key == "purge.mode")
    return f"purged ({'deleted' if mode == 'delete' else 'cancelled'}, as purge.mode says)"


def _counted(count: BulkResult) -> str:
    if not count.matched:
        return "no task matches"
    states = ", ".join(f"{number:,} {state}" for state, number in count.counts.items())
    return f"This {_DOES[count.action]} {_tasks(count.matched)} ({states})"


def _tasks(number: int) -> str:
    return f"{number:,} task{'' if number == 1 else 's'}"


def _is_confirmed(shell: Shell, question: str) -> bool:
    if shell.json or not params.is_typed_at():
        refuse(f"{question}. Pass --yes to confirm")
    if click.confirm(f"{question}. Continue?", err=True):
        return True
    click.echo("nothing was changed", err=True)
    return False


class _Progress:
    """Shows progress on a terminal."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._done = 0

    def __call__(self, page: BulkPage) -> None:
        self._done += page.changed + page.skipped
        if sys.stderr.isatty() and (page.next is not None or self._done > page.changed + page.skipped):
            click.echo(f"\r{self._done:,} of {self._total:,}", nl=page.next is None, err=True)


def _show(done: BulkResult, word: str) -> None:
    skipped = f", {done.skipped:,} skipped" if done.skipped else ""
    click.echo(f"{done.changed:,} {word}{skipped}")
    for outcome in done.refused:
        if outcome.error is not None:
            click.echo(printing.clean(f"skipped: {outcome.error.what}"), err=True)


@click.command(cls=Command)
@click.argument("tasks", metavar="[TASK]...", nargs=-1)
@click.option("--reason", default="cancelled", show_default=True, help="The reason, recorded in the history.")
@click.option("--version", type=int, help="Only if the task is still at this version.")
@conditions
@_confirmation
@with_queue(check=_either)
async def cancel(
    shell: Shell,
    queue: AnyQueue,
    *,
    tasks: tuple[str, ...],
    reason: str,
    version: int | None,
    yes: bool,
    dry_run: bool,
    **given: Any,
) -> Answer:
    """Cancel tasks that have not ended, by their ids or all that match. Dependents follow as their settings say."""
    if tasks:
        return change_commands.outcomes(shell, await queue.batch.cancel(tasks, reason, version=version))
    meant = where(given, queue.now())
    if set(meant) == {"dag"} and not dry_run:
        return change_commands.outcomes(shell, await queue.dags.cancel(meant["dag"], reason))
    return await change_all(shell, queue, "cancel", meant, yes=yes, dry_run=dry_run, reason=reason)


@click.command(cls=Command)
@click.argument("tasks", metavar="[TASK]...", nargs=-1)
@click.option("--note", help="The reason, recorded in the history.")
@conditions
@_confirmation
@with_queue(check=_either)
async def retry(
    shell: Shell, queue: AnyQueue, *, tasks: tuple[str, ...], note: str | None, yes: bool, dry_run: bool, **given: Any
) -> Answer:
    """Retry dead letters and failed tasks, by their ids or all that match. `rerun` repeats a completed task."""
    if tasks:
        return change_commands.outcomes(shell, [await _retry(queue, task, note) for task in tasks])
    return await change_all(shell, queue, "retry", where(given, queue.now()), yes=yes, dry_run=dry_run, note=note)


async def _retry(queue: AnyQueue, task: str, note: str | None) -> Outcome:
    from shiftwork.model.outcome import Outcome  # noqa: PLC0415  # no queue for `--help`

    try:
        return await queue.dead_letters.review(task, "retry", note=note)
    except ShiftworkError as error:
        return Outcome(task, error=error)


@click.command(cls=Command)
@click.argument("priority", type=params.NUMBER)
@click.argument("tasks", metavar="[TASK]...", nargs=-1)
@click.option("--note", help="The reason, recorded in the history.")
@conditions
@_confirmation
@with_queue(check=_either)
async def priority(
    shell: Shell,
    queue: AnyQueue,
    *,
    priority: float,
    tasks: tuple[str, ...],
    note: str | None,
    yes: bool,
    dry_run: bool,
    **given: Any,
) -> Answer:
    """Set the PRIORITY, 0 (first) to 100 (last), of unclaimed tasks, by their ids or all that match."""
    if tasks:
        return change_commands.outcomes(shell, [await _set_priority(queue, task, priority, note) for task in tasks])
    meant = where(given, queue.now())
    more = {"priority": priority, "note": note}
    return await change_all(shell, queue, "set_priority", meant, yes=yes, dry_run=dry_run, **more)


async def _set_priority(queue: AnyQueue, task: str, priority: float, note: str | None) -> Outcome:
    from shiftwork.model.outcome import Outcome  # noqa: PLC0415  # no queue for `--help`

    try:
        return await queue.tasks.update(task, {"priority": priority, **({"note": note} if note else {})})
    except ShiftworkError as error:
        return Outcome(task, error=error)


def _any_condition(*, level: str | None, older_than: float | None, **given: Any) -> None:
    if not _is_given(given) and level is None and older_than is None:
        refuse("a purge needs at least one condition")
    if older_than is not None and given["until"] is not None:
        refuse("give either --older-than or --until")


@click.command(cls=Command)
@conditions
@click.option("--level", type=click.Choice(["high", "medium", "low"]), help="Of this priority level.")
@click.option("--older-than", type=params.duration, help="Created longer ago than this: 15m, 2h, 3d.")
@click.option("--held", is_flag=True, help="Include claimed tasks.")
@_confirmation
@with_queue(check=_any_condition)
async def purge(
    shell: Shell,
    queue: AnyQueue,
    *,
    level: str | None,
    older_than: float | None,
    held: bool,
    yes: bool,
    dry_run: bool,
    **given: Any,
) -> Answer:
    """Remove tasks that match every condition given. The setting purge.mode says whether that cancels or deletes."""
    meant = where(given, queue.now())
    if level is not None:
        meant["level"] = level
    if older_than is not None:
        meant["until"] = queue.now() - older_than
    if held and "status" not in meant:
        meant["status"] = [status for status in STORED if status in WAITING | CLAIMED_STATES]
    return await change_all(shell, queue, "purge", meant, yes=yes, dry_run=dry_run)
