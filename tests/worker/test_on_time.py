"""Work that is due starts at its time, in a real process and by a real clock."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shiftwork import Queue
from tests.worker.mills import Mill, running_mill
from tests.worker.steps import knows, until, until_status

SWEEP_SEC = 60.0
"""How often retries and waits are looked for at the least; a task that waited for that would be far too late."""
LATE_SEC = 20.0
"""Less than a sweep, and more than a busy machine takes."""


@pytest.fixture
def mill(store_url: str, tmp_path: Path) -> Iterator[Mill]:
    with running_mill(store_url, tmp_path) as made:
        yield made


async def ready_mill(queue: Queue, mill: Mill) -> None:
    """Start an idle worker whose maintenance jobs have all just run."""
    await queue.settings.set("maintenance.retry_promoter_sec", SWEEP_SEC)
    await queue.settings.set("maintenance.rerank_sec", SWEEP_SEC)
    mill.start(1)
    mill.go()
    await until(lambda: knows(queue, "mill"))
    warm = await queue.submit(type="grind", payload={"folder": str(mill.folder)}, delay=0.1)
    await until_status(queue, warm.id, "completed")


async def submit(queue: Queue, mill: Mill, **fields: Any) -> str:
    return (await queue.submit(type="grind", payload={"folder": str(mill.folder)}, **fields)).id


async def test_delayed_task_starts_when_due_and_not_at_the_next_sweep(store_url: str, mill: Mill) -> None:
    async with Queue.open(store_url) as queue:
        await ready_mill(queue, mill)
        task_id = await submit(queue, mill, delay=0.5)
        await until_status(queue, task_id, "completed")
        task = await queue.get(task_id)
    assert task.run_at is not None
    assert task.claimed_at is not None
    assert task.created_at + 0.4 < task.run_at <= task.claimed_at < task.run_at + LATE_SEC


async def test_retry_and_expiry_happen_when_due(store_url: str, mill: Mill) -> None:
    async with Queue.open(store_url) as queue:
        await ready_mill(queue, mill)
        expired = (await queue.submit(type="no one does this", expires_in=0.3)).id
        retry = {"strategy": "fixed", "initial_delay_sec": 0.2}
        await queue.submit(type="by hand", retry=retry)
        (held,) = await queue.claim("hand", types=["by hand"], start=True)
        await queue.fail(held.token, "crash")
        failed_at = (await queue.get(held.id)).updated_at
        await until_status(queue, held.id, "ready")
        ready_at = (await queue.get(held.id)).updated_at
        await until_status(queue, expired, "cancelled")
        task = await queue.get(expired)
    assert 0.2 <= ready_at - failed_at < LATE_SEC
    assert task.expires_at is not None
    assert task.finished_at is not None
    assert task.expires_at <= task.finished_at < task.expires_at + LATE_SEC
