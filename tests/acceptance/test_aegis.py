"""The Aegis document from top to bottom, over HTTP only, with its own names and profile.

Its events over WebSocket are followed in `tests/server/test_live.py`.
"""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from tests.acceptance.aegis import AGENT, ISSUE, RUNTIME, STANDS_AT, WORKSPACE, Aegis, served
from tests.conformance.steps import sql
from tests.server.running import Reply


@pytest.fixture
async def aegis(store_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Aegis]:
    async with served(store_url, monkeypatch) as server:
        yield server


async def row(aegis: Aegis, task: dict[str, Any]) -> dict[str, Any]:
    """The task as the document's own table shows it."""
    (found,) = await sql(aegis.api.state.queue, f"select * from agent_task_queue where id = '{task['id']}'")
    return found


def at(seconds: float) -> str:
    """Return a time of the test clock as answers write it."""
    return datetime.fromtimestamp(STANDS_AT + seconds, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


@pytest.mark.requirement("A-004", "A-033", "A-034", "A-058", "A-087")
async def test_session_is_part_of_its_task(aegis: Aegis) -> None:
    task = await aegis.running()
    pinned = await aegis.report(task, "session", session_id="sess-1", work_dir="/srv/work/1")
    assert (pinned["session_id"], pinned["work_dir"]) == ("sess-1", "/srv/work/1")
    assert await aegis.get(task) == pinned
    stored = await row(aegis, task)
    assert (stored["session_id"], stored["work_dir"]) == ("sess-1", "/srv/work/1")


STATES = ["queued", "dispatched", "running", "completed", "failed", "cancelled"]
DRAWN = {
    ("queued", "dispatched"),
    ("dispatched", "running"),
    ("running", "completed"),
    ("running", "failed"),
    ("dispatched", "failed"),
    *((state, "cancelled") for state in ("queued", "dispatched", "running", "failed")),
}
ANEW = {("failed", "queued"), ("completed", "queued"), ("cancelled", "queued")}
"""Done by a new task; the old one stays as it is."""
SAID_AGAIN = {("running", "running"), ("completed", "completed"), ("failed", "failed")}
"""A report sent twice, since its answer may have been lost: taken as said once."""


class Pair:
    """One task with its own agent and issue, so that pairs do not interfere."""

    def __init__(self, aegis: Aegis, name: str) -> None:
        self.aegis = aegis
        self.agent, self.issue = f"agent-{name}", f"issue-{name}"
        self.task: dict[str, Any] = {}

    async def bring_to(self, state: str) -> None:
        self.task = await self.aegis.create(agent_id=self.agent, issue_id=self.issue)
        steps = {
            "queued": [],
            "dispatched": ["dispatched"],
            "running": ["dispatched", "running"],
            "completed": ["dispatched", "running", "completed"],
            "failed": ["dispatched", "running", "failed"],
            "cancelled": ["cancelled"],
        }[state]
        for step in steps:
            assert (await self.attempt(step)).status == 200
        assert (await self.now())["status"] == state

    async def attempt(self, state: str) -> Reply:
        """The document's call that leads to this state."""
        task = f"POST /api/tasks/{self.task['id']}"
        call, body = {
            "queued": (f"POST /api/issues/{self.issue}/rerun", {"task_id": self.task["id"]}),
            "dispatched": ("POST /api/tasks/claim", {"runtime_id": RUNTIME, "agent_id": self.agent}),
            "running": (f"{task}/start", {}),
            "completed": (f"{task}/complete", {"output": "done"}),
            "failed": (f"{task}/fail", {"failure_reason": "agent_error"}),
            "cancelled": (f"{task}/cancel", {}),
        }[state]
        return await self.aegis.call(call, body)

    async def now(self) -> dict[str, Any]:
        return await self.aegis.get(self.task)


@pytest.mark.requirement("A-006", "A-007", "A-008", "A-009", "A-010", "A-012", "A-018", "A-096", "A-105")
@pytest.mark.requirement("A-024", "A-054", "A-055", "A-059")
@pytest.mark.parametrize("state", STATES)
async def test_every_documented_transition_happens_and_others_are_refused(aegis: Aegis, state: str) -> None:
    for wanted in STATES:
        pair = Pair(aegis, f"{state}-{wanted}")
        await pair.bring_to(state)
        before = await pair.now()
        await aegis.pass_time(1)
        reply = await pair.attempt(wanted)
        after = await pair.now()
        assert after["attempt"] == (await row(aegis, pair.task))["attempt"] == 1
        rows = await aegis.listed(f"issue={pair.issue}")
        if (state, wanted) in DRAWN:
            assert (reply.status, after["status"], len(rows)) == (200, wanted, 1), wanted
        elif (state, wanted) in ANEW:
            assert (reply.status, reply.json["status"], len(rows)) == (201, "queued", 2), wanted
            assert after["status"] == before["status"]
        else:
            assert after == before, wanted
            assert len(rows) == 1
            if wanted == "dispatched":
                assert reply.json["task"] is None  # a claim names no task
            else:
                assert reply.status == (200 if (state, wanted) in SAID_AGAIN else 409), (wanted, reply)


COLUMNS = (
    *("id", "workspace_id", "agent_id", "issue_id", "status", "trigger_type", "trigger_comment_id"),
    *("trigger_summary", "session_id", "work_dir", "output", "attempt", "max_attempts", "failure_reason"),
    *("parent_task_id", "claimed_at", "started_at", "completed_at", "created_at", "updated_at"),
)


@pytest.mark.requirement("A-019", "A-020", "A-024", "A-036", "A-037", "A-087")
async def test_new_task_has_documented_columns_and_defaults(aegis: Aegis) -> None:
    task = await aegis.ask("POST /api/tasks", {"workspace_id": WORKSPACE, "agent_id": AGENT})
    assert UUID(task["id"]).version == 7
    assert (task["status"], task["attempt"], task["max_attempts"]) == ("queued", 1, 2)
    empty = [name for name in COLUMNS if task[name] is None]
    assert set(empty) == set(COLUMNS) - {
        *("id", "workspace_id", "agent_id", "status", "attempt", "max_attempts", "created_at", "updated_at")
    }
    assert tuple(await row(aegis, task)) == COLUMNS
    assert len(await sql(aegis.api.state.queue, "select id from agent_task_queue")) == 1


@pytest.mark.requirement("A-021", "A-022", "A-023", "A-031", "A-035")
async def test_written_fields_are_read_back_from_api_and_table(aegis: Aegis) -> None:
    comment = "9f3c1d52-1f6a-4f7e-9d0b-3f6d2b8f1c44"
    written = {
        "workspace_id": WORKSPACE,
        "agent_id": AGENT,
        "issue_id": ISSUE,
        "trigger_type": "mention",
        "trigger_comment_id": comment,
        "trigger_summary": "@coder please fix the login",
        "session_id": "sess-0",
        "work_dir": "/srv/work/0",
    }
    task = await aegis.ask("POST /api/tasks", written)
    assert {name: task[name] for name in written} == written
    assert (await aegis.claim())["id"] == task["id"]
    await aegis.report(task, "start")
    done = await aegis.report(task, "complete", output="mended")
    assert done == await aegis.get(task)
    stored = await row(aegis, task)
    for name in COLUMNS:
        if not name.endswith("_at"):
            assert str(stored[name]) == str(done[name]), name
    assert done["output"] == "mended"


@pytest.mark.requirement("A-021", "A-022")
@pytest.mark.parametrize("missing", ["workspace_id", "agent_id"])
async def test_task_requires_its_workspace_and_agent(aegis: Aegis, missing: str) -> None:
    fields = {"workspace_id": WORKSPACE, "agent_id": AGENT}
    del fields[missing]
    reply = await aegis.call("POST /api/tasks", fields)
    assert (reply.status, reply.code, reply.json["where"]) == (422, "invalid_input", missing)
    assert await aegis.listed("") == []


async def test_task_belongs_to_the_workspace_it_names(aegis: Aegis) -> None:
    first, second = [await aegis.create(workspace_id=name, issue_id=None) for name in (WORKSPACE, "elsewhere")]
    assert (await aegis.get(second))["workspace_id"] == "elsewhere"
    assert [task["id"] for task in await aegis.listed("")] == [first["id"], second["id"]]
    assert {(await aegis.claim())["workspace_id"] for _ in range(2)} == {WORKSPACE, "elsewhere"}
    assert await aegis.claim() is None
    assert {task["id"] for task in (await aegis.ask(f"POST /api/runtime/{RUNTIME}/orphans"))["tasks"]} >= {first["id"]}
    refused = await aegis.call("POST /api/tasks?workspace=other", {"workspace_id": "elsewhere", "agent_id": AGENT})
    assert (refused.status, refused.json["where"]) == (404, "workspace_id")


@pytest.mark.requirement("A-025", "A-023")
@pytest.mark.parametrize("trigger", ["assignment", "mention", "chat", "autopilot", "manual_rerun"])
async def test_each_of_the_five_trigger_types_is_kept(aegis: Aegis, trigger: str) -> None:
    issue = None if trigger in {"chat", "autopilot"} else ISSUE
    task = await aegis.create(trigger_type=trigger, issue_id=issue)
    assert (task["trigger_type"], task["issue_id"]) == (trigger, issue)
    stored = await row(aegis, task)
    assert (stored["trigger_type"], stored["issue_id"]) == (trigger, issue)


@pytest.mark.requirement("A-032")
async def test_long_trigger_summary_is_shortened_in_lists(aegis: Aegis) -> None:
    await aegis.create(trigger_summary="please " * 100)
    (listed,) = await aegis.listed()
    assert len(listed["trigger_summary"]) == 200
    assert listed["trigger_summary"].startswith("please please ")
    assert listed["trigger_summary"].endswith("…")


@pytest.mark.requirement("A-014", "A-015", "A-016", "A-044", "A-045", "A-046", "A-047", "A-048")
async def test_each_step_sets_its_timestamp(aegis: Aegis) -> None:
    task = await aegis.create()
    seen = [await aegis.get(task)]
    for step in ("claim", "start", "progress", "session", "complete"):
        await aegis.pass_time(1)
        if step == "claim":
            await aegis.claim()
        else:
            await aegis.report(task, step, **({"session_id": "s"} if step == "session" else {}))
        seen.append(await aegis.get(task))
    names = ("created_at", "claimed_at", "started_at", "completed_at", "updated_at")
    times = [tuple(task[name] for name in names) for task in seen]
    assert [task["status"] for task in seen] == ["queued", "dispatched", "running", "running", "running", "completed"]
    assert times[0] == (at(0), None, None, None, at(0))
    assert times[1] == (at(0), at(1), None, None, at(1))
    assert times[2] == (at(0), at(1), at(2), None, at(2))
    assert times[4] == (at(0), at(1), at(2), None, at(4))
    assert times[5] == (at(0), at(1), at(2), at(5), at(5))


async def test_released_task_has_no_execution_times(aegis: Aegis) -> None:
    task = await aegis.running()
    released = await aegis.report(task, "release")
    stored = await row(aegis, task)
    for shown in (released, stored):
        assert (shown["status"], shown["claimed_at"], shown["started_at"]) == ("queued", None, None)


@pytest.mark.requirement("A-049", "A-050", "A-051")
async def test_documented_indexes_of_the_table_exist(aegis: Aegis) -> None:
    queue = aegis.api.state.queue
    table, name, text = ("pg_indexes", "indexname", "indexdef")
    if queue.url.startswith("sqlite"):
        table, name, text = ("sqlite_master", "name", "sql")
    found = await sql(queue, f"select {name} as name, {text} as text from {table} where {name} like 'idx_task_queue%'")
    indexes = {index["name"]: index["text"] for index in found}
    assert "(status) WHERE" in indexes["idx_task_queue_status"].replace("where", "WHERE")
    assert all(f"'{ours}'" in indexes["idx_task_queue_status"] for ours in ("ready", "claimed", "running"))
    assert "(target_agent_id, status)" in indexes["idx_task_queue_agent"]
    assert "(issue_id)" in indexes["idx_task_queue_issue"]


@pytest.mark.requirement("A-052", "A-053", "A-081")
async def test_runtime_claims_the_next_task_for_any_agent(aegis: Aegis) -> None:
    made = []
    for agent in ("coder", "reviewer", "coder"):
        made.append((await aegis.create(agent_id=agent))["id"])
        await aegis.pass_time(1)
    claimed = [await aegis.claim() for _ in range(3)]
    assert [task["id"] for task in claimed] == made
    assert {task["status"] for task in claimed} == {"dispatched"}
    assert {task["runtime_id"] for task in claimed} == {RUNTIME}
    assert await aegis.claim() is None


async def test_daemon_of_one_agent_claims_for_that_agent(aegis: Aegis) -> None:
    await aegis.create(agent_id="coder")
    review = await aegis.create(agent_id="reviewer")
    answer = await aegis.ask("POST /api/tasks/claim", {"runtime_id": RUNTIME, "agent_id": "reviewer"})
    assert answer["task"]["id"] == review["id"]


async def test_offline_agent_does_not_block_the_others(aegis: Aegis) -> None:
    away = await aegis.dispatched(agent_id="away")
    await aegis.create(agent_id="away")
    await aegis.api.call("PATCH", f"/api/agents/away?workspace={WORKSPACE}", {"status": "offline"})
    task = await aegis.create(agent_id="coder")
    assert (await aegis.claim())["id"] == task["id"]
    assert await aegis.claim() is None
    assert (await aegis.get(away))["status"] == "dispatched"


async def test_waiting_claim_is_answered_when_a_task_arrives(aegis: Aegis) -> None:
    waiting = asyncio.create_task(aegis.ask("POST /api/tasks/claim", {"runtime_id": RUNTIME, "wait_sec": 25}))
    while not (await aegis.api.get("/api/runtimes"))["items"]:
        continue  # it has not looked yet
    task = await aegis.create(agent_id="never seen before")
    async with asyncio.timeout(20):  # by itself it would look again after 30 seconds
        assert (await waiting)["task"]["id"] == task["id"]


@pytest.mark.requirement("A-097", "A-035", "A-041", "A-056")
async def test_daemon_claims_starts_completes_and_fails_over_http(aegis: Aegis) -> None:
    done = await aegis.running()
    assert (await aegis.report(done, "complete", output="ok"))["status"] == "completed"
    failed = await aegis.running()
    after = await aegis.report(failed, "fail", failure_reason="agent_error", error="HTTP 500")
    assert (after["status"], after["failure_reason"], after["error"]) == ("failed", "agent_error", "HTTP 500")


@pytest.mark.requirement("A-057")
async def test_progress_is_stored_and_emits_an_event(aegis: Aegis) -> None:
    task = await aegis.running()
    await aegis.report(task, "progress", step=2, of=5, summary="tests are green")
    assert (await aegis.get(task))["progress"] == {"step": 2, "of": 5, "summary": "tests are green"}
    assert (await aegis.told(task))[-1] == "task:progress"


async def test_only_the_claiming_runtime_can_write_to_a_task(aegis: Aegis) -> None:
    task = await aegis.running("laptop-1")
    before = await aegis.get(task)
    for verb in ("start", "complete", "fail", "progress", "session"):
        for name, other in (("runtime_id", "laptop-2"), ("agent_id", "somebody")):
            reply = await aegis.call(f"POST /api/tasks/{task['id']}/{verb}", {name: other})
            assert (reply.status, reply.code) == (403, "not_your_claim"), verb
    assert await aegis.get(task) == before
    assert (await aegis.report(task, "complete", runtime_id="laptop-1", agent_id=AGENT))["status"] == "completed"


async def test_report_with_an_earlier_token_is_refused(aegis: Aegis) -> None:
    first = await aegis.dispatched()
    await aegis.report(first, "release")
    assert (await aegis.claim())["id"] == first["id"]
    late = await aegis.call(f"POST /api/tasks/{first['id']}/start", {"token": first["token"]})
    assert (late.status, late.code) == (409, "lease_lost")
    assert (await aegis.get(first))["status"] == "dispatched"


async def test_runtime_heartbeat_reports_cancelled_tasks(aegis: Aegis) -> None:
    kept, cancelled = await aegis.dispatched(), await aegis.dispatched()
    await aegis.report(cancelled, "cancel", reason="not needed")
    holding = {"holding": [kept["token"], cancelled["token"]]}
    answer = await aegis.ask(f"POST /api/runtimes/{RUNTIME}/heartbeat", holding)
    assert answer["cancel"] == {cancelled["token"]: "not needed"}


async def test_body_that_is_not_an_object_is_refused(aegis: Aegis) -> None:
    task = await aegis.running()
    for verb in ("start", "complete", "fail", "progress", "session", "cancel"):
        assert (await aegis.call(f"POST /api/tasks/{task['id']}/{verb}", [])).status == 422


@pytest.mark.requirement("A-059", "A-042")
@pytest.mark.parametrize("state", ["queued", "dispatched", "running"])
async def test_cancel_ends_a_task_in_every_state(aegis: Aegis, state: str) -> None:
    make = {"queued": aegis.create, "dispatched": aegis.dispatched, "running": aegis.running}[state]
    cancelled = await aegis.report(await make(), "cancel")
    assert (cancelled["status"], cancelled["failure_reason"]) == ("cancelled", "cancelled")
    assert await aegis.claim() is None


@pytest.mark.requirement("A-061", "A-062", "A-063", "A-064")
async def test_tasks_are_listed_by_agent_issue_and_status(aegis: Aegis) -> None:
    mine = await aegis.dispatched(agent_id="coder", issue_id="one")
    other = await aegis.create(agent_id="reviewer", issue_id="one")
    third = await aegis.create(agent_id="coder", issue_id="two")

    async def found(filters: str) -> list[str]:
        return [task["id"] for task in await aegis.listed(filters)]

    assert await found("") == [mine["id"], other["id"], third["id"]]
    assert await found("agent=coder") == [mine["id"], third["id"]]
    assert await found("issue=one") == [mine["id"], other["id"]]
    assert await found("status=dispatched") == [mine["id"]]
    assert await found("agent=coder&status=queued") == [third["id"]]
    assert await found("status=completed") == []
    assert (await aegis.call("GET /api/tasks?status=pending")).status == 422


@pytest.mark.requirement("A-065")
async def test_task_details_are_complete_and_unknown_task_is_not_found(aegis: Aegis) -> None:
    task = await aegis.create()
    assert await aegis.get(task) == task
    for call in ("GET /api/tasks/{}", "POST /api/tasks/{}/start", "POST /api/tasks/{}/cancel"):
        reply = await aegis.call(call.format("01890000-0000-7000-8000-000000000000"))
        assert (reply.status, reply.code) == (404, "not_found"), call


@pytest.mark.requirement("A-066", "A-067")
async def test_issue_is_rerun_from_its_newest_or_named_task(aegis: Aegis) -> None:
    older, newer = await aegis.running(agent_id="first"), await aegis.running(agent_id="second")
    for task in (older, newer):
        await aegis.report(task, "complete")
        await aegis.pass_time(1)
    again = await aegis.ask(f"POST /api/issues/{ISSUE}/rerun")
    assert (again["status"], again["issue_id"], again["agent_id"]) == ("queued", ISSUE, "second")
    named = await aegis.ask(f"POST /api/issues/{ISSUE}/rerun", {"task_id": older["id"]})
    assert (named["status"], named["agent_id"]) == ("queued", "first")
    assert len({task["id"] for task in (older, newer, again, named)}) == 4
    assert (await aegis.call("POST /api/issues/unknown/rerun")).status == 404
    assert (await aegis.call("POST /api/issues/unknown/rerun", {"task_id": older["id"]})).status == 404


@pytest.mark.requirement("A-040", "A-068", "A-103", "A-105")
async def test_task_dispatched_for_five_minutes_fails_with_timeout(aegis: Aegis) -> None:
    task = await aegis.dispatched()
    await aegis.pass_time(299, RUNTIME)
    assert (await aegis.get(task))["status"] == "dispatched"
    await aegis.pass_time(1)
    failed = await aegis.get(task)
    assert (failed["status"], failed["failure_reason"]) == ("failed", "timeout")
    assert await aegis.statuses() == ["failed", "queued"]


@pytest.mark.requirement("A-069", "A-084")
async def test_task_running_for_two_and_a_half_hours_fails_with_timeout(aegis: Aegis) -> None:
    task = await aegis.running()
    await aegis.pass_time(8999, RUNTIME)
    assert (await aegis.get(task))["status"] == "running"
    await aegis.pass_time(1, RUNTIME)
    failed = await aegis.get(task)
    assert (failed["status"], failed["failure_reason"]) == ("failed", "timeout")
    assert await aegis.statuses() == ["failed", "queued"]


@pytest.mark.requirement("A-039", "A-071", "A-084")
@pytest.mark.parametrize("state", ["dispatched", "running"])
async def test_runtime_silent_for_75_seconds_is_offline(aegis: Aegis, state: str) -> None:
    task = await (aegis.dispatched if state == "dispatched" else aegis.running)()
    other = await aegis.running("laptop-2", issue_id="other")
    await aegis.pass_time(74)
    assert (await aegis.get(task))["status"] == state
    await aegis.ask("POST /api/runtimes/laptop-2/heartbeat")
    await aegis.pass_time(1)
    failed = await aegis.get(task)
    assert (failed["status"], failed["failure_reason"]) == ("failed", "runtime_offline")
    assert await aegis.statuses() == ["failed", "queued"]
    assert (await aegis.get(other))["status"] == "running"


@pytest.mark.parametrize("sign", ["claim", "start", "progress", "session", "messages", "heartbeat"])
async def test_every_call_of_a_runtime_counts_as_heartbeat(aegis: Aegis, sign: str) -> None:
    task = await aegis.running()
    other = await aegis.dispatched(issue_id="other")
    await aegis.pass_time(70)
    if sign == "claim":
        assert await aegis.claim() is None
    elif sign == "heartbeat":
        await aegis.ask(f"POST /api/runtimes/{RUNTIME}/heartbeat")
    else:
        body = {"session": {"session_id": "s"}, "messages": {"kind": "text", "text": "still here"}}.get(sign, {})
        await aegis.report(other, sign, **body)
    await aegis.pass_time(74)
    assert (await aegis.get(task))["status"] == "running"
    await aegis.pass_time(1)
    assert (await aegis.get(task))["failure_reason"] == "runtime_offline"


@pytest.mark.requirement("A-070", "A-073", "A-074", "A-111")
@pytest.mark.parametrize(
    ("reason", "error", "statuses"),
    [
        ("timeout", None, ["failed", "queued"]),
        ("runtime_offline", None, ["failed", "queued"]),
        ("agent_error", "API error 500", ["failed"]),
        ("agent_error", "quota exceeded", ["failed"]),
        (None, "429 too many requests", ["failed"]),
        ("a word of its own", None, ["failed"]),
    ],
)
async def test_only_timeouts_and_offline_runtimes_are_retried(
    aegis: Aegis, reason: str | None, error: str | None, statuses: list[str]
) -> None:
    task = await aegis.running()
    failed = await aegis.report(task, "fail", failure_reason=reason, error=error)
    known = reason if reason in {"timeout", "runtime_offline"} else "agent_error"
    assert (failed["status"], failed["failure_reason"]) == ("failed", known)
    assert (await row(aegis, task))["failure_reason"] == known
    assert await aegis.statuses() == statuses


@pytest.mark.requirement("A-011", "A-013", "A-072", "A-078", "A-098", "A-105")
async def test_second_attempt_is_the_last_and_resumes_the_session(aegis: Aegis) -> None:
    first = await aegis.running()
    await aegis.report(first, "session", session_id="sess-1", work_dir="/srv/1")
    await aegis.pass_time(9000)
    second = (await aegis.listed())[1]
    assert (second["status"], second["attempt"], second["parent_task_id"]) == ("queued", 2, first["id"])
    assert (second["session_id"], second["work_dir"], second["force_fresh_session"]) == ("sess-1", "/srv/1", False)
    assert (await aegis.claim())["id"] == second["id"]
    await aegis.pass_time(9000)
    tasks = await aegis.listed()
    assert [(task["status"], task["attempt"]) for task in tasks] == [("failed", 1), ("failed", 2)]
    assert await aegis.claim() is None


async def test_retry_waits_half_a_minute_for_the_runtime_of_its_session(aegis: Aegis) -> None:
    task = await aegis.running("laptop-1")
    await aegis.report(task, "fail", failure_reason="timeout")
    await aegis.pass_time(29)
    assert await aegis.claim("laptop-2") is None
    await aegis.pass_time(1)
    assert (await aegis.claim("laptop-2"))["parent_task_id"] == task["id"]


@pytest.mark.requirement("A-075")
async def test_autopilot_work_is_never_retried(aegis: Aegis) -> None:
    for end in ("silence", "fail", "orphans"):
        task = await aegis.running(trigger_type="autopilot", issue_id=end)
        if end == "silence":
            await aegis.pass_time(9000)
        elif end == "fail":
            await aegis.report(task, "fail", failure_reason="timeout")
        else:
            await aegis.ask(f"POST /api/runtime/{RUNTIME}/orphans")
        assert [found["status"] for found in await aegis.listed(f"issue={end}")] == ["failed"], end


@pytest.mark.requirement("A-030", "A-076", "A-077", "A-099", "A-113")
async def test_manual_rerun_starts_a_fresh_session(aegis: Aegis) -> None:
    task = await aegis.running()
    await aegis.report(task, "session", session_id="sess-1", work_dir="/srv/1")
    await aegis.report(task, "fail", failure_reason="agent_error")
    rerun = await aegis.ask(f"POST /api/issues/{ISSUE}/rerun")
    assert rerun["id"] != task["id"]
    assert (rerun["status"], rerun["trigger_type"], rerun["attempt"]) == ("queued", "manual_rerun", 1)
    assert (rerun["session_id"], rerun["work_dir"], rerun["force_fresh_session"]) == (None, None, True)
    assert (await aegis.claim())["force_fresh_session"] is True


async def test_manual_rerun_replaces_a_waiting_retry(aegis: Aegis) -> None:
    task = await aegis.running()
    await aegis.report(task, "fail", failure_reason="timeout")
    rerun = await aegis.ask(f"POST /api/issues/{ISSUE}/rerun")
    assert await aegis.statuses() == ["failed", "cancelled", "queued"]
    assert (await aegis.claim())["id"] == rerun["id"]
    assert await aegis.claim() is None


@pytest.mark.requirement("A-060", "A-080", "A-081", "A-082", "A-083", "A-100", "A-105")
async def test_restarted_daemon_has_its_tasks_failed_and_retried_at_once(aegis: Aegis) -> None:
    dispatched, started = await aegis.dispatched(), await aegis.running()
    autopilot = await aegis.running(trigger_type="autopilot")
    elsewhere = await aegis.running("laptop-2")
    queued = await aegis.create()
    answer = await aegis.ask(f"POST /api/runtime/{RUNTIME}/orphans")
    mine = [task["id"] for task in (dispatched, started, autopilot)]
    assert sorted(task["id"] for task in answer["tasks"]) == sorted(mine)
    assert {(task["status"], task["failure_reason"]) for task in answer["tasks"]} == {("failed", "runtime_offline")}
    assert (await aegis.get(elsewhere))["status"] == "running"
    assert (await aegis.get(queued))["status"] == "queued"
    retried = [task["parent_task_id"] for task in await aegis.listed() if task["parent_task_id"]]
    assert sorted(retried) == sorted(mine[:2])
    assert (await aegis.ask(f"POST /api/runtime/{RUNTIME}/orphans"))["tasks"] == []


@pytest.mark.requirement("A-082")
async def test_an_orphan_of_the_second_attempt_stays_failed(aegis: Aegis) -> None:
    await aegis.create()
    for _ in range(2):
        await aegis.claim()
        await aegis.ask(f"POST /api/runtime/{RUNTIME}/orphans")
    assert await aegis.statuses() == ["failed", "failed"]


@pytest.mark.requirement("A-086", "A-101")
async def test_pinned_session_outlives_its_daemon(aegis: Aegis) -> None:
    task = await aegis.running()
    await aegis.report(task, "session", session_id="sess-1", work_dir="/srv/1")
    await aegis.ask(f"POST /api/runtime/{RUNTIME}/orphans")
    retry = await aegis.claim()
    assert (retry["parent_task_id"], retry["session_id"], retry["work_dir"]) == (task["id"], "sess-1", "/srv/1")
