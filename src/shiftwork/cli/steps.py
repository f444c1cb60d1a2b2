"""`steps`, `step` and `effects`: durable steps and outside actions of a task, also from a shell script."""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click
import msgspec

from shiftwork.cli import params, printing
from shiftwork.cli.claim_commands import under_claim, usage_options
from shiftwork.cli.exit_codes import ExitCode
from shiftwork.cli.groups import listing
from shiftwork.cli.shell import Answer, Command, Shell, refuse, with_queue
from shiftwork.cli.work_commands import COMMAND, WorkCommand
from shiftwork.model import ids
from shiftwork.model.errors import BadText, LeaseLost, OperationTimeout, StoreError

if TYPE_CHECKING:
    from asyncio.subprocess import Process

    from shiftwork.client import AnyQueue
    from shiftwork.steps.model import Effect, Step


@click.command(cls=Command)
@click.argument("task")
@click.option("--after", type=int, default=0, metavar="PLACE", help="Continue after this step.")
@click.option("--limit", type=int, default=100, show_default=True, help="Maximum number to show.")
@with_queue()
async def steps(shell: Shell, queue: AnyQueue, *, task: str, after: int, limit: int) -> None:
    """Show the steps of a task: finished and interrupted ones, with their costs."""
    found = await queue.steps.list(task, after=after, limit=limit)
    columns = ["place", "step", "status", "fence", "cost", "tokens", "done", "result"]
    rows = [_row(step) for step in found]
    shell.answer([with_result(step) for step in found], lambda: printing.table(columns, rows, "no steps"))


def with_result(record: Step | Effect) -> dict[str, Any]:
    """The record for programs, with the agent's result unchanged."""
    return {**msgspec.structs.asdict(record), "result": msgspec.Raw(msgspec.json.encode(record.result))}


def _row(step: Step) -> tuple[object, ...]:
    cost, tokens = printing.usd(step.cost_usd) if step.cost_usd else "", step.tokens_in + step.tokens_out
    result = printing.clip(_text(step.result)) if step.status == "done" else ""
    return (step.place, step.name, step.status, step.fence, cost, tokens or "", printing.when(step.done_at), result)


def _text(result: Any) -> str:
    """A result for a script: text unchanged, anything else as JSON."""
    return result if isinstance(result, str) else msgspec.json.encode(result).decode()


@click.command(cls=WorkCommand)
@click.option("--begin", is_flag=True, help="Only begin it, and print whether it is already done.")
@click.option("--data", metavar="JSON", help="Its result: JSON, @file, or - for stdin.")
@usage_options
@under_claim
@click.argument("name", metavar="NAME [-- COMMAND...]")
async def step(
    shell: Shell, queue: AnyQueue, token: str, *, name: str, begin: bool, data: str | None, usage: Any
) -> Answer:
    """Do a step of claimed work once, across all attempts.

    A command after `--` runs unless the step is done, and its output becomes the step's result; a finished step
    prints that again. A failing command stores no result, and its exit code is returned.
    """
    command = click.get_current_context().meta.get(COMMAND)
    if sum((begin, data is not None, command is not None)) != 1:
        refuse("choose what to do with the step: --begin, --data JSON, or a command after --")
    if command is not None:
        return await _run(shell, queue, token, name, command, usage)
    if begin:
        _print(shell, await queue.steps.begin(token, name))
    else:
        _print(shell, await queue.steps.complete(token, name, params.json_value(data or ""), usage))
    return None


def _print(shell: Shell, step: Step) -> None:
    shell.answer(with_result(step), lambda: click.echo(printing.clean(f"{step.name} {step.status}")))


async def _run(shell: Shell, queue: AnyQueue, token: str, name: str, command: list[str], usage: Any) -> Answer:
    begun = await queue.steps.begin(token, name)
    if begun.status != "done":
        output, code = await _output(queue, token, command)
        if code:
            click.echo(output, nl=False)
            return code
        begun = await queue.steps.complete(token, name, output, usage)
    shell.answer(with_result(begun), lambda: click.echo(_text(begun.result), nl=False))
    return None


async def _output(queue: AnyQueue, token: str, command: list[str]) -> tuple[str, int]:
    """Run the command and return its output and exit code. Heartbeats keep the claim; if it is lost, the command is
    ended.
    """
    sys.stdout.flush()
    try:
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    except OSError as error:
        refuse(f"{command[0]} cannot be run: {error.strerror}")
    beating = asyncio.create_task(_beat(queue, token, process))
    try:
        raw, _ = await process.communicate()
    finally:
        beating.cancel()
        with suppress(ProcessLookupError):
            process.kill()
    with suppress(asyncio.CancelledError):
        await beating
    try:
        return raw.decode(), process.returncode or ExitCode.OK
    except UnicodeDecodeError:
        raise BadText(f"what {command[0]} printed is not UTF-8", where="command") from None


async def _beat(queue: AnyQueue, token: str, process: Process) -> None:
    task_id, _ = ids.split_token(token) or (token, 0)
    interval = (await queue.get(task_id)).claim.heartbeat_interval_sec
    while True:
        await asyncio.sleep(interval)
        with suppress(StoreError, OperationTimeout):  # the store may be back for the next heartbeat, or for the result
            answer = await queue.heartbeat(token)
            if answer.action in {"cancel", "lost"}:
                process.kill()
                raise LeaseLost(f"the work is no longer needed: {answer.reason or answer.action}", task_id=task_id)


_DATA = click.option("--data", type=params.json_value, metavar="JSON", help="Its result: JSON, @file, or - for stdin.")


@listing("effects", covers={"of-task": "effects list", "of-workspace": "effects list"})
def effects() -> None:
    """Show effects, perform them once, and record their outcomes. Without a subcommand: those not known to be done."""


@effects.command("list")
@click.option("--task", "task_id", help="Only those of this task.")
@click.option("--key", help="Only the one with this key.")
@click.option("--all", "all_", is_flag=True, help="Include finished ones.")
@click.option("--limit", type=int, default=100, show_default=True, help="Maximum number to show.")
@click.option("--after", default="", metavar="KEY", help="Continue after this key.")
@with_queue()
async def list_(
    shell: Shell, queue: AnyQueue, *, task_id: str | None, key: str | None, all_: bool, limit: int, after: str
) -> None:
    """List effects by key; without --task, --key or --all, those not known to be done."""
    open_only = not (task_id or key or all_)
    found = await queue.effects.list(task_id, key=key, open_only=open_only, limit=limit, after=after)
    columns = ["key", "status", "task", "fence", "began", "done", "resolved by", "result"]
    rows = [_effect_row(effect) for effect in found]
    shell.answer([with_result(effect) for effect in found], lambda: printing.table(columns, rows, "no effects"))


def _effect_row(effect: Effect) -> tuple[object, ...]:
    times = printing.when(effect.began_at), printing.when(effect.done_at)
    result = "" if effect.result is None else printing.clip(printing.pretty(effect.result))
    return (effect.key, effect.status, effect.task_id, effect.fence, *times, effect.resolved_by, result)


def _print_effect(shell: Shell, effect: Effect) -> Answer:
    shell.answer(with_result(effect), lambda: click.echo(printing.clean(f"{effect.status} {effect.key}")))
    return ExitCode.CONFLICT if effect.status in {"in_flight", "unknown"} else None


@effects.command()
@click.option("--key", help="A key that means the same in every task, instead of a name.")
@under_claim
@click.argument("name", required=False)
async def begin(shell: Shell, queue: AnyQueue, token: str, *, name: str | None, key: str | None) -> Answer:
    """Record the intent of an outside action. Prints new, done, in_flight or unknown, and the key.

    Perform the action only after new, then `finish` it. The last two exit with code 4: another task is performing it,
    or an earlier attempt was, with an unknown outcome. Find out and `finish`, or `fail --reason effect_unknown`, which
    asks a person.
    """
    if (name is None) == (key is None):
        refuse("give the effect either a NAME or a --key")
    return _print_effect(shell, await queue.effects.begin(token, name, key=key))


@effects.command()
@_DATA
@click.option("--not-happened", is_flag=True, help="It did not happen and can be retried.")
@under_claim
@click.argument("key")
async def finish(shell: Shell, queue: AnyQueue, token: str, *, key: str, data: Any, not_happened: bool) -> Answer:
    """Record the outcome of an effect begun under this claim."""
    return _print_effect(shell, await queue.effects.finish(token, key, data, happened=not not_happened))


@effects.command()
@click.argument("key")
@click.option("--happened/--not-happened", required=True, help="Whether it happened.")
@_DATA
@click.option("--note", help="How you know, recorded in the history.")
@with_queue()
async def resolve(shell: Shell, queue: AnyQueue, *, key: str, happened: bool, data: Any, note: str | None) -> Answer:
    """Resolve an unknown effect: say whether it happened. The task that failed over it is retried."""
    return _print_effect(shell, await queue.effects.resolve(key, happened=happened, result=data, note=note))
