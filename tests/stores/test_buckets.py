"""Artifacts in a bucket: the same as in a folder, on an S3 server."""

import random
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from shiftwork import Queue
from shiftwork.artifacts.bucket import PART, BucketBlobStore
from shiftwork.artifacts.spool import BLOCK
from shiftwork.model.errors import ArtifactDamaged, InputError, NotFound, StoreUnavailable
from shiftwork.testing import MovedClock, pass_time
from tests.services import S3
from tests.services.s3 import ACCESS_KEY, SECRET_KEY, saying_partial

DAY = 86_400.0
BIG = random.Random(7).randbytes(PART + 2 * BLOCK + 1000)
"""More than is sent in one part, and no whole number of blocks."""


@pytest.fixture(scope="module")
def s3() -> Iterator[S3]:
    with S3.start() as server:
        yield server


@pytest.fixture(scope="module")
def partial_port(s3: S3) -> Iterator[int]:
    with saying_partial(s3) as port:
        yield port


@pytest.fixture(params=["whole", "partial"])
def bucket_url(request: pytest.FixtureRequest, s3: S3, partial_port: int, monkeypatch: pytest.MonkeyPatch) -> str:
    """A bucket of a server that sends only whole objects, and of one that sends byte ranges."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    return s3.url(partial_port if request.param == "partial" else None)


@pytest.fixture
async def queue(bucket_url: str, tmp_path: Path, clock: MovedClock) -> AsyncIterator[Queue]:
    async with Queue.open(f"sqlite:///{tmp_path}/q.db", clock=clock, artifacts=bucket_url) as opened:
        yield opened


def objects(s3: S3) -> set[Path]:
    return {path for path in s3.bucket.rglob("*") if path.is_file()}


async def content(queue: Queue, artifact_id: str, **part: int) -> bytes:
    return b"".join([block async for block in queue.artifacts.get(artifact_id, **part)])


@pytest.mark.requirement("F-239")
async def test_content_is_returned_from_a_bucket(queue: Queue, s3: S3) -> None:
    before = objects(s3)
    await queue.submit(type="build")
    (assignment,) = await queue.claim("worker", start=True)
    kept = await queue.artifacts.put(BIG, name="build.zip", token=assignment.token)
    await queue.complete(assignment.token, artifacts=[kept.id])
    assert await content(queue, (await queue.result(assignment.id)).artifacts[0]) == BIG
    assert len(objects(s3) - before) == 1


@pytest.mark.parametrize(
    ("start", "end"), [(0, 10), (BLOCK - 1, BLOCK + 1), (PART - 5, PART + 5), (len(BIG) - 1, None)]
)
async def test_byte_range_is_returned_from_a_bucket(queue: Queue, start: int, end: int | None) -> None:
    kept = await queue.artifacts.put(BIG)
    part = {"start": start} if end is None else {"start": start, "end": end}
    assert await content(queue, kept.id, **part) == BIG[start:end]


async def test_damaged_object_is_detected_and_repaired(queue: Queue, s3: S3) -> None:
    before = objects(s3)
    kept = await queue.artifacts.put(BIG)
    (stored,) = objects(s3) - before
    stored.write_bytes(BIG[:BLOCK] + b"x" + BIG[BLOCK + 1 :])
    with pytest.raises(ArtifactDamaged, match="differs"):
        await content(queue, kept.id)
    assert queue.engine.blob_store is not None
    await queue.engine.blob_store.remove(["/".join(stored.parts[-4:])])
    with pytest.raises(ArtifactDamaged, match="missing"):
        await content(queue, kept.id)
    await queue.artifacts.put(BIG)
    assert await content(queue, kept.id) == BIG


async def test_unreferenced_artifact_is_deleted_from_the_bucket(queue: Queue, s3: S3, clock: MovedClock) -> None:
    before = objects(s3)
    kept = await queue.artifacts.put(b"loose")
    assert len(objects(s3) - before) == 1
    await pass_time(queue, clock, DAY + 1)
    assert objects(s3) <= before
    with pytest.raises(NotFound):
        await queue.artifacts.info(kept.id)


async def test_bucket_places_are_paged_in_order(queue: Queue) -> None:
    for number in range(5):
        await queue.artifacts.put(bytes([number]))
    blob_store, mark = queue.engine.blob_store, queue.engine.mark
    assert blob_store is not None
    assert mark is not None
    whole = [found.place for found in await blob_store.page(mark, None, 100)]
    assert len(whole) == 5
    assert whole == sorted(whole)
    assert [found.place for found in await blob_store.page(mark, whole[1], 100)] == whole[2:]
    assert await blob_store.page("0" * 16, None, 100) == []


async def test_wrong_bucket_key_is_reported(queue: Queue, s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "guessed")
    async with Queue.open(queue.url, artifacts=s3.url()) as other:
        before = objects(s3)
        with pytest.raises(StoreUnavailable, match="s3://depot"):
            await other.artifacts.put(b"x")
        assert objects(s3) == before


async def test_unreachable_bucket_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shiftwork.artifacts.bucket.RETRIES", 0)
    url = "s3://depot?endpoint=http://127.0.0.1:9"
    async with Queue.open(f"sqlite:///{tmp_path}/q.db", artifacts=url) as queue:
        with pytest.raises(StoreUnavailable) as refused:
            await queue.artifacts.put(b"x")
        assert refused.value.where == "artifacts"


@pytest.mark.parametrize("url", ["s3://", "s3://depot?color=red", "s3://key:secret@depot/x", "ftp://x/y", "file://x"])
async def test_invalid_bucket_url_is_refused(url: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as refused:
        await Queue.open(f"sqlite:///{tmp_path}/q.db", artifacts=url)
    assert refused.value.where == "artifacts"
    assert not (tmp_path / "q.db").exists()


async def test_closed_bucket_leaves_no_local_files(queue: Queue, s3: S3) -> None:
    blob_store = BucketBlobStore(s3.url())
    folder = await blob_store.incoming()
    assert folder.is_dir()
    await blob_store.close()
    assert not folder.exists()
