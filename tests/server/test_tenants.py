"""Workspaces of one server belong to strangers: no token of one of them reaches the server itself."""

from __future__ import annotations

import pytest

from tests.conformance.steps import give_folder
from tests.server.running import Running
from tests.server.test_access import token


async def test_snapshots_are_for_the_operator_of_the_server(guarded: Running) -> None:
    tenant = await token(guarded.house.queue.in_workspace("tenant"), "admin")
    operator = await token(guarded.house.queue, "server")
    for method in ("GET", "POST"):
        refused = await guarded.call(method, "/api/snapshots", headers=tenant)
        assert (refused.status, refused.code, refused.json["facts"]["needs"]) == (403, "forbidden", "server")
    taken = (await guarded.call("POST", "/api/snapshots", headers=operator)).json
    assert (await guarded.get("/api/snapshots", headers=operator))["snapshots"] == [taken]


@pytest.mark.requirement("C-092")
async def test_without_tokens_this_machine_has_the_snapshots(api: Running) -> None:
    give_folder(api.house.queue)
    taken = (await api.call("POST", "/api/snapshots")).json
    assert (await api.get("/api/snapshots"))["snapshots"] == [taken]


async def test_a_second_snapshot_within_a_minute_is_refused(guarded: Running) -> None:
    operator = await token(guarded.house.queue, "server")
    clock = guarded.house.clock
    assert clock is not None
    assert (await guarded.call("POST", "/api/snapshots", headers=operator)).status == 201
    refused = await guarded.call("POST", "/api/snapshots", headers=operator)
    assert (refused.status, refused.code) == (429, "too_many_requests")
    assert 0 < int(refused.headers["retry-after"]) <= 60
    clock.advance(60)
    assert (await guarded.call("POST", "/api/snapshots", headers=operator)).status == 201


async def test_an_admin_of_a_workspace_cannot_give_or_revoke_the_scope_server(guarded: Running) -> None:
    queue = guarded.house.queue
    admin, operator = await token(queue, "admin"), await queue.create_token("operations", ["admin", "server"])
    wanted = {"name": "mine", "scopes": ["read", "server"]}
    refused = await guarded.call("POST", "/api/tokens", wanted, headers=admin)
    assert (refused.status, refused.json["facts"]["needs"]) == (403, "server")
    refused = await guarded.call("DELETE", f"/api/tokens/{operator.id}", headers=admin)
    assert (refused.status, refused.json["facts"]["needs"]) == (403, "server")
    header = {"Authorization": f"Bearer {operator.secret}"}
    made = await guarded.post("/api/tokens", wanted, headers=header)
    assert made["scopes"] == ["read", "server"]
    assert (await guarded.call("DELETE", f"/api/tokens/{operator.id}", headers=header)).status == 200


@pytest.mark.parametrize(
    "change",
    [{"set": {"snapshots.keep": 1}}, {"set": {"maintenance.reclaim_sec": 9e9}}, {"unset": ["operation_max_sec"]}],
)
async def test_settings_of_the_whole_server_need_its_scope(guarded: Running, change: dict[str, object]) -> None:
    admin, operator = await token(guarded.house.queue, "admin"), await token(guarded.house.queue, "admin", "server")
    refused = await guarded.call("PATCH", "/api/settings", change, headers=admin)
    assert (refused.status, refused.code) == (403, "forbidden")
    assert (await guarded.call("PATCH", "/api/settings", change, headers=operator)).status == 200
