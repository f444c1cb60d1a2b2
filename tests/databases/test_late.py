"""A process on a map starts while a database is down, serves the others, and uses it when it comes back."""

import asyncio
from pathlib import Path

import httpx
import pytest

from shiftwork import Queue
from shiftwork.databases import late_store, move, routes
from shiftwork.model.errors import InvalidConfig, StoreUnavailable
from shiftwork.server.app import build
from shiftwork.server.options import Options
from shiftwork.server.routes import ENDPOINTS
from shiftwork.server.serve import open_server_state
from shiftwork.worker import Worker
from tests.databases.conftest import MakeMap
from tests.databases.test_observed import command
from tests.services import Postgres
from tests.worker.steps import until


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(late_store, "AGAIN_SEC", 0.05)
    monkeypatch.setattr(routes, "REFRESH_SEC", 0.05)


async def fill(map_url: str) -> None:
    """Three workspaces: `moved` went from a to b, `born` was created in b before there was a map, `here` is in a."""
    async with Queue.open(map_url) as queue:
        assert queue.routes is not None
        async with Queue.open(queue.routes.map.databases["b"], workspace="born") as alone:
            await alone.submit(type="build")
        for name in ("here", "moved"):
            await queue.in_workspace(name).submit(type="build")
        await move.move(queue.routes, "moved", "b")


async def test_a_process_starts_while_a_database_is_down_and_uses_it_when_it_is_back(
    mortal: tuple[str, Postgres],
) -> None:
    map_url, server = mortal
    await fill(map_url)
    server.stop("immediate")
    async with open_server_state(Options(store=map_url, public_url="https://queue.example")) as state:
        queue = state.queue
        transport = httpx.ASGITransport(build(state, ENDPOINTS))
        async with httpx.AsyncClient(base_url="http://127.0.0.1", transport=transport, timeout=60) as http:
            assert (await http.post("/api/tasks?workspace=here", json={"type": "build"})).status_code == 201
            (claim,) = await queue.in_workspace("here").claim("worker", start=True)
            await queue.in_workspace("here").complete(claim.token, {})
            for workspace in ("moved", "born", "new"):  # of the last two no database that answers knows
                refused = await http.post(f"/api/tasks?workspace={workspace}", json={"type": "build"})
                assert (refused.status_code, refused.json()["code"]) == (503, "store_unavailable")
                assert "the database b of the map" in refused.json()["detail"]
            a, b = await queue.workspaces.databases()
            assert (a.state, b.state) == ("up", "down")
            found = {each.name: each.state for each in await queue.workspaces.list()}
            assert found["moved"] == "unreachable"
            ready = await http.get("/readyz")
            assert (ready.status_code, ready.json()["detail"]) == (200, "1 of 2 databases cannot be used")

            server.start_again()
            await until(lambda: has_joined(queue))
            for workspace in ("moved", "born", "new"):
                made = await http.post(f"/api/tasks?workspace={workspace}", json={"type": "build"})
                assert made.status_code == 201, made.text
            places = {each.name: each.database for each in await queue.workspaces.list()}
            assert {name: places[name] for name in ("here", "moved", "born", "new")} == {
                "here": "a",
                "moved": "b",
                "born": "b",
                "new": "a",
            }
            late = queue.in_workspace("born").engine.store
            await until(lambda: knows_address(late))
            assert await late.read(lambda tx: tx.all("list_jobs")) is not None

            async def maintained() -> bool:
                return bool(await late.read(lambda tx: tx.all("list_jobs")))

            await until(maintained)


async def knows_address(store: object) -> bool:
    row = await store.read(lambda tx: tx.one("public_url"))  # type: ignore[attr-defined]  # a store
    return row is not None


async def has_joined(queue: Queue) -> bool:
    return (
        all(each.state == "up" for each in await queue.workspaces.databases())
        and queue.routes is not None
        and (queue.routes.all_read)
    )


async def test_waiting_claim_is_woken_by_a_late_database(mortal: tuple[str, Postgres]) -> None:
    map_url, server = mortal
    await fill(map_url)
    server.stop("immediate")
    async with Queue.open(map_url, workspace="here") as queue, Queue.open(map_url, workspace="moved") as other:
        server.start_again()
        await until(lambda: has_joined(queue))
        await until(lambda: has_joined(other))
        await other.agents.register({"id": "worker", "max_concurrent_tasks": 5})
        await other.claim("worker", start=True)
        waiting = asyncio.create_task(other.claim("worker", wait=20, start=True))
        await asyncio.sleep(0)
        made = await queue.in_workspace("moved").submit(type="build")
        async with asyncio.timeout(10):
            (claim,) = await waiting
        assert claim.id == made.id
        result = asyncio.create_task(queue.in_workspace("moved").result(made.id, wait=20))
        await asyncio.sleep(0)
        await other.complete(claim.token, 42)
        async with asyncio.timeout(10):
            assert (await result).output == 42


async def test_only_workers_of_the_unreachable_workspace_fail_to_start(
    mortal: tuple[str, Postgres],
) -> None:
    map_url, server = mortal
    await fill(map_url)
    server.stop("immediate")

    def worker() -> Worker:
        made = Worker("late")

        @made.handler("build")
        async def build_it(_context: object) -> int:
            return 1

        return made

    async with Queue.open(map_url, workspace="here") as queue:
        await worker().run(queue, until_idle=True)
        assert (await queue.status(fresh=True)).counts["completed"] == 1
        with pytest.raises(StoreUnavailable, match="the database b of the map"):
            await worker().run(queue.in_workspace("moved"), until_idle=True)


async def test_map_without_a_reachable_database_is_refused(mortal: tuple[str, Postgres], tmp_path: Path) -> None:
    map_url, server = mortal
    server.stop("immediate")
    address = f'a = "{server.dsn("none")}"\nb = "{server.dsn("none")}"'
    (tmp_path / "other.toml").write_text(f'default = "a"\n[databases]\n{address}')
    with pytest.raises(StoreUnavailable, match="no database of the map answers: a, b"):
        await Queue.open(f"shiftwork+map:{tmp_path}/other.toml")
    shown = command(map_url, "workspaces", "databases")
    assert shown.returncode == 0, shown.stderr
    assert "down" in shown.stdout


async def test_a_late_database_with_a_workspace_of_another_is_not_used(
    mortal: tuple[str, Postgres], caplog: pytest.LogCaptureFixture
) -> None:
    map_url, server = mortal
    async with Queue.open(map_url, workspace="both") as queue:
        await queue.submit(type="build")
        assert queue.routes is not None
        async with Queue.open(queue.routes.map.databases["b"], workspace="both") as alone:
            await alone.submit(type="build")
    with pytest.raises(InvalidConfig, match="in two databases"):
        await Queue.open(map_url)
    server.stop("immediate")
    async with Queue.open(map_url, workspace="both") as queue:
        assert queue.routes is not None
        server.start_again()
        await until(lambda: "ignoring the database" in caplog.text)
        assert (await queue.submit(type="build")).id
        with pytest.raises(StoreUnavailable):
            await queue.in_workspace("new").submit(type="build")


async def test_wrong_address_is_reported_at_once(make_map: MakeMap, tmp_path: Path) -> None:
    text = (tmp_path / "map.toml").read_text() if make_map(2) else ""
    (tmp_path / "map.toml").write_text(text.rstrip().rstrip('"') + '_none"\n')
    with pytest.raises(StoreUnavailable, match="does not exist"):
        await Queue.open(f"shiftwork+map:{tmp_path}/map.toml")
