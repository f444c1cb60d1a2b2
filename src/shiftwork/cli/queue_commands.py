"""Commands on the queue as a whole: `status`, `pause`, `resume`, `purge`, `rebalance`, `events`, `maintenance`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import click
import msgspec

from shiftwork.cli import blocked, change_commands, printing, workspaces
from shiftwork.cli.shell import Answer, Command, Shell, current, refuse, with_queue
from shiftwork.model.bounds import MAX_PAGE
from shiftwork.model.states import STORED

if TYPE_CHECKING:
    from shiftwork.client import AnyQueue
    from shiftwork.control.model import MaintenanceJob
    from shiftwork.limits.model import QuotaInForce
    from shiftwork.model.history import Event
    from shiftwork.observe.model import RecentFailure, Status


@click.command(cls=Command)
@click.option("--all", "everywhere", is_flag=True, help="Every workspace of every database, a line each.")
@with_queue()
async def status(shell: Shell, queue: AnyQueue, *, everywhere: bool) -> None:
    """Show the state of the queue. Tasks by state and type, agents, throughput, why work waits, failures, pauses."""
    if everywhere:
        found_all = await queue.workspaces.list()
        shell.answer(found_all, lambda: workspaces.table(found_all))
        return
    found = await queue.status()
    waiting = await queue.control.blocked()

    def text() -> None:
        _status(found)
        if waiting.causes:
            printing.section(f"Why work waits ({blocked.headline(waiting)})", lambda: blocked.table(waiting))
        if found.recent_failures:
            printing.section("Recent failures", lambda: _failures(found.recent_failures))

    shell.answer({**msgspec.structs.asdict(found), "blocked": waiting}, text)


def _status(found: Status) -> None:
    states = [state for state in STORED if found.counts.get(state)]
    rows = [(name, *(counts.get(state, 0) for state in states)) for name, counts in sorted(found.types.items())]
    if len(rows) != 1:
        rows.append(("all", *(found.counts.get(state, 0) for state in states)))
    printing.table(["type", *states], rows if states else [], "no tasks")
    click.echo()
    printing.facts(
        [
            ("waiting", ", ".join(f"{level} {count}" for level, count in found.depth.items())),
            ("scheduled", _scheduled(found)),
            ("agents", ", ".join(f"{name} {count}" for name, count in found.agents.items())),
            ("slots", ", ".join(f"{name} {count}" for name, count in found.slots.items())),
            ("completed", f"{found.completions}, {found.completed_per_minute:.1f} a minute"),
            ("waits", [f"{level} {sec:.1f}s" for level, sec in found.average_wait_sec.items() if sec is not None]),
            ("paused", ["everything" if scope == "*" else scope for scope in found.paused]),
            ("archived", found.archived or None),
            ("warnings", found.capacity_warnings),
            ("quota", _quota(found.quota)),
            ("as of", printing.when(found.calculated_at)),
        ]
    )


def _scheduled(found: Status) -> str | None:
    return f"{found.scheduled}, next {printing.when(found.next_scheduled_at)}" if found.scheduled else None


def _quota(found: QuotaInForce | None) -> list[str]:
    if found is None:
        return []
    limits = (("tasks", found.tasks, found.max_tasks), ("bytes", found.bytes, found.max_bytes))
    used = [f"{name} {count} of {most}" for name, count, most in limits if most is not None]
    return used + ([f"{found.submits_per_minute} submits a minute"] if found.submits_per_minute else [])


def _failures(failures: list[RecentFailure]) -> None:
    rows = [(printing.when(f.at), f.task_id, f.type, f.reason, f.agent_id, printing.clip(f.error)) for f in failures]
    printing.table(["at", "task", "type", "reason", "agent", "error"], rows)


@click.command(cls=Command)
@click.argument("kind", metavar="[TYPE]", required=False)
@click.option("--reason", help="The reason, shown by `explain`.")
@with_queue()
async def pause(shell: Shell, queue: AnyQueue, *, kind: str | None, reason: str | None) -> None:
    """Stop handing out work of one TYPE, or of all types. Running tasks continue."""
    await queue.control.pause(kind, reason=reason)
    shell.answer({"paused": kind or "*"}, lambda: click.echo(f"{_scope(kind)} paused"))


@click.command(cls=Command)
@click.argument("kind", metavar="[TYPE]", required=False)
@with_queue()
async def resume(shell: Shell, queue: AnyQueue, *, kind: str | None) -> None:
    """Hand out work again. A TYPE paused by name is resumed by name."""
    was_paused = await queue.control.resume(kind)
    text = "resumed" if was_paused else "was not paused"
    shell.answer({"resumed": kind or "*", "was_paused": was_paused}, lambda: click.echo(f"{_scope(kind)} {text}"))


def _scope(kind: str | None) -> str:
    return f"type {printing.clean(kind)}" if kind else "the queue"


@click.command(cls=Command)
@with_queue()
async def rebalance(shell: Shell, queue: AnyQueue) -> Answer:
    """Withdraw claims that loaded agents have not started, for idle ones to take."""
    return change_commands.outcomes(shell, await queue.agents.rebalance())


def _one_beginning(*, after: int | None, tail: int | None, **_: Any) -> None:
    if after is not None and tail is not None:
        refuse("give either --after or --tail")


@click.command(cls=Command)
@click.option("--follow", is_flag=True, help="Keep printing new events.")
@click.option("--after", type=click.IntRange(min=0), metavar="SEQ", help="Begin after this number; 0 is the start.")
@click.option("--tail", type=click.IntRange(min=0), help="Start about this many events before the end [default: 20].")
@click.option("--limit", type=click.IntRange(min=1), help="Stop after this many events.")
@click.option("--task", multiple=True, help="Events of this task. Repeatable.")
@click.option("--dag", multiple=True, help="Events of this DAG. Repeatable.")
@click.option("--type", multiple=True, help="Events of tasks of this type. Repeatable.")
@click.option("--verb", multiple=True, help="Events of this verb: completed, failed, progress. Repeatable.")
@with_queue(check=_one_beginning)
async def events(
    shell: Shell, queue: AnyQueue, *, follow: bool, after: int | None, tail: int | None, limit: int | None, **only: Any
) -> None:
    """Show events, one per line. With --json as JSON lines."""
    cursor = (await queue.events("now")).next - (20 if tail is None else tail) if after is None else after
    cursor, left = max(0, cursor), limit
    if follow:
        async for event in queue.follow(cursor, **only):
            _event(shell, event)
            left = None if left is None else left - 1
            if left == 0:
                return
    while left is None or left > 0:
        news = await queue.events(cursor, limit=min(left or MAX_PAGE, MAX_PAGE), **only)
        found, cursor = news.events, news.next
        for event in found:
            _event(shell, event)
        left = None if left is None else left - len(found)
        if not found:
            break


def _event(shell: Shell, event: Event) -> None:
    if shell.json:
        printing.line(event)
        return
    names = ", ".join(event.names) or event.verb
    about = event.task_id or event.dag_id or ""
    details = event.reason or (msgspec.json.encode(event.data).decode() if event.data else "")
    parts = [
        f"{event.seq:>7}",
        printing.when(event.at),
        f"{names:<24}",
        about,
        f"by {event.actor}",
        printing.clip(details, 120),
    ]
    click.echo(printing.clean("  ".join(part for part in parts if part)))


@click.command(cls=Command)
@click.option("--run", is_flag=True, help="Run every job now.")
def maintenance(*, run: bool) -> Answer:
    """Show when each maintenance job last ran and what it did. Workers and servers run them on their own."""
    return asyncio.run(_run_maintenance(current())) if run else _show_maintenance()


async def _run_maintenance(shell: Shell) -> None:
    from shiftwork.maintenance.loop import run_once  # noqa: PLC0415  # needed for this alone

    async with await shell.open_database() as queue:
        done = await run_once(queue.engine, force=True)
    shell.answer(
        done, lambda: printing.table(["job", "did"], [(n, _counts(c)) for n, c in done.items()], "nothing to do")
    )


@with_queue()
async def _show_maintenance(shell: Shell, queue: AnyQueue) -> None:
    found = await queue.control.maintenance()
    now = queue.now()
    rows = [
        (
            d.name,
            printing.ago(d.last_run_at, now) or "never",
            f"{(d.took_sec or 0) * 1000:.0f} ms",
            _counts(d.counts),
            _trouble(d, now),
        )
        for d in found
    ]
    heads = ["job", "last ran", "took", "did", "late or paused"]
    shell.answer(found, lambda: printing.table(heads, rows, "no job has run yet"))


def _trouble(job: MaintenanceJob, now: float) -> str:
    """Whether a job is late or paused, and why."""
    if job.late_sec:
        return f"{job.late_sec:.0f} s late"
    if job.rests_until:
        return f"paused for {max(0.0, job.rests_until - now):.0f} s: {job.why}"
    return ""


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items())
