"""Workers over HTTP behave like workers on a database."""

import asyncio
import inspect
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from shiftwork import Client, Queue
from shiftwork.model.errors import Forbidden, Unauthorized
from shiftwork.model.reports import TaskResult
from shiftwork.worker import Context, Worker
from shiftwork.worker.outbox import Outbox, StoredResult, default_folder
from tests.client.serving import served
from tests.worker import test_handlers, test_life
from tests.worker.steps import at_work, until, until_status
from tests.worker.test_example import EXAMPLES, look_at_what_is_left

BEHIND = {
    "test_claim_whose_caller_was_cancelled_is_released",  # it looks into the store
    "test_cancelled_waiting_claim_takes_no_task",  # both are shown of the client itself
}


@pytest.fixture
def store_url(tmp_path: Path) -> Iterator[str]:
    """Where the workers work: a server."""
    with served(f"sqlite:///{tmp_path}/queue.db") as server:
        yield server.url


@pytest.fixture
async def shop(store_url: str) -> AsyncIterator[Client]:
    async with Client.open(store_url) as opened:
        yield opened


def of_workers(module: ModuleType) -> dict[str, object]:
    """Tests of workers that are given an address."""
    tests = {name: test for name, test in vars(module).items() if name.startswith("test_") and name not in BEHIND}
    return {
        name: test for name, test in tests.items() if {"shop", "store_url"} <= set(inspect.signature(test).parameters)
    }


globals().update(of_workers(test_life), **of_workers(test_handlers))


def test_example_fleet_works_through_a_server(tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path}/fleet.db"
    with served(database) as server:
        command = [sys.executable, str(EXAMPLES / "fleet.py"), server.url]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "survey  completed  attempts failed: 0  result: 14" in done.stdout
    assert "watch   cancelled  because: seen enough" in done.stdout
    assert "The DAG is completed: 8 of 8 tasks, 0.04 USD." in done.stdout
    asyncio.run(look_at_what_is_left(database))


async def test_worker_can_use_an_open_client(shop: Client) -> None:
    worker = Worker("ada")
    worker.handler("code")(lambda ctx: ctx.payload["n"] + 1)
    made = await shop.submit(type="code", payload={"n": 1})
    assert (await worker.run(shop, until_idle=True)).completed == 1
    assert (await shop.result(made.id)).data == 2


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[tuple[str, str]]:
    """The addresses of a server that requires tokens, and of its database."""
    database = f"sqlite:///{tmp_path}/guarded.db"
    with served(database, tokens=True) as server:
        yield server.url, database


async def test_token_with_work_scope_is_enough(guarded: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    url, database = guarded
    worker = Worker("ada", budget_usd=1)

    @worker.handler("code")
    async def code(ctx: Context) -> str:
        await ctx.progress({"pct": 50})
        await ctx.message("half way")
        ctx.spent(cost_usd=0.5)
        if not await ctx.subtasks():
            await ctx.spawn_and_wait([{"type": "part"}])
        return "done"

    worker.handler("part")(lambda _: "a part")
    async with Queue.open(database, workspace="lab") as queue:
        made = await queue.submit(type="code")
        secret = (await queue.tokens.create("worker", ["work"])).secret
        monkeypatch.setenv("SHIFTWORK_TOKEN", secret)
        assert (await worker.run(url, until_idle=True)).completed == 2
        assert (await queue.get(made.id)).status == "completed"
        assert (await queue.agents.get("ada")).status == "offline"


async def test_wrong_token_ends_the_worker(guarded: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    url, database = guarded
    worker = Worker("ada")
    worker.handler("code")(lambda _: None)
    with pytest.raises(Unauthorized, match="needs a token"):
        await worker.run(url)
    async with Queue.open(database) as queue:
        monkeypatch.setenv("SHIFTWORK_TOKEN", (await queue.tokens.create("reader", ["read"])).secret)
    with pytest.raises(Forbidden, match="needs the scope work"):
        await worker.run(url)


@pytest.mark.parametrize("concurrency", [1, 2])
async def test_revoked_token_ends_the_worker_and_its_result_is_kept(
    guarded: tuple[str, str], concurrency: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker whose token may write under the claim submits the result later."""
    url, database = guarded
    folder = default_folder(url)
    assert folder is not None
    worker = Worker("ada", concurrency=concurrency)
    begun, go = asyncio.Event(), asyncio.Event()

    @worker.handler("code")
    async def code(ctx: Context) -> str:
        begun.set()
        await go.wait()
        return "done"

    async with Queue.open(database) as queue:
        token = await queue.tokens.create("worker", ["work"])
        monkeypatch.setenv("SHIFTWORK_TOKEN", token.secret)
        made = await queue.submit(type="code")
        running = asyncio.create_task(worker.run(url))
        await begun.wait()
        await queue.tokens.revoke(token.id)
        await until(lambda: _is_shut_out(url))
        go.set()
        with pytest.raises(Unauthorized):
            await running
        assert len(list(folder.glob("*.json"))) == 1
        monkeypatch.setenv("SHIFTWORK_TOKEN", (await queue.tokens.create("next", ["work", "operate"])).secret)
        other = Worker("bob")
        other.handler("other")(lambda _: None)
        async with at_work(other, url):
            await until_status(queue, made.id, "completed")
            await until(lambda: not list(folder.iterdir()))


async def test_result_is_left_for_the_worker_whose_token_claimed_it(
    guarded: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, database = guarded
    folder = default_folder(url)
    assert folder is not None
    worker = Worker("ada")
    worker.handler("other")(lambda _: None)
    async with Queue.open(database) as queue:
        mine, theirs = [await queue.tokens.create(name, ["work"]) for name in ("mine", "theirs")]
        made = await queue.submit(type="code")
        async with Client.open(url, token=mine.secret) as client:
            (taken,) = await client.claim("bob", start=True)
        assert Outbox(folder).keep(StoredResult(taken.token, TaskResult("done")))
        for token, status in ((theirs, "running"), (mine, "completed")):
            monkeypatch.setenv("SHIFTWORK_TOKEN", token.secret)
            await worker.run(url, until_idle=True)
            assert (await queue.get(made.id)).status == status
        assert (await queue.result(made.id)).data == "done"
        await until(lambda: not list(folder.iterdir()))


async def _is_shut_out(url: str) -> bool:
    try:
        async with Client.open(url):
            return False
    except Unauthorized:
        return True
