"""Commands for monitoring: `alerts`, `failures`, `metrics`, `dags`, `batches`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from shiftwork.cli import params, printing
from shiftwork.cli.groups import listing
from shiftwork.cli.shell import Command, Shell, refuse, with_queue
from shiftwork.observe.alert_kinds import KINDS
from shiftwork.observe.metric_catalogue import METRICS

if TYPE_CHECKING:
    from shiftwork.client import AnyQueue
    from shiftwork.dags.model import DagPage, DagSummary
    from shiftwork.model.task import Dag
    from shiftwork.observe.model import Alert, Metrics, Pattern, Sample


@listing("alerts")
def alerts() -> None:
    """Show problems that need attention, and acknowledge them. Without a subcommand: the open ones."""


@alerts.command("list")
@click.option("--all", "acknowledged_too", is_flag=True, help="Include acknowledged ones.")
@click.option("--kind", help=f"One of {', '.join(KINDS)}.")
@click.option("--after", type=click.IntRange(min=0), default=0, metavar="SEQ", help="Continue after this number.")
@click.option("--limit", type=int, default=100, show_default=True, help="Maximum number to show.")
@with_queue()
async def list_alerts(shell: Shell, queue: AnyQueue, *, acknowledged_too: bool, **filters: Any) -> None:
    """List alerts, oldest first."""
    found = await queue.alerts.list(open_only=not acknowledged_too, **filters)
    shell.answer(found, lambda: _alerts_table(found))


def _alerts_table(found: list[Alert]) -> None:
    printing.table(
        ["alert", "at", "severity", "kind", "message", "acknowledged"],
        [(a.seq, printing.when(a.at), a.severity, a.kind, a.message, a.acknowledged_by) for a in found],
        "no alerts",
    )


@alerts.command()
@click.argument("seq", type=click.IntRange(min=1), nargs=-1, required=True)
@with_queue()
async def acknowledge(shell: Shell, queue: AnyQueue, *, seq: tuple[int, ...]) -> None:
    """Acknowledge alerts by their numbers."""
    done = [await queue.alerts.acknowledge(number) for number in seq]
    shell.answer(done, lambda: _alerts_table(done))


@click.command(cls=Command)
@click.option(
    "--by",
    type=click.Choice(["type", "agent", "model", "reason", "signature"]),
    default="signature",
    show_default=True,
    help="What to group by.",
)
@click.option("--since", type=params.duration, metavar="DURATION", help="Only the last 15m, 2h, 3d [default: all].")
@click.option("--limit", type=int, default=50, show_default=True, help="Maximum number of groups.")
@with_queue()
async def failures(shell: Shell, queue: AnyQueue, *, by: Any, since: float | None, limit: int) -> None:
    """Group failed attempts by what they have in common, the most frequent first."""
    found = await queue.metrics.failures(by, since=None if since is None else queue.now() - since, limit=limit)
    columns = [by, "failures", "rate", "agents", "first", "last", "newest task", "its error"]
    shell.answer(found, lambda: printing.table(columns, [_pattern(each) for each in found], "nothing has failed"))


def _pattern(found: Pattern) -> tuple[object, ...]:
    first, last = printing.when(found.first_at), printing.when(found.last_at)
    rate = None if found.rate is None else f"{found.rate:.0%}"
    return found.value, found.total, rate, len(found.agents), first, last, found.task_id, printing.clip(found.error)


DAG_COLUMNS = ("dag", "status", "done", "spent", "age", "title")


@listing("dags", covers={"cancel": "cancel --dag"})
def dags() -> None:
    """Show and change DAGs of more than one task. Without a subcommand: the list."""


@dags.shows("list")
@click.option("--after", metavar="DAG", help="Continue after this DAG: `next` of the previous page.")
def _dags_table(page: DagPage, now: float) -> None:
    """List DAGs, newest first."""
    printing.table(DAG_COLUMNS, [_dag_row(dag, now) for dag in page.dags], "no DAGs")
    if page.next:
        click.echo(f"More: --after {page.next}", err=True)


def _dag_row(dag: DagSummary, now: float) -> tuple[object, ...]:
    spent = _spent(dag)
    return (
        dag.id,
        dag.status,
        f"{dag.done}/{dag.total}",
        spent,
        printing.ago(dag.created_at, now),
        printing.clip(dag.title),
    )


def _spent(dag: DagSummary | Dag) -> str:
    most = dag.budget_ceiling_usd
    return printing.usd(dag.spent_usd) + ("" if most is None else f" of {printing.usd(most)}")


@dags.shows("show")
def _dag(found: Dag) -> None:
    """Show a DAG: its shape, progress and cost."""
    printing.facts(
        [
            ("dag", found.id),
            ("title", found.title),
            ("status", found.status),
            ("done", f"{found.done} of {found.total}"),
            ("tasks", ", ".join(f"{status} {count}" for status, count in found.counts.items())),
            ("begins with", found.roots),
            ("ends with", found.leaves),
            ("spent", _spent(found)),
            ("created", f"{printing.when(found.created_at)} by {found.created_by or 'unknown'}"),
            ("finished", printing.when(found.finished_at)),
        ]
    )


def _anything(*, title: str | None, ceiling: float | None, no_ceiling: bool, **_: Any) -> None:
    if title is None and ceiling is None and not no_ceiling:
        refuse("there is nothing to change")
    if ceiling is not None and no_ceiling:
        refuse("give either --ceiling or --no-ceiling")


@dags.command("update")
@click.argument("dag")
@click.option("--title", help="A title for people.")
@click.option("--ceiling", type=params.NUMBER, metavar="USD", help="The maximum cost, in dollars.")
@click.option("--no-ceiling", is_flag=True, help="No ceiling.")
@with_queue(check=_anything)
async def update_dag(
    shell: Shell, queue: AnyQueue, *, dag: str, title: str | None, ceiling: float | None, no_ceiling: bool
) -> None:
    """Change a DAG's title or ceiling."""
    changes: dict[str, Any] = {} if title is None else {"title": title}
    if ceiling is not None or no_ceiling:
        changes["budget_ceiling_usd"] = ceiling
    changed = await queue.dags.update(dag, changes)
    now = queue.now()
    shell.answer(changed, lambda: printing.table(DAG_COLUMNS, [_dag_row(changed, now)]))


@click.command(cls=Command)
@click.option(
    "--snapshots", type=click.IntRange(min=1), metavar="COUNT", help="Show this many stored snapshots, newest first."
)
@click.argument("name", nargs=-1)
@with_queue()
async def metrics(shell: Shell, queue: AnyQueue, *, snapshots: int | None, name: tuple[str, ...]) -> None:
    """Show current metrics, all or those named; histograms as count and mean."""
    if snapshots is None:
        found = _only(await queue.metrics.read(), name)
        shell.answer(found, lambda: _metrics_table(found))
        return
    kept = [_only(each, name) for each in await queue.metrics.snapshots(limit=snapshots)]
    shell.answer(kept, lambda: _all_snapshots(kept))


def _only(found: Metrics, names: tuple[str, ...]) -> Metrics:
    samples = [sample for sample in found.samples if not names or sample.name.startswith(names)]
    return type(found)(found.calculated_at, samples)


def _all_snapshots(kept: list[Metrics]) -> None:
    for each in kept:
        click.echo(printing.when(each.calculated_at))
        _metrics_table(each)
    if not kept:
        click.echo("no snapshots yet")


def _metrics_table(found: Metrics) -> None:
    sums = {(s.name.removesuffix("_sum"), _labels_of(s)): s.value for s in found.samples if s.name.endswith("_sum")}
    rows = [_metric_row(sample, sums) for sample in found.samples if "le" not in sample.labels and not _is_sum(sample)]
    printing.table(["metric", "labels", "value"], rows, "no metrics yet")


def _is_sum(sample: Sample) -> bool:
    return sample.name not in METRICS and sample.name.endswith("_sum")


def _metric_row(sample: Sample, sums: dict[tuple[str, str], float]) -> tuple[object, ...]:
    name, labels = sample.name.removesuffix("_count"), _labels_of(sample)
    if sample.name in METRICS or (name, labels) not in sums:
        return sample.name, labels, f"{sample.value:g}"
    mean = sums[name, labels] / sample.value if sample.value else 0.0
    return name, labels, f"{sample.value:g}, mean {mean:.3g} s"


def _labels_of(sample: Sample) -> str:
    return " ".join(f"{label}={value}" for label, value in sample.labels.items())


@listing("batches")
def batches() -> None:
    """Show tasks that were sent to a provider in batches. Without a subcommand: the list."""
