"""Artifacts in a bucket: the same as in a folder, on a server that speaks S3."""

import random
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from shiftwork import Queue
from shiftwork.artifacts.bucket import PART, BucketDepot
from shiftwork.artifacts.spool import BLOCK
from shiftwork.core.errors import ArtifactDamaged, InputError, NotFound, StoreUnavailable
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
    """A bucket of a server that sends whole objects only, and of one that sends parts of them."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    return s3.url(partial_port if request.param == "partial" else None)


@pytest.fixture
async def queue(bucket_url: str, tmp_path: Path, clock: MovedClock) -> AsyncIterator[Queue]:
    async with await Queue.open(f"sqlite:///{tmp_path}/q.db", clock=clock, artifacts=bucket_url) as opened:
        yield opened


def objects(s3: S3) -> set[Path]:
    return {path for path in s3.bucket.rglob("*") if path.is_file()}


async def content(queue: Queue, artifact_id: str, **part: int) -> bytes:
    return b"".join([block async for block in queue.get_artifact(artifact_id, **part)])


@pytest.mark.requirement("F-239")
async def test_content_comes_back_from_a_bucket(queue: Queue, s3: S3) -> None:
    before = objects(s3)
    await queue.submit(type="build")
    (assignment,) = await queue.claim("worker", start=True)
    kept = await queue.put_artifact(BIG, name="build.zip", token=assignment.token)
    await queue.complete(assignment.token, artifacts=[kept.id])
    assert await content(queue, (await queue.result(assignment.id)).artifacts[0]) == BIG
    assert len(objects(s3) - before) == 1


@pytest.mark.parametrize(
    ("start", "end"), [(0, 10), (BLOCK - 1, BLOCK + 1), (PART - 5, PART + 5), (len(BIG) - 1, None)]
)
async def test_a_part_comes_back_from_a_bucket(queue: Queue, start: int, end: int | None) -> None:
    kept = await queue.put_artifact(BIG)
    part = {"start": start} if end is None else {"start": start, "end": end}
    assert await content(queue, kept.id, **part) == BIG[start:end]


async def test_a_damaged_object_is_found(queue: Queue, s3: S3) -> None:
    before = objects(s3)
    kept = await queue.put_artifact(BIG)
    (stored,) = objects(s3) - before
    stored.write_bytes(BIG[:BLOCK] + b"x" + BIG[BLOCK + 1 :])
    with pytest.raises(ArtifactDamaged, match="differs"):
        await content(queue, kept.id)
    assert queue.engine.depot is not None
    await queue.engine.depot.remove(["/".join(stored.parts[-4:])])
    with pytest.raises(ArtifactDamaged, match="missing"):
        await content(queue, kept.id)
    await queue.put_artifact(BIG)
    assert await content(queue, kept.id) == BIG


async def test_what_nobody_refers_to_leaves_the_bucket(queue: Queue, s3: S3, clock: MovedClock) -> None:
    before = objects(s3)
    kept = await queue.put_artifact(b"loose")
    assert len(objects(s3) - before) == 1
    await pass_time(queue, clock, DAY + 1)
    assert objects(s3) <= before
    with pytest.raises(NotFound):
        await queue.artifact(kept.id)


async def test_places_are_paged_in_their_order(queue: Queue) -> None:
    for number in range(5):
        await queue.put_artifact(bytes([number]))
    depot, mark = queue.engine.depot, queue.engine.mark
    assert depot is not None
    assert mark is not None
    whole = [found.place for found in await depot.page(mark, None, 100)]
    assert len(whole) == 5
    assert whole == sorted(whole)
    assert [found.place for found in await depot.page(mark, whole[1], 100)] == whole[2:]
    assert await depot.page("0" * 16, None, 100) == []


async def test_without_the_right_key_it_is_told(queue: Queue, s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "guessed")
    async with await Queue.open(queue.url, artifacts=s3.url()) as other:
        before = objects(s3)
        with pytest.raises(StoreUnavailable, match="s3://depot"):
            await other.put_artifact(b"x")
        assert objects(s3) == before


async def test_a_bucket_that_is_away_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shiftwork.artifacts.bucket.RETRIES", 0)
    url = "s3://depot?endpoint=http://127.0.0.1:9"
    async with await Queue.open(f"sqlite:///{tmp_path}/q.db", artifacts=url) as queue:
        with pytest.raises(StoreUnavailable) as refused:
            await queue.put_artifact(b"x")
        assert refused.value.where == "artifacts"


@pytest.mark.parametrize("url", ["s3://", "s3://depot?color=red", "s3://key:secret@depot/x", "ftp://x/y", "file://x"])
async def test_an_address_that_makes_no_sense_is_refused(url: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as refused:
        await Queue.open(f"sqlite:///{tmp_path}/q.db", artifacts=url)
    assert refused.value.where == "artifacts"
    assert not (tmp_path / "q.db").exists()


async def test_nothing_is_left_on_this_machine(queue: Queue, s3: S3) -> None:
    depot = BucketDepot(s3.url())
    folder = await depot.incoming()
    assert folder.is_dir()
    await depot.close()
    assert not folder.exists()
