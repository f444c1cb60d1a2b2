"""`steps` and `step`: what a task has done so far, and a step of an agent that is a shell script."""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click
import msgspec

from shiftwork.cli import printing, values
from shiftwork.cli.codes import ExitCode
from shiftwork.cli.shell import Answer, Command, Shell, refuse, with_queue
from shiftwork.cli.work import COMMAND, WorkCommand
from shiftwork.cli.working import under_claim, usage_options
from shiftwork.model import ids
from shiftwork.model.errors import BadText, LeaseLost, OperationTimeout, StoreError

if TYPE_CHECKING:
    from asyncio.subprocess import Process

    from shiftwork.client import AnyQueue
    from shiftwork.steps.model import Effect, Step


@click.command(cls=Command)
@click.argument("task")
@click.option("--after", type=int, default=0, metavar="PLACE", help="Go on behind this step.")
@click.option("--limit", type=int, default=100, show_default=True, help="Maximum number to show.")
@with_queue()
async def steps(shell: Shell, queue: AnyQueue, *, task: str, after: int, limit: int) -> Answer:
    """Show the steps of a task: what is done, what it cost, what was interrupted."""
    found = await queue.steps.list(task, after=after, limit=limit)
    columns = ["place", "step", "status", "fence", "cost", "tokens", "done", "result"]
    rows = [_row(step) for step in found]
    shell.answer([with_result(step) for step in found], lambda: printing.table(columns, rows, "no steps"))
    return None


def with_result(record: Step | Effect) -> dict[str, Any]:
    """The record for programs, its result as the agent wrote it: times are not looked for inside."""
    return {**msgspec.structs.asdict(record), "result": msgspec.Raw(msgspec.json.encode(record.result))}


def _row(step: Step) -> tuple[object, ...]:
    cost, tokens = printing.usd(step.cost_usd) if step.cost_usd else "", step.tokens_in + step.tokens_out
    result = printing.clip(_text(step.result)) if step.status == "done" else ""
    return (step.place, step.name, step.status, step.fence, cost, tokens or "", printing.when(step.done_at), result)


def _text(result: Any) -> str:
    """A result as a script wants it: text as it is, anything else as JSON."""
    return result if isinstance(result, str) else msgspec.json.encode(result).decode()


@click.command(cls=WorkCommand)
@click.option("--begin", is_flag=True, help="Only print whether it is done; it is in flight from now on.")
@click.option("--data", metavar="JSON", help="Its result: JSON, @file, or - for stdin.")
@usage_options
@under_claim
@click.argument("name", metavar="NAME [-- COMMAND...]")
async def step(
    shell: Shell, queue: AnyQueue, token: str, *, name: str, begin: bool, data: str | None, usage: Any
) -> Answer:
    """Do a step of claimed work once, however often the work is tried.

    With a command after `--`, it is run unless the step is done, and what it prints is the step's result; a step that
    is done prints that again. A command that fails leaves no result, and its exit code is this one's.
    """
    command = click.get_current_context().meta.get(COMMAND)
    if sum((begin, data is not None, command is not None)) != 1:
        refuse("choose what to do with the step: --begin, --data JSON, or a command after --")
    if command is not None:
        return await _run(shell, queue, token, name, command, usage)
    if begin:
        _print(shell, await queue.steps.begin(token, name))
    else:
        _print(shell, await queue.steps.complete(token, name, values.json_value(data or ""), usage))
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
    """What the command prints, and its exit code. Its claim is kept up meanwhile, and it ends with the claim."""
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
        with suppress(StoreError, OperationTimeout):  # it is there again for the next beat, or for the result
            answer = await queue.heartbeat(token)
            if answer.action in {"cancel", "lost"}:
                process.kill()
                raise LeaseLost(f"the work is not wanted any more: {answer.reason or answer.action}", task_id=task_id)
