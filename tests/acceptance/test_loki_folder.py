"""The queue files and the claim script of the Loki document, next to a server and agents that use HTTP."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from shiftwork import Queue
from tests.acceptance.loki import REPORT, WORKSPACE, Loki
from tests.bridges.loki.dot_loki import QUEUES, DotLoki, start_bridge
from tests.conformance.steps import sql
from tests.server.running import running


@pytest.fixture
async def loki(store_url: str) -> AsyncIterator[Loki]:
    """A server with the real clock, like the bridge."""
    async with running(store_url, profile="loki", maintenance=True, test_clock=False) as api:
        yield Loki(api)


@pytest.fixture
async def folder(tmp_path: Path, loki: Loki, store_url: str) -> AsyncIterator[DotLoki]:
    """The document's folder, kept by a bridge in a process of its own."""
    made = DotLoki(tmp_path / "project")
    made.project.mkdir()
    reply = await loki.api.call("PATCH", f"/api/settings?workspace={WORKSPACE}", {"profile": "loki"})
    assert reply.status == 200, reply
    await loki.enqueue("left-alone")
    bridge = await start_bridge(store_url, made, "--workspace", WORKSPACE)
    yield made
    bridge.terminate()
    assert await bridge.wait() == 0


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not holds():  # noqa: ASYNC110 -- files have no event for it
            await asyncio.sleep(0.02)


async def until_in(folder: DotLoki, task: dict[str, Any], queue: str) -> None:
    """Wait until a task is listed in exactly this file."""
    await until(lambda: folder.where(task["id"]) == [queue])


async def until_status_is(loki: Loki, task: dict[str, Any], status: str) -> dict[str, Any]:
    async with asyncio.timeout(20):
        while True:
            found: dict[str, Any] = await loki.ask(f"GET /api/tasks/{task['id']}")
            if found["status"] == status:
                return found
            await asyncio.sleep(0.02)


@pytest.mark.requirement("L-032", "L-033", "L-034", "L-035", "L-036", "L-037", "L-054", "L-059", "L-089")
async def test_folder_and_server_agree_through_a_whole_workflow(loki: Loki, folder: DotLoki, store_url: str) -> None:
    first = await loki.enqueue(priority=9)
    await until_in(folder, first, "pending")
    second = await loki.enqueue(priority=8, dependencies=[first["id"]])
    await until_in(folder, second, "pending")
    assert await folder.claim("script-1") == first["id"]
    assert (await until_status_is(loki, first, "in-progress"))["claimedBy"] == "script-1"
    await until_in(folder, first, "in-progress")
    result = {"status": "success", "output": "built", "decisionReport": REPORT}
    folder.move(first["id"], "completed", result=result)
    assert (await until_status_is(loki, first, "completed"))["result"] == result
    assert (await loki.claim("a1", "eng-backend"))["id"] == second["id"]
    await until_in(folder, second, "in-progress")
    doomed = await loki.enqueue("ops-devops", maxRetries=1)
    await loki.fail(await loki.claim("a1", "ops-devops"), "no database")
    await until_in(folder, doomed, "dead-letter")
    await loki.ask(f"POST /api/dead-letters/{doomed['id']}/review", {"decision": "retry", "note": "fixed the agent"})
    await until_in(folder, doomed, "pending")
    await loki.ask(f"POST /api/tasks/{doomed['id']}/cancel", {"reason": "obsolete"})
    await until_in(folder, doomed, "cancelled")
    (log,) = (folder.path / "logs" / "decisions").glob("dlq-review-*.md")
    assert "fixed the agent" in log.read_text()
    await _check_that_all_agree(loki, folder, store_url)


async def _check_that_all_agree(loki: Loki, folder: DotLoki, store_url: str) -> None:
    """Check that files, view and database agree."""
    in_files = {queue: len(folder.ids(queue)) for queue in QUEUES}
    in_view = {queue: len((await loki.ask(f"GET /api/tasks?status={queue}"))["tasks"]) for queue in QUEUES}
    async with Queue.open(store_url, workspace=WORKSPACE) as queue:
        rows = await sql(queue, f"select status from tasks where workspace = '{WORKSPACE}'")
    in_tables = Counter(row["status"] for row in rows)
    assert in_files == in_view == {"pending": 1, "in-progress": 1, "completed": 1, "dead-letter": 0, "cancelled": 1}
    assert in_tables == {"ready": 1, "running": 1, "completed": 1, "cancelled": 1}
