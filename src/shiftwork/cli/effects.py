"""`effects`: outside actions that happen once, and manual resolution of unknown ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from shiftwork.cli import printing, values
from shiftwork.cli.codes import ExitCode
from shiftwork.cli.groups import listing
from shiftwork.cli.shell import Answer, Shell, refuse, with_queue
from shiftwork.cli.steps import with_result
from shiftwork.cli.working import under_claim

if TYPE_CHECKING:
    from shiftwork.client import AnyQueue
    from shiftwork.steps.model import Effect

_DATA = click.option("--data", type=values.json_value, metavar="JSON", help="Its result: JSON, @file, or - for stdin.")


@listing("effects", covers={"of-task": "effects list", "of-workspace": "effects list"})
def effects() -> None:
    """Show effects, do them once, and say how they ended. Alone: those not known to be done."""


@effects.command("list")
@click.option("--task", "task_id", help="Only those of this task.")
@click.option("--key", help="Only the one with this key.")
@click.option("--all", "all_", is_flag=True, help="Also those that are done.")
@click.option("--limit", type=int, default=100, show_default=True, help="Maximum number to show.")
@click.option("--after", default="", metavar="KEY", help="Go on behind this key.")
@with_queue()
async def list_(
    shell: Shell, queue: AnyQueue, *, task_id: str | None, key: str | None, all_: bool, limit: int, after: str
) -> Answer:
    """List effects in the order of their keys; without --task, --key or --all those not known to be done."""
    open_only = not (task_id or key or all_)
    found = await queue.effects.list(task_id, key=key, open_only=open_only, limit=limit, after=after)
    columns = ["key", "status", "task", "fence", "began", "done", "said by", "result"]
    rows = [_row(effect) for effect in found]
    shell.answer([with_result(effect) for effect in found], lambda: printing.table(columns, rows, "no effects"))
    return None


def _row(effect: Effect) -> tuple[object, ...]:
    times = printing.when(effect.began_at), printing.when(effect.done_at)
    result = "" if effect.result is None else printing.clip(printing.pretty(effect.result))
    return (effect.key, effect.status, effect.task_id, effect.fence, *times, effect.resolved_by, result)


def _print(shell: Shell, effect: Effect) -> Answer:
    shell.answer(with_result(effect), lambda: click.echo(printing.clean(f"{effect.status} {effect.key}")))
    return ExitCode.CONFLICT if effect.status in {"in_flight", "unknown"} else None


@effects.command()
@click.option("--key", help="A key that means the same in every task, instead of a name.")
@under_claim
@click.argument("name", required=False)
async def begin(shell: Shell, queue: AnyQueue, token: str, *, name: str | None, key: str | None) -> Answer:
    """Write down the intent to act outside. Prints new, done, in_flight or unknown, and the key.

    Only after new is it yours to do; then `finish` it. The last two end with code 4: another task is at it, or an
    earlier attempt was and no one knows how it ended. Find out and `finish`, or `fail --reason effect_unknown`, which
    asks a person.
    """
    if (name is None) == (key is None):
        refuse("give the effect either a NAME or a --key")
    return _print(shell, await queue.effects.begin(token, name, key=key))


@effects.command()
@_DATA
@click.option("--not-happened", is_flag=True, help="It did not happen and can be tried again.")
@under_claim
@click.argument("key")
async def finish(shell: Shell, queue: AnyQueue, token: str, *, key: str, data: Any, not_happened: bool) -> Answer:
    """Say how an effect ended that was begun under this claim."""
    return _print(shell, await queue.effects.finish(token, key, data, happened=not not_happened))


@effects.command()
@click.argument("key")
@click.option("--happened/--not-happened", required=True, help="Whether it happened.")
@_DATA
@click.option("--note", help="How you know, recorded in the history.")
@with_queue()
async def resolve(shell: Shell, queue: AnyQueue, *, key: str, happened: bool, data: Any, note: str | None) -> Answer:
    """Say of an unknown effect whether it happened. The task that failed over the question is tried again."""
    return _print(shell, await queue.effects.resolve(key, happened=happened, result=data, note=note))
