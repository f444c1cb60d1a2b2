"""Live events over the WebSocket: names, filters, cursors, workspaces, refusals and closing."""

import asyncio
import json
import math
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any
from uuid import UUID

import aiohttp
import pytest

from shiftwork.model import ids
from shiftwork.server import hub as hub_module
from tests.acceptance.aegis import ISSUE, RUNTIME, Aegis, served
from tests.server.running import Running, running
from tests.server.watching import Watcher, connect, watch
from tests.worker.steps import until


def everything(api: Running, query: str = "?after=0", **options: Any) -> Any:
    """Connect a client to all events from the start, unless the query differs."""
    return watch(api.http, api.url, query, **options)


async def followed(api: Running) -> None:
    """Make the hub keep events from now on; earlier ones are read from the log."""
    await until(lambda: api.state.hub._first < math.inf)


@pytest.fixture
async def aegis(store_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Aegis]:
    async with served(store_url, monkeypatch) as server:
        yield server


@pytest.fixture
async def client(aegis: Aegis) -> AsyncIterator[Watcher]:
    """The document's web client, connected before anything happens."""
    async with watch(aegis.api.http, aegis.api.url, "") as watcher:
        yield watcher


def is_plain(data: dict[str, Any]) -> bool:
    """A plain UUID and an ISO time."""
    return str(UUID(data["task_id"])) == data["task_id"] and datetime.fromisoformat(data["at"]).tzinfo is not None


@pytest.mark.requirement("A-088", "A-089", "A-090", "A-091", "A-092")
async def test_web_client_follows_a_task_to_its_end(aegis: Aegis, client: Watcher) -> None:
    task = await aegis.create()
    await aegis.claim()
    await aegis.report(task, "start")
    await aegis.report(task, "progress", progress={"pct": 40})
    await aegis.report(task, "complete", output="done")
    messages = await client.messages(5)
    names = ["task:queued", "task:dispatch", "task:running", "task:progress", "task:completed"]
    assert [each["event"] for each in messages] == names
    assert {each["task_id"] for each in messages} == {task["id"]}
    assert all(is_plain(each) for each in messages)
    assert messages[3]["data"] == {"progress": {"pct": 40}}
    assert messages[4]["path"] == ["running", "completed"]


@pytest.mark.requirement("A-089", "A-093")
async def test_every_failure_and_its_retry_emit_events(aegis: Aegis, client: Watcher) -> None:
    reported = await aegis.running(trigger_type="autopilot")
    await aegis.report(reported, "fail", failure_reason="agent_error")
    assert await client.names(4) == ["task:queued", "task:dispatch", "task:running", "task:failed"]
    orphan = await aegis.running()
    await client.messages(3)
    await aegis.ask(f"POST /api/runtime/{RUNTIME}/orphans")
    failed, retry = sorted(await client.messages(2), key=lambda found: str(found["event"]))
    assert (failed["event"], failed["task_id"], failed["reason"]) == ("task:failed", orphan["id"], "runtime_offline")
    assert retry["event"] == "task:queued"
    assert (await aegis.get({"id": retry["task_id"]}))["parent_task_id"] == orphan["id"]
    assert (await aegis.claim())["id"] == retry["task_id"]
    await aegis.pass_time(301, RUNTIME)
    dispatched, late = await client.messages(2)
    assert dispatched["event"] == "task:dispatch"
    assert (late["event"], late["task_id"], late["reason"]) == ("task:failed", retry["task_id"], "timeout")


@pytest.mark.requirement("A-094")
async def test_cancelled_task_emits_an_event(aegis: Aegis, client: Watcher) -> None:
    task = await aegis.create()
    await aegis.ask(f"POST /api/tasks/{task['id']}/cancel")
    queued, cancelled = await client.messages(2)
    assert (queued["event"], cancelled["event"]) == ("task:queued", "task:cancelled")
    assert cancelled["task_id"] == task["id"]


@pytest.mark.requirement("A-095")
async def test_messages_of_all_three_kinds_emit_events(aegis: Aegis, client: Watcher) -> None:
    task = await aegis.running()
    await client.messages(3)
    kinds = ["tool_call", "text", "error"]
    for kind in kinds:
        await aegis.report(task, "messages", kind=kind, text=f"a {kind}", data={"n": 1})
    messages = await client.messages(3)
    assert [each["event"] for each in messages] == ["task:message"] * 3
    assert [(each["data"]["kind"], each["data"]["text"]) for each in messages] == [
        (kind, f"a {kind}") for kind in kinds
    ]
    assert {each["task_id"] for each in messages} == {task["id"]}


SAYS = {
    "queued": "task:queued",
    "dispatched": "task:dispatch",
    "running": "task:running",
    "completed": "task:completed",
    "failed": "task:failed",
    "cancelled": "task:cancelled",
}


ENDS = {
    "complete": ["queued", "dispatched", "running", "completed"],
    "fail": ["queued", "dispatched", "running", "failed"],
    "orphans": ["queued", "dispatched", "failed"],
    "cancel queued": ["queued", "cancelled"],
    "cancel dispatched": ["queued", "dispatched", "cancelled"],
    "cancel running": ["queued", "dispatched", "running", "cancelled"],
    "cancel failed": ["queued", "dispatched", "running", "failed", "cancelled"],
}


async def bring_to(aegis: Aegis, task: dict[str, Any], state: str) -> None:
    """The document's call that leads to this state."""
    if state == "dispatched":
        assert (await aegis.claim())["id"] == task["id"]
    elif state == "cancelled":
        await aegis.ask(f"POST /api/tasks/{task['id']}/cancel")
    elif state == "running":
        await aegis.report(task, "start")
    elif state == "failed":
        await aegis.report(task, "fail", failure_reason="agent_error")
    elif state == "completed":
        await aegis.report(task, "complete", output="done")


@pytest.mark.requirement("A-102")
async def test_every_transition_emits_an_event(aegis: Aegis, client: Watcher) -> None:
    for end, states in ENDS.items():
        task = await aegis.create(trigger_type="autopilot")
        for state in states:
            if end == "orphans" and state == "failed":
                await aegis.ask(f"POST /api/runtime/{RUNTIME}/orphans")
            else:
                await bring_to(aegis, task, state)
            assert (await aegis.get(task))["status"] == state
        messages = await client.messages(len(states))
        assert [(each["task_id"], each["event"]) for each in messages] == [
            (task["id"], SAYS[state]) for state in states
        ]
        assert [each["path"][-1] for each in messages] == states


async def test_rerun_emits_a_queued_event(aegis: Aegis, client: Watcher) -> None:
    task = await aegis.running()
    await aegis.report(task, "complete", output="done")
    await client.messages(4)
    again = await aegis.ask(f"POST /api/issues/{ISSUE}/rerun")
    messages = await client.message()
    assert (messages["event"], messages["task_id"]) == ("task:queued", again["id"])


async def worked(api: Running, **fields: Any) -> str:
    """Run a task from submit to result: three rows of the log, five named events."""
    made = await api.post("/api/tasks", {"type": "write", **fields})
    claimed = await api.post(
        "/api/tasks/claim", {"agent_id": "ada", "start": True, "types": [fields.get("type", "write")]}
    )
    (held,) = claimed["assignments"]
    await api.post(f"/api/tasks/{made['id']}/complete", {"token": held["token"]})
    return str(made["id"])


WORKED = ["task.created", "task.ready", "task.claimed", "task.started", "task.completed", "dag.completed"]


async def test_live_message_equals_the_log_entry(api: Running) -> None:
    async with everything(api) as client:
        made = await api.post("/api/tasks", {"type": "write"}, headers={"x-actor": "human:ada", "x-request-id": "r1"})
        reply, ready = await client.messages(2)
    (row,) = (await api.get("/api/events"))["events"]
    assert row.pop("names") == ["task.created", "task.ready"]
    seq = row.pop("seq")
    assert reply == {"cursor": f"{seq}-1", "event": "task.created", **row}
    assert ready == {"cursor": str(seq), "event": "task.ready", **row}
    assert (row["task_id"], row["actor"], row["request_id"], row["type"]) == (made["id"], "human:ada", "r1", "write")
    assert row["path"] == ["created", "pending", "ready"]


@pytest.mark.requirement("F-098", "F-100", "F-195")
async def test_ready_tasks_finished_dags_and_dead_letters_emit_events(api: Running) -> None:
    async with everything(api, "?name=task.ready,dag.completed,task.dead_lettered") as client:
        first = {"key": "a", "type": "one"}
        made = await api.post("/api/dags", {"tasks": [first, {"key": "b", "type": "two", "dependencies": ["a"]}]})
        ids_ = [task["id"] for task in made["tasks"]]
        for _ in ids_:
            claimed = await api.post("/api/tasks/claim", {"agent_id": "ada", "start": True})
            (held,) = claimed["assignments"]
            await api.post(f"/api/tasks/{held['task']['id']}/complete", {"token": held["token"]})
        messages = await client.messages(3)
        assert [(each["event"], each["task_id"]) for each in messages[:2]] == [("task.ready", id_) for id_ in ids_]
        assert (messages[2]["event"], messages[2]["dag_id"]) == ("dag.completed", made["tasks"][0]["dag_id"])
        lost = await api.post("/api/tasks", {"type": "write"})
        claimed = await api.post("/api/tasks/claim", {"agent_id": "ada", "start": True})
        await api.post(f"/api/tasks/{lost['id']}/fail", {"token": claimed["assignments"][0]["token"], "retry": False})
        assert (await client.message())["event"] == "task.ready"
        dead = await client.message()
        assert (dead["event"], dead["task_id"]) == ("task.dead_lettered", lost["id"])


async def test_events_are_filtered_by_task_dag_type_agent_verb_and_name(api: Running) -> None:
    await worked(api, type="other", id="noise")
    task_id = await worked(api, id="mine")
    dag_id = (await api.get(f"/api/tasks/{task_id}"))["dag_id"]
    await worked(api, type="other")
    await api.post("/api/agents", {"id": "bob"})
    wanted = {
        f"task={task_id}": WORKED,
        "task=mine&task=noise&name=task.completed": ["task.completed"] * 2,
        f"task={ids.parse(task_id)}&name=task.ready&name=dag.completed": ["task.ready", "dag.completed"],
        f"dag={dag_id}": WORKED,
        "type=write": WORKED,
        "agent=ada&type=write": WORKED[2:],
        "agent=bob": ["agent.registered"],
        "type=write&verb=submitted,completed": [*WORKED[:2], *WORKED[4:]],
        "type=write&type=other&name=task.created": ["task.created"] * 3,
        "name=agent.*,task.cr*": ["task.created"] * 3 + ["agent.registered"],
    }
    for query, names in wanted.items():
        async with everything(api, f"?after=0&{query}") as client:
            assert await client.names(len(names)) == names, query
            await client.subscribe(after=0, name=["task.ready"])
            assert (await client.names(3)) == ["task.ready"] * 3, query  # so nothing else was on its way


@pytest.mark.parametrize("query", ["name=task.pined", "name=pined.*", "name=task.completed&view=aegis"])
async def test_unknown_event_name_is_refused(api: Running, query: str) -> None:
    reply = await api.call("GET", f"/api/events?{query}")
    assert (reply.status, reply.json["code"], reply.json["where"]) == (422, "invalid_input", "name")


async def test_client_can_change_its_subscription_and_continue(api: Running) -> None:
    async with everything(api, "?after=0&name=task.created") as client:
        await followed(api)
        first = await worked(api)
        assert [messages["task_id"] for messages in await client.messages(1)] == [first]
        await until(lambda: api.state.hub.kept == 3)
        messages = await client.subscribe(name=["task.completed"])
        second = await worked(api)
        completed = await client.message()
        assert completed["event"] == "task.completed"
        assert completed["task_id"] in {first, second}
        assert int(str(completed["cursor"]).partition("-")[0]) > int(str(messages["cursor"]).partition("-")[0])
        await client.subscribe(after=0, task=[first])
        assert await client.names(6) == WORKED
        assert (await client.subscribe(after="now", view="aegis"))["cursor"] == client.cursor
        await worked(api)
        assert await client.names(4) == ["task:queued", "task:dispatch", "task:running", "task:completed"]


async def test_changed_filters_keep_workspace_and_view(api: Running) -> None:
    async with everything(api, "?workspace=team1&view=aegis") as client:
        await client.subscribe(type=["zz"])
        await api.post("/api/tasks", {"type": "zz"})
        made = await api.post("/api/tasks?workspace=team1", {"type": "zz"})
        messages = await client.message()
        assert (messages["event"], messages["workspace_id"]) == ("task:queued", "team1")
        assert messages["task_id"] == ids.parse(made["id"])
        await client.subscribe(after=0, view=None)
        assert [(messages["event"], messages["task_id"]) for messages in await client.messages(2)] == [
            ("task.created", made["id"]),
            ("task.ready", made["id"]),
        ]
        await client.subscribe(after=0, workspace="default")
        assert {messages["workspace_id"] for messages in await client.messages(2)} == {"default"}


async def test_without_a_cursor_only_new_events_are_sent(api: Running) -> None:
    await worked(api)
    for query in ("", "?after=now"):
        async with everything(api, query) as client:
            assert client.cursor == str((await api.get("/api/events"))["next"])
            made = await api.post("/api/tasks", {"type": "write"})
            assert [messages["task_id"] for messages in await client.messages(2)] == [made["id"]] * 2
            await api.post(f"/api/tasks/{made['id']}/cancel")


@pytest.mark.parametrize("view", ["", "&view=aegis", "&view=redis", "&name=task.ready,task.started,dag.completed"])
async def test_reconnecting_client_misses_and_repeats_no_event(api: Running, view: str) -> None:
    for _ in range(3):
        await worked(api)
    last = (await api.post("/api/tasks", {"type": "write"}))["id"]

    async def read(after: str, limit: int | None = None) -> list[tuple[str, str, str]]:
        found: list[tuple[str, str, str]] = []
        async with everything(api, f"?after={after}{view}") as client:
            while limit is None or len(found) < limit:
                messages = await client.message()
                found.append((messages["cursor"], messages["event"], messages["task_id"]))
                if "-" not in messages["cursor"] and messages["task_id"] in {last, ids.parse(last)}:
                    break
        return found

    whole = await read("0")
    assert len(set(whole)) == len(whole) > 6
    for place, (cursor, _, _) in enumerate(whole[:-1], 1):
        assert await read(cursor) == whole[place:]
    one_by_one, cursor = [], "0"
    for _ in whole:
        (messages,) = await read(cursor, 1)
        one_by_one.append(messages)
        cursor = messages[0]
    assert one_by_one == whole


async def test_cursor_of_another_queue_is_refused(api: Running) -> None:
    async with connect(api.http, api.url, "?after=1000") as client:
        messages = await client.message()
        assert (messages["event"], messages["code"], messages["where"]) == ("error", "invalid_input", "after")
        assert await client.end() == 1007


async def test_client_behind_the_buffer_reads_from_the_log(api: Running) -> None:
    api.state.hub.most_kept = 5
    async with everything(api, "?after=now") as live:
        tasks = [await worked(api) for _ in range(20)]
        assert [messages["task_id"] for messages in await live.messages(120)] == [
            task for task in tasks for _ in range(6)
        ]
        assert api.state.hub.kept == 5
        async with everything(api) as late:
            assert [messages["task_id"] for messages in await late.messages(120)] == [
                task for task in tasks for _ in range(6)
            ]
            more = await worked(api)
            assert [messages["task_id"] for messages in await late.messages(6)] == [more] * 6
            assert [messages["task_id"] for messages in await live.messages(6)] == [more] * 6


async def test_event_buffer_is_bounded_in_bytes(api: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_module, "MAX_BYTES", 3000)
    made = await api.post("/api/tasks", {"type": "write"})
    (held,) = (await api.post("/api/tasks/claim", {"agent_id": "ada", "start": True}))["assignments"]
    async with everything(api, "?after=now") as client:
        await followed(api)
        for n in range(10):
            body = {"token": held["token"], "kind": "text", "text": f"{n}" * 900}
            await api.post(f"/api/tasks/{made['id']}/messages", body)
        assert [messages["data"]["text"][0] for messages in await client.messages(10)] == [str(n) for n in range(10)]
        await until(lambda: api.state.hub.kept == 3)


async def test_event_log_is_read_only_while_clients_listen(api: Running) -> None:
    hub = api.state.hub
    assert (hub.listeners, hub._reader) == (0, None)
    async with everything(api), everything(api):
        assert hub.listeners == 2
        reader = hub._reader
        assert reader is not None
    await until(lambda: hub.listeners == 0)
    await until(reader.done)
    assert (hub._reader, hub.kept) == (None, 0)
    async with everything(api) as client:
        await worked(api)
        assert await client.names(6) == WORKED


async def test_events_of_other_workspaces_are_never_sent(guarded: Running) -> None:
    queues = [guarded.state.queue.in_workspace(name) for name in ("ours", "theirs")]
    secrets = [(await queue.tokens.create("t", ["read"])).secret for queue in queues]
    ours, theirs = [{"authorization": f"Bearer {secret}"} for secret in secrets]
    async with (
        watch(guarded.http, guarded.url, "?after=now", headers=ours) as us,
        watch(guarded.http, guarded.url, "?after=now", headers=theirs) as them,
    ):
        for _ in range(20):
            foreign = await queues[1].submit(type="write")
            mine = await queues[0].submit(type="write")
            assert [messages["task_id"] for messages in await us.messages(2)] == [mine.id] * 2
            assert [messages["task_id"] for messages in await them.messages(2)] == [foreign.id] * 2
        foreign = await queues[1].submit(type="write")
        await them.messages(2)
        await us.subscribe(after=0, task=[foreign.id])
        await queues[1].cancel(foreign.id)
        assert [messages["event"] for messages in await them.messages(1)] == ["task.cancelled"]
        await us.subscribe(after=0, name=["task.created"])
        assert {messages["workspace_id"] for messages in await us.messages(20)} == {"ours"}
        await us.socket.send_json({"subscribe": {"workspace": "theirs"}})
        assert (await us.message())["code"] == "not_found"
        assert await us.end() == 1008


async def test_connection_without_valid_token_is_refused(guarded: Running) -> None:
    offers: list[tuple[str, ...]] = [(), ("shiftwork",), ("shiftwork", "bearer.sw_nobody_knows_me"), ("bearer.",)]
    for protocols in offers:
        async with connect(guarded.http, guarded.url, protocols=protocols) as client:
            assert (await client.message())["code"] == "unauthorized"
            assert await client.end() == 1008
    assert guarded.state.hub.listeners == 0


async def test_token_subprotocol_is_accepted_and_not_echoed(guarded: Running) -> None:
    secret = (await guarded.state.queue.tokens.create("page", ["read"])).secret
    async with watch(guarded.http, guarded.url, protocols=("shiftwork", f"bearer.{secret}")) as client:
        assert client.socket.protocol == "shiftwork"
        await guarded.state.queue.submit(type="write")
        assert await client.names(2) == ["task.created", "task.ready"]


async def test_stream_ends_when_its_token_is_revoked(guarded: Running) -> None:
    token = await guarded.state.queue.tokens.create("gone", ["read"])
    async with watch(guarded.http, guarded.url, headers={"authorization": f"Bearer {token.secret}"}) as client:
        await guarded.state.queue.tokens.revoke(token.id)

        async def write() -> None:
            while True:
                await guarded.state.queue.submit(type="write")
                await asyncio.sleep(0.05)

        writing = asyncio.create_task(write())
        assert await client.end() == 1008
        writing.cancel()


async def test_websocket_of_another_site_is_refused(api: Running) -> None:
    """A browser sends no preflight for a WebSocket, but sends the page's origin."""
    far = "elsewhere.example"
    for header, value in (("Origin", f"https://{far}"), ("Origin", "http://["), ("Host", far), ("Host", "[")):
        async with connect(api.http, api.url, "?after=0", headers={header: value}) as client:
            messages = await client.message()
            assert (messages["code"], messages["where"]) == ("forbidden", header)
            assert await client.end() == 1008
    async with watch(api.http, api.url, headers={"origin": api.url}):
        pass


BAD = {
    "{": ("malformed", "body", 1007),
    "[]": ("invalid_input", None, 1007),
    "{}": ("invalid_input", "subscribe", 1007),
    '{"subscribe": {"tasks": []}}': ("invalid_input", "subscribe.tasks", 1007),
    '{"subscribe": {"task": [' + '"x",' * 100 + '"x"]}}': ("invalid_input", "subscribe.task", 1007),
    '{"subscribe": {"task": "one"}}': ("invalid_input", "subscribe.task", 1007),
    '{"subscribe": {}, "after": "then"}': ("invalid_input", "after", 1007),
    '{"subscribe": {}, "after": -1}': ("invalid_input", "after", 1007),
    '{"subscribe": {}, "after": 77}': ("invalid_input", "after", 1007),
    '{"subscribe": {"view": "latin"}}': ("invalid_input", "subscribe.view", 1007),
    '{"subscribe": {"task": ["nobody"]}}': ("not_found", None, 1008),
    '{"subscribe": {"dag": ["nobody"]}}': ("not_found", "dag", 1008),
    '{"subscribe": {"name": ["\\u0000"]}}': ("bad_text", "body", 1007),
    '{"subscribe": {"name": ["\\ud800"]}}': ("bad_text", "body", 1007),
}


async def test_invalid_message_is_refused_by_name(api: Running) -> None:
    for message, refused in BAD.items():
        async with everything(api) as client:
            await client.socket.send_str(message)
            messages = await client.message()
            assert messages["event"] == "error"
            assert (messages["code"], messages.get("where"), await client.end()) == refused, message
    await until(lambda: api.state.hub.listeners == 0)


async def test_binary_and_oversized_messages_are_refused(api: Running) -> None:
    async with everything(api) as client:
        await client.socket.send_bytes(b"{}")
        assert (await client.message())["code"] == "malformed"
        assert await client.end() == 1003
    async with everything(api) as client:
        await client.socket.send_str(json.dumps({"subscribe": {"task": ["x" * 200] * 1000}}))
        assert await client.end() == 1009


async def test_invalid_query_is_refused_by_name(api: Running) -> None:
    for query, where in {"?after=soon": "after", "?tusk=1": "tusk", "?view=latin": "view"}.items():
        async with connect(api.http, api.url, query) as client:
            assert (await client.message())["where"] == where
            assert await client.end() == 1007


async def test_connections_over_the_maximum_are_refused_until_one_closes(api: Running) -> None:
    api.state.hub.stream_limit.most = 2
    async with everything(api):
        async with everything(api):
            async with connect(api.http, api.url) as third:
                assert (await third.message())["code"] == "overloaded"
                assert await third.end() == 1013
            stream = await api.call("GET", "/api/events", headers={"accept": "text/event-stream"})
            assert (stream.status, stream.code) == (503, "overloaded")
        await until(lambda: api.state.hub.listeners == 1)
        async with everything(api) as third:
            await worked(api)
            assert await third.names(6) == WORKED


async def test_stopping_server_closes_streams_with_code_1012(store_url: str) -> None:
    async with running(store_url) as api, everything(api) as client, everything(api, "?view=aegis") as other:
        await worked(api)
        await client.messages(6)
        api.server.stop()
        assert await client.end() == 1012
        assert await other.end() == 1012
    assert api.state.hub.listeners == 0


async def test_aborted_client_leaves_no_listener(api: Running) -> None:
    async with everything(api) as client, aiohttp.ClientSession() as http:
        async with connect(http, api.url) as rude:
            await rude.message()
            assert rude.socket._response.connection is not None
            transport = rude.socket._response.connection.transport
            assert transport is not None
            transport.abort()
        await worked(api)
        assert await client.names(6) == WORKED
        await until(lambda: api.state.hub.listeners == 1)
