"""`submit`: one task from the command line, or tasks and DAGs from a file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from shiftwork.cli import params, printing
from shiftwork.cli.result_command import place_now, wait_for_dag, wait_for_task, wait_for_tasks, wait_option
from shiftwork.cli.shell import Answer, Command, Shell, filled, refuse, with_queue

if TYPE_CHECKING:
    from shiftwork.client import AnyQueue
    from shiftwork.model.task import Submitted


def _check(
    *,
    kind: str | None,
    given: Any,
    wait_for_room: float,  # noqa: ARG001  # of both ways
    wait: float | None,  # noqa: ARG001  # of both ways
    **fields: Any,
) -> None:
    if given is None and kind is None:
        refuse("TYPE or --file is needed")
    if given is not None and (kind is not None or any(value not in (None, ()) for value in fields.values())):
        refuse("with --file, describe the tasks only in the file")
    if fields["prompt"] is not None and "prompt" in (fields["payload"] or {}):
        refuse("give the prompt once: as --prompt, or in --payload")
    if fields["prompt"] is not None and not fields["prompt"].strip():
        refuse("--prompt must not be empty")


@click.command(cls=Command)
@click.argument("kind", metavar="[TYPE]", required=False)
@click.option(
    "--payload",
    "-p",
    type=params.payload_part,
    multiple=True,
    callback=params.merged,
    metavar="KEY=TEXT|KEY:=JSON|JSON",
    help="A field of the payload as text or as JSON, @file for the value of a file; or the whole payload as a JSON "
    "object, - for standard input. Repeatable.",
)
@click.option(
    "--prompt",
    type=params.text_or_file,
    metavar="TEXT",
    help="What the agent should do: payload.prompt. @file for a file, - for standard input.",
)
@click.option("--title", help="A title for people.")
@click.option("--priority", type=params.NUMBER, help="0 (first) to 100 (last); 50 unless given.")
@click.option("--depends", "dependencies", multiple=True, metavar="TASK", help="Wait for this task. Repeatable.")
@click.option("--tag", "tags", multiple=True, help="A tag. Repeatable.")
@click.option("--idempotency-key", help="Idempotency key: the same key twice is one task.")
@click.option("--id", "id", help="An id of your own.")
@click.option("--issue", "issue_id", help="The issue it belongs to.")
@click.option("--serial-key", help="Tasks with this key run one at a time, if serialize_by is key.")
@click.option("--agent", "target_agent_id", callback=filled, help="Only this agent can claim it.")
@click.option("--urgency", type=click.Choice(["normal", "batch"]), help="batch: it may wait a day, for half the price.")
@click.option("--deadline", type=params.when, help="ISO time, or from now: 15m, 2h, 3d.")
@click.option("--at", "run_at", type=params.when, help="Start not before this ISO time, or from now: 15m, 2h, 3d.")
@click.option("--delay", type=params.duration, metavar="DURATION", help="Start not before this delay: 90s, 15m, 2h.")
@click.option("--expires", "expires_at", type=params.when, help="Cancel it if it has not started by then; like --at.")
@click.option("--timeout", "timeout_sec", type=params.NUMBER, help="Timeout of an attempt, in seconds.")
@click.option("--max-attempts", type=int, help="Attempts before it is a dead letter.")
@click.option(
    "--retry",
    type=params.setting_part,
    multiple=True,
    callback=params.merged,
    metavar="KEY=VALUE|JSON",
    help="How this task is retried, as in the settings retry.*: strategy=fixed, initial_delay_sec=2. Repeatable.",
)
@click.option(
    "--estimated-cost", "estimated_cost_usd", type=params.NUMBER, help="Dollars an agent must have left to take it."
)
@click.option(
    "--tree-budget", "tree_budget_usd", type=params.NUMBER, help="Dollars for all its attempts and what they spawn."
)
@click.option(
    "--file",
    "-f",
    "given",
    type=params.json_file,
    metavar="FILE",
    help='JSON of a task, a list of tasks, or a DAG {"title", "tasks": [...]}; - for standard input.',
)
@click.option(
    "--wait-for-room",
    type=params.duration,
    default="0s",
    metavar="DURATION",
    help="How long to wait for room if the queue is full.",
)
@wait_option
@with_queue(create=True, check=_check)
async def submit(
    shell: Shell,
    queue: AnyQueue,
    *,
    kind: str | None,
    given: Any,
    wait_for_room: float,
    wait: float | None,
    **fields: Any,
) -> Answer:
    """Submit a task of TYPE, or the tasks in a file.

    A list or a DAG is submitted as a whole or not at all; its tasks may depend on each other by their "key". With
    --wait the exit code says how it ended: 0 completed, 8 failed, 9 cancelled, 10 not ended.
    """
    after = 0 if wait is None else await place_now(queue)
    new = {"type": kind, **_fields(fields, queue.now())} if given is None else given
    if isinstance(new, list):
        made = await queue.submit_many(new, wait_for_room=wait_for_room)
        _warn(made)
        if wait is not None:
            return await wait_for_tasks(shell, queue, made, wait, after)
        shell.answer(made, lambda: _list(made))
    elif "tasks" in new:
        dag = await queue.submit_dag(new, wait_for_room=wait_for_room)
        _warn(dag)
        if wait is not None and dag.dag_id is not None:
            return await wait_for_dag(shell, queue, dag.dag_id, wait, after)
        shell.answer({"dag_id": dag.dag_id, "tasks": dag}, lambda: _list(dag, dag.dag_id))
    else:
        task = await queue.submit(new, wait_for_room=wait_for_room)
        _warn([task])
        if wait is not None:
            click.echo(_line(task), err=True)
            await wait_for_task(shell, queue, task.id, wait, after)
        else:
            shell.answer(task, lambda: click.echo(_line(task)))
    return None


def _fields(options: dict[str, Any], now: float) -> dict[str, Any]:
    """The options as fields of a task; a prompt is part of the payload, where workers look for it."""
    fields = params.given_fields(options, now)
    prompt = fields.pop("prompt", None)
    return fields if prompt is None else {**fields, "payload": {**fields.get("payload", {}), "prompt": prompt}}


def _warn(made: Sequence[Submitted]) -> None:
    """Warn of missing dependencies: a misspelt one would block the task silently."""
    for each in made:
        for name in each.missing_dependencies:
            what = f"warning: there is no task {name!r} yet; {each.id} waits until it is submitted and done."
            click.echo(printing.clean(what), err=True)


def _line(made: Submitted) -> str:
    return f"{made.id} {made.status}" + (" (already exists)" if made.duplicate else "")


def _list(made: Sequence[Submitted], dag_id: str | None = None) -> None:
    if dag_id:
        click.echo(dag_id)
    printing.table(
        ["task", "status", "key", ""],
        [(m.id, m.status, m.key, "already exists" if m.duplicate else "") for m in made],
        "no tasks were given",
    )
