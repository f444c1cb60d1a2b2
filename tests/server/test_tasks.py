"""Tasks over HTTP: submitted, read, changed, cancelled and rerun."""

import pytest

from shiftwork.compat.views import VIEWS
from shiftwork.model import ids
from tests.server.running import Running


async def test_task_is_submitted_completed_and_read(api: Running) -> None:
    made = await api.post("/api/tasks", {"type": "write", "payload": {"n": 1}})
    claimed = await api.post("/api/tasks/claim", {"agent_id": "ada"})
    token = claimed["assignments"][0]["token"]
    assert claimed["assignments"][0]["task"]["id"] == made["id"]
    await api.post(f"/api/tasks/{made['id']}/start", {"token": token})
    done = await api.post(f"/api/tasks/{made['id']}/complete", {"token": token, "data": {"m": 2}})
    assert done["status"] == "completed"
    task = await api.get(f"/api/tasks/{made['id']}")
    assert (task["status"], task["result"]["data"]) == ("completed", {"m": 2})


async def test_history_in_a_view_has_document_states(api: Running) -> None:
    made = await api.post("/api/tasks", {"type": "write"})
    held = (await api.post("/api/tasks/claim", {"agent_id": "ada", "start": True}))["assignments"][0]
    await api.post(f"/api/tasks/{made['id']}/complete", {"token": held["token"]})
    ours = await api.get(f"/api/tasks/{made['id']}/history")
    assert [step["to_status"] for step in ours["transitions"]][-3:] == ["running", "validating", "completed"]
    theirs = await api.get(f"/api/tasks/{made['id']}/history?view=aegis")
    steps = [(step["from"], step["to"]) for step in theirs["transitions"]]
    assert steps == [("queued", "dispatched"), ("dispatched", "running"), ("running", "completed")]


@pytest.mark.parametrize("output", [None, {"type": "json", "validation": "regex", "validation_schema": "^a"}])
async def test_task_read_in_factory_view_can_be_submitted_again(api: Running, output: dict[str, str] | None) -> None:
    made = await api.post("/api/tasks", {"type": "write", "output": output})
    read = await api.get(f"/api/tasks/{made['id']}?view=factory")
    again = await api.post("/api/tasks?view=factory", {**read, "id": "again"})
    asked = ("type", "validation", "validation_schema")
    assert [again["output"][name] for name in asked] == [read["output"][name] for name in asked]


@pytest.mark.parametrize("view", VIEWS)
async def test_heartbeat_returns_the_task_id_of_its_view(api: Running, view: str) -> None:
    made = await api.post("/api/tasks", {"type": "write"})
    held = (await api.post("/api/tasks/claim", {"agent_id": "ada", "start": True}))["assignments"][0]
    reply = await api.post(f"/api/tasks/{made['id']}/heartbeat?view={view}", {"token": held["token"]})
    assert reply["task_id"] == (ids.parse(made["id"]) if view in {"aegis", "loki"} else made["id"])


async def test_token_not_matching_the_path_changes_neither_task(api: Running) -> None:
    await api.post("/api/agents", {"id": "ada", "max_concurrent_tasks": 2})
    made = [await api.post("/api/tasks", {"type": "write", "id": name}) for name in ("one", "two")]
    held = (await api.post("/api/tasks/claim", {"agent_id": "ada", "count": 2, "start": True}))["assignments"]
    tokens = {each["task"]["id"]: each["token"] for each in held}
    one, two = (each["id"] for each in made)
    wrong = (
        (one, {"token": tokens[two]}, "token"),
        ("one", {"token": tokens[two]}, "token"),
        (one, {"token": tokens[one], "fence": 7}, "fence"),
    )
    for path, claim, where in wrong:
        for verb in ("complete", "heartbeat", "fail", "release"):
            reply = await api.call("POST", f"/api/tasks/{path}/{verb}", claim)
            assert (reply.status, reply.code, reply.json["where"]) == (422, "invalid_input", where), verb
    reply = await api.call("POST", "/api/tasks/nobody/heartbeat", {"token": tokens[one]})
    assert (reply.status, reply.code) == (404, "not_found")
    assert {(await api.get(f"/api/tasks/{each}"))["status"] for each in (one, two)} == {"running"}
    done = await api.post("/api/tasks/one/complete", {"token": tokens[one]})
    assert (done["task_id"], done["status"]) == (one, "completed")


async def test_payload_that_does_not_fit_its_type_is_refused(api: Running) -> None:
    schema = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
    saved = await api.call("PUT", "/api/types/summarise", {"payload_schema": schema})
    assert (saved.status, saved.json["set_by"]) == (200, "operator")
    refused = await api.call("POST", "/api/tasks", {"type": "summarise", "payload": {"text": 1}})
    assert refused.status == 422
    assert (refused.json["code"], refused.json["where"]) == ("invalid_payload", "task.payload.text")
    assert refused.json["facts"]["errors"] == ['text: 1 is not of type "string"']
    assert (await api.get("/api/types"))["types"][0]["payload_schema"] == schema
    unknown = await api.call("GET", "/api/types/nothing")
    assert (unknown.status, unknown.json["code"]) == (404, "not_found")
    odd = await api.call("PUT", "/api/types/summarise", {"payload_schema": [], "more": 1})
    assert odd.status in {400, 422}
