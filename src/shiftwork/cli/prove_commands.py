"""`prove` and `soak`: a fleet on a scratch store next to this one, with faults or for a long time."""

from __future__ import annotations

import asyncio
import secrets
import signal
import sys
import tempfile
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec

from shiftwork.cli import params, printing
from shiftwork.cli.exit_codes import ExitCode
from shiftwork.cli.shell import Answer, Command, Shell, current
from shiftwork.model.errors import InputError
from shiftwork.store import deadline

if TYPE_CHECKING:
    from shiftwork.prove.faults import Permitted
    from shiftwork.prove.ledger import FaultRow
    from shiftwork.prove.run import Outcome
    from shiftwork.prove.soak import SoakLedger

T = TypeVar("T")
LOG_EVERY_SEC = 10.0

WORDS = {
    "submitted": "tasks submitted, with subtasks",
    "completed": "completed",
    "subtasks": "of these, subtasks",
    "attempts": "attempts",
    "effects": "effects, with a step before each",
    "late_writes": "late writes tried",
    "overlapping": "faults during the recovery from another",
    "took_sec": "seconds",
    "tasks_per_sec": "tasks per second",
    "lost": "lost",
    "stuck": "stuck",
    "failed": "ended but not completed",
    "created_twice": "created twice",
    "done_twice": "accepted twice",
    "effects_twice": "effects that happened twice",
    "effects_missing": "effects that did not happen",
    "late_accepted": "late writes accepted",
    "steps_repeated": "stored steps repeated",
    "not_booked": "costs not booked",
    "misbooked_usd": "dollars misbooked",
}

PICTURE = click.Path(dir_okay=False, writable=True, path_type=Path)


@click.command(cls=Command)
@click.option("--minutes", type=params.NumberRange(0.01, 1440), default=2.0, show_default=True, help="How long.")
@click.option("--tasks", type=click.IntRange(1), help="Submit no more than this many tasks.")
@click.option("--workers", type=click.IntRange(1, 100), default=4, show_default=True, help="Worker processes.")
@click.option("--faults", metavar="NAMES", help="Names separated by commas [default: all that apply].")
@click.option("--list-faults", is_flag=True, help="List the faults, and which of them apply here.")
@click.option("--every", type=params.NumberRange(0), default=1.0, show_default=True, help="Seconds between faults.")
@click.option("--at-once", type=click.IntRange(1), default=2, show_default=True, help="Faults that may overlap.")
@click.option("--restart-command", metavar="COMMAND", help="Run this in a shell to restart PostgreSQL.")
@click.option("--failover-command", metavar="COMMAND", help="Run this in a shell, once, so that a standby takes over.")
@click.option("--picture", type=PICTURE, help="Draw throughput over time with the faults into this SVG file.")
@click.option("--seed", type=int, help="Choose the same order and the same victims again.")
def prove(  # an option each
    *,
    minutes: float,
    tasks: int | None,
    workers: int,
    faults: str | None,
    list_faults: bool,
    every: float,
    at_once: int,
    restart_command: str | None,
    failover_command: str | None,
    picture: Path | None,
    seed: int | None,
) -> Answer:
    """Inject faults into a fleet on this store, and count what was lost, stuck, done twice or misbooked.

    A server and worker processes work in a schema or file of their own, which is removed afterwards; your tables are
    not touched. Every fault is injected at least once, even if that takes longer than --minutes. Exit code 1 unless all
    violations are zero, and 7 if a fault did not happen: then the run proves nothing about it.
    """
    from shiftwork.prove.faults import FAULTS, applicable  # noqa: PLC0415  # no queue for `--help`
    from shiftwork.prove.run import Plan  # noqa: PLC0415  # likewise
    from shiftwork.prove.run import prove as run  # noqa: PLC0415  # likewise

    shell = current()
    shell.refuse_server()
    restart, fail_over = _permitted(restart_command), _permitted(failover_command)
    here = applicable(
        sqlite=shell.store.startswith("sqlite"), restart=restart is not None, fail_over=fail_over is not None
    )
    if list_faults:
        rows = [{"fault": f.name, "what": f.what, "where": f.where, "applies": f.name in here} for f in FAULTS.values()]
        shell.answer(rows, lambda: printing.table(list(rows[0]), [list(row.values()) for row in rows]))
        return None
    chosen = here if faults is None else _chosen(faults, here)
    seed = secrets.randbits(32) if seed is None else seed
    plan = Plan(minutes, tasks, workers, every, at_once, chosen, seed, restart, fail_over)
    logs = Path(tempfile.gettempdir()) / f"shiftwork-prove-{seed}"
    outcome = interruptible(run(shell.store, plan, Progress(), logs))
    progress_ends()
    if picture is not None:
        _draw(outcome, picture)
    return _judge(shell, outcome, seed, logs)


def _chosen(names: str, here: list[str]) -> list[str]:
    from shiftwork.prove.faults import FAULTS  # noqa: PLC0415  # no queue for `--help`

    chosen = [name.strip() for name in names.split(",") if name.strip()]
    for name in chosen:
        if name not in FAULTS:
            raise InputError(f"there is no fault {name!r}", where="--faults", hint="See --list-faults.")
        if name not in here:
            raise InputError(
                f"{name} cannot be injected here", where="--faults", hint=f"It needs {FAULTS[name].where}."
            )
    return list(dict.fromkeys(chosen))


def _permitted(command: str | None) -> Permitted | None:
    if command is None:
        return None

    async def run() -> None:
        process = await asyncio.create_subprocess_shell(command, stdin=asyncio.subprocess.DEVNULL)
        if code := await process.wait():
            raise InputError(f"the command ended with code {code}: {command}", hint="Try it alone first.")

    return run


def _judge(shell: Shell, outcome: Outcome, seed: int, logs: Path) -> Answer:
    ledger = outcome.ledger
    shell.answer({**msgspec.to_builtins(ledger), "seed": seed}, lambda: _print(outcome, seed))
    if ledger.violations:
        click.echo(f"Violations: {', '.join(ledger.violations)}. Logs of the processes: {logs}", err=True)
        return ExitCode.FAILED
    if ledger.unproven or not ledger.faults:
        which = (
            f"These faults did not happen: {', '.join(ledger.unproven)}." if ledger.faults else "No fault was chosen."
        )
        click.echo(f"{which} This run is no proof. Raise --tasks or --minutes.", err=True)
        return ExitCode.NO_PROOF
    return None


def _print(outcome: Outcome, seed: int) -> None:
    ledger = msgspec.structs.asdict(outcome.ledger)
    printing.table(["what", "how many"], [*((words, ledger[name]) for name, words in WORDS.items()), ("seed", seed)])
    click.echo()
    columns = ["fault", "times", "affected", "claims free, median", "recovery, median", "recovery, longest"]
    printing.table(columns, [_fault_cells(row) for row in outcome.ledger.faults], empty="no faults")


def _fault_cells(row: FaultRow) -> list[object]:
    longest = f"more than a minute ({row.not_recovered} times)" if row.not_recovered else _seconds(row.recovery_max_sec)
    medians = _seconds(row.freed_median_sec), _seconds(row.recovery_median_sec)
    return [row.fault, row.times, row.affected, *medians, longest]


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:g} s"


def _draw(outcome: Outcome, file: Path) -> None:
    from shiftwork.prove.run import throughput  # noqa: PLC0415  # no queue for `--help`

    file.write_text(throughput(outcome), encoding="utf-8")


@click.command(cls=Command)
@click.option("--minutes", type=params.NumberRange(0.01), default=60.0, show_default=True, help="How long.")
@click.option("--rate", type=params.NumberRange(1), default=300.0, show_default=True, help="Tasks per second.")
@click.option("--workers", type=click.IntRange(1, 100), default=2, show_default=True, help="Worker processes.")
@click.option("--keep", type=params.NumberRange(1), help="Seconds that history is kept [default: a sixth of the time].")
@click.option("--sample", type=params.NumberRange(0.1), default=5.0, show_default=True, help="Seconds between samples.")
@click.option("--picture", type=PICTURE, help="Draw the samples over time into this SVG file.")
def soak(
    *, minutes: float, rate: float, workers: int, keep: float | None, sample: float, picture: Path | None
) -> Answer:
    """Run a fleet at a steady rate on this store, and check that nothing grows.

    Memory and descriptors of the processes, the size of the store and the latency are sampled. After half of the
    time, or when as much history is removed as is added if that is later, each must be flat: exit code 1 if one grows,
    or if a task was lost, and 7 if less than a quarter of the time was left to judge by. The fleet works in a schema or
    file of its own, which is removed afterwards.
    """
    from shiftwork.prove import soak as soaking  # noqa: PLC0415  # no queue for `--help`

    shell = current()
    shell.refuse_server()
    plan = soaking.SoakPlan(minutes, rate, workers, keep or 10 * minutes, sample)
    outcome = interruptible(soaking.soak(shell.store, plan, Progress()))
    progress_ends()
    if picture is not None:
        picture.write_text(soaking.picture(outcome), encoding="utf-8")
    ledger = outcome.ledger
    shell.answer(ledger, lambda: _print_soak(ledger))
    if ledger.violations:
        click.echo(f"Violations: {', '.join(ledger.violations)}.", err=True)
        return ExitCode.FAILED
    if ledger.too_short:
        level = f"It takes {ledger.warm_up_sec:g} s until as much history is removed as is added"
        click.echo(f"{level}: this run is too short to judge. Raise --minutes or lower --keep.", err=True)
        return ExitCode.NO_PROOF
    return None


def _print_soak(ledger: SoakLedger) -> None:
    facts = {name: value for name, value in msgspec.structs.asdict(ledger).items() if name != "verdicts"}
    printing.table(["what", "how many"], list(facts.items()))
    click.echo()
    rows = [
        (each.series, each.mean, each.growth, each.allowed, each.per_hour, "flat" if each.flat else "grows")
        for each in ledger.verdicts
    ]
    printing.table(["after the warm-up", "mean", "growth", "allowed", "per hour", ""], rows)


def interruptible(work: Coroutine[Any, Any, T]) -> T:
    """Run it so that SIGTERM ends it like SIGINT: processes and scratch stores are removed."""
    from shiftwork.worker.load_worker import run_fast  # noqa: PLC0415  # no queue for `--help`

    async def run() -> T:
        task = asyncio.ensure_future(work)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        try:
            return await task
        except asyncio.CancelledError as error:
            if task.cancelling() or deadline.cancellations():
                raise KeyboardInterrupt from None
            raise RuntimeError("a part of the run was cancelled by itself") from error

    return run_fast(run())


class Progress:
    """Shows progress: on one line of a terminal, or in a log line every ten seconds."""

    def __init__(self) -> None:
        self._next = 0.0

    def __call__(self, line: str) -> None:
        if sys.stderr.isatty():
            click.echo(f"\r\x1b[2K{line}", nl=False, err=True)
        elif (now := time.monotonic()) >= self._next:
            self._next = now + LOG_EVERY_SEC
            click.echo(line, err=True)


def progress_ends() -> None:
    if sys.stderr.isatty():
        click.echo(err=True)
