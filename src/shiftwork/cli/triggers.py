"""`triggers`: start work automatically."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click
import msgspec

from shiftwork.cli import params, printing
from shiftwork.cli.groups import listing
from shiftwork.cli.shell import Shell, refuse, together, with_queue
from shiftwork.model import check
from shiftwork.triggers.model import NewTrigger

if TYPE_CHECKING:
    from shiftwork.client import AnyQueue
    from shiftwork.triggers.model import Firing, Preview, SavedTrigger, Trigger

SHOWN_FIRINGS = 10


@listing("triggers", covers={"save": "triggers add"})
def triggers() -> None:
    """Start work automatically: by schedules, hooks, files, ends of DAGs, events. Without a subcommand: the list."""


def _one_source(**options: Any) -> None:
    given = [name for name in ("file", "cron", "hook", "files", "after_dag", "event") if options[name]]
    if len(given) != 1:
        refuse("give one of --cron, --hook, --files, --after-dag and --event, or --file with all of it")
    if not options["file"] and (options["task"] is None) == (options["dag"] is None):
        refuse("give what it creates: --task or --dag")


def _pair(text: str) -> tuple[str, Any]:
    """NAME=VALUE; the value is JSON, or plain text."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise click.BadParameter(f"{text!r} is not of the form NAME=VALUE")
    return name, params.word_or_json(value)


def _parameter(text: str) -> tuple[str, Any]:
    """NAME=PLACE, or NAME=JSON for one with a type and a default."""
    name, value = _pair(text)
    return name, value if isinstance(value, dict) else {"from": str(value)}


_SOURCES = together(
    click.option("--cron", metavar="TEXT", help="A cron expression such as '0 9 * * MON', or @daily."),
    click.option("--zone", metavar="NAME", help="The time zone of --cron, such as Europe/Berlin [default: UTC]."),
    click.option("--missed", type=click.Choice(["one", "skip", "all"]), help="What to do about missed times."),
    click.option("--jitter", type=params.duration, metavar="DURATION", help="Spread schedules over this long."),
    click.option("--hook", type=click.Choice(["standard", "github", "slack"]), help="How deliveries are signed."),
    click.option(
        "--secret-env",
        metavar="VARIABLE",
        help="The environment variable with the hook's secret [default: generate one].",
    ),
    click.option("--files", metavar="PATTERN", help="Files of the folder a server watches, such as 'inbox/*.md'."),
    click.option("--after-dag", metavar="TITLE", help="When a DAG whose title matches this pattern ends."),
    click.option("--ends", type=click.Choice(["completed", "failed", "cancelled"]), multiple=True, help="Which ends."),
    click.option("--event", metavar="NAME", multiple=True, help="Events of the queue."),
    click.option("--where", type=_pair, metavar="PLACE=VALUE", multiple=True, help="A condition on its fields."),
)


@triggers.command()
@click.argument("name")
@_SOURCES
@click.option("--task", type=params.json_value, metavar="JSON", help="The task it creates; @file reads it from one.")
@click.option("--dag", type=params.json_value, metavar="JSON", help="The DAG it creates; @file reads it from one.")
@click.option(
    "--parameter",
    type=_parameter,
    metavar="NAME=PLACE",
    multiple=True,
    help="Where the value of {{ NAME }} comes from.",
)
@click.option(
    "--overlap", type=click.Choice(["allow", "skip", "replace"]), help="What to do while earlier work is unfinished."
)
@click.option("--file", type=params.json_file, metavar="FILE", help="The whole trigger as JSON, or - for stdin.")
@with_queue(create=True, check=_one_source)
async def add(shell: Shell, queue: AnyQueue, *, name: str, file: Any, secret_env: str | None, **options: Any) -> None:
    """Add a trigger, or change the one of this NAME."""
    trigger = check.read(file if file is not None else _trigger(options), NewTrigger, "trigger")
    saved = await queue.triggers.save(name, **msgspec.structs.asdict(trigger), secret=_secret(secret_env))
    shell.answer(saved, lambda: _saved(saved))


def _trigger(options: dict[str, Any]) -> dict[str, Any]:
    parameters = dict(options["parameter"])
    made = {"task": options["task"], "dag": options["dag"], "overlap": options["overlap"], "parameters": parameters}
    return {"on": _without_unset(_source(options)), **_without_unset(made)}


def _source(options: dict[str, Any]) -> dict[str, Any]:
    where = dict(options["where"])
    if options["cron"]:
        clock = {"zone": options["zone"], "missed": options["missed"], "jitter_sec": options["jitter"]}
        return {"kind": "cron", "at": options["cron"], **clock}
    if options["hook"]:
        return {"kind": "hook", "signature": options["hook"], "where": where}
    if options["files"]:
        return {"kind": "file", "pattern": options["files"]}
    if options["after_dag"]:
        return {"kind": "dag", "title": options["after_dag"], "ends": list(options["ends"])}
    return {"kind": "event", "events": list(options["event"]), "where": where}


def _without_unset(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value not in (None, {}, [])}


def _secret(variable: str | None) -> str | None:
    if variable is None:
        return None
    found = os.environ.get(variable)
    if not found:
        refuse(f"the variable {variable} is not set")
    return found


def _saved(saved: SavedTrigger) -> None:
    trigger = saved.trigger
    text = f"saved {printing.clean(trigger.name)}" + (
        f", next {printing.when(trigger.next_at)}" if trigger.next_at else ""
    )
    click.echo(text)
    if saved.secret is not None:
        click.echo(f"secret (shown this once): {saved.secret}")


@triggers.shows("list")
def _table(found: list[Trigger], now: float) -> None:
    """List the triggers with their sources and firings."""
    columns = ["name", "waits for", "creates", "next", "fired", "last", ""]
    printing.table(columns, [_row(each, now) for each in found], "no triggers")


def _row(trigger: Trigger, now: float) -> tuple[object, ...]:
    return (
        trigger.name,
        _waits_for(trigger),
        _creates(trigger),
        printing.ago(trigger.next_at, now),
        trigger.fired,
        printing.ago(trigger.last_fired_at, now),
        "" if trigger.paused_at is None else "paused",
    )


def _waits_for(trigger: Trigger) -> str:
    on: Any = trigger.on
    kind = on.__struct_config__.tag
    handlers = {
        "cron": lambda: f"{on.at} {on.zone}",
        "hook": lambda: f"POST /api/hooks/{trigger.name} ({on.signature})",
        "file": lambda: f"files {on.pattern}",
        "dag": lambda: f"DAG {on.title} {', '.join(on.ends)}",
        "event": lambda: ", ".join(on.events),
    }
    return handlers[kind]()


def _creates(trigger: Trigger) -> str:
    if trigger.task is not None:
        return f"task {trigger.task.get('type')}"
    tasks = (trigger.dag or {}).get("tasks", [])
    return f"DAG of {len(tasks)}"


@triggers.command("show")
@click.argument("name")
@with_queue()
async def show_(shell: Shell, queue: AnyQueue, *, name: str) -> None:
    """Show a trigger and its last firings."""
    trigger, firings = await queue.triggers.get(name), await queue.triggers.firings(name, limit=SHOWN_FIRINGS)
    shell.answer({"trigger": trigger, "firings": firings}, lambda: _show(trigger, firings, queue.now()))


def _show(trigger: Trigger, firings: Sequence[Firing], now: float) -> None:
    printing.facts(
        [
            ("name", trigger.name),
            ("waits for", _waits_for(trigger)),
            ("next", printing.when(trigger.next_at)),
            ("paused", printing.when(trigger.paused_at)),
            ("overlap", trigger.overlap),
            ("fired", trigger.fired),
            ("by", trigger.created_by),
            ("creates", printing.pretty(trigger.task or trigger.dag)),
        ]
    )
    rows = [(printing.ago(each.at, now), each.outcome, each.key, each.reason or each.tasks) for each in firings]
    printing.section("Firings", lambda: printing.table(["ago", "outcome", "for", "outcome"], rows, "none yet"))


@triggers.shows("pause")
def _paused(found: Trigger) -> None:
    """Pause a trigger until it is resumed. Occasions in between are ignored."""
    printing.echo(f"{found.name} paused")


@triggers.shows("resume")
def _resumed(found: Trigger) -> None:
    """Resume a trigger, for occasions from now on."""
    printing.echo(f"{found.name} resumed")


@triggers.shows("remove")
def _removed(removed: bool, name: str) -> None:  # noqa: FBT001  # the answer
    """Remove a trigger with its firings. Tasks it created stay."""
    printing.echo(f"{name} {'removed' if removed else 'does not exist'}")


_FILLED = together(
    click.option("--parameter", type=_pair, metavar="NAME=VALUE", multiple=True, help="The value of a parameter."),
    click.option(
        "--facts", type=params.json_value, metavar="JSON", help="The event's facts; @file reads them from a file."
    ),
)


def _fill(parameter: Sequence[tuple[str, Any]], facts: Any) -> dict[str, Any]:
    return {"parameters": dict(parameter), "facts": {} if facts is None else facts}


@triggers.command()
@click.argument("name")
@_FILLED
@click.option("--reason", help="The reason, recorded in the history.")
@with_queue()
async def fire(
    shell: Shell, queue: AnyQueue, *, name: str, parameter: Sequence[Any], facts: Any, reason: str | None
) -> None:
    """Fire a trigger now, paused or not."""
    came = await queue.triggers.fire(name, **_fill(parameter, facts), reason=reason)
    shell.answer(came, lambda: click.echo(f"{came.outcome} {came.reason or ' '.join(came.tasks)}"))


@triggers.command()
@click.argument("name")
@_FILLED
@with_queue()
async def preview(shell: Shell, queue: AnyQueue, *, name: str, parameter: Sequence[Any], facts: Any) -> None:
    """Show what a trigger would create, and the next times of a schedule, without creating anything."""
    seen = await queue.triggers.preview(name, **_fill(parameter, facts))
    answer = {**printing.plain(seen), "next": [printing.iso(at) for at in seen.next]}
    shell.answer(answer, lambda: _preview(seen))


def _preview(seen: Preview) -> None:
    click.echo(printing.pretty(seen.task or seen.dag))
    for at in seen.next:
        click.echo(f"next  {printing.when(at)}")
