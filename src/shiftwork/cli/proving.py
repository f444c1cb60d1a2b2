"""`prove`: injects faults into a fleet on this store and checks that nothing is lost."""

from __future__ import annotations

import asyncio
import secrets
import sys

import click
import msgspec

from shiftwork.cli import printing, values
from shiftwork.cli.codes import ExitCode
from shiftwork.cli.shell import Answer, Command, current

WORDS = {
    "submitted": "tasks submitted, each sent twice",
    "completed": "completed",
    "attempts": "attempts",
    "kills": "agents killed with -9",
    "freezes": "agents frozen past their lease",
    "floods": "requests sent again",
    "took_sec": "seconds",
    "lost": "lost",
    "stuck": "stuck",
    "failed": "ended otherwise than completed",
    "done_twice": "accepted twice",
    "acted_twice": "outside actions done twice",
    "not_acted": "outside actions not done",
    "late_accepted": "late writes accepted",
    "thought_twice": "kept steps done again",
    "not_booked": "costs not booked",
    "misbooked_usd": "dollars misbooked",
}

FAULTS_AT = list(WORDS).index("floods")
"""Behind those that were killed and frozen."""


@click.command(cls=Command)
@click.option("--tasks", type=click.IntRange(1, 100_000), default=300, show_default=True, help="How many.")
@click.option("--agents", type=click.IntRange(1, 100), default=4, show_default=True, help="Processes at work.")
@click.option("--longest", type=values.NumberRange(1), default=120.0, show_default=True, help="Seconds at most.")
@click.option("--every", type=values.NumberRange(0.05), default=0.7, show_default=True, help="Seconds between faults.")
@click.option("--seed", type=int, help="Choose the same victims again.")
def prove(*, tasks: int, agents: int, longest: float, every: float, seed: int | None) -> Answer:
    """Let a fleet work on this store while its processes are killed and frozen, and count what was lost.

    It works in a workspace of its own; its tasks, effects and settings are deleted afterwards. Exit code 1 unless the
    last ten numbers are zeros, and 7 where no process was killed or frozen: then nothing is proven.
    """
    from shiftwork.prove.run import Plan  # noqa: PLC0415  # no queue for `--help`
    from shiftwork.prove.run import prove as run  # noqa: PLC0415  # likewise

    shell = current()
    shell.refuse_server()
    plan = Plan(tasks, agents, longest, every, secrets.randbits(32) if seed is None else seed)
    found = asyncio.run(run(shell.store, plan, _print))
    if sys.stderr.isatty():
        click.echo(err=True)
    facts = [(WORDS[name], value) for name, value in msgspec.structs.asdict(found).items()]
    facts.insert(FAULTS_AT, ("faults in all", found.faults))
    shown = {**msgspec.structs.asdict(found), "faults": found.faults}
    shell.answer(shown, lambda: printing.table(["what", "how many"], [*facts, ("seed", plan.seed)]))
    if found.clean and not found.faults:
        click.echo("No process was killed or frozen, so this proves nothing. Raise --tasks or lower --every.", err=True)
        return ExitCode.NO_PROOF
    return None if found.clean else ExitCode.FAILED


def _print(line: str) -> None:
    """How far it is, where someone looks."""
    if sys.stderr.isatty():
        click.echo(f"\r\x1b[2K{line}", nl=False, err=True)
