"""Artifacts: content by its hash, kept while somebody refers to it, never handed out damaged."""

import hashlib
import io
import os
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from shiftwork import Queue, Report
from shiftwork.artifacts.depot import Depot
from shiftwork.artifacts.spool import BLOCK
from shiftwork.core.errors import (
    ArtifactDamaged,
    InputError,
    LeaseLost,
    NotFound,
    TooLarge,
    UnknownReference,
)
from shiftwork.duties import artifacts as duty
from shiftwork.duties.runner import run_once
from shiftwork.testing import MovedClock, pass_time
from tests.conformance.steps import events_named, everything, take

DAY = 86_400.0
BIG = random.Random(7).randbytes(2 * BLOCK + 1000)
"""Two whole blocks and a part of one."""


def id_of(content: bytes) -> str:
    return f"artifact:sha256-{hashlib.sha256(content).hexdigest()}"


async def content(queue: Queue, artifact_id: str, **part: int) -> bytes:
    return b"".join([block async for block in queue.get_artifact(artifact_id, **part)])


def depot(queue: Queue) -> Depot:
    assert queue.engine.depot is not None
    return queue.engine.depot


def files(queue: Queue) -> list[Path]:
    """Every file that lies in the folder, under way or kept."""
    return sorted(path for path in Path(depot(queue).url.removeprefix("file://")).rglob("*") if path.is_file())


async def in_parts(content: bytes, size: int = 1000) -> AsyncIterator[bytes]:
    for start in range(0, len(content), size):
        yield content[start : start + size]


# -- bringing in, reading back -----------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["bytes", "path", "file", "parts"])
async def test_content_comes_back_as_it_was_brought(queue: Queue, tmp_path: Path, how: str) -> None:
    path = tmp_path / "report.md"
    path.write_bytes(BIG)
    source: dict[str, Any] = {"bytes": BIG, "path": path, "file": io.BytesIO(BIG), "parts": in_parts(BIG)}
    kept = await queue.put_artifact(source[how], name="report.md")
    assert (kept.id, kept.size, kept.media_type) == (id_of(BIG), len(BIG), "text/markdown")
    assert await content(queue, kept.id) == BIG
    assert await queue.artifact(kept.id) == kept
    assert len(files(queue)) == 1, "nothing but the content itself is left"


@pytest.mark.parametrize(
    ("start", "end"),
    [(0, 1), (BLOCK - 1, BLOCK + 1), (BLOCK, 2 * BLOCK), (len(BIG) - 1, None), (5, 5), (len(BIG), None), (0, 10**9)],
)
async def test_a_part_can_be_read(queue: Queue, start: int, end: int | None) -> None:
    kept = await queue.put_artifact(BIG)
    part = {"start": start} if end is None else {"start": start, "end": end}
    assert await content(queue, kept.id, **part) == BIG[start:end]


async def test_the_same_content_is_kept_once(queue: Queue) -> None:
    first = await queue.put_artifact(b"same", media_type="text/x-first")
    assert await queue.put_artifact(b"same", media_type="text/x-second") == first
    assert len(files(queue)) == 1


async def test_nothing_is_content_too(queue: Queue) -> None:
    kept = await queue.put_artifact(b"")
    assert (kept.id, kept.size) == (id_of(b""), 0)
    assert await content(queue, kept.id) == b""


async def test_content_must_come_to_the_id_it_was_announced_with(queue: Queue) -> None:
    assert (await queue.put_artifact(b"yes", artifact_id=id_of(b"yes"))).id == id_of(b"yes")
    with pytest.raises(InputError, match="the content is"):
        await queue.put_artifact(b"no", artifact_id=id_of(b"yes"))
    with pytest.raises(NotFound):
        await queue.artifact(id_of(b"no"))


@pytest.mark.parametrize(
    ("source", "where"),
    [("report.md", "content"), (io.StringIO("text"), "content"), (None, "content"), (Path("absent.md"), "content")],
    ids=["text", "a file of text", "nothing", "no file"],
)
async def test_what_is_no_content_is_refused(queue: Queue, source: Any, where: str) -> None:
    with pytest.raises(InputError) as refused:
        await queue.put_artifact(source)
    assert refused.value.where == where
    assert files(queue) == []


@pytest.mark.parametrize("media_type", ["markdown", "text/", "text/x\r\nx-evil: 1", "a/b" * 100, "ä/ö"])
async def test_a_media_type_is_one(queue: Queue, media_type: str) -> None:
    with pytest.raises(InputError):
        await queue.put_artifact(b"x", media_type=media_type)


async def test_too_much_is_refused_and_leaves_nothing(queue: Queue) -> None:
    await queue.set_setting("bounds.artifact_bytes", 1000)
    assert (await queue.put_artifact(bytes(1000))).size == 1000
    with pytest.raises(TooLarge, match="at most 1000 bytes"):
        await queue.put_artifact(in_parts(bytes(1001)))
    assert len(files(queue)) == 1


async def test_an_upload_that_breaks_off_leaves_nothing(queue: Queue) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield BIG
        raise ConnectionError("gone")

    with pytest.raises(ConnectionError):
        await queue.put_artifact(broken())
    assert files(queue) == []
    with pytest.raises(NotFound):
        await queue.artifact(id_of(BIG))


# -- damage ------------------------------------------------------------------------------------------------------


def flip_a_bit(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[BLOCK + 5] ^= 1
    file.write_bytes(content)


def cut_short(file: Path) -> None:
    os.truncate(file, BLOCK + 1)


def lengthen(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:BLOCK] + b"x" + file.read_bytes()[BLOCK:])


def link_elsewhere(file: Path) -> None:
    other = file.with_name("other")
    file.rename(other)
    file.symlink_to(other)


@pytest.mark.parametrize("damage", [flip_a_bit, cut_short, lengthen, Path.unlink, link_elsewhere])
async def test_what_is_damaged_is_an_error_and_never_handed_out(queue: Queue, damage: Any) -> None:
    kept = await queue.put_artifact(BIG)
    (file,) = files(queue)
    damage(file)
    read: list[bytes] = []

    async def download() -> None:
        stream = queue.get_artifact(kept.id)
        while block := await anext(stream):
            read.append(block)

    with pytest.raises(ArtifactDamaged):
        await download()
    assert BIG.startswith(b"".join(read)), "only what is whole was handed out"
    with pytest.raises(ArtifactDamaged):
        await content(queue, kept.id, start=BLOCK + 5, end=BLOCK + 6)


async def test_bringing_it_again_heals_it(queue: Queue, clock: MovedClock) -> None:
    kept = await queue.put_artifact(BIG)
    (file,) = files(queue)
    flip_a_bit(file)
    assert await queue.put_artifact(BIG) == kept
    assert await content(queue, kept.id) == BIG
    await pass_time(queue, clock, 1)
    assert file not in files(queue), "the damaged copy goes"
    assert await content(queue, kept.id) == BIG


# -- workspaces --------------------------------------------------------------------------------------------------


async def test_another_workspace_knows_nothing_of_it(queue: Queue) -> None:
    kept = await queue.put_artifact(b"secret")
    other = queue.in_workspace("other")
    unknown = f"artifact:sha256-{'0' * 64}"
    for artifact_id in (kept.id, unknown):
        with pytest.raises(NotFound, match=f"there is no artifact '{artifact_id}'"):
            await other.artifact(artifact_id)
        with pytest.raises(NotFound, match=f"there is no artifact '{artifact_id}'"):
            await content(other, artifact_id)
        with pytest.raises(UnknownReference, match=f"there is no artifact '{artifact_id}'"):
            await other.submit(type="code", spec={"context_refs": [artifact_id]})


async def test_each_workspace_has_its_own_copy(queue: Queue, clock: MovedClock) -> None:
    other = queue.in_workspace("other")
    await queue.put_artifact(b"shared")
    kept = await other.put_artifact(b"shared")
    task = await queue.submit(type="code", spec={"context_refs": [kept.id]})
    await pass_time(queue, clock, DAY + 1)
    assert await content(queue, kept.id) == b"shared"
    with pytest.raises(NotFound):
        await other.artifact(kept.id)
    assert [each.id for each in await queue.artifacts(task.id)] == [kept.id]


@pytest.mark.parametrize(
    "bad", ["../../etc/passwd", "artifact:../../x", "artifact:sha256-" + "A" * 64, "sha256-" + "0" * 64, "x" * 200]
)
async def test_an_id_leads_to_nothing_but_an_artifact(queue: Queue, bad: str) -> None:
    with pytest.raises(NotFound):
        await queue.artifact(bad)
    with pytest.raises(NotFound):
        await content(queue, bad)


# -- tasks refer to them -----------------------------------------------------------------------------------------


@pytest.mark.requirement("F-050")
async def test_a_result_names_artifacts_that_can_be_downloaded(queue: Queue) -> None:
    await queue.submit(type="code")
    assignment = await take(queue)
    made = await queue.put_artifact(BIG, name="build.zip", token=assignment.token)
    await queue.complete(assignment.token, artifacts=[made.id, "elsewhere/notes.md"])
    task = await queue.get(assignment.id)
    assert task.output is not None
    assert task.output["artifacts"] == [made.id, "elsewhere/notes.md"]
    assert (await queue.result(task.id)).artifacts == [made.id, "elsewhere/notes.md"]
    assert await content(queue, task.output["artifacts"][0]) == BIG
    assert [(each.role, each.name, each.id) for each in await queue.artifacts(task.id)] == [
        ("made", "build.zip", made.id),
        ("result", None, made.id),
    ]


async def test_a_result_that_names_what_is_not_there_is_refused_alone(queue: Queue) -> None:
    await queue.submit_many([{"type": "code"}] * 3)
    await queue.register_agent(id="worker", max_concurrent_tasks=3)
    held = await queue.claim("worker", 3, start=True)
    made = await queue.put_artifact(b"made")
    absent = id_of(b"never put")
    reports = [
        Report(held[0].token, artifacts=[made.id]),
        Report(held[1].token, artifacts=[made.id, absent], usage={"cost_usd": 1}),
        Report(held[2].token, artifacts=["artifact:abc"]),
    ]
    good, bad, worse = await queue.complete_many(reports)
    assert (good.status, good.error) == ("completed", None)
    assert isinstance(bad.error, UnknownReference)
    assert bad.error.facts["artifact_id"] == absent
    assert isinstance(worse.error, UnknownReference)
    for refused in held[1:]:
        task = await queue.get(refused.id)
        assert (task.status, task.cost_usd) == ("running", 0)
    assert await queue.artifacts(held[1].id) == []
    await queue.complete(held[1].token, artifacts=[made.id])


async def test_what_is_attached_is_told(queue: Queue) -> None:
    task = await queue.submit(type="code")
    kept = await queue.put_artifact(b"brief", name="brief.md", task=task.id)
    await queue.put_artifact(b"brief", name="brief.md", task=task.id)
    await queue.put_artifact(b"loose")
    (each,) = await queue.artifacts(task.id)
    assert (each.id, each.size, each.media_type, each.role, each.name, each.by) == (
        kept.id, 5, "text/markdown", "input", "brief.md", "system",
    )  # fmt: skip
    assert await events_named(queue, "task.artifact") == [task.id], "once, however often it is said"
    assert await events_named(queue, "artifact.added") == [None]


async def test_what_is_made_under_a_claim_that_is_lost_is_refused(queue: Queue) -> None:
    await queue.submit(type="code")
    assignment = await take(queue)
    await queue.release(assignment.token)
    with pytest.raises(LeaseLost):
        await queue.put_artifact(b"late", token=assignment.token)
    with pytest.raises(NotFound):
        await queue.put_artifact(b"late", task="task_00000000000000000000000000")
    assert files(queue) == [], "its bytes are gone, too"


async def test_a_token_is_of_the_task_named(queue: Queue) -> None:
    other = await queue.submit(type="other", target_agent_id="nobody")
    await queue.submit(type="code")
    assignment = await take(queue)
    with pytest.raises(InputError, match="the token is of another task"):
        await queue.put_artifact(b"x", task=other.id, token=assignment.token)


# -- what nobody wants -------------------------------------------------------------------------------------------


async def test_what_no_task_refers_to_goes_after_a_while(queue: Queue, clock: MovedClock) -> None:
    kept = await queue.put_artifact(b"loose")
    await pass_time(queue, clock, DAY - 1)
    assert await content(queue, kept.id) == b"loose"
    done = await pass_time(queue, clock, 2)
    assert done["artifacts"] == {"collected": 1, "removed": 1}
    assert files(queue) == []
    with pytest.raises(NotFound):
        await queue.artifact(kept.id)


async def test_bringing_it_again_begins_its_time_anew(queue: Queue, clock: MovedClock) -> None:
    kept = await queue.put_artifact(b"loose")
    await pass_time(queue, clock, DAY - 1)
    await queue.put_artifact(b"loose")
    await pass_time(queue, clock, DAY - 1)
    assert await content(queue, kept.id) == b"loose"


async def test_how_long_is_a_setting(queue: Queue, clock: MovedClock) -> None:
    await queue.set_setting("artifacts.keep_unreferenced_sec", 10)
    kept = await queue.put_artifact(b"loose")
    await pass_time(queue, clock, 11)
    with pytest.raises(NotFound):
        await queue.artifact(kept.id)


async def test_every_kind_of_reference_keeps_it(queue: Queue, clock: MovedClock) -> None:
    given, made, handed_in = [(await queue.put_artifact(each)).id for each in (b"input", b"made", b"result")]
    await queue.submit(type="code", spec={"context_refs": [given]})
    assignment = await take(queue)
    await queue.put_artifact(b"made", token=assignment.token)
    await queue.complete(assignment.token, artifacts=[handed_in])
    await pass_time(queue, clock, 2 * DAY)
    for artifact_id in (given, made, handed_in):
        assert await content(queue, artifact_id)


async def test_an_archived_task_keeps_what_it_refers_to(queue: Queue, clock: MovedClock) -> None:
    await queue.set_setting("archive_after_sec", 10)
    kept = await queue.put_artifact(b"kept")
    await queue.submit(type="code")
    assignment = await take(queue)
    await queue.complete(assignment.token, artifacts=[kept.id])
    await pass_time(queue, clock, 2 * DAY)
    assert (await queue.get(assignment.id)).archived
    assert await content(queue, kept.id) == b"kept"
    assert [each.id for each in await queue.artifacts(assignment.id)] == [kept.id]


async def test_a_purged_task_lets_it_go(queue: Queue, clock: MovedClock) -> None:
    await queue.set_setting("purge.mode", "delete")
    shared, own = [(await queue.put_artifact(each)).id for each in (b"shared", b"own")]
    await queue.submit(type="gone", spec={"context_refs": [shared, own]})
    await queue.submit(type="stays", spec={"context_refs": [shared]})
    await pass_time(queue, clock, 2 * DAY)
    await queue.purge(type="gone")
    await pass_time(queue, clock, DAY - 1)
    assert await content(queue, own) == b"own", "it begins to be old only now"
    await pass_time(queue, clock, 2)
    with pytest.raises(NotFound):
        await queue.artifact(own)
    assert await content(queue, shared) == b"shared"


async def test_a_crash_after_the_rows_went_leaves_litter_that_goes_later(queue: Queue, clock: MovedClock) -> None:
    await queue.put_artifact(b"loose")
    clock.advance(DAY + 1)
    await queue.engine.store.run(lambda tx: duty.collect(tx, queue.engine))
    assert len(files(queue)) == 1
    await run_once(queue.engine, force=True)
    assert files(queue) == []


async def test_bytes_that_no_row_names_are_found(queue: Queue, clock: MovedClock) -> None:
    """As an upload leaves them that was cut off before its row was written, or before it was whole."""
    kept = await queue.put_artifact(b"kept")
    (file,) = files(queue)
    orphan = file.with_name(f"{'0' * 64}-{'0' * 16}")
    young = file.with_name(f"{'1' * 64}-{'1' * 16}")
    foreign = file.with_name("not-ours")
    begun = await depot(queue).incoming() / "begun"
    for path in (orphan, young, foreign, begun):
        path.write_bytes(b"?")
    for path in (file, orphan, foreign, begun):
        os.utime(path, (1, 1))
    done = await pass_time(queue, clock, 1)
    assert done["artifacts"] == {"orphans": 2}
    assert files(queue) == sorted([file, young, foreign])
    assert await content(queue, kept.id) == b"kept"


async def test_a_queue_sweeps_only_what_is_its_own(queue: Queue, clock: MovedClock, tmp_path: Path) -> None:
    """Two queues may share a folder or a bucket: neither takes the other's bytes for left over."""
    shared = str(tmp_path / "shared")
    neighbour = f"sqlite:///{tmp_path}/neighbour.db"
    async with await Queue.open(neighbour, artifacts=shared) as other:
        kept = await other.put_artifact(b"theirs")
        for file in files(other):
            os.utime(file, (1, 1))
        async with await Queue.open(f"sqlite:///{tmp_path}/third.db", artifacts=shared) as third:
            await third.put_artifact(b"ours")
            await run_once(third.engine, force=True)
        assert await content(other, kept.id) == b"theirs"


async def test_a_refused_put_changes_nothing(queue: Queue) -> None:
    await queue.submit(type="code")
    assignment = await take(queue)
    await queue.put_artifact(b"first", token=assignment.token)
    before = await everything(queue)
    with pytest.raises(NotFound):
        await queue.put_artifact(b"first", task="nobody")
    with pytest.raises(InputError):
        await queue.put_artifact(b"first", artifact_id="artifact:abc")
    assert await everything(queue) == before
