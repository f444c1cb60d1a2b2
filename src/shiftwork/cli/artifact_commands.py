"""`artifact`: content kept next to the queue, for files that are too large for a payload or a result."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import click

from shiftwork.cli import params, printing
from shiftwork.cli.groups import Group
from shiftwork.cli.shell import Shell, with_queue
from shiftwork.model.errors import InputError

if TYPE_CHECKING:
    from shiftwork.artifacts.model import Artifact, Attached
    from shiftwork.client import AnyQueue
    from shiftwork.engine.assignment import Input


@click.group(cls=Group, namespace="artifacts")
def artifacts() -> None:
    """Store files with the queue, and read them back."""


@artifacts.command()
@click.argument("source", metavar="FILE", type=params.source)
@click.option("--task", metavar="TASK", help="The task it is an input of.")
@click.option("--claim", metavar="TOKEN", help="The claim under which it was made.")
@click.option("--name", help="Its name [default: the file's name].")
@click.option("--media-type", help="[default: derived from its name].")
@with_queue(create=True)
async def put(
    shell: Shell,
    queue: AnyQueue,
    *,
    source: BinaryIO | Path,
    task: str | None,
    claim: str | None,
    name: str | None,
    media_type: str | None,
) -> None:
    """Store a file, or standard input (-), and print its id."""
    speaker = queue if shell.actor or claim is None else queue.as_caller("system")
    kept = await speaker.artifacts.put(source, name=name, media_type=media_type, task=task, token=claim)
    shell.answer(kept, lambda: click.echo(kept.id))


@artifacts.command()
@click.argument("artifact_id", metavar="ID")
@click.option("-o", "--output", metavar="FILE", help="Where to write it [default: standard output].")
@with_queue()
async def get(shell: Shell, queue: AnyQueue, *, artifact_id: str, output: str | None) -> None:
    """Write the bytes of an artifact to a file, all or nothing, or to standard output."""
    found = await queue.artifacts.info(artifact_id)
    if output is None:
        await _copy(queue, found.id, sys.stdout.buffer)
        return
    await _save(queue, found.id, Path(output))
    shell.answer({**printing.plain(found), "file": output}, lambda: click.echo(f"{found.size} bytes in {output}"))


async def _save(queue: AnyQueue, artifact_id: str, path: Path) -> None:
    try:
        part, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:100]}.")
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}", where="--output") from None
    with _removed_unless_moved(Path(name)) as written:
        with os.fdopen(part, "wb") as file:
            await _copy(queue, artifact_id, file)
        _move(written, path)


@contextmanager
def _removed_unless_moved(file: Path) -> Iterator[Path]:
    try:
        yield file
    finally:
        file.unlink(missing_ok=True)


def _move(written: Path, path: Path) -> None:
    """Move the file into place, with the usual permissions of new files."""
    mask = os.umask(0)
    os.umask(mask)
    try:
        written.chmod(0o666 & ~mask)
        written.replace(path)
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}", where="--output") from None


async def _copy(queue: AnyQueue, artifact_id: str, file: BinaryIO) -> None:
    async for part in queue.artifacts.get(artifact_id):
        file.write(part)
    file.flush()


@artifacts.shows("show")
@click.argument("artifact_id", metavar="ID")
def _facts(found: Artifact) -> None:
    """Show an artifact's facts."""
    printing.facts(
        [
            ("artifact", found.id),
            ("size", found.size),
            ("media type", found.media_type),
            ("since", printing.when(found.created_at)),
            ("by", found.created_by),
        ]
    )


@artifacts.shows("list")
def _table(found: list[Attached]) -> None:
    """List all artifacts a task refers to."""
    columns = ["artifact", "role", "name", "size", "media type", "by", "at"]
    printing.table(columns, [_row(each) for each in found], "no artifacts")


def _row(each: Attached) -> tuple[object, ...]:
    return each.id, each.role, each.name, each.size, each.media_type, each.by, printing.when(each.at)


@artifacts.shows("inputs")
def _inputs(found: list[Input]) -> None:
    """List a task's inputs, as its agent gets them."""
    rows = [(each.ref, each.kind, each.status, each.size, each.media_type) for each in found]
    printing.table(["reference", "kind", "status", "size", "media type"], rows, "no inputs")
