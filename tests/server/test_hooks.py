"""Hooks over HTTP: open to anyone who signs, with or without tokens for everyone else."""

import asyncio
import io
import json

import pytest

from shiftwork.maintenance.loop import run_once
from tests import deliveries
from tests.server.running import Reply, Running

REVIEW = json.loads((deliveries.ROOT / "examples" / "review" / "trigger.json").read_text())
SECRET = "a secret that only github knows"


async def save(api: Running, workspace: str = "default") -> None:
    await api.state.queue.in_workspace(workspace).triggers.save("review", **REVIEW, secret=SECRET)


async def deliver(
    api: Running, body: bytes = deliveries.PULL_REQUEST, query: str = "", forged: dict[str, str] | None = None
) -> Reply:
    signed = deliveries.github(SECRET, body, "pull_request")
    return await api.call("POST", f"/api/hooks/review{query}", data=body, headers={**signed, **(forged or {})})


@pytest.mark.requirement("F-208", "F-209", "F-210", "F-211")
async def test_hook_delivery_needs_no_token(guarded: Running) -> None:
    """A nightly and a weekly schedule exist next to it, and fire by themselves."""
    queue = guarded.state.queue
    await save(guarded)
    for name, cron in (("nightly", "@daily"), ("weekly", "@weekly")):
        await queue.triggers.save(name, on={"kind": "cron", "at": cron}, task={"type": name})
    reply = await deliver(guarded)
    assert (reply.status, reply.json["outcome"], len(reply.json["tasks"])) == (200, "fired", 3)
    assert guarded.state.clock is not None
    guarded.state.clock.advance(8 * 86_400)
    await run_once(queue.engine, force=True)
    assert {task.type for task in (await queue.tasks.list()).tasks} >= {"nightly", "weekly", "review-code"}


async def test_forged_delivery_is_refused_without_a_reason(guarded: Running) -> None:
    await save(guarded)
    reply = await deliver(guarded, forged={"X-Hub-Signature-256": "sha256=" + 64 * "0"})
    assert (reply.status, reply.code) == (403, "hook_refused")
    assert "wrong" not in reply.json["detail"]
    unknown = await guarded.call("POST", "/api/hooks/nothing", {})
    assert (unknown.status, unknown.code) == (403, "hook_refused")
    assert unknown.json["detail"].replace("nothing", "review") == reply.json["detail"]


async def test_oversized_delivery_is_not_read_to_its_end(api: Running) -> None:
    await save(api)
    body = io.BytesIO(b" " * 1_048_577)
    reply = await api.call("POST", "/api/hooks/review", data=body, headers=deliveries.github(SECRET, b"", "push"))
    assert (reply.status, reply.code) == (413, "too_large")
    await api.state.queue.executor.shared.drain()
    events = (await api.state.queue.events()).events
    assert [event.data for event in events if event.verb == "trigger_refused"] == [
        {"trigger": "review", "kind": "hook", "reason": "more than 1048576 bytes"}
    ]


async def test_delivery_with_invalid_json_is_refused(api: Running) -> None:
    await save(api)
    reply = await deliver(api, b"{")
    assert (reply.status, reply.code) == (400, "malformed")


async def test_hook_of_another_workspace_is_named_in_the_query(api: Running) -> None:
    await save(api, "shop")
    assert (await deliver(api)).code == "hook_refused"
    assert (await deliver(api, query="?workspace=shop")).json["outcome"] == "fired"
    assert (await deliver(api, query="?workspace=")).status == 422


async def test_concurrent_equal_deliveries_fire_once(api: Running) -> None:
    await save(api)
    replies = await asyncio.gather(*(deliver(api) for _ in range(10)))
    assert sorted(reply.json["duplicate"] for reply in replies) == [False] + [True] * 9
    assert len({tuple(reply.json["tasks"]) for reply in replies}) == 1
    assert len((await api.state.queue.tasks.list()).tasks) == 3


async def test_hook_secret_is_returned_only_when_created(api: Running) -> None:
    body = {"on": {"kind": "hook"}, "task": {"type": "note"}}
    made = (await api.call("PUT", "/api/triggers/x", body)).json
    assert made["secret"].startswith("whsec_")
    again = (await api.call("PUT", "/api/triggers/x", body)).json
    assert again["secret"] is None
    for path in ("/api/triggers", "/api/triggers/x", "/api/triggers/x/firings", "/api/events?after=0"):
        assert made["secret"] not in (await api.call("GET", path)).body.decode()


async def test_repeated_trigger_save_does_not_return_the_secret(api: Running) -> None:
    body = {"on": {"kind": "hook"}, "task": {"type": "note"}}
    keyed = {"Idempotency-Key": "k1"}
    assert (await api.call("PUT", "/api/triggers/x", body, headers=keyed)).status == 200
    again = await api.call("PUT", "/api/triggers/x", body, headers=keyed)
    assert (again.status, again.code) == (409, "conflict")
