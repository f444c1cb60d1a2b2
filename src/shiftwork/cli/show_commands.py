"""Commands that show tasks: `list`, `search`, `show`, `explain`, `history`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
import msgspec

from shiftwork.cli import blocked, printing
from shiftwork.cli.bulk_commands import conditions, where
from shiftwork.cli.shell import Command, Shell, together, with_queue
from shiftwork.model.states import State
from shiftwork.model.task import SCHEDULED

if TYPE_CHECKING:
    from shiftwork.client import AnyQueue
    from shiftwork.dead_letters.model import Review
    from shiftwork.model.history import Event
    from shiftwork.model.task import Task, Verdict, Wait
    from shiftwork.observe.model import Explanation


_page = together(
    click.option("--limit", type=int, default=100, show_default=True, help="Maximum number to show."),
    click.option("--after", metavar="TASK", help="Continue after this task: `next` of the previous page."),
)


@click.command("list", cls=Command)
@conditions
@_page
@click.option("--newest", is_flag=True, help="The newest first.")
@with_queue()
async def list_(shell: Shell, queue: AnyQueue, **given: Any) -> None:
    """List tasks, oldest first unless --newest is given."""
    await _list(shell, queue, given, newest=given["newest"])


@click.command(cls=Command)
@click.argument("text", nargs=-1, required=True)
@conditions
@_page
@with_queue()
async def search(shell: Shell, queue: AnyQueue, *, text: tuple[str, ...], **given: Any) -> None:
    """Find tasks by words in their title, payload, tags and errors, newest first."""
    await _list(shell, queue, {**given, "search": " ".join([*text, given["search"] or ""])}, newest=True)


async def _list(shell: Shell, queue: AnyQueue, given: dict[str, Any], *, newest: bool) -> None:
    filters = where(given, queue.now())
    page = await queue.tasks.list(**filters, after=given["after"], limit=given["limit"], newest=newest)
    now = queue.now()

    def text() -> None:
        columns = ["task", "status", "type", "prio", "failed", "agent", "age", "title"]
        printing.table(columns, [_row(task, now) for task in page.tasks], "no tasks match" if filters else "no tasks")
        if page.next:
            click.echo(f"More: --after {page.next}", err=True)
        if page.index_lag:
            click.echo(f"The search index is {page.index_lag:,} events behind. Some tasks may be missing.", err=True)

    shell.answer(page, text)


def _row(task: Task, now: float) -> tuple[object, ...]:
    attempts = f"{task.attempts}/{task.max_attempts}"
    agent = task.claim.agent_id or task.target_agent_id
    title = printing.clip(task.title or task.external_id)
    status = f"{task.status} ({printing.ago(task.run_at, now)})" if _is_scheduled(task) else task.status
    return (task.id, status, task.type, task.priority, attempts, agent, printing.ago(task.created_at, now), title)


def _is_scheduled(task: Task) -> bool:
    return task.status == State.PENDING and task.hold == SCHEDULED


@click.command("show", cls=Command)
@click.argument("task")
@with_queue()
async def show_task(shell: Shell, queue: AnyQueue, *, task: str) -> None:
    """Show a task. Its fields, failures, result, cost and timeline."""
    found = await queue.get(task)
    history = (await queue.tasks.history(found.id)).events
    reviews = await queue.dead_letters.reviews(found.id)

    def text() -> None:
        _facts(found, queue.now())
        if found.failure_history:
            printing.section("Failed attempts", lambda: _failures(found))
        if found.result is not None:
            printing.section("Result", lambda: _result(found))
        if reviews:
            printing.section("Reviews", lambda: review_table(reviews))
        printing.section("Timeline", lambda: timeline(history))

    shell.answer({**msgspec.structs.asdict(found), "reviews": reviews, "history": history}, text)


def _facts(task: Task, now: float) -> None:
    tokens = task.tokens_used
    printing.facts(
        [
            ("task", task.id),
            ("title", task.title),
            ("type", task.type),
            ("status", task.status + (f" ({reason})" if (reason := task.cancel_reason or task.hold) else "")),
            ("priority", f"{task.priority:g}, now {task.effective_priority:.1f} ({task.priority_tier})"),
            ("failed attempts", f"{task.attempts} of at most {task.max_attempts}"),
            ("agent", task.claim.agent_id),
            ("only for agent", task.target_agent_id),
            ("token", task.claim.assignment_id),
            ("incomplete", "its decision report is missing" if task.incomplete else None),
            ("judged by", task.judge_task_id),
            ("progress", None if task.progress is None else printing.pretty(task.progress)),
            ("next attempt", printing.when(task.available_at)),
            ("starts" if _is_scheduled(task) else "scheduled for", printing.when(task.run_at)),
            ("expires", printing.when(task.expires_at)),
            ("waits for", [*task.blocked_by, *map(_waited_for, task.waits)]),
            ("depends on", task.dependencies),
            ("continued without", [f"{each.task_id} ({each.reason})" for each in task.failed_dependencies]),
            ("deadline", printing.when(task.deadline)),
            (
                "created",
                f"{printing.when(task.created_at)} by {task.created_by}"
                if task.created_by
                else printing.when(task.created_at),
            ),
            ("started", printing.when(task.started_at)),
            ("finished", printing.when(task.finished_at)),
            ("age", printing.ago(task.created_at, now)),
            (
                "cost",
                f"{printing.usd(task.cost_usd)}, {tokens.get('input', 0)} tokens in, {tokens.get('output', 0)} out",
            ),
            ("dag", task.dag_id),
            ("parent", task.parent_id),
            ("retry of", task.retry_of),
            ("rerun of", task.rerun_of),
            ("newer one", task.superseded_by),
            ("issue", task.issue_id),
            ("tags", task.tags),
            ("key", task.idempotency_key),
            ("session", task.session_id),
            ("work dir", task.work_dir),
            ("version", task.version),
            ("archived", "yes" if task.archived else None),
            ("payload", printing.pretty(task.payload) if task.payload else None),
            ("spec", printing.pretty(task.spec) if task.spec else None),
        ]
    )


def _waited_for(wait: Wait) -> str:
    """An open wait, described by what would end it."""
    until = f" until {printing.when(wait.until)}" if wait.until is not None else ""
    if wait.kind == "signal":
        return f"{wait.name}: the signal {wait.signal}{until}"
    return f"{wait.name}:{until}" if wait.kind == "time" else f"{wait.name}: an answer to {wait.question!r}{until}"


def _failures(task: Task) -> None:
    printing.table(
        ["at", "agent", "reason", "took", "cost", "error"],
        [
            (
                printing.when(f.at),
                f.agent,
                f.reason,
                f"{f.duration_sec:.1f}s",
                printing.usd(f.cost_usd),
                printing.clip(f.error, 200),
            )
            for f in task.failure_history
        ],
    )


def _result(task: Task) -> None:
    result = task.result
    assert result is not None
    printing.facts(
        [
            ("status", result.status),
            ("by", result.worker_id),
            ("took", None if result.execution_time_sec is None else f"{result.execution_time_sec:.1f}s"),
            ("text", result.text),
            ("data", None if result.data is None else printing.pretty(result.data)),
            ("artifacts", result.artifacts),
            ("decisions", None if result.decision_report is None else printing.pretty(result.decision_report)),
            ("error", result.error),
            ("verdict", None if result.verdict is None else _verdict(result.verdict)),
            ("evidence", None if result.verdict is None else _evidence(result.verdict)),
        ]
    )


def _evidence(verdict: Verdict) -> str | None:
    """The end of the tests' output, or other evidence."""
    evidence = verdict.evidence or {}
    printed = evidence.get("output")
    if isinstance(printed, str):
        return printing.clean("\n".join(printed.rstrip().splitlines()[-10:]))
    return printing.pretty(evidence) if evidence else None


def _verdict(verdict: Verdict) -> str:
    text = f"{'passed' if verdict.passed else 'failed'} {verdict.method} by {verdict.by}"
    return f"{text}: {printing.clip('; '.join(verdict.reasons), 200)}" if verdict.reasons else text


def review_table(reviews: list[Review]) -> None:
    printing.table(
        ["at", "by", "decision", "note", "change"],
        [(printing.when(r.at), r.actor, r.decision, r.note, r.change) for r in reviews],
    )


def timeline(events: list[Event]) -> None:
    printing.table(
        ["at", "event", "states", "by", "reason"],
        [
            (printing.when(e.at), e.names or e.verb, " > ".join(e.path), e.actor, printing.clip(e.reason, 200))
            for e in events
        ],
        "no events",
    )


@click.command(cls=Command)
@click.argument("task")
@click.option("--limit", type=int, default=1000, show_default=True, help="Maximum number of events.")
@with_queue()
async def history(shell: Shell, queue: AnyQueue, *, task: str, limit: int) -> None:
    """Show every event of a task, oldest first."""
    events = (await queue.tasks.history(task, limit=limit)).events
    shell.answer(events, lambda: timeline(events))


@click.command(cls=Command)
@click.argument("task", required=False)
@with_queue()
async def explain(shell: Shell, queue: AnyQueue, *, task: str | None) -> None:
    """Explain why a task is not running, and what would change that; without TASK, for all waiting tasks."""
    if task is None:
        waiting = await queue.control.blocked()
        shell.answer(waiting, lambda: blocked.report(waiting))
        return
    found = await queue.explain(task)
    shell.answer(found, lambda: _explanation(found))


def _explanation(found: Explanation) -> None:
    printing.facts(
        [
            ("task", found.task_id),
            ("status", found.status),
            ("in short", found.summary),
            ("before it", found.position),
            ("share", _share(found)),
            ("able agents", found.able_agents),
            ("priority", f"{found.effective_priority:.1f}: {_parts(found)}"),
        ]
    )
    if found.holds:
        rows = [(h.kind, h.what, h.lifts, printing.when(h.until)) for h in found.holds]
        printing.section("Blocked by", lambda: printing.table(["hold", "what", "what lifts it", "until"], rows))
    if found.failed_dependencies:
        failed = [(each.task_id, each.status, each.reason, each.error) for each in found.failed_dependencies]
        printing.section("Continued without", lambda: printing.table(["task", "status", "reason", "error"], failed))


def _share(found: Explanation) -> str | None:
    if found.share is None:
        return None
    share = found.share
    return f"{share.number} of {share.shares} by {share.by}; {share.waiting} with work alternate"


def _parts(found: Explanation) -> str:
    parts = [
        f"{name} {value:+.1f}" for name, value in found.priority_parts.items() if round(value, 1) and name != "base"
    ]
    return ", ".join([f"base {found.priority_parts.get('base', 0):g}", *parts])
