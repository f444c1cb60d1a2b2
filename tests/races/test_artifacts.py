"""Content is uploaded, referenced and collected concurrently: acknowledged content is never lost."""

import asyncio
from pathlib import Path

import pytest

from shiftwork import Queue
from shiftwork.artifacts import maintenance as job
from shiftwork.model.errors import UnknownReference
from tests.conformance.steps import take
from tests.races.fleet import Stop, handles, together, until_blocked

ROUNDS = 30


async def content(queue: Queue, artifact_id: str) -> bytes:
    return b"".join([block async for block in queue.artifacts.get(artifact_id)])


async def collect(queue: Queue) -> int:
    """Run the maintenance job on currently unreferenced artifacts."""
    counts = await queue.engine.store.run(lambda tx: job.collect(tx, queue.engine))
    await job.remove(queue.engine)
    return counts.get("collected", 0)


@pytest.fixture
def postgres_url(postgres_dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("SHIFTWORK_ARTIFACTS", str(tmp_path / "artifacts"))
    return postgres_dsn


async def test_artifact_uploaded_while_collected_is_not_lost(postgres_url: str) -> None:
    """The uploader saw the old bytes complete; they are deleted, and its own replace them."""
    async with handles(postgres_url, 2) as (collector, bringer):
        await collector.settings.set("artifacts.keep_unreferenced_sec", 0)
        kept = await collector.artifacts.put(b"content")
        stop = Stop(collector, "insert_litter")
        engine = collector.engine
        collecting = asyncio.create_task(engine.store.run(lambda tx: job.collect(tx, engine)))
        await stop.wait()
        bringing = asyncio.create_task(bringer.artifacts.put(b"content"))
        await until_blocked(bringer)
        stop.resume()
        assert await collecting == {"collected": 1}
        assert (await bringing).id == kept.id
        assert await job.remove(engine) == {"removed": 1}
        assert await content(bringer, kept.id) == b"content"


async def test_artifact_being_referenced_is_not_collected(postgres_url: str) -> None:
    async with handles(postgres_url, 2) as (collector, worker):
        await collector.settings.set("artifacts.keep_unreferenced_sec", 0)
        kept = await worker.artifacts.put(b"content")
        await worker.submit(type="code")
        held = await take(worker)
        stop = Stop(worker, "complete_tasks")
        completing = asyncio.create_task(worker.complete(held.token, artifacts=[kept.id]))
        await stop.wait()
        assert await collect(collector) == 0
        stop.resume()
        await completing
        assert await collect(collector) == 0
        assert await content(worker, kept.id) == b"content"


async def test_artifact_being_collected_cannot_be_referenced(postgres_url: str) -> None:
    async with handles(postgres_url, 2) as (collector, worker):
        await collector.settings.set("artifacts.keep_unreferenced_sec", 0)
        kept = await worker.artifacts.put(b"content")
        await worker.submit(type="code")
        held = await take(worker)
        stop = Stop(collector, "delete_old_artifacts")
        collecting = asyncio.create_task(collect(collector))
        await stop.wait()
        completing = asyncio.create_task(worker.complete(held.token, artifacts=[kept.id]))
        await until_blocked(worker)
        stop.resume()
        assert await collecting == 1
        with pytest.raises(UnknownReference):
            await completing
        assert (await worker.get(held.id)).status == "running"


async def test_artifact_stays_when_last_use_ends_as_a_new_one_begins(postgres_url: str) -> None:
    """A purge releases it while another task starts to reference it: it stays."""
    async with handles(postgres_url, 3) as (operator, producer, collector):
        await operator.settings.set("purge.mode", "delete")
        await operator.settings.set("artifacts.keep_unreferenced_sec", 0)
        kept = await operator.artifacts.put(b"content")
        await operator.submit(type="gone", spec={"context_refs": [kept.id]})
        stop = Stop(producer, "insert_artifact_uses")
        submitting = asyncio.create_task(producer.submit(type="new", spec={"context_refs": [kept.id]}))
        await stop.wait()
        assert await operator.control.purge(type="gone") == 1
        assert await collect(collector) == 0
        stop.resume()
        await submitting
        assert await collect(collector) == 0
        assert await content(collector, kept.id) == b"content"


async def test_concurrent_upload_reference_and_collect_lose_nothing(store_url: str) -> None:
    async with handles(store_url, 4) as (one, two, three, four):
        await one.settings.set("artifacts.keep_unreferenced_sec", 0)
        ended = asyncio.Event()
        tasks: list[str] = []

        async def use(queue: Queue) -> None:
            """Upload and reference content, and upload it again if it was collected in between."""
            for number in range(ROUNDS):
                while True:
                    kept = await queue.artifacts.put(b"%d" % number)
                    try:
                        tasks.append((await queue.submit(type="code", spec={"context_refs": [kept.id]})).id)
                    except UnknownReference:
                        continue
                    break

        async def clean(queue: Queue) -> int:
            collected = 0
            while not ended.is_set():
                collected += await collect(queue)
            return collected

        cleaning = [asyncio.create_task(clean(queue)) for queue in (three, four)]
        await together(use(one), use(two))
        ended.set()
        await together(*cleaning)
        assert len(tasks) == 2 * ROUNDS
        for task_id in tasks:
            for found in await one.artifacts.inputs(task_id):
                assert found.size == len(await content(two, found.id))
