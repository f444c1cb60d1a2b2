"""`metrics`: shows the metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from shiftwork.cli import printing
from shiftwork.cli.shell import Answer, Command, Shell, with_queue
from shiftwork.observe.metric_catalogue import METRICS

if TYPE_CHECKING:
    from shiftwork.client import AnyQueue
    from shiftwork.observe.model import Metrics, Sample


@click.command(cls=Command)
@click.option(
    "--snapshots", type=click.IntRange(min=1), metavar="COUNT", help="Show this many stored snapshots, newest first."
)
@click.argument("name", nargs=-1)
@with_queue()
async def metrics(shell: Shell, queue: AnyQueue, *, snapshots: int | None, name: tuple[str, ...]) -> Answer:
    """Show current metrics, all or those named; histograms as count and mean."""
    if snapshots is None:
        found = _only(await queue.metrics.read(), name)
        shell.answer(found, lambda: _table(found))
        return None
    kept = [_only(each, name) for each in await queue.metrics.snapshots(limit=snapshots)]
    shell.answer(kept, lambda: _all(kept))
    return None


def _only(found: Metrics, names: tuple[str, ...]) -> Metrics:
    samples = [sample for sample in found.samples if not names or sample.name.startswith(names)]
    return type(found)(found.calculated_at, samples)


def _all(kept: list[Metrics]) -> None:
    for each in kept:
        click.echo(printing.when(each.calculated_at))
        _table(each)
    if not kept:
        click.echo("no snapshots yet")


def _table(found: Metrics) -> None:
    sums = {(s.name.removesuffix("_sum"), _labels(s)): s.value for s in found.samples if s.name.endswith("_sum")}
    rows = [_row(sample, sums) for sample in found.samples if "le" not in sample.labels and not _is_sum(sample)]
    printing.table(["metric", "labels", "value"], rows, "no metrics yet")


def _is_sum(sample: Sample) -> bool:
    return sample.name not in METRICS and sample.name.endswith("_sum")


def _row(sample: Sample, sums: dict[tuple[str, str], float]) -> tuple[object, ...]:
    name, labels = sample.name.removesuffix("_count"), _labels(sample)
    if sample.name in METRICS or (name, labels) not in sums:
        return sample.name, labels, f"{sample.value:g}"
    mean = sums[name, labels] / sample.value if sample.value else 0.0
    return name, labels, f"{sample.value:g}, mean {mean:.3g} s"


def _labels(sample: Sample) -> str:
    return " ".join(f"{label}={value}" for label, value in sample.labels.items())
