"""`dlq`: dead letters, and people's decisions about them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from shiftwork.cli import change_commands, params, printing
from shiftwork.cli.groups import listing
from shiftwork.cli.params import When
from shiftwork.cli.shell import Answer, Decorator, Shell, together, with_queue
from shiftwork.cli.show_commands import review_table
from shiftwork.model import ids
from shiftwork.model.errors import NotFound, ShiftworkError

if TYPE_CHECKING:
    from shiftwork.client import AnyQueue
    from shiftwork.dead_letters.model import DeadLetter, Decision, FailureGroup


@listing("dead_letters", covers={"review": "dlq retry", "reviews": "dlq show"})
def dlq() -> None:
    """Show dead letters and decide about them. Without a subcommand: the open ones."""


@dlq.shows("list")
@click.option("--all", "reviewed_too", is_flag=True, help="Include decided ones.")
@click.option("--signature", help="Only those with this signature; see `dlq groups`.")
@click.option("--after", metavar="TASK", help="Continue after this task.")
def _table(letters: list[DeadLetter]) -> None:
    """List dead letters that wait for a decision."""
    columns = ["task", "type", "reason", "attempts", "cost", "dead since", "decided", "signature", "error"]
    printing.table(columns, [_row(letter) for letter in letters], "no dead letters")


def _row(letter: DeadLetter) -> tuple[object, ...]:
    return (
        letter.task_id,
        letter.type,
        letter.reason,
        letter.retry_count,
        printing.usd(letter.total_cost_usd),
        printing.when(letter.dead_lettered_at),
        letter.resolution,
        letter.signature,
        printing.clip(letter.error),
    )


@dlq.shows("groups")
def _groups(found: list[FailureGroup]) -> None:
    """Group the open dead letters by what they have in common, the largest group first."""
    rows = [(g.signature, g.total, g.type, g.reason, printing.when(g.last_at), printing.clip(g.example)) for g in found]
    printing.table(["signature", "letters", "type", "reason", "last", "example"], rows, "no dead letters")


@dlq.command("show")
@click.argument("task")
@with_queue()
async def show_letter(shell: Shell, queue: AnyQueue, *, task: str) -> None:
    """Show one dead letter: its attempts, costs and decisions."""
    found = await queue.get(task)
    letters = [letter for letter in await _letters_from(queue, found.id) if letter.task_id == found.id]
    if not letters:
        raise NotFound(f"task {found.id} is {found.status}, not a dead letter", task_id=found.id, status=found.status)
    letter, reviews = letters[-1], await queue.dead_letters.reviews(found.id)

    def text() -> None:
        _letter(letter)
        if reviews:
            printing.section("Reviews", lambda: review_table(reviews))

    shell.answer({**printing.plain(letter), "reviews": reviews}, text)


async def _letters_from(queue: AnyQueue, task_id: str) -> list[DeadLetter]:
    """The cursor of the page that begins with this task: the id just before it."""
    before = f"{int((ids.parse(task_id) or '').replace('-', ''), 16) - 1:032x}"
    return await queue.dead_letters.list(reviewed_too=True, after=before, limit=100)


def _letter(letter: DeadLetter) -> None:
    printing.facts(
        [
            ("task", letter.task_id),
            ("type", letter.type),
            ("reason", letter.reason),
            ("error", letter.error),
            ("attempts", letter.retry_count),
            ("cost", printing.usd(letter.total_cost_usd)),
            ("dead since", printing.when(letter.dead_lettered_at)),
            ("poison", "yes" if letter.poison_pill else None),
            ("decided", letter.resolution),
            ("signature", letter.signature),
            ("payload", printing.pretty(letter.payload) if letter.payload else None),
        ]
    )
    rows = [(printing.when(f.at), f.agent, f.reason, printing.clip(f.error, 200)) for f in letter.failure_history]
    if rows:
        printing.section("Failed attempts", lambda: printing.table(["at", "agent", "reason", "error"], rows))


def _decision(name: Decision, text: str, *more: Decorator) -> None:
    """A command that makes one decision about any number of tasks."""

    @together(
        click.argument("tasks", metavar="TASK...", nargs=-1, required=True),
        click.option("--note", help="The reason, recorded in the history."),
        click.option("--version", type=int, help="Only if the task is still at this version."),
        *more,
    )
    @with_queue()
    async def decide(
        shell: Shell,
        queue: AnyQueue,
        *,
        tasks: tuple[str, ...],
        note: str | None,
        version: int | None,
        at: When | None = None,
        change: dict[str, Any] | None = None,
        chain: bool = False,
    ) -> Answer:
        from shiftwork.model.outcome import Outcome  # noqa: PLC0415  # no queue for `--help`

        done = []
        for task in tasks:
            until = at.at(queue.now()) if at else None
            try:
                outcome = await queue.dead_letters.review(
                    task, name, note=note, at=until, change=change, chain=chain, version=version
                )
            except ShiftworkError as error:
                outcome = Outcome(task, error=error)
            done.append(outcome)
        return change_commands.outcomes(shell, done)

    decide.__doc__ = text
    dlq.command({"modify_and_retry": "modify"}.get(name, name.replace("_", "-")))(decide)


_CHAIN = click.option("--chain", is_flag=True, help="Also bring back dependents that were cancelled because of it.")

_decision("retry", "Retry now, with new attempts.", _CHAIN)
_decision(
    "retry_later",
    "Retry at a time.",
    click.option("--at", type=params.when, required=True, help="ISO time, or from now: 15m, 2h, 3d."),
    _CHAIN,
)
_decision(
    "modify_and_retry",
    "Change fields of the task and retry.",
    click.option(
        "--change",
        type=params.json_object,
        metavar="JSON",
        required=True,
        help="Fields to replace: a JSON object, or - for stdin.",
    ),
    _CHAIN,
)
_decision("cancel", "Cancel the task, and its dependents as their settings say.")
_decision("abandon", "Mark it as not worth fixing; it stays as it is.")
_decision("delete", "Hide the dead letter; the task and its history stay.")
_decision("escalate", "Leave it open for someone else to decide.")


@dlq.command()
@click.argument("tasks", metavar="TASK...", nargs=-1, required=True)
@click.option(
    "--payload",
    type=params.payload_part,
    multiple=True,
    callback=params.merged,
    metavar="KEY=TEXT|KEY:=JSON|JSON",
    help="The corrected payload, whole, as `submit` takes it. Repeatable.",
)
@click.option("--note", help="The reason, recorded in the history.")
@with_queue()
async def replay(
    shell: Shell, queue: AnyQueue, *, tasks: tuple[str, ...], payload: dict[str, Any] | None, note: str | None
) -> Answer:
    """Retry now, with the corrected payload if one is given. `abandon` is for those not worth fixing."""
    from shiftwork.model.outcome import Outcome  # noqa: PLC0415  # no queue for `--help`

    decision: Decision = "retry" if payload is None else "modify_and_retry"
    change = None if payload is None else {"payload": payload}
    done = []
    for task in tasks:
        try:
            done.append(await queue.dead_letters.review(task, decision, note=note, change=change))
        except ShiftworkError as error:
            done.append(Outcome(task, error=error))
    return change_commands.outcomes(shell, done)


@dlq.command()
@click.argument("signature")
@click.option("--decision", default="retry", show_default=True, help="The decision for each of them.")
@click.option("--at", type=params.when, help="When, for retry_later.")
@click.option("--note", help="The reason, recorded in the history.")
@with_queue()
async def redrive(
    shell: Shell, queue: AnyQueue, *, signature: str, decision: Decision, at: When | None, note: str | None
) -> Answer:
    """Make one decision for all dead letters with the same signature; `dlq groups` lists the signatures."""
    until = at.at(queue.now()) if at else None
    return change_commands.outcomes(shell, await queue.dead_letters.redrive(signature, decision, note=note, at=until))
