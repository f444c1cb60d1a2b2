"""docs/howto/fastapi.md, run as its reader would: a server, a worker, and requests."""

import asyncio
import os
import re
import sys
from asyncio.subprocess import DEVNULL
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import asyncpg
import pytest

from tests.services.common import free_port

PAGE = Path(__file__).resolve().parents[2] / "docs" / "howto" / "fastapi.md"
_FILE = re.compile(r"```python\n# (\w+\.py)\n(.*?)```", re.DOTALL)


@pytest.fixture
async def shop(postgres_dsn: str, tmp_path: Path) -> AsyncIterator[str]:
    """The application of the page, served by uvicorn."""
    files = dict(_FILE.findall(PAGE.read_text(encoding="utf-8")))
    assert files.keys() == {"app.py", "worker.py"}
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    port = free_port()
    known = {**os.environ, "DATABASE_URL": postgres_dsn, "PYTHONPATH": str(tmp_path)}
    command = (sys.executable, "-m", "uvicorn", "app:app", "--port", str(port), "--log-level", "warning")
    server = await asyncio.create_subprocess_exec(*command, cwd=tmp_path, env=known)
    url = f"http://127.0.0.1:{port}"
    await asyncio.wait_for(until_served(url), 60)
    yield url
    server.terminate()
    await asyncio.wait_for(server.wait(), 30)


async def until_served(url: str) -> None:
    while True:
        try:
            await call("get", f"{url}/openapi.json")
        except aiohttp.ClientConnectionError:
            await asyncio.sleep(0.05)
        else:
            return


async def call(method: str, url: str) -> tuple[int, Any]:
    async with aiohttp.ClientSession() as session, session.request(method, url) as answer:
        return answer.status, await answer.json()


@pytest.mark.timeout(120)
async def test_request_submits_in_its_transaction_and_its_result_is_awaited(
    shop: str, postgres_dsn: str, tmp_path: Path
) -> None:
    status, made = await call("post", f"{shop}/orders?item=book")
    assert status == 202
    assert await call("get", f"{shop}/tasks/{made['task']}") == (200, {"status": "pending"})
    waiting = asyncio.ensure_future(call("get", f"{shop}/tasks/{made['task']}?wait=20"))
    store = f"{postgres_dsn}?schema=work_queue"
    command = (sys.executable, "-m", "shiftwork", "--store", store, "work", "worker:worker", "--until-idle")
    worker = await asyncio.create_subprocess_exec(*command, cwd=tmp_path, stdout=DEVNULL, stderr=DEVNULL)
    assert await waiting == (200, {"status": "completed", "data": {"shipped": 1}})
    assert await worker.wait() == 0


@pytest.mark.timeout(120)
async def test_refused_request_leaves_neither_row_nor_task(shop: str, postgres_dsn: str) -> None:
    assert (await call("post", f"{shop}/orders?item=unicorn"))[0] == 409
    connection = await asyncpg.connect(postgres_dsn)
    try:
        assert await connection.fetchval("select count(*) from orders") == 0
        assert await connection.fetchval("select count(*) from work_queue.tasks") == 0
    finally:
        await connection.close()
    assert (await call("get", f"{shop}/tasks/nope"))[0] == 404
    assert (await call("get", f"{shop}/tasks/nope?wait=99"))[0] == 422
