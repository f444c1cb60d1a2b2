"""Supervisor and workers over HTTP: batches, wake-ups, groups, and the whole task at the claim."""

import asyncio
from typing import Any

import pytest

from shiftwork.model.task import Task
from tests.server.running import Running
from tests.worker.steps import until

NOOP = {"type": "noop"}


@pytest.mark.requirement("C-237")
async def test_batch_submit_is_one_call_and_creates_all_tasks(api: Running) -> None:
    made = await api.post("/api/tasks", [{**NOOP, "payload": {"n": n}} for n in range(5)])
    listed = (await api.get("/api/tasks"))["tasks"]
    assert [task["id"] for task in made] == [task["id"] for task in listed]
    assert [task["payload"]["n"] for task in listed] == [0, 1, 2, 3, 4]


@pytest.mark.requirement("C-238")
@pytest.mark.parametrize(
    ("bad", "code"),
    [
        ({"type": "noop", "priority": 101}, "invalid_input"),
        ({"type": "noop", "dependencies": ["nowhere-in-the-batch"]}, "unknown_dependency"),
        ({"type": "noop", "key": "b", "dependencies": ["b"]}, "circular_dependency"),
        ({"type": "noop", "id": "taken"}, "id_in_use"),
    ],
)
async def test_one_invalid_task_refuses_the_whole_batch(api: Running, bad: dict[str, Any], code: str) -> None:
    await api.call("PATCH", "/api/settings", {"set": {"missing_dependency": "reject"}})
    await api.post("/api/tasks", {**NOOP, "id": "taken"})
    refused = await api.call("POST", "/api/tasks", [NOOP, bad, NOOP])
    assert refused.code == code
    assert len((await api.get("/api/tasks"))["tasks"]) == 1


@pytest.mark.requirement("C-239")
async def test_partial_batch_is_never_visible(api: Running) -> None:
    seen: set[int] = set()
    stored = asyncio.Event()

    async def look() -> None:
        while not stored.is_set():
            seen.add(len((await api.get("/api/tasks?tag=together&limit=1000"))["tasks"]))

    looking = asyncio.create_task(look())
    await api.post("/api/tasks", [{**NOOP, "tags": ["together"]}] * 500)
    stored.set()
    await looking
    assert seen <= {0, 500}
    assert len((await api.get("/api/tasks?tag=together&limit=1000"))["tasks"]) == 500


@pytest.mark.requirement("C-077")
async def test_idle_worker_is_woken_by_a_submit(api: Running) -> None:
    """Not by polling: the next poll is an hour away."""
    await api.call("PATCH", "/api/settings", {"set": {"fallback_poll_sec": 3600}})
    waiting = asyncio.create_task(api.post("/api/tasks/claim", {"agent_id": "idle", "wait_sec": 25}))

    async def has_looked() -> bool:
        return bool((await api.get("/api/agents"))["agents"])

    await until(has_looked)
    made = await api.post("/api/tasks", NOOP)
    claimed = await waiting
    assert [held["task"]["id"] for held in claimed["assignments"]] == [made["id"]]


@pytest.mark.requirement("C-151")
async def test_progress_of_a_tag_group_can_be_read(api: Running) -> None:
    await api.post("/api/tasks", [{**NOOP, "tags": ["tournament-1"]}] * 3)
    held = (await api.post("/api/tasks/claim", {"agent_id": "a", "start": True}))["assignments"][0]
    await api.post(f"/api/tasks/{held['task']['id']}/complete", {"token": held["token"]})
    counts = await api.get("/api/tags/tournament-1")
    assert (counts["done"], counts["total"]) == (1, 3)


@pytest.mark.requirement("F-138", "F-251")
async def test_claim_returns_every_task_field_and_no_store_columns(api: Running) -> None:
    made = await api.post("/api/tasks", {**NOOP, "spec": {"prompt": "write"}, "tags": ["t"]})
    [held] = (await api.post("/api/tasks/claim", {"agent_id": "a"}))["assignments"]
    assert held["task"].keys() == set(Task.__struct_fields__)
    read = await api.get(f"/api/tasks/{made['id']}")
    assert {name for name in read if held["task"][name] != read[name]} <= COMPUTED
    assert not {"lane", "rank", "ordered_at", "lease_check_at"} & held["task"].keys()
    nothing = await api.post("/api/tasks/claim", {"agent_id": "b"})
    assert nothing["assignments"] == []


COMPUTED = {"age_minutes", "effective_priority", "priority_parts", "claim"}
"""As of the moment they are read."""


@pytest.mark.requirement("F-250", "F-001")
async def test_agents_complete_hundreds_of_tasks_without_a_supervisor(api: Running) -> None:
    tasks = 400
    await api.post("/api/tasks", [NOOP] * tasks)

    async def agent(name: str) -> int:
        done = 0
        while held := (await api.post("/api/tasks/claim", {"agent_id": name, "start": True}))["assignments"]:
            for each in held:
                await api.post(f"/api/tasks/{each['task']['id']}/complete", {"token": each["token"]})
                done += 1
        return done

    assert sum(await asyncio.gather(*(agent(f"agent-{n}") for n in range(8)))) == tasks
    assert (await api.get("/api/queue"))["counts"] == {"completed": tasks}
