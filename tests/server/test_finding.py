"""Search, counts, bulk changes and short ids over HTTP."""

from typing import Any

import pytest

from shiftwork.client import Client
from tests.server.running import Running


async def fill(api: Running, count: int = 3) -> list[str]:
    made = await api.post("/api/tasks", [{"type": "write", "title": f"Flaky login {n}"} for n in range(count)])
    return [each["id"] for each in made]


async def test_search_is_a_filter_of_the_list(api: Running) -> None:
    made = await fill(api)
    await api.post("/api/tasks", {"type": "other"})
    found = await api.get("/api/tasks?search=flaky+LOG&status=ready,running&newest=true")
    assert [task["id"] for task in found["tasks"]] == made[::-1]
    assert found["index_lag"] == 0
    assert await api.get("/api/counts?search=flaky") == {"counts": {"ready": 3}}
    assert await api.get("/api/counts?type=other&status=ready&status=pending") == {"counts": {"ready": 1}}


async def test_short_id_is_taken_in_a_path(api: Running) -> None:
    (task,) = await fill(api, 1)
    short = task[-6:]
    assert (await api.get(f"/api/tasks/{short}"))["id"] == task
    assert (await api.get(f"/api/tasks/%E2%80%A6{short}/explain"))["task_id"] == task
    held = (await api.post("/api/tasks/claim", {"agent_id": "ada", "start": True}))["assignments"][0]
    assert (await api.post(f"/api/tasks/{short}/heartbeat", {"token": held["token"]}))["task_id"] == task
    assert (await api.post(f"/api/tasks/{short}/complete", {"token": held["token"]}))["status"] == "completed"
    assert (await api.call("GET", "/api/tasks/ZZZZZZ")).status == 404


async def test_ambiguous_short_id_is_refused_with_candidates(api: Running) -> None:
    made = [f"task_01M7P49T8CE06RHX9N{n:02d}ABCDEF" for n in range(2)]
    await api.post("/api/tasks", [{"type": "write", "id": each} for each in made])
    refused = await api.call("GET", "/api/tasks/ABCDEF")
    assert refused.status == 404
    problem = refused.json
    assert (problem["code"], problem["facts"]["candidates"]) == ("ambiguous_id", made)


async def test_bulk_change_is_counted_then_done_page_by_page(api: Running) -> None:
    made = await fill(api, 5)
    body: dict[str, Any] = {"action": "cancel", "where": {"search": "flaky", "status": "ready"}}
    counted = await api.post("/api/bulk", {**body, "dry_run": True})
    assert (counted["counts"], counted["changed"], counted["next"]) == ({"ready": 5}, 0, None)
    first = await api.post("/api/bulk", {**body, "limit": 3, "reason": "enough"})
    assert (first["changed"], first["next"]) == (3, made[2])
    last = await api.post("/api/bulk", {**body, "limit": 3, "after": first["next"], "as_of": first["as_of"]})
    assert (last["changed"], last["skipped"], last["next"]) == (2, 0, None)
    assert (await api.get(f"/api/tasks/{made[0]}"))["cancel_reason"] == "enough"


@pytest.mark.parametrize(
    "body",
    [
        {"action": "cancel"},
        {"action": "cancel", "where": {}},
        {"action": "cancel", "where": {"type": "x", "colour": "red"}},
        {"action": "explode", "where": {"type": "x"}},
        {"action": "cancel", "where": {"search": "a\u0000"}},
        {"action": "cancel", "where": {"search": "x" * 501}},
        {"action": "set_priority", "where": {"type": "x"}, "priority": 101},
        {"action": "retry", "where": {"status": "ready"}},
    ],
)
async def test_bad_bulk_change_is_refused(api: Running, body: dict[str, Any]) -> None:
    await fill(api, 1)
    refused = await api.call("POST", "/api/bulk", body)
    assert refused.status in {400, 413, 422}, refused
    assert await api.get("/api/counts") == {"counts": {"ready": 1}}


async def test_client_runs_bulk_changes_to_their_end(api: Running) -> None:
    await fill(api, 250)
    async with await Client.open(api.url) as client:
        pages: list[int] = []
        done = await client.bulk.cancel({"type": "write"}, progress=lambda page: pages.append(page.changed))
        assert (done.changed, pages) == (250, [200, 50])
        assert [task.status for task in (await client.tasks.list(search="login 7", limit=1)).tasks] == ["cancelled"]
