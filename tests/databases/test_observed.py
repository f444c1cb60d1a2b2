"""All databases of a map are shown together: in API, metrics, commands, doctor and dashboard, also if one is down."""

import json
import re
import subprocess
import sys

import httpx
import pytest
from playwright.sync_api import expect

from shiftwork import Queue
from shiftwork.databases import move
from shiftwork.databases.routes import Routes
from shiftwork.model.errors import StoreUnavailable
from shiftwork.server.app import build
from shiftwork.server.options import Options
from shiftwork.server.routes import ENDPOINTS
from shiftwork.server.serve import open_server_state
from tests.dashboard.conftest import finish, opened_browser, served
from tests.services import Postgres
from tests.worker.steps import until


async def spread(map_url: str) -> None:
    """Three workspaces, one of them in b: two tasks each, one of them claimed."""
    async with Queue.open(map_url) as queue:
        for name in ("default", "billing", "search"):
            here = queue.in_workspace(name)
            for _ in range(2):
                await here.submit(type=f"{name}-work")
            await here.claim("worker", start=True)
        assert queue.routes is not None
        await move.move(queue.routes, "search", "b")


def command(map_url: str, *words: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "shiftwork", "--store", map_url, *words]
    return subprocess.run(line, capture_output=True, text=True, check=False)


async def test_databases_and_workspaces_are_listed_with_their_tasks(map_url: str) -> None:
    await spread(map_url)
    async with Queue.open(map_url) as queue:
        a, b = await queue.workspaces.databases()
        assert (a.name, a.state, a.is_default, a.workspaces, a.open_tasks, a.running) == ("a", "up", True, 2, 4, 2)
        assert (b.name, b.state, b.is_default, b.workspaces, b.open_tasks, b.ready) == ("b", "up", False, 1, 2, 1)
        assert a.answered_in_ms is not None
        found = {each.name: (each.database, each.open_tasks, each.running) for each in await queue.workspaces.list()}
        assert found == {"default": ("a", 2, 1), "billing": ("a", 2, 1), "search": ("b", 2, 1)}


async def test_a_queue_on_one_database_lists_that(store_url: str) -> None:
    async with Queue.open(store_url) as queue:
        await queue.submit(type="build")
        (only,) = await queue.workspaces.databases()
        assert (only.name, only.state, only.workspaces, only.open_tasks) == (None, "up", 1, 1)


async def test_one_scrape_has_the_metrics_of_all_workspaces(map_url: str) -> None:
    await spread(map_url)
    async with open_server_state(Options(store=map_url, maintenance=False)) as state:
        transport = httpx.ASGITransport(build(state, ENDPOINTS))
        async with httpx.AsyncClient(base_url="http://127.0.0.1", transport=transport) as http:
            text = (await http.get("/metrics/all")).text
    for name, database in (("default", "a"), ("billing", "a"), ("search", "b")):
        labels = f'database="{database}",type="{name}-work",workspace="{name}"'
        assert f"shiftwork_tasks_created_total{{{labels}}} 2.0" in text
    for database, workspaces in (("a", 2), ("b", 1)):
        assert f'shiftwork_database_up{{database="{database}"}} 1.0' in text
        assert f'shiftwork_database_workspaces{{database="{database}"}} {workspaces}.0' in text


async def test_commands_show_all_databases(map_url: str) -> None:
    await spread(map_url)
    assert re.search(r"search +b +standard +2 +1 +1", command(map_url, "status", "--all").stdout)
    assert re.search(r"search +b +standard +2 +1 +1", command(map_url, "workspaces", "list").stdout)
    assert re.search(r"b +up +1 +2 ", command(map_url, "workspaces", "databases").stdout)
    for words, what in (("status", "search-work"), ("list", "search-work"), ("events --after 0", "task.claimed")):
        shown = command(map_url, "--workspace", "search", *words.split())
        assert shown.returncode == 0, shown.stderr
        assert what in shown.stdout, shown.stdout
    doctor = command(map_url, "--json", "doctor")
    checks = {each["check"]: each["level"] for each in json.loads(doctor.stdout)}
    assert checks["database a"] == checks["database b"] == checks["indexes b"] == checks["store b"] == "ok", checks
    assert doctor.returncode == 0, doctor.stdout


async def test_a_database_that_is_down_refuses_its_workspaces_alone(mortal: tuple[str, Postgres]) -> None:
    map_url, server = mortal
    await spread(map_url)
    async with open_server_state(Options(store=map_url)) as state:
        transport = httpx.ASGITransport(build(state, ENDPOINTS))
        queue = state.queue
        async with httpx.AsyncClient(base_url="http://127.0.0.1", transport=transport, timeout=60) as http:
            server.stop("immediate")
            with pytest.raises(StoreUnavailable, match="the database b of the map"):
                await queue.in_workspace("search").submit(type="build")
            task = await queue.in_workspace("billing").submit(type="build")
            assert (await queue.in_workspace("billing").get(task.id)).status == "ready"
            refused = await http.post("/api/tasks?workspace=search", json={"type": "build"})
            assert (refused.status_code, refused.json()["code"]) == (503, "store_unavailable")
            assert "the database b of the map" in refused.json()["detail"]

            a, b = await queue.workspaces.databases()
            assert (a.state, b.state, b.workspaces, b.open_tasks) == ("up", "down", 1, None)
            found = {each.name: (each.state, each.open_tasks) for each in await queue.workspaces.list()}
            assert found == {"default": ("here", 2), "billing": ("here", 3), "search": ("unreachable", None)}
            text = (await http.get("/metrics/all")).text
            assert 'shiftwork_database_up{database="b"} 0.0' in text
            assert 'workspace="billing"' in text
            ready = await http.get("/readyz")
            assert (ready.status_code, ready.json()["detail"]) == (200, "1 of 2 databases cannot be used")

            assert queue.routes is not None
            await until(lambda: is_refused_at_once(queue.routes))
            with pytest.raises(StoreUnavailable, match="does not answer"):
                await queue.in_workspace("search").submit(type="build")
            server.start_again()

            async def is_back() -> bool:
                return (await queue.workspaces.databases())[1].state == "up"

            await until(is_back)
            await queue.routes.refresh()
            assert (await queue.in_workspace("search").submit(type="build")).id


def is_refused_at_once(routes: Routes | None) -> bool:
    assert routes is not None
    try:
        routes.require_database("b")
    except StoreUnavailable:
        return True
    return False


def test_the_dashboard_shows_all_databases_and_opens_their_workspaces(map_url: str) -> None:
    finish(spread(map_url))
    with served(map_url) as site, opened_browser() as browser:
        page = browser.new_page(base_url=site.url)
        page.goto("/workspaces")
        databases = page.get_by_role("region", name="Databases").locator("tbody tr")
        expect(databases).to_have_count(2)
        expect(databases.nth(1)).to_contain_text("bUp12")
        page.get_by_role("link", name="search", exact=True).click()
        expect(page.locator("button.workspace")).to_have_text("search")
        page.locator("button.workspace").click()
        expect(page.locator("datalist option")).to_have_count(3)
        page.get_by_label("Name").fill("billing")
        page.get_by_role("button", name="Open").click()
        expect(page.locator("button.workspace")).to_have_text("billing")
