"""Artifacts: content by its hash, kept while it is referenced, never returned damaged."""

import hashlib
import io
import os
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from shiftwork import Completion, Queue, Usage
from shiftwork.artifacts import maintenance as job
from shiftwork.artifacts.blob_store import BlobStore
from shiftwork.artifacts.spool import BLOCK
from shiftwork.maintenance.loop import run_once
from shiftwork.model.errors import ArtifactDamaged, InputError, LeaseLost, NotFound, TooLarge, UnknownReference
from shiftwork.testing import MovedClock, pass_time
from tests.conformance.steps import events_named, everything, pass_time_exactly, take

DAY = 86_400.0
BIG = random.Random(7).randbytes(2 * BLOCK + 1000)
"""Two whole blocks and a part of one."""


def id_of(content: bytes) -> str:
    return f"artifact:sha256-{hashlib.sha256(content).hexdigest()}"


async def content(queue: Queue, artifact_id: str, **part: int) -> bytes:
    return b"".join([block async for block in queue.artifacts.get(artifact_id, **part)])


def depot(queue: Queue) -> BlobStore:
    assert queue.engine.blob_store is not None
    return queue.engine.blob_store


def files(queue: Queue) -> list[Path]:
    """Return all files in the folder, complete or not."""
    return sorted(path for path in Path(depot(queue).url.removeprefix("file://")).rglob("*") if path.is_file())


async def in_parts(content: bytes, size: int = 1000) -> AsyncIterator[bytes]:
    for start in range(0, len(content), size):
        yield content[start : start + size]


@pytest.mark.parametrize("how", ["bytes", "path", "file", "parts"])
async def test_artifact_content_is_returned_unchanged(queue: Queue, tmp_path: Path, how: str) -> None:
    path = tmp_path / "report.md"
    path.write_bytes(BIG)
    source: dict[str, Any] = {"bytes": BIG, "path": path, "file": io.BytesIO(BIG), "parts": in_parts(BIG)}
    kept = await queue.artifacts.put(source[how], name="report.md")
    assert (kept.id, kept.size, kept.media_type) == (id_of(BIG), len(BIG), "text/markdown")
    assert await content(queue, kept.id) == BIG
    assert await queue.artifacts.info(kept.id) == kept
    assert len(files(queue)) == 1, "nothing but the content itself is left"


@pytest.mark.parametrize(
    ("start", "end"),
    [(0, 1), (BLOCK - 1, BLOCK + 1), (BLOCK, 2 * BLOCK), (len(BIG) - 1, None), (5, 5), (len(BIG), None), (0, 10**9)],
)
async def test_byte_range_of_an_artifact_can_be_read(queue: Queue, start: int, end: int | None) -> None:
    kept = await queue.artifacts.put(BIG)
    part = {"start": start} if end is None else {"start": start, "end": end}
    assert await content(queue, kept.id, **part) == BIG[start:end]


async def test_same_content_is_stored_once(queue: Queue) -> None:
    first = await queue.artifacts.put(b"same", media_type="text/x-first")
    assert await queue.artifacts.put(b"same", media_type="text/x-second") == first
    assert len(files(queue)) == 1


async def test_empty_content_is_a_valid_artifact(queue: Queue) -> None:
    kept = await queue.artifacts.put(b"")
    assert (kept.id, kept.size) == (id_of(b""), 0)
    assert await content(queue, kept.id) == b""


async def test_content_that_does_not_match_its_announced_id_is_refused(queue: Queue) -> None:
    assert (await queue.artifacts.put(b"yes", artifact_id=id_of(b"yes"))).id == id_of(b"yes")
    with pytest.raises(InputError, match="the content is"):
        await queue.artifacts.put(b"no", artifact_id=id_of(b"yes"))
    with pytest.raises(NotFound):
        await queue.artifacts.info(id_of(b"no"))


@pytest.mark.parametrize(
    ("source", "where"),
    [("report.md", "content"), (io.StringIO("text"), "content"), (None, "content"), (Path("absent.md"), "content")],
    ids=["text", "a file of text", "nothing", "no file"],
)
async def test_invalid_artifact_source_is_refused(queue: Queue, source: Any, where: str) -> None:
    with pytest.raises(InputError) as refused:
        await queue.artifacts.put(source)
    assert refused.value.where == where
    assert files(queue) == []


@pytest.mark.parametrize("media_type", ["markdown", "text/", "text/x\r\nx-evil: 1", "a/b" * 100, "ä/ö"])
async def test_invalid_media_type_is_refused(queue: Queue, media_type: str) -> None:
    with pytest.raises(InputError):
        await queue.artifacts.put(b"x", media_type=media_type)


async def test_artifact_over_size_limit_is_refused_and_leaves_no_file(queue: Queue) -> None:
    await queue.settings.set("bounds.artifact_bytes", 1000)
    assert (await queue.artifacts.put(bytes(1000))).size == 1000
    with pytest.raises(TooLarge, match="at most 1000 bytes"):
        await queue.artifacts.put(in_parts(bytes(1001)))
    assert len(files(queue)) == 1


async def test_interrupted_upload_leaves_no_file(queue: Queue) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield BIG
        raise ConnectionError("gone")

    with pytest.raises(ConnectionError):
        await queue.artifacts.put(broken())
    assert files(queue) == []
    with pytest.raises(NotFound):
        await queue.artifacts.info(id_of(BIG))


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
async def test_damaged_artifact_raises_error_and_is_never_served(queue: Queue, damage: Any) -> None:
    kept = await queue.artifacts.put(BIG)
    (file,) = files(queue)
    damage(file)
    read: list[bytes] = []

    async def download() -> None:
        stream = queue.artifacts.get(kept.id)
        while block := await anext(stream):
            read.append(block)

    with pytest.raises(ArtifactDamaged):
        await download()
    assert BIG.startswith(b"".join(read)), "only what is whole was handed out"
    with pytest.raises(ArtifactDamaged):
        await content(queue, kept.id, start=BLOCK + 5, end=BLOCK + 6)


async def test_uploading_again_repairs_a_damaged_artifact(queue: Queue, clock: MovedClock) -> None:
    kept = await queue.artifacts.put(BIG)
    (file,) = files(queue)
    flip_a_bit(file)
    assert await queue.artifacts.put(BIG) == kept
    assert await content(queue, kept.id) == BIG
    await pass_time(queue, clock, 1)
    assert file not in files(queue), "the damaged copy goes"
    assert await content(queue, kept.id) == BIG


async def test_artifact_of_another_workspace_is_not_found(queue: Queue) -> None:
    kept = await queue.artifacts.put(b"secret")
    other = queue.in_workspace("other")
    unknown = f"artifact:sha256-{'0' * 64}"
    for artifact_id in (kept.id, unknown):
        with pytest.raises(NotFound, match=f"there is no artifact '{artifact_id}'"):
            await other.artifacts.info(artifact_id)
        with pytest.raises(NotFound, match=f"there is no artifact '{artifact_id}'"):
            await content(other, artifact_id)
        with pytest.raises(UnknownReference, match=f"there is no artifact '{artifact_id}'"):
            await other.submit(type="code", spec={"context_refs": [artifact_id]})


async def test_each_workspace_has_its_own_copy_of_an_artifact(queue: Queue, clock: MovedClock) -> None:
    other = queue.in_workspace("other")
    await queue.artifacts.put(b"shared")
    kept = await other.artifacts.put(b"shared")
    task = await queue.submit(type="code", spec={"context_refs": [kept.id]})
    await pass_time(queue, clock, DAY + 1)
    assert await content(queue, kept.id) == b"shared"
    with pytest.raises(NotFound):
        await other.artifacts.info(kept.id)
    assert [each.id for each in await queue.artifacts.list(task.id)] == [kept.id]


@pytest.mark.parametrize(
    "bad", ["../../etc/passwd", "artifact:../../x", "artifact:sha256-" + "A" * 64, "sha256-" + "0" * 64, "x" * 200]
)
async def test_invalid_artifact_id_is_not_found(queue: Queue, bad: str) -> None:
    with pytest.raises(NotFound):
        await queue.artifacts.info(bad)
    with pytest.raises(NotFound):
        await content(queue, bad)


@pytest.mark.requirement("F-050")
async def test_result_names_artifacts_that_can_be_downloaded(queue: Queue) -> None:
    await queue.submit(type="code")
    assignment = await take(queue)
    made = await queue.artifacts.put(BIG, name="build.zip", token=assignment.token)
    await queue.complete(assignment.token, artifacts=[made.id, "elsewhere/notes.md"])
    task = await queue.get(assignment.id)
    assert task.output is not None
    assert task.output["artifacts"] == [made.id, "elsewhere/notes.md"]
    assert (await queue.result(task.id)).artifacts == [made.id, "elsewhere/notes.md"]
    assert await content(queue, task.output["artifacts"][0]) == BIG
    assert [(each.role, each.name, each.id) for each in await queue.artifacts.list(task.id)] == [
        ("made", "build.zip", made.id),
        ("result", None, made.id),
    ]


async def test_result_with_unknown_artifact_is_refused_without_affecting_others(queue: Queue) -> None:
    await queue.submit_many([{"type": "code"}] * 3)
    await queue.agents.register(id="worker", max_concurrent_tasks=3)
    held = await queue.claim("worker", 3, start=True)
    made = await queue.artifacts.put(b"made")
    absent = id_of(b"never put")
    reports = [
        Completion(artifacts=[made.id], token=held[0].token),
        Completion(artifacts=[made.id, absent], usage=Usage(cost_usd=1), token=held[1].token),
        Completion(artifacts=["artifact:abc"], token=held[2].token),
    ]
    good, bad, worse = await queue.batch.complete(reports)
    assert (good.status, good.error) == ("completed", None)
    assert isinstance(bad.error, UnknownReference)
    assert bad.error.facts["artifact_id"] == absent
    assert isinstance(worse.error, UnknownReference)
    for refused in held[1:]:
        task = await queue.get(refused.id)
        assert (task.status, task.cost_usd) == ("running", 0)
    assert await queue.artifacts.list(held[1].id) == []
    await queue.complete(held[1].token, artifacts=[made.id])


async def test_attached_artifact_is_listed_and_emits_one_event(queue: Queue) -> None:
    task = await queue.submit(type="code")
    kept = await queue.artifacts.put(b"brief", name="brief.md", task=task.id)
    await queue.artifacts.put(b"brief", name="brief.md", task=task.id)
    await queue.artifacts.put(b"loose")
    (each,) = await queue.artifacts.list(task.id)
    assert (each.id, each.size, each.media_type, each.role, each.name, each.by) == (
        kept.id, 5, "text/markdown", "input", "brief.md", "system",
    )  # fmt: skip
    assert await events_named(queue, "task.artifact") == [task.id], "once, however often it is said"
    assert await events_named(queue, "artifact.added") == [None]


async def test_artifact_upload_under_a_lost_claim_is_refused(queue: Queue) -> None:
    await queue.submit(type="code")
    assignment = await take(queue)
    await queue.release(assignment.token)
    with pytest.raises(LeaseLost):
        await queue.artifacts.put(b"late", token=assignment.token)
    with pytest.raises(NotFound):
        await queue.artifacts.put(b"late", task="task_00000000000000000000000000")
    assert files(queue) == [], "its bytes are gone, too"


async def test_artifact_upload_with_token_of_another_task_is_refused(queue: Queue) -> None:
    other = await queue.submit(type="other", target_agent_id="nobody")
    await queue.submit(type="code")
    assignment = await take(queue)
    with pytest.raises(InputError, match="the token belongs to another task"):
        await queue.artifacts.put(b"x", task=other.id, token=assignment.token)


async def test_unreferenced_artifact_is_deleted_after_a_day(queue: Queue, clock: MovedClock) -> None:
    kept = await queue.artifacts.put(b"loose")
    await pass_time_exactly(queue, clock, DAY - 1)
    assert await content(queue, kept.id) == b"loose"
    done = await pass_time_exactly(queue, clock, 2)
    assert done["artifacts"] == {"collected": 1, "removed": 1}
    assert files(queue) == []
    with pytest.raises(NotFound):
        await queue.artifacts.info(kept.id)


async def test_uploading_again_restarts_retention_of_unreferenced_artifact(queue: Queue, clock: MovedClock) -> None:
    kept = await queue.artifacts.put(b"loose")
    await pass_time(queue, clock, DAY - 1)
    await queue.artifacts.put(b"loose")
    await pass_time(queue, clock, DAY - 1)
    assert await content(queue, kept.id) == b"loose"


async def test_retention_of_unreferenced_artifacts_is_a_setting(queue: Queue, clock: MovedClock) -> None:
    await queue.settings.set("artifacts.keep_unreferenced_sec", 10)
    kept = await queue.artifacts.put(b"loose")
    await pass_time(queue, clock, 11)
    with pytest.raises(NotFound):
        await queue.artifacts.info(kept.id)


async def test_every_kind_of_reference_keeps_an_artifact(queue: Queue, clock: MovedClock) -> None:
    given, made, submitted_output = [(await queue.artifacts.put(each)).id for each in (b"input", b"made", b"result")]
    await queue.submit(type="code", spec={"context_refs": [given]})
    assignment = await take(queue)
    await queue.artifacts.put(b"made", token=assignment.token)
    await queue.complete(assignment.token, artifacts=[submitted_output])
    await pass_time(queue, clock, 2 * DAY)
    for artifact_id in (given, made, submitted_output):
        assert await content(queue, artifact_id)


async def test_archived_task_keeps_its_artifacts(queue: Queue, clock: MovedClock) -> None:
    await queue.settings.set("archive_after_sec", 10)
    kept = await queue.artifacts.put(b"kept")
    await queue.submit(type="code")
    assignment = await take(queue)
    await queue.complete(assignment.token, artifacts=[kept.id])
    await pass_time(queue, clock, 2 * DAY)
    assert (await queue.get(assignment.id)).archived
    assert await content(queue, kept.id) == b"kept"
    assert [each.id for each in await queue.artifacts.list(assignment.id)] == [kept.id]


async def test_purged_task_releases_its_artifacts(queue: Queue, clock: MovedClock) -> None:
    await queue.settings.set("purge.mode", "delete")
    shared, own = [(await queue.artifacts.put(each)).id for each in (b"shared", b"own")]
    await queue.submit(type="gone", spec={"context_refs": [shared, own]})
    await queue.submit(type="stays", spec={"context_refs": [shared]})
    await pass_time_exactly(queue, clock, 2 * DAY)
    await queue.control.purge(type="gone")
    await pass_time_exactly(queue, clock, DAY - 1)
    assert await content(queue, own) == b"own", "it begins to be old only now"
    await pass_time_exactly(queue, clock, 2)
    with pytest.raises(NotFound):
        await queue.artifacts.info(own)
    assert await content(queue, shared) == b"shared"


async def test_files_left_by_a_crash_after_row_deletion_are_removed_later(queue: Queue, clock: MovedClock) -> None:
    await queue.artifacts.put(b"loose")
    clock.advance(DAY + 1)
    await queue.engine.store.run(lambda tx: job.collect(tx, queue.engine))
    assert len(files(queue)) == 1
    await run_once(queue.engine, force=True)
    assert files(queue) == []


async def test_orphan_files_without_a_row_are_removed(queue: Queue, clock: MovedClock) -> None:
    """As left by an upload that was interrupted before its row was written, or before it was complete."""
    kept = await queue.artifacts.put(b"kept")
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


async def test_queue_removes_only_its_own_orphan_files_in_shared_folder(
    queue: Queue, clock: MovedClock, tmp_path: Path
) -> None:
    """Two queues can share a folder or a bucket: neither treats the files of the other as orphans."""
    shared = str(tmp_path / "shared")
    neighbour = f"sqlite:///{tmp_path}/neighbour.db"
    async with Queue.open(neighbour, artifacts=shared) as other:
        kept = await other.artifacts.put(b"theirs")
        for file in files(other):
            os.utime(file, (1, 1))
        async with Queue.open(f"sqlite:///{tmp_path}/third.db", artifacts=shared) as third:
            await third.artifacts.put(b"ours")
            await run_once(third.engine, force=True)
        assert await content(other, kept.id) == b"theirs"


async def test_refused_put_changes_nothing(queue: Queue) -> None:
    await queue.submit(type="code")
    assignment = await take(queue)
    await queue.artifacts.put(b"first", token=assignment.token)
    before = await everything(queue)
    with pytest.raises(NotFound):
        await queue.artifacts.put(b"first", task="nobody")
    with pytest.raises(InputError):
        await queue.artifacts.put(b"first", artifact_id="artifact:abc")
    assert await everything(queue) == before
