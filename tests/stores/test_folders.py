"""The default place of artifacts, and errors of unusable places."""

import subprocess
import sys
from pathlib import Path

import pytest

from shiftwork import Queue
from shiftwork.artifacts.blob_folder import FolderBlobStore
from shiftwork.artifacts.blob_store import check_place, new_place
from shiftwork.model.errors import ArtifactDamaged, ArtifactsUnavailable, NotFound, StoreUnavailable

FILLS_ITS_DISK = """
import asyncio, resource, signal, sys
from shiftwork import Queue
from shiftwork.model.errors import StoreFull

async def main() -> None:
    async with Queue.open(sys.argv[1], artifacts=sys.argv[2]) as queue:
        kept = await queue.artifacts.put(b"before")
        resource.setrlimit(resource.RLIMIT_FSIZE, (3_000_000, 3_000_000))
        try:
            await queue.artifacts.put(bytes(4_000_000))
        except StoreFull as error:
            print(error.code)
        print(b"".join([part async for part in queue.artifacts.get(kept.id)]).decode())

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
asyncio.run(main())
"""


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


async def test_artifacts_are_stored_next_to_a_sqlite_file(tmp_path: Path) -> None:
    async with Queue.open(f"sqlite:///{tmp_path}/work.db") as queue:
        assert not (tmp_path / "work.db.artifacts").exists(), "made when it is needed"
        await queue.artifacts.put(b"x")
    assert len(files(tmp_path / "work.db.artifacts")) == 1


@pytest.mark.parametrize("form", ["{}", "file://{}"])
async def test_artifact_folder_can_be_configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    url = f"sqlite:///{tmp_path}/work.db"
    monkeypatch.setenv("SHIFTWORK_ARTIFACTS", form.format(tmp_path / "named"))
    async with Queue.open(url) as queue:
        kept = await queue.artifacts.put(b"x")
    async with Queue.open(url, artifacts=form.format(tmp_path / "other")) as queue:
        with pytest.raises(ArtifactDamaged):
            await anext(queue.artifacts.get(kept.id))
    assert len(files(tmp_path / "named")) == 1
    assert not (tmp_path / "work.db.artifacts").exists()


@pytest.mark.parametrize("where", ["memory", "postgres"])
async def test_without_an_artifact_store_put_is_refused(where: str, postgres_dsn: str) -> None:
    async with Queue.open(postgres_dsn if where == "postgres" else "sqlite://:memory:") as queue:
        with pytest.raises(ArtifactsUnavailable) as refused:
            await queue.artifacts.put(b"x")
        assert "SHIFTWORK_ARTIFACTS" in refused.value.hint
        with pytest.raises(NotFound):
            await queue.artifacts.info(f"artifact:sha256-{'0' * 64}")
        await queue.submit(type="code")


async def test_artifact_path_that_is_not_a_folder_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    async with Queue.open(f"sqlite:///{tmp_path}/work.db", artifacts=str(tmp_path / "file")) as queue:
        with pytest.raises(StoreUnavailable) as refused:
            await queue.artifacts.put(b"x")
    assert refused.value.where == "artifacts"


def test_full_disk_is_reported_and_leaves_no_partial_file(tmp_path: Path) -> None:
    line = [sys.executable, "-c", FILLS_ITS_DISK, f"sqlite:///{tmp_path}/work.db", str(tmp_path / "bytes")]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["store_full", "before"], done.stderr
    assert len(files(tmp_path / "bytes")) == 1


@pytest.mark.parametrize(
    "place", ["", "x", "/etc/passwd", "../x", f"{new_place('0' * 16, 'w', '0' * 64)}/..", "0/0/0/0", "incoming/x"]
)
async def test_invalid_artifact_place_never_reaches_a_file(tmp_path: Path, place: str) -> None:
    """Even if someone wrote such a place into the database."""
    with pytest.raises(ArtifactDamaged):
        check_place(place)
    blob_store = FolderBlobStore(tmp_path)
    with pytest.raises(ArtifactDamaged):
        await anext(blob_store.read(place, 0, 10))
    with pytest.raises(ArtifactDamaged):
        await blob_store.remove([place])


async def test_folder_places_are_paged_in_order(tmp_path: Path) -> None:
    blob_store, mark = FolderBlobStore(tmp_path), "0" * 16
    places = sorted(new_place(mark, workspace, f"{n:064x}") for workspace in ("a", "b") for n in range(5))
    for place in places:
        file = await blob_store.incoming() / "file"
        file.write_bytes(b"x")
        await blob_store.keep(file, place)
    paged: list[str] = []
    while page := await blob_store.page(mark, paged[-1] if paged else None, 3):
        paged += [found.place for found in page]
    assert paged == places
