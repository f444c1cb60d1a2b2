"""`work` and `demo`: run a worker that a program declares or a command as one, or watch a small fleet."""

from __future__ import annotations

import functools
import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shiftwork import logs
from shiftwork.cli import params
from shiftwork.cli.printing import reserved_stdout
from shiftwork.cli.shell import Answer, Command, Shell, current, filled, refuse
from shiftwork.model.errors import InputError

if TYPE_CHECKING:
    from shiftwork.worker.command_line import Program

COMMAND = "shiftwork.command"
"""The key of the words after `--` until the command is run."""


class WorkCommand(Command):
    """A command that takes another command after `--`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args:
            at = args.index("--")
            ctx.meta[COMMAND] = args[at + 1 :]
            args = args[:at]
        return super().parse_args(ctx, args)


def _words(_context: click.Context, _option: click.Parameter, value: str | None) -> tuple[str, ...] | None:
    try:
        return None if value is None else tuple(shlex.split(value))
    except ValueError as error:
        raise click.BadParameter(f"{value!r} cannot be split into words: {error}") from error


_SECONDS: dict[str, Any] = {"type": params.NumberRange(min=0), "metavar": "SEC"}
_OF_COMMANDS = [
    click.option("--type", "types", multiple=True, metavar="TYPE", help="A type of tasks it does. Repeatable."),
    click.option("--capability", "capabilities", multiple=True, help="A capability. Repeatable."),
    click.option("--model", "models", multiple=True, help="A model it has. Repeatable."),
    click.option(
        "--provider", metavar="NAME", help="The provider account; agents that share it share its rate limits."
    ),
    click.option(
        "--account",
        "accounts",
        multiple=True,
        metavar="NAME",
        help="Its provider account; agents that share it share its limits. Repeatable: each claim names one.",
    ),
    click.option(
        "--agent",
        "agent_id",
        metavar="NAME",
        callback=filled,
        help="The agent's name [default: host and process].",
    ),
    click.option(
        "--stdin", type=click.Choice(["task", "prompt", "none"]), help="Its input [default: the task as JSON]."
    ),
    click.option(
        "--output",
        type=click.Choice(["auto", "text", "json", "stream-json"]),
        help="Its output format [default: auto].",
    ),
    click.option(
        "--resume-args", metavar="WORDS", callback=_words, help="Added to resume a session: '--resume {session_id}'."
    ),
    click.option(
        "--acp",
        metavar="COMMAND",
        callback=_words,
        help="An agent of the Agent Client Protocol instead of a command after --: 'gemini --experimental-acp'.",
    ),
    click.option(
        "--permissions",
        type=click.Choice(["allow", "deny", "ask"]),
        help="The answer to an ACP agent's requests for permission; ask asks a person [default: deny].",
    ),
    click.option("--work-dir", metavar="FOLDER", help="The parent of the tasks' folders [default: next to the queue]."),
    click.option(
        "--worktree",
        metavar="REPO[@BASE]",
        help="Make each task's folder a git worktree on a branch of its own; its diff becomes an artifact.",
    ),
    click.option(
        "--session-files",
        metavar="PATTERN",
        help="Store the agent's session with the task, to resume it on any machine: claude, codex, or a pattern.",
    ),
    click.option(
        "--no-test-pass",
        is_flag=True,
        help="Do not run tasks' test-pass commands here; outputs wait for a verdict from elsewhere.",
    ),
    click.option("--clean", is_flag=True, help="Remove the folder of a task that is completed."),
    click.option("--stop-grace", "stop_grace_sec", **_SECONDS, help="Grace period after SIGTERM [default: 30]."),
    click.option(
        "--kill-after", "kill_after_sec", **_SECONDS, help="Seconds from its SIGTERM to SIGKILL [default: 5]."
    ),
]
"""Named like the fields of `Program`. None has a default: a worker of a module takes none of them."""


def _for_commands(function: Callable[..., Answer]) -> Callable[..., Answer]:
    for option in reversed(_OF_COMMANDS):
        function = option(function)
    return function


@click.command(cls=WorkCommand)
@click.argument("target", metavar="[MODULE:WORKER | -- COMMAND...]", required=False)
@click.option(
    "--processes",
    type=click.IntRange(1, 1024),
    default=1,
    show_default=True,
    help="Number of processes to keep running.",
)
@click.option("--concurrency", type=click.IntRange(min=1), help="Concurrent tasks in each [default: the worker's own].")
@click.option(
    "--runtime",
    "runtime_id",
    metavar="ID",
    callback=filled,
    help="A runtime id that stays the same after a restart: its claims are recovered [default: a new one].",
)
@click.option("--until-idle", is_flag=True, help="End when there is nothing left to do.")
@click.option("--max-tasks", type=click.IntRange(min=1), metavar="N", help="Claim at most N tasks, then end.")
@click.option("--quiet", "-q", is_flag=True, help="Print only warnings and errors: no line per task, no summary.")
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    envvar="SHIFTWORK_LOG_FORMAT",
    show_envvar=True,
    help="For people, or one JSON object a line [default: text, with --json json].",
)
@_for_commands
def work(
    *,
    target: str | None,
    processes: int,
    concurrency: int | None,
    runtime_id: str | None,
    until_idle: bool,
    max_tasks: int | None,
    quiet: bool,
    log_format: str | None,
    **program: Any,
) -> Answer:
    """Run the worker that a module declares, or a command for every task, until it is stopped.

    The options from --type on are for a command. It works on one task at a time unless --concurrency says otherwise.

    Prints a start line, a line per task (at high rates, one line a second) and a summary to standard error. With --json
    these lines are JSON, and the summary of all processes is a document on standard output; `silent` counts killed
    processes, which are missing from it. Handlers' output then goes to standard error.
    """
    shell = current()
    given = {name: value for name, value in program.items() if value is not None and value != () and value is not False}
    runs = click.get_current_context().meta.get(COMMAND)
    if acp := given.pop("acp", None):
        if runs is not None:
            refuse("name a command after -- or with --acp, not both")
        runs, given["acp"] = list(acp), True
    elif "permissions" in given:
        refuse("--permissions is for an agent of --acp")
    if runs is None:
        target = _of_module(shell, target, given)
    elif target is not None:
        refuse("name a worker or a command, not both")
    else:
        target = _program(shell, runs, given).target()
    if max_tasks is not None and processes > 1:
        refuse("--max-tasks is for one process; leave out --processes")
    log_format = log_format or ("json" if shell.json else "text")
    logs.set_up(json=log_format == "json", quiet=quiet)
    os.environ["SHIFTWORK_LOG_FORMAT"] = log_format  # read by its children
    if shell.token is not None:
        os.environ["SHIFTWORK_TOKEN"] = shell.token  # read by this worker, its heartbeats and its children
    from shiftwork.worker import load_worker, run_summary  # noqa: PLC0415  # no worker for `--help`

    options: dict[str, Any] = {"processes": processes, "concurrency": concurrency, "until_idle": until_idle}
    options |= {"max_tasks": max_tasks, "runtime_id": runtime_id}
    run = functools.partial(load_worker.run, target, url=shell.store, **options)
    if not shell.json:
        printed = not quiet and log_format == "text"
        return run(report=(lambda *found: _print_summary(run_summary.total(*found))) if printed else None)
    with reserved_stdout() as document:
        return run(report=lambda summaries, silent: document(run_summary.total(summaries, silent)))


def _print_summary(total: dict[str, Any]) -> None:
    """The summary as a small table of non-zero counts."""
    from shiftwork.model.text import dollars, duration  # noqa: PLC0415  # likewise
    from shiftwork.worker.delivery import COUNTS  # noqa: PLC0415  # no worker for `--help`

    rows = [(name, f"{total[name]:,}") for name in COUNTS if total[name] or name in {"completed", "failed"}]
    rows += [("processes", str(total["processes"]))] if total["processes"] > 1 else []
    rows += [("killed", f"{total['silent']}, whose tasks are not counted here")] if total["silent"] else []
    rows += [("time", duration(total["took_sec"]))]
    rows += [("cost", dollars(total["cost_usd"]))] if total["cost_usd"] else []
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        click.echo(f"{name.ljust(width)}  {value}", err=True)


def _of_module(shell: Shell, target: str | None, given: dict[str, Any]) -> str:
    if target is None:
        refuse("name a worker (module:worker), or a command after --")
    for option in click.get_current_context().command.params:
        if option.name in given:
            refuse(f"{option.opts[0]} applies to a command after --; a worker in a module sets this itself")
    if shell.workspace not in {None, "default"}:
        refuse("a worker names its workspace itself: Worker(workspace=...)")
    module = target.partition(":")[0]
    if "/" in module or module.startswith("."):
        hint = "Write it as Python imports it: app:worker for app.py in this folder."
        raise InputError(f"{module!r} is a path, not the name of a module", where="target", hint=hint)
    return target


def _program(shell: Shell, runs: list[str], given: dict[str, Any]) -> Program:
    from shiftwork.worker import command_line, session_files, worktrees  # noqa: PLC0415  # the same
    from shiftwork.worker.outbox import default_folder  # noqa: PLC0415  # the same

    if (repository := given.pop("worktree", None)) is not None:
        given["worktree"] = worktrees.parse(repository)
    if (pattern := given.pop("session_files", None)) is not None:
        given["session_files"] = session_files.check(pattern)
    shell.store = _absolute(shell.store)
    base = given.pop("work_dir", None) or default_folder(shell.store, "work")
    if base is None:
        refuse("a queue in memory has no folder for tasks: name one with --work-dir")
    known = {"store": shell.store, "workspace": shell.workspace, "work_dir": str(Path(base).absolute())}
    return command_line.check(command_line.Program(command=tuple(runs), **{"types": (), **known, **given}))


def _absolute(store: str) -> str:
    """Make the address absolute: the command runs in another folder, and may call the queue from there."""
    name = store.removeprefix("sqlite:///")
    return store if name == store else f"sqlite:///{Path(name).absolute()}"


@click.command(cls=Command)
@click.option("--keep", is_flag=True, help="Keep the queue's file to inspect it afterwards.")
def demo(*, keep: bool) -> Answer:
    """Watch a small fleet work through a DAG. It needs nothing and leaves nothing behind."""
    from shiftwork.demo import run  # noqa: PLC0415  # no demo for `--help`

    return run(keep=keep, json=current().json)
