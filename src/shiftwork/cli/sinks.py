"""`sinks` and `deliveries`: where notifications go, and whether they arrived."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import click

from shiftwork.cli import params, printing
from shiftwork.cli.exit_codes import ExitCode
from shiftwork.cli.groups import listing
from shiftwork.cli.shell import Answer, Shell, refuse, with_queue

if TYPE_CHECKING:
    from collections.abc import Callable

    from shiftwork.client import AnyQueue
    from shiftwork.notifications.model import Delivery, Sink

PATIENCE_SEC = 15.0
LOOK_EVERY_SEC = 0.25
_NAME = click.argument("sink", metavar="NAME")
_WANTS = ("alerts", "severity", "events", "types", "creators")
_WANTED = [
    click.option("--alert", "alerts", multiple=True, metavar="KIND", help="A kind of alert; all without. Repeatable."),
    click.option("--no-alerts", is_flag=True, help="No alerts at all."),
    click.option(
        "--severity", type=click.Choice(["info", "warning", "critical"]), help="The minimum severity of alerts."
    ),
    click.option(
        "--event", "events", multiple=True, metavar="NAME", help="Such as task.completed or 'task.*'. Repeatable."
    ),
    click.option("--type", "types", multiple=True, help="Only for tasks of this type. Repeatable."),
    click.option("--creator", "creators", multiple=True, help="Only alerts for this creator of tasks. Repeatable."),
]
_REACHED = [
    click.option(
        "--secret-file", "secret", type=params.text_file, metavar="FILE",
        help="The signing secret of a webhook (whsec_…) or Slack app, or the mail server's password; - for stdin.",
    ),
    click.option("--server", metavar="URL", help="For e-mail: smtp://user@host:587 or smtps://user@host:465."),
    click.option("--sender", metavar="ADDRESS", help="For e-mail: the sender."),
]  # fmt: skip


def _options(*groups: list[Any]) -> Callable[[Callable[..., Answer]], Callable[..., Answer]]:
    def add(function: Callable[..., Answer]) -> Callable[..., Answer]:
        for option in reversed([option for group in groups for option in group]):
            function = option(function)
        return function

    return add


@listing("sinks")
def sinks() -> None:
    """Send alerts and events to webhooks, Slack, e-mail and apprise. Without a subcommand: the list."""


@sinks.command()
@click.argument("name")
@click.argument("address")
@click.option(
    "--kind", type=click.Choice(["webhook", "slack", "email", "apprise"]), default="webhook", show_default=True
)
@click.option("--allow-private", is_flag=True, help="Allow an address that is not public.")
@_options(_REACHED, _WANTED)
@with_queue(create=True)
async def add(shell: Shell, queue: AnyQueue, **given: Any) -> None:
    """Notify ADDRESS from now on: a URL, or e-mail addresses separated by commas.

    Without --alert and --event all alerts are sent. A webhook is signed; its secret is shown now and never again.
    """
    added = await queue.sinks.add(**_fields(given))
    shell.answer(added, lambda: click.echo(added.secret or f"{printing.clean(added.sink.name)} added"))
    if added.secret is not None and not shell.json:
        click.echo("Messages are signed with this secret. It will not be shown again.", err=True)


@sinks.command()
@click.argument("name")
@click.option("--address", metavar="ADDRESS", help="Its new address.")
@click.option("--allow-private/--public-only", default=None, help="Whether to allow an address that is not public.")
@_options(_REACHED, _WANTED)
@with_queue()
async def update(shell: Shell, queue: AnyQueue, *, name: str, **given: Any) -> None:
    """Change a sink's address, secret or filter. A new filter replaces the whole old one."""
    changed = await queue.sinks.update(name, **_fields(given))
    shell.answer(changed, lambda: printing.echo(f"{changed.name} changed"))


def _fields(given: dict[str, Any]) -> dict[str, Any]:
    """The options as the queue takes them, with the filter as one value."""
    no_alerts = given.pop("no_alerts")
    wants = {name: list(value) if isinstance(value, tuple) else value for name in _WANTS if (value := given.pop(name))}
    if no_alerts and "alerts" in wants:
        refuse("--alert and --no-alerts exclude each other")
    if no_alerts:
        wants["alerts"] = []
    fields = {name: value for name, value in given.items() if value is not None}
    if "secret" in fields:
        fields["secret"] = fields["secret"].strip()
    return {**fields, "wants": wants} if wants else fields


@sinks.shows("list")
def _sinks(found: list[Sink]) -> None:
    """List the sinks by name, with their status."""
    columns = ["sink", "kind", "address", "status", "wants", "last error"]
    printing.table(columns, [_row(sink) for sink in found], "no sinks")


def _row(sink: Sink) -> tuple[object, ...]:
    return sink.name, sink.kind, sink.address, sink.status, _wants(sink), printing.clip(sink.last_error)


def _wants(sink: Sink) -> str:
    wants = sink.wants
    alerts = [] if not wants.alerts else ["all alerts" if "*" in wants.alerts else ", ".join(wants.alerts)]
    least = [f"from {wants.severity}"] if alerts and wants.severity != "info" else []
    narrow = [f"of {', '.join(wants.types)}"] if wants.types else []
    narrow += [f"for {', '.join(wants.creators)}"] if wants.creators else []
    return "; ".join(part for part in (" ".join(alerts + least), ", ".join(wants.events), " ".join(narrow)) if part)


@sinks.shows("show")
@_NAME
def _sink(sink: Sink) -> None:
    """Show one sink, and why it is paused or failing."""
    times = {"rests_until": sink.rests_until, "paused_at": sink.paused_at, "created_at": sink.created_at}
    facts = [
        *[("name", sink.name), ("kind", sink.kind), ("address", sink.address), ("server", sink.server)],
        *[("sender", sink.sender), ("wants", _wants(sink)), ("status", sink.status)],
        *[("private", "allowed" if sink.allow_private else None)],
        *[(label.rpartition("_")[0], printing.when(at)) for label, at in times.items()],
        *[("why paused", sink.pause_reason), ("last error", sink.last_error), ("by", sink.created_by)],
    ]
    printing.facts(facts)


@sinks.shows("pause")
@_NAME
@click.option("--reason", help="The reason, shown by `sinks show`.")
def _paused(sink: Sink) -> None:
    """Pause a sink until it is resumed. Its deliveries wait."""
    printing.echo(f"{sink.name} paused")


@sinks.shows("resume")
@_NAME
def _resumed(sink: Sink) -> None:
    """Resume a sink, whatever paused it."""
    printing.echo(f"{sink.name} resumed")


@sinks.shows("remove")
@_NAME
def _removed(removed: bool, sink: str) -> None:  # noqa: FBT001  # the answer
    """Remove a sink with its waiting deliveries."""
    printing.echo(f"{sink} {'removed' if removed else 'is not a sink'}")


@sinks.command("test")
@click.argument("name")
@with_queue()
async def test_sink(shell: Shell, queue: AnyQueue, *, name: str) -> Answer:
    """Send a test message to a sink and report whether it arrived; exit code 4 if it did not."""
    sent = await _first_attempt(queue, await queue.sinks.test(name))
    shell.answer(sent, lambda: click.echo(_sent_text(sent)))
    return None if sent.status == "sent" else ExitCode.CONFLICT


async def _first_attempt(queue: AnyQueue, sent: Delivery) -> Delivery:
    """A server sends it; with direct access to the database, we do, because no server need run."""
    from shiftwork.queue import Queue  # noqa: PLC0415  # needed for this alone

    if isinstance(queue, Queue):
        from shiftwork.notifications.sender import NotificationSender  # noqa: PLC0415  # likewise

        await NotificationSender(queue.engine).send_due()
        return await queue.deliveries.get(sent.id)
    for _ in range(int(PATIENCE_SEC / LOOK_EVERY_SEC)):
        if sent.status != "pending" or sent.error is not None:
            break
        await asyncio.sleep(LOOK_EVERY_SEC)
        sent = await queue.deliveries.get(sent.id)
    return sent


def _sent_text(sent: Delivery) -> str:
    if sent.status == "sent":
        return f"{sent.id} arrived"
    return printing.clean(f"{sent.id} has not arrived: {sent.error or 'not sent yet'}")


@listing("deliveries", covers={"redeliver-dead": "deliveries redeliver --sink"})
def deliveries() -> None:
    """Show deliveries to sinks, and send failed ones again. Without a subcommand: the list."""


@deliveries.shows("list")
@click.option("--sink", help="Only to this sink.")
def _deliveries(found: list[Delivery], now: float) -> None:
    """List deliveries, newest first."""
    columns = ["delivery", "sink", "status", "attempts", "made", "next", "message", "error"]
    printing.table(columns, [_line(each, now) for each in found], "no deliveries")


def _line(sent: Delivery, now: float) -> tuple[object, ...]:
    times = printing.ago(sent.created_at, now), printing.ago(sent.next_at, now)
    return (
        sent.id,
        sent.sink,
        sent.status,
        sent.attempts,
        *times,
        printing.clip(sent.message),
        printing.clip(sent.error),
    )


@deliveries.shows("show")
@click.argument("delivery_id", metavar="ID")
def _delivery(sent: Delivery) -> None:
    """Show one delivery with its content."""
    facts = [
        *[("delivery", sent.id), ("sink", sent.sink), ("status", sent.status), ("attempts", sent.attempts)],
        *[
            ("made", printing.when(sent.created_at)),
            ("next", printing.when(sent.next_at)),
            ("ended", printing.when(sent.ended_at)),
        ],
        *[("error", sent.error), ("message", sent.message), ("notification", printing.pretty(sent.notification))],
    ]
    printing.facts(facts)


@deliveries.command()
@click.argument("ids", metavar="[ID]...", nargs=-1)
@click.option("--sink", help="All dead deliveries of this sink.")
@with_queue()
async def redeliver(shell: Shell, queue: AnyQueue, *, ids: tuple[str, ...], sink: str | None) -> None:
    """Send deliveries again: each ID, or all dead ones of a --sink."""
    if bool(ids) == (sink is not None):
        refuse("name either deliveries or a --sink")
    again = [await queue.deliveries.redeliver(each) for each in ids]
    count = len(again) if sink is None else await queue.deliveries.redeliver_dead(sink)
    shell.answer({"redelivered": count}, lambda: click.echo(f"{count} sent again"))
