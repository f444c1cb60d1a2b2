"""Commands for protection: `breakers`, `cooldowns`, `limits`, `quotas`, `backpressure`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from shiftwork.cli import params, printing
from shiftwork.cli.groups import listing
from shiftwork.cli.shell import Answer, Command, Shell, with_queue

if TYPE_CHECKING:
    from shiftwork.client import AnyQueue
    from shiftwork.limits.model import Backpressure, Breaker, Cooldown, LimitInForce, QuotaInForce

COUNT = click.IntRange(1, 10**15)
LEVELS = ("high", "medium", "low", "total")

KEY = "KEY is provider:NAME, account:NAME, model:NAME or type:NAME, or several of them joined by commas."


@listing("breakers", covers={"configure": "breakers import"})
def breakers() -> None:
    """Show, open, close and configure the circuit breakers of the types. Without a subcommand: the list."""


@breakers.command("list")
@click.option("--type", "kind", help="Only this type's, even if it never had work.")
@with_queue()
async def list_breakers(shell: Shell, queue: AnyQueue, *, kind: str | None = None) -> Answer:
    """List the breakers of all types that have had work."""
    _breakers(shell, await queue.breakers.list(kind), queue.now())
    return None


def _breakers(shell: Shell, found: list[Breaker], now: float) -> None:
    columns = ["type", "state", "failures", "last failure", "opened", "next test", "tested", "half-open after"]
    shell.answer(found, lambda: printing.table(columns, [_breaker(each, now) for each in found], "no types"))


def _breaker(found: Breaker, now: float) -> tuple[object, ...]:
    after = "off" if not found.enabled else f"{found.half_open_after:g}s"
    count = found.failures if not found.enabled else f"{found.failures}/{found.failure_threshold}"
    tested = found.tested_task_id
    waits = None if found.closed_until is None or tested else printing.ago(max(found.closed_until, now), now)
    last, opened = printing.ago(found.last_failure, now), printing.ago(found.opened_at, now)
    return found.type, found.state, count, last, opened, waits, tested, after


@breakers.command()
@click.argument("kind", metavar="TYPE")
@with_queue()
async def reset(shell: Shell, queue: AnyQueue, *, kind: str) -> Answer:
    """Close the breaker of a TYPE and clear its failure count."""
    found = await queue.breakers.reset(kind)
    shell.answer(found, lambda: click.echo(f"{printing.clean(kind)} {found.state}"))
    return None


@breakers.command()
@click.argument("kind", metavar="TYPE")
@with_queue()
async def trip(shell: Shell, queue: AnyQueue, *, kind: str) -> Answer:
    """Open the breaker of a TYPE. After its pause, one task is handed out as a test."""
    found = await queue.breakers.trip(kind)
    shell.answer(found, lambda: click.echo(f"{printing.clean(kind)} {found.state}"))
    return None


@breakers.command("import")
@click.argument("text", metavar="FILE", type=params.text_file)
@with_queue(create=True)
async def import_(shell: Shell, queue: AnyQueue, *, text: str) -> Answer:
    """Set the rules of all breakers from a FILE like .loki/config/circuit-breakers.yaml, or from - for stdin.

    The file is the whole configuration: earlier rules that are not in it are removed.
    """
    from shiftwork.compat.loki_breaker_file import parse  # noqa: PLC0415  # needed for this alone

    config = parse(text)
    _breakers(shell, await queue.breakers.configure(config), queue.now())
    return None


@listing("cooldowns")
def cooldowns() -> None:
    """Show, set and lift cooldowns. Without a subcommand: the list."""


@cooldowns.command("list")
@with_queue()
async def list_cooldowns(shell: Shell, queue: AnyQueue) -> Answer:
    """List the cooldowns in force, the first to end first."""
    found = await queue.cooldowns.list()
    now = queue.now()
    rows = [_cooldown(each, now) for each in found]
    shell.answer(found, lambda: printing.table(["key", "for", "until", "since", "reason", "by"], rows, "no cooldowns"))
    return None


def _cooldown(found: Cooldown, now: float) -> tuple[object, ...]:
    who = found.agent_id or "everyone"
    return (
        found.key,
        who,
        "it is lifted" if found.until is None else printing.ago(found.until, now),
        printing.ago(found.since, now),
        printing.clip(found.reason),
        found.by,
    )


@cooldowns.command("set", help=f"Hand out no work that uses KEY for a DURATION such as 90s, 15m or 2h. {KEY}")
@click.argument("key")
@click.argument("seconds", metavar="DURATION", type=params.duration)
@click.option("--reason", help="The reason, shown by `explain`.")
@with_queue(create=True)
async def set_cooldown(shell: Shell, queue: AnyQueue, *, key: str, seconds: float, reason: str | None) -> Answer:
    found = await queue.cooldowns.set(key, seconds, reason)
    assert found.until is not None
    text = f"{printing.clean(found.key)} is in cooldown until {printing.when(found.until)}"
    shell.answer(found, lambda: click.echo(text))
    return None


@cooldowns.command(help=f"End the cooldown of KEY. {KEY}")
@click.argument("key")
@with_queue()
async def lift(shell: Shell, queue: AnyQueue, *, key: str) -> Answer:
    lifted = await queue.cooldowns.lift(key)
    text = "is out of cooldown" if lifted else "had no cooldown"
    shell.answer({"key": key, "lifted": lifted}, lambda: click.echo(f"{printing.clean(key)} {text}"))
    return None


@listing("limits")
def limits() -> None:
    """Show and set how much of a provider, account, model or type may be used. Without a subcommand: the list."""


@limits.command("list")
@with_queue()
async def list_limits(shell: Shell, queue: AnyQueue) -> Answer:
    """List the limits and their current use."""
    found = await queue.limits.list()
    now = queue.now()
    columns = ["key", "at once", "requests", "tokens", "window", "room"]
    shell.answer(found, lambda: printing.table(columns, [_limit(each, now) for each in found], "no limits"))
    return None


def _limit(found: LimitInForce, now: float) -> tuple[object, ...]:
    room = "now" if not found.full else "when one ends" if found.opens_at is None else printing.ago(found.opens_at, now)
    return (
        found.key,
        _of(found.held, found.concurrency),
        _of(found.requests_used, found.requests),
        _of(found.tokens_used, found.tokens),
        None if found.window_sec is None else f"{found.window_sec:g}s",
        room,
    )


def _of(used: int, most: int | None) -> str | None:
    return None if most is None else f"{used}/{most}"


@limits.command("set", help=f"Limit how much work that uses KEY agents can claim. {KEY}")
@click.argument("key")
@click.option("--concurrency", type=int, help="Concurrent tasks.")
@click.option("--requests", type=int, help="Tasks in one window.")
@click.option("--tokens", type=int, help="Tokens in one window.")
@click.option("--tokens-per-task", type=int, help="What each task reserves; the unused rest is returned when it ends.")
@click.option("--window", "window_sec", type=params.duration, help="How long a window is: 60s, 1h, 1d.")
@with_queue(create=True)
async def set_limit(shell: Shell, queue: AnyQueue, *, key: str, **terms: Any) -> Answer:
    found = await queue.limits.set(key, **terms)
    shell.answer(found, lambda: click.echo(f"{printing.clean(found.key)} limited"))
    return None


@limits.command(help=f"Remove the limit of KEY. {KEY}")
@click.argument("key")
@with_queue()
async def remove(shell: Shell, queue: AnyQueue, *, key: str) -> Answer:
    removed = await queue.limits.remove(key)
    text = "no longer limited" if removed else "had no limit"
    shell.answer({"key": key, "removed": removed}, lambda: click.echo(f"{printing.clean(key)} {text}"))
    return None


@listing("quotas")
def quotas() -> None:
    """Limit what each workspace may store and submit. Without a subcommand: the list."""


@quotas.command("list")
@with_queue()
async def list_(shell: Shell, queue: AnyQueue) -> Answer:
    """List the workspaces that have a quota."""
    found = await queue.quotas.list()
    columns = ["workspace", "tasks", "bytes", "submits a minute", "set", "by"]
    shell.answer(found, lambda: printing.table(columns, [_quota_row(each) for each in found], "no quotas"))
    return None


def _quota_row(found: QuotaInForce) -> tuple[object, ...]:
    used = (_used_of(found.tasks, found.max_tasks), _used_of(found.bytes, found.max_bytes))
    return found.workspace, *used, found.submits_per_minute or "no limit", printing.when(found.set_at), found.set_by


def _used_of(used: int | None, most: int | None) -> str:
    return "no limit" if most is None else f"{used} of {most}"


@quotas.command()
@with_queue()
async def show(shell: Shell, queue: AnyQueue) -> Answer:
    """Show the quota of the workspace, and its use."""
    found = await queue.quotas.get()
    rate = "no limit" if found.submits_per_minute is None else f"{found.submits_per_minute}, now {found.room}"
    facts = [("workspace", found.workspace), ("tasks", _used_of(found.tasks, found.max_tasks))]
    facts += [("bytes", _used_of(found.bytes, found.max_bytes)), ("submits a minute", rate)]
    shell.answer(found, lambda: printing.facts(facts))
    return None


@quotas.command("set")
@click.argument("tenant", metavar="WORKSPACE")
@click.option("--max-tasks", type=COUNT, help="Tasks that are stored, whatever their status.")
@click.option("--max-bytes", type=COUNT, help="Bytes of submissions and artifacts.")
@click.option("--submits-per-minute", type=COUNT, help="Tasks, not calls; bursts up to a minute's worth are allowed.")
@with_queue(create=True)
async def set_(shell: Shell, queue: AnyQueue, *, tenant: str, **terms: int | None) -> Answer:
    """Set the quota of WORKSPACE. Options left out mean no limit; without any option the quota is removed."""
    found = await queue.quotas.set(tenant, **terms)
    name, tasks, size, rate, *_ = _quota_row(found)
    line = f"{printing.clean(str(name))}: tasks {tasks}, bytes {size}, submits a minute {rate}"
    shell.answer(found, lambda: click.echo(line))
    return None


@click.command(cls=Command)
@with_queue()
async def backpressure(shell: Shell, queue: AnyQueue) -> Answer:
    """Show how full the queue is. Waiting tasks, limits, and remaining room."""
    found = await queue.control.backpressure()
    shell.answer(found, lambda: _show_backpressure(found))
    return None


def _show_backpressure(found: Backpressure) -> None:
    if not found.limits:
        click.echo("no limit is set")
        return
    rows = [(scope, found.waiting[scope], _or_none(found.limits[scope]), _room(found, scope)) for scope in LEVELS]
    printing.table(["level", "waiting", "at most", "room"], rows)
    click.echo()
    printing.facts([("state", found.state), ("full", found.full), ("warnings", found.warnings)])


def _room(found: Backpressure, scope: str) -> object:
    return "" if scope == "total" else _or_none(found.room[scope])


def _or_none(count: int | None) -> object:
    return "no limit" if count is None else count
