"""Times over HTTP: numbers and ISO 8601 texts."""

from typing import Any

import pytest

from tests.server.running import Running

FAR = "2036-01-31T12:00:00+01:00"
FAR_SEC = 2085390000.0


@pytest.mark.parametrize("run_at", [FAR, FAR_SEC, int(FAR_SEC)])
async def test_task_is_scheduled_by_a_number_or_an_iso_time(api: Running, run_at: Any) -> None:
    made = await api.post("/api/tasks", {"type": "write", "run_at": run_at, "expires_at": "2036-02-01T00:00:00Z"})
    task = await api.get(f"/api/tasks/{made['id']}")
    assert (made["status"], task["hold"], task["run_at"]) == ("pending", "scheduled", FAR_SEC)
    assert task["expires_at"] == 2085436800.0
    explained = await api.get(f"/api/tasks/{made['id']}/explain")
    assert explained["summary"] == "it is scheduled for 2036-01-31 11:00:00 UTC"
    changed = await api.call("PATCH", f"/api/tasks/{made['id']}", {"clear": ["run_at"]})
    assert changed.json["status"] == "ready"


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({"run_at": "2036-01-31T12:00:00"}, "run_at"),
        ({"run_at": "soon"}, "run_at"),
        ({"run_at": FAR, "delay": 5}, "delay"),
        ({"delay": -5}, "delay"),
        ({"delay": "10m"}, "delay"),
        ({"expires_at": 5}, "expires_at"),
        ({"delay": 60, "expires_in": 30}, "expires_at"),
        ({"run_at": 1e300}, "run_at"),
    ],
)
async def test_bad_times_are_refused_by_their_field(api: Running, fields: dict[str, Any], where: str) -> None:
    refused = await api.call("POST", "/api/tasks", {"type": "write", **fields})
    assert (refused.status, refused.code) == (422, "invalid_input")
    assert refused.json["where"].endswith(where)


async def test_filters_take_iso_times(api: Running) -> None:
    await api.post("/api/tasks", {"type": "write"})
    assert (await api.get("/api/tasks?since=2036-01-31T12:00:00Z"))["tasks"] == []
    assert len((await api.get("/api/tasks?until=2036-01-31T12:00:00%2B01:00"))["tasks"]) == 1
    refused = await api.call("GET", "/api/tasks?since=2036-01-31T12:00:00")
    assert (refused.code, refused.json["where"]) == ("invalid_input", "since")
    assert "time zone" in refused.json["hint"]
    held = (await api.post("/api/tasks/claim", {"agent_id": "ada", "start": True}))["assignments"][0]
    waited = await api.post(
        f"/api/tasks/{held['task']['id']}/wait", {"token": held["token"], "name": "nap", "until": FAR}
    )
    assert waited["wait"]["until"] == FAR_SEC
    made = await api.post("/api/tokens", {"name": "t", "scopes": ["read"], "expires_at": FAR})
    assert made["expires_at"] == FAR_SEC
