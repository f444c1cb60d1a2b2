"""One server in front of all databases: tokens, operations, streams and metrics follow each workspace."""

import asyncio
from pathlib import Path

import httpx
import pytest

from shiftwork import Queue
from shiftwork.databases import move
from shiftwork.databases.map_file import read_map
from shiftwork.databases.moved_tables import OF_A_DATABASE, OWNERS
from shiftwork.model.errors import InvalidConfig
from shiftwork.server.options import Options
from shiftwork.server.serve import open_server
from shiftwork.store import catalogue
from tests.worker.steps import until


async def test_a_server_follows_a_workspace_to_another_database(map_url: str) -> None:
    async with open_server(Options(store=map_url, port=0, tokens=True)) as server:
        serving = asyncio.create_task(server.run_until_stopped())
        queue = server.state.queue.in_workspace("moving")
        made = await queue.tokens.create("ops", ["admin", "server"])
        headers = {"authorization": f"Bearer {made.secret}"}
        async with httpx.AsyncClient(base_url=server.url, headers=headers, timeout=30) as http:
            task = (await http.post("/api/tasks", json={"type": "build"})).json()
            cursor = (await http.get("/api/events")).json()["next"]
            stream = asyncio.create_task(read_stream(http, cursor))

            assert queue.routes is not None
            await move.move(queue.routes, "moving", "b")

            assert (await http.get(f"/api/tasks/{task['id']}")).status_code == 200
            await http.post("/api/tasks", json={"type": "test"})
            page = (await http.get("/api/events", params={"after": cursor})).json()
            assert [each["verb"] for each in page["events"]] == ["workspace_moved", "submitted"]
            await stream  # the old database has no more to tell: the client connects again, with the same cursor
            assert "task.created" in await read_stream(http, cursor, until="task.created")
            assert 'shiftwork_tasks_created_total{type="build"} 1' in (await http.get("/metrics")).text
            listed = (await http.get("/api/workspaces")).json()["workspaces"]
            assert {(each["name"], each["database"]) for each in listed} == {("default", "a"), ("moving", "b")}
            assert (await http.get("/readyz")).status_code == 200
        server.stop()
        await serving


async def read_stream(http: httpx.AsyncClient, cursor: str, until: str | None = None) -> str:
    """Read a stream from a cursor until it ends or contains this text."""
    text = ""
    headers = {"accept": "text/event-stream", "last-event-id": str(cursor)}
    async with asyncio.timeout(30), http.stream("GET", "/api/events", headers=headers) as answer:
        async for part in answer.aiter_text():
            text += part
            if until is not None and until in text:
                break
    return text


async def test_maintenance_runs_in_every_database(map_url: str) -> None:
    async with open_server(Options(store=map_url, port=0)) as server:
        for each in server.state.queue.databases():

            async def has_run(each: Queue = each) -> bool:
                return bool(await each.engine.store.read(lambda tx: tx.all("list_jobs")))

            await until(has_run)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("default = 'a'", "names no databases"),
        ("default = 'x'\n[databases]\na = 'postgresql://h/d'", "must name one of the databases"),
        ("default = 'a'\n[databases]\na = 'sqlite:///x.db'", "needs an address"),
        ("default = 'a'\nmore = 1\n[databases]\na = 'postgresql://h/d'", "no key `more`"),
        ("default = 'a'\n[databases]\n'A B' = 'postgresql://h/d'", "cannot name a database"),
        ("default =", "not TOML"),
    ],
)
def test_unusable_map_is_refused_with_its_error(tmp_path: Path, text: str, what: str) -> None:
    file = tmp_path / "map.toml"
    file.write_text(text)
    with pytest.raises(InvalidConfig, match=what):
        read_map(f"shiftwork+map:{file}")


async def test_a_workspace_that_is_in_two_databases_is_refused(map_url: str) -> None:
    for address in read_map(map_url).databases.values():
        async with Queue.open(address, workspace="both") as queue:
            await queue.submit(type="build")
    with pytest.raises(InvalidConfig, match="in two databases"):
        await Queue.open(map_url)


def test_every_table_belongs_to_workspaces_or_to_a_database() -> None:
    moved = [table for table in catalogue.tables() if table.name not in OF_A_DATABASE | {"workspaces"}]
    assert [table.name for table in moved if not set(OWNERS) & set(table.names)] == []
