"""Commands for protection: `breakers`, `cooldowns`, `limits`, `quotas`, `backpressure`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from shiftwork.cli import params, printing
from shiftwork.cli.groups import listing
from shiftwork.cli.shell import Command, Shell, with_queue

if TYPE_CHECKING:
    from shiftwork.client import AnyQueue
    from shiftwork.limits.model import Backpressure, Breaker, Cooldown, LimitInForce, QuotaInForce

COUNT = click.IntRange(1, 10**15)
LEVELS = ("high", "medium", "low", "total")


@listing("breakers", covers={"configure": "breakers import"})
def breakers() -> None:
    """Show, open, close and configure the circuit breakers of the types. Without a subcommand: the list."""


@breakers.shows("list")
def _breakers(found: list[Breaker], now: float) -> None:
    """List the breakers of all types that have had work."""
    columns = ["type", "state", "failures", "last failure", "opened", "next test", "tested", "half-open after"]
    printing.table(columns, [_breaker(each, now) for each in found], "no types")


def _breaker(found: Breaker, now: float) -> tuple[object, ...]:
    after = "off" if not found.enabled else f"{found.half_open_after:g}s"
    count = found.failures if not found.enabled else f"{found.failures}/{found.failure_threshold}"
    tested = found.tested_task_id
    waits = None if found.closed_until is None or tested else printing.ago(max(found.closed_until, now), now)
    last, opened = printing.ago(found.last_failure, now), printing.ago(found.opened_at, now)
    return found.type, found.state, count, last, opened, waits, tested, after


@breakers.shows("reset")
@breakers.shows("trip")
def _state(found: Breaker) -> None:
    printing.echo(f"{found.type} {found.state}")


@breakers.command("import")
@click.argument("text", metavar="FILE", type=params.text_file)
@with_queue(create=True)
async def import_(shell: Shell, queue: AnyQueue, *, text: str) -> None:
    """Set the rules of all breakers from a FILE like .loki/config/circuit-breakers.yaml, or from - for stdin.

    The file is the whole configuration: earlier rules that are not in it are removed.
    """
    from shiftwork.compat.loki_breaker_file import parse  # noqa: PLC0415  # needed for this alone

    found = await queue.breakers.configure(parse(text))
    shell.answer(found, lambda: _breakers(found, queue.now()))


@listing("cooldowns")
def cooldowns() -> None:
    """Show, set and lift cooldowns. Without a subcommand: the list."""


@cooldowns.shows("list")
def _cooldowns(found: list[Cooldown], now: float) -> None:
    """List the cooldowns in force, the first to end first."""
    columns = ["key", "for", "until", "since", "reason", "by"]
    printing.table(columns, [_cooldown(each, now) for each in found], "no cooldowns")


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


@cooldowns.shows("set")
@click.argument("seconds", metavar="DURATION", type=params.duration)
@click.option("--reason", help="The reason, shown by `explain`.")
def _set_cooldown(found: Cooldown) -> None:
    """Hand out no work that uses KEY for a DURATION such as 90s, 15m or 2h.

    KEY is provider:NAME, account:NAME, model:NAME or type:NAME, or several of them joined by commas.
    """
    printing.echo(f"{found.key} is in cooldown until {printing.when(found.until)}")


@cooldowns.shows("lift")
def _lifted(lifted: bool, key: str) -> None:  # noqa: FBT001  # the answer
    """End the cooldown of KEY, which is named as for `set`."""
    printing.echo(f"{key} {'is out of cooldown' if lifted else 'had no cooldown'}")


@listing("limits")
def limits() -> None:
    """Show and set how much of a provider, account, model or type may be used. Without a subcommand: the list."""


@limits.shows("list")
def _limits(found: list[LimitInForce], now: float) -> None:
    """List the limits and their current use."""
    columns = ["key", "at once", "requests", "tokens", "window", "room"]
    printing.table(columns, [_limit(each, now) for each in found], "no limits")


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


@limits.shows("set")
@click.option("--window", "window_sec", type=params.duration, help="How long a window is: 60s, 1h, 1d.")
def _limited(found: LimitInForce) -> None:
    """Limit how much work that uses KEY agents can claim.

    KEY is provider:NAME, account:NAME, model:NAME or type:NAME, or several of them joined by commas.
    """
    printing.echo(f"{found.key} limited")


@limits.shows("remove")
def _removed(removed: bool, key: str) -> None:  # noqa: FBT001  # the answer
    """Remove the limit of KEY, which is named as for `set`."""
    printing.echo(f"{key} {'no longer limited' if removed else 'had no limit'}")


@listing("quotas")
def quotas() -> None:
    """Limit what each workspace may store and submit. Without a subcommand: the list."""


@quotas.shows("list")
def _quotas(found: list[QuotaInForce]) -> None:
    """List the workspaces that have a quota."""
    columns = ["workspace", "tasks", "bytes", "submits a minute", "set", "by"]
    printing.table(columns, [_quota_row(each) for each in found], "no quotas")


def _quota_row(found: QuotaInForce) -> tuple[object, ...]:
    used = (_used_of(found.tasks, found.max_tasks), _used_of(found.bytes, found.max_bytes))
    return found.workspace, *used, found.submits_per_minute or "no limit", printing.when(found.set_at), found.set_by


def _used_of(used: int | None, most: int | None) -> str:
    return "no limit" if most is None else f"{used} of {most}"


@quotas.shows("show")
def _quota(found: QuotaInForce) -> None:
    """Show the quota of the workspace, and its use."""
    rate = "no limit" if found.submits_per_minute is None else f"{found.submits_per_minute}, now {found.room}"
    facts = [("workspace", found.workspace), ("tasks", _used_of(found.tasks, found.max_tasks))]
    facts += [("bytes", _used_of(found.bytes, found.max_bytes)), ("submits a minute", rate)]
    printing.facts(facts)


@quotas.command("set")
@click.argument("tenant", metavar="WORKSPACE")
@click.option("--max-tasks", type=COUNT, help="Tasks that are stored, whatever their status.")
@click.option("--max-bytes", type=COUNT, help="Bytes of submissions and artifacts.")
@click.option("--submits-per-minute", type=COUNT, help="Tasks, not calls; bursts up to a minute's worth are allowed.")
@with_queue(create=True)
async def set_(shell: Shell, queue: AnyQueue, *, tenant: str, **terms: int | None) -> None:
    """Set the quota of WORKSPACE. Options left out mean no limit; without any option the quota is removed."""
    found = await queue.quotas.set(tenant, **terms)
    name, tasks, size, rate, *_ = _quota_row(found)
    line = f"{printing.clean(str(name))}: tasks {tasks}, bytes {size}, submits a minute {rate}"
    shell.answer(found, lambda: click.echo(line))


@click.command(cls=Command)
@with_queue()
async def backpressure(shell: Shell, queue: AnyQueue) -> None:
    """Show how full the queue is. Waiting tasks, limits, and remaining room."""
    found = await queue.control.backpressure()
    shell.answer(found, lambda: _show_backpressure(found))


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
