"""MCP tasks: work that is submitted as a task is followed, answered and cancelled by the protocol's own client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

import httpx2
import mcp_types as types
import pytest
from mcp import Client
from mcp.client.extension import ClaimContext, ClientExtension, NotificationBinding, ResultClaim
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from mcp_types.jsonrpc import HEADER_MISMATCH, MISSING_REQUIRED_CLIENT_CAPABILITY
from pydantic import BaseModel, ConfigDict, Field

from shiftwork import Queue
from shiftwork.mcp.mcp_server import McpServer, Options
from shiftwork.mcp.mcp_session import McpSession
from shiftwork.mcp.sdk_server import build
from shiftwork.mcp.task_extension import EXTENSION
from shiftwork.mcp.task_methods import RELATED_TASK
from tests.mcp.talking import PATIENCE_SEC, command, serving


class CreatedTask(types.Result):
    """The answer of `submit` to a client that follows tasks."""

    result_type: Literal["task"] = Field(alias="resultType")
    task_id: str = Field(alias="taskId")
    status: str


class Seen(BaseModel):
    """A notification, whole."""

    model_config = ConfigDict(extra="allow")


class Answer(types.Result):
    """Any result, whole."""

    model_config = ConfigDict(extra="allow")


class Params(types.RequestParams):
    model_config = ConfigDict(extra="allow")


class Request(types.Request[Params, str]):
    method: str
    params: Params


class TasksExtension(ClientExtension):
    """The client's side of the extension, as an application writes it."""

    identifier = EXTENSION

    def __init__(self) -> None:
        self.seen: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    def claims(self) -> list[ResultClaim[Any]]:
        return [ResultClaim(result_type="task", model=CreatedTask, resolve=self._resolve)]

    def notifications(self) -> list[NotificationBinding[Any]]:
        return [NotificationBinding(method="notifications/tasks", params_type=Seen, handler=self._notice)]

    async def _resolve(self, created: CreatedTask, _context: ClaimContext) -> types.CallToolResult:
        text = types.TextContent(type="text", text=created.task_id)
        return types.CallToolResult(content=[text], structured_content={"created": created.status})

    async def _notice(self, params: Seen) -> None:
        await self.seen.put(params.model_dump(by_alias=True))


class Follower:
    """A client that follows tasks."""

    def __init__(self, client: Client, extension: TasksExtension) -> None:
        self.client = client
        self.seen = extension.seen

    async def submit(self, **arguments: Any) -> str:
        """The id of the MCP task that a submission became."""
        done = await self.client.session.call_tool("submit", arguments, allow_claimed=True)
        assert isinstance(done, CreatedTask), done
        assert done.status == "working"
        return done.task_id

    async def send(self, method: str, **params: Any) -> dict[str, Any]:
        meta = params.pop("_meta", None)
        sent = Params.model_validate(params if meta is None else {**params, "_meta": meta})
        async with asyncio.timeout(PATIENCE_SEC):
            done = await self.client.session.send_request(Request(method=method, params=sent), Answer)
        return done.model_dump(by_alias=True, mode="json")


@asynccontextmanager
async def following(target: Any, *, forms: bool = False, mode: str = "auto") -> AsyncIterator[Follower]:
    extension = TasksExtension()

    async def ask(_context: Any, _params: Any) -> types.ElicitResult:
        raise AssertionError("no form is sent but with its task")

    more: dict[str, Any] = {"elicitation_callback": ask} if forms else {}
    async with Client(target, mode=mode, extensions=[extension], **more) as client:
        yield Follower(client, extension)


def served(queue: Queue, **options: Any) -> Any:
    mcp_server = McpServer(queue, Options(**options))
    session = McpSession.single(mcp_server)
    return build(mcp_server, lambda _ctx: session)


async def done_by(queue: Queue, **result: Any) -> str:
    (assigned,) = await queue.claim("crab", start=True)
    await queue.complete(assigned.token, **result)
    return assigned.task().id


async def failed_by(queue: Queue, error: str) -> None:
    (assigned,) = await queue.claim("crab", start=True)
    await queue.fail(assigned.token, "invalid_input", error, retry=False)


@pytest.fixture
async def http() -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(timeout=PATIENCE_SEC) as caller:
        yield caller


@pytest.fixture(autouse=True)
async def agents(queue: Queue) -> None:
    await queue.agents.register(id="crab")


async def test_submission_is_followed_to_its_result(queue: Queue) -> None:
    async with following(served(queue)) as follower:
        found = (await follower.client.session.discover()).capabilities
        assert found.extensions == {EXTENSION: {}}
        task_id = await follower.submit(tasks=[{"type": "code", "title": "Write it"}])
        assert (await queue.get(task_id)).title == "Write it"
        working = await follower.send("tasks/get", taskId=task_id)
        assert (working["resultType"], working["status"], working["ttlMs"]) == ("complete", "working", None)
        assert "result" not in working
        await done_by(queue, data={"n": 1}, text="done")
        ended = await follower.send("tasks/get", taskId=task_id)
    assert ended["status"] == "completed"
    assert ended["result"]["isError"] is False
    (task,) = ended["result"]["structuredContent"]["tasks"]
    assert (task["task_id"], task["status"]) == (task_id, "completed")
    assert task["result"] == {"data": {"n": 1}, "text": "done"}


async def test_failed_work_is_a_completed_call_with_an_error(queue: Queue) -> None:
    async with following(served(queue)) as follower:
        task_id = await follower.submit(tasks=[{"type": "code"}])
        await failed_by(queue, "it cannot be done")
        ended = await follower.send("tasks/get", taskId=task_id)
    assert (ended["status"], ended["result"]["isError"]) == ("completed", True)
    assert ended["statusMessage"] == "it cannot be done"


async def test_several_tasks_are_one_mcp_task(queue: Queue) -> None:
    tasks = [{"type": "a", "key": "first"}, {"type": "b", "dependencies": ["first"]}]
    async with following(served(queue)) as follower:
        dag_id = await follower.submit(tasks=tasks, title="Both")
        await done_by(queue, data=1)
        half = await follower.send("tasks/get", taskId=dag_id)
        assert (half["status"], half["statusMessage"]) == ("working", "1 of 2 done")
        await done_by(queue, data=2)
        ended = await follower.send("tasks/get", taskId=dag_id)
    found = ended["result"]["structuredContent"]
    assert (ended["status"], found["dag_id"]) == ("completed", dag_id)
    assert [each["result"]["data"] for each in found["tasks"]] == [1, 2]


async def test_cancel_ends_the_work_and_is_no_error_later(queue: Queue) -> None:
    tasks = [{"type": "a", "key": "first"}, {"type": "b", "dependencies": ["first"]}]
    async with following(served(queue)) as follower:
        alone = await follower.submit(tasks=[{"type": "code"}])
        dag_id = await follower.submit(tasks=tasks, title="Both")
        for each in (alone, dag_id):
            assert (await follower.send("tasks/cancel", taskId=each))["resultType"] == "complete"
            assert (await follower.send("tasks/get", taskId=each))["status"] == "cancelled"
            await follower.send("tasks/cancel", taskId=each)


async def test_question_is_a_form_and_its_answer_goes_to_the_agent(queue: Queue) -> None:
    schema = {"type": "object", "properties": {"colour": {"type": "string"}}, "required": ["colour"]}
    async with following(served(queue), forms=True) as follower:
        task_id = await follower.submit(tasks=[{"type": "draw"}])
        (assigned,) = await queue.claim("crab", start=True)
        await queue.waits.wait(assigned.token, "colour", question="Which colour?", schema=schema)
        asking = await follower.send("tasks/get", taskId=task_id)
        assert asking["status"] == "input_required"
        ((key, request),) = asking["inputRequests"].items()
        assert request["method"] == "elicitation/create"
        assert request["params"]["message"] == "Which colour?"
        assert request["params"]["requestedSchema"] == schema
        ignored = {"unknown": {"action": "accept", "content": {}}, key: {"action": "decline"}}
        await follower.send("tasks/update", taskId=task_id, inputResponses=ignored)
        assert (await follower.send("tasks/get", taskId=task_id))["status"] == "input_required"
        given = {key: {"action": "accept", "content": {"colour": "blue"}}}
        await follower.send("tasks/update", taskId=task_id, inputResponses=given)
        assert (await follower.send("tasks/get", taskId=task_id))["status"] == "working"
    (again,) = await queue.claim("crab", start=True)
    found = await queue.waits.wait(again.token, "colour", question="Which colour?", schema=schema)
    assert found.value == {"colour": "blue"}


@pytest.mark.parametrize(
    ("schema", "content", "value"),
    [
        (None, {"answer": "as you like"}, "as you like"),
        ({"type": "integer"}, {"answer": 7}, 7),
        ({"type": "array", "items": {"type": "integer"}}, {"answer": "[1, 2]"}, [1, 2]),
    ],
)
async def test_question_without_a_flat_schema_has_one_field(
    queue: Queue, schema: Any, content: dict[str, Any], value: Any
) -> None:
    async with following(served(queue), forms=True) as follower:
        task_id = await follower.submit(tasks=[{"type": "draw"}])
        (assigned,) = await queue.claim("crab", start=True)
        await queue.waits.wait(assigned.token, "it", question="How?", schema=schema)
        (key,) = (await follower.send("tasks/get", taskId=task_id))["inputRequests"]
        given = {key: {"action": "accept", "content": content}}
        await follower.send("tasks/update", taskId=task_id, inputResponses=given)
    (again,) = await queue.claim("crab", start=True)
    assert (await queue.waits.wait(again.token, "it", question="How?", schema=schema)).value == value


@pytest.mark.parametrize(("decision", "status"), [("approve", "ready"), ("reject", "cancelled")])
async def test_approval_is_a_form(queue: Queue, decision: str, status: str) -> None:
    await queue.settings.set("guards", [{"type": "deploy"}])
    async with following(served(queue), forms=True) as follower:
        task_id = await follower.submit(tasks=[{"type": "deploy"}])
        ((key, request),) = (await follower.send("tasks/get", taskId=task_id))["inputRequests"].items()
        assert "decision" in request["params"]["requestedSchema"]["properties"]
        wrong = {key: {"action": "accept", "content": {"decision": "perhaps"}}}
        with pytest.raises(MCPError, match="approve"):
            await follower.send("tasks/update", taskId=task_id, inputResponses=wrong)
        given = {key: {"action": "accept", "content": {"decision": decision, "note": "seen"}}}
        await follower.send("tasks/update", taskId=task_id, inputResponses=given)
    assert (await queue.get(task_id)).status == status


async def test_client_without_forms_reads_the_question(queue: Queue) -> None:
    async with following(served(queue)) as follower:
        task_id = await follower.submit(tasks=[{"type": "draw"}])
        (assigned,) = await queue.claim("crab", start=True)
        await queue.waits.wait(assigned.token, "colour", question="Which colour?")
        asking = await follower.send("tasks/get", taskId=task_id)
    assert (asking["status"], asking["statusMessage"]) == ("working", "Which colour?")


async def test_wait_sec_is_answered_at_once(queue: Queue) -> None:
    async with following(served(queue)) as follower:
        done = await follower.client.call_tool("submit", {"tasks": [{"type": "code"}], "wait_sec": 0})
    assert done.structured_content is not None
    assert done.structured_content["tasks"][0]["status"] == "ready"


async def test_refused_submission_is_an_ordinary_error(queue: Queue) -> None:
    async with following(served(queue)) as follower:
        done = await follower.client.session.call_tool("submit", {"tasks": []}, allow_claimed=True)
    assert isinstance(done, types.CallToolResult)
    assert done.is_error


async def test_client_that_declares_nothing_gets_no_task(queue: Queue) -> None:
    made = await queue.submit(type="code")
    async with Client(served(queue)) as client:
        done = await client.call_tool("submit", {"tasks": [{"type": "code"}]})
        assert done.structured_content is not None
        for method in ("tasks/get", "tasks/cancel"):
            sent = Request(method=method, params=Params.model_validate({"taskId": made.id}))
            with pytest.raises(MCPError) as refused:
                await client.session.send_request(sent, Answer)
            assert refused.value.error.code == MISSING_REQUIRED_CLIENT_CAPABILITY


async def test_unknown_task_is_invalid(queue: Queue) -> None:
    async with following(served(queue)) as follower:
        calls: list[tuple[str, dict[str, Any]]] = [("tasks/get", {}), ("tasks/cancel", {})]
        for method, more in [*calls, ("tasks/update", {"inputResponses": {}})]:
            for task_id in ("task_01ARZ3NDEKTSV4RRFFQ69G5FAV", "dag_01ARZ3NDEKTSV4RRFFQ69G5FAV", "\x00", "x" * 5000):
                with pytest.raises(MCPError) as refused:
                    await follower.send(method, taskId=task_id, **more)
                assert refused.value.error.code == types.INVALID_PARAMS, (method, task_id)
        for method in ("tasks/result", "tasks/list"):  # of 2025-11-25 alone
            with pytest.raises(MCPError) as refused:
                await follower.send(method, taskId="task_01ARZ3NDEKTSV4RRFFQ69G5FAV")
            assert refused.value.error.code == types.METHOD_NOT_FOUND


async def listen(follower: Follower, *task_ids: str) -> dict[str, Any]:
    return await follower.send("subscriptions/listen", notifications={"taskIds": list(task_ids)})


async def test_listener_is_notified_of_every_change_until_the_end(queue: Queue) -> None:
    async with following(served(queue), forms=True) as follower:
        task_id = await follower.submit(tasks=[{"type": "draw"}])
        listening = asyncio.create_task(listen(follower, task_id, "task_01ARZ3NDEKTSV4RRFFQ69G5FAV"))
        assert (await follower.seen.get())["status"] == "working"
        (assigned,) = await queue.claim("crab", start=True)
        await queue.waits.wait(assigned.token, "colour", question="Which colour?")
        async with asyncio.timeout(PATIENCE_SEC):
            while (heard := await follower.seen.get())["status"] != "input_required":
                pass
        assert "inputRequests" in heard
        await queue.approvals.answer(task_id, "blue")
        await done_by(queue, text="drawn")
        async with asyncio.timeout(PATIENCE_SEC):
            while (heard := await follower.seen.get())["status"] != "completed":
                pass
        assert heard["result"]["structuredContent"]["tasks"][0]["result"]["text"] == "drawn"
        await listening


async def test_task_survives_the_server(store_url: str) -> None:
    """The client keeps only the id: another server, started later, finds the task."""
    async with await Queue.open(store_url) as queue:
        await queue.agents.register(id="crab")
        async with following(command(store_url)) as follower:
            task_id = await follower.submit(tasks=[{"type": "code"}])
        await done_by(queue, text="done")
        async with following(command(store_url)) as follower:
            ended = await follower.send("tasks/get", taskId=task_id)
    assert ended["status"] == "completed"


def bearer(secret: str) -> dict[str, str]:
    return {"authorization": f"Bearer {secret}"}


@asynccontextmanager
async def following_over_http(url: str, headers: dict[str, str]) -> AsyncIterator[Follower]:
    async with (
        httpx2.AsyncClient(headers=headers, timeout=PATIENCE_SEC) as http,
        following(streamable_http_client(url, http_client=http)) as follower,
    ):
        yield follower


async def test_task_over_http_obeys_the_scopes_of_the_token(queue: Queue) -> None:
    secret = (await queue.tokens.create("planner", ["submit"])).secret
    async with serving(queue, tokens=True) as (_, url), following_over_http(url, bearer(secret)) as follower:
        task_id = await follower.submit(tasks=[{"type": "code"}])
        listening = asyncio.create_task(listen(follower, task_id))
        assert (await follower.seen.get())["status"] == "working"
        with pytest.raises(MCPError, match="scope operate"):
            await follower.send("tasks/cancel", taskId=task_id)
        await done_by(queue, text="done")
        async with asyncio.timeout(PATIENCE_SEC):
            while (await follower.seen.get())["status"] != "completed":
                pass
        await listening


async def test_routing_header_that_names_another_task_is_refused(queue: Queue, http: httpx2.AsyncClient) -> None:
    made = await queue.submit(type="code")
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {"extensions": {EXTENSION: {}}},
    }
    body = {"jsonrpc": "2.0", "id": 1, "method": "tasks/get", "params": {"taskId": made.id, "_meta": meta}}
    headers = {"accept": "application/json, text/event-stream", "mcp-protocol-version": "2026-07-28"}
    async with serving(queue) as (_, url):
        for name, code in ((made.id, None), ("task_other", HEADER_MISMATCH)):
            sent = headers | {"mcp-method": "tasks/get", "mcp-name": name}
            answer = (await http.post(url, json=body, headers=sent)).json()
            assert answer.get("error", {}).get("code") == code, answer


class Experimental:
    """A client of 2025-11-25, which asks for a task with each call; the Python SDK has none."""

    def __init__(self, http: httpx2.AsyncClient, url: str) -> None:
        self._http = http
        self._url = url
        self._headers = {"accept": "application/json, text/event-stream"}

    async def open(self) -> dict[str, Any]:
        about = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
        found = await self.send("initialize", **about)
        await self._http.post(
            self._url, json={"jsonrpc": "2.0", "method": "notifications/initialized"}, headers=self._headers
        )
        return found

    async def send(self, method: str, **params: Any) -> dict[str, Any]:
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        reply = await self._http.post(self._url, json=body, headers=self._headers)
        if (session := reply.headers.get("mcp-session-id")) is not None:
            self._headers |= {"mcp-session-id": session, "mcp-protocol-version": "2025-11-25"}
        if reply.headers["content-type"].startswith("text/event-stream"):
            data = [line.removeprefix("data: ") for line in reply.text.splitlines() if line.startswith("data: {")]
            answer = json.loads(data[-1])
        else:
            answer = reply.json()
        if "error" in answer:
            raise MCPError(answer["error"]["code"], answer["error"]["message"])
        found: dict[str, Any] = answer["result"]
        return found

    async def submit(self, **arguments: Any) -> str:
        done = await self.send("tools/call", name="submit", arguments=arguments, task={"ttl": 60_000})
        assert (done["task"]["status"], done["task"]["ttl"]) == ("working", None)
        return str(done["task"]["taskId"])


async def test_experimental_tasks_of_2025_11_25(queue: Queue, http: httpx2.AsyncClient) -> None:
    async with serving(queue) as (_, url):
        client = Experimental(http, url)
        assert (await client.open())["capabilities"]["tasks"]["requests"] == {"tools": {"call": {}}}
        (submit,) = [tool for tool in (await client.send("tools/list"))["tools"] if tool["name"] == "submit"]
        assert submit["execution"] == {"taskSupport": "optional"}
        task_id, other = [await client.submit(tasks=[{"type": "code"}]) for _ in range(2)]
        result = asyncio.create_task(client.send("tasks/result", taskId=task_id))
        assert await done_by(queue, text="done") == task_id
        found = await result
        assert found["_meta"][RELATED_TASK] == {"taskId": task_id}
        assert found["structuredContent"]["tasks"][0]["result"]["text"] == "done"
        assert (await client.send("tasks/cancel", taskId=other))["status"] == "cancelled"
        last = await client.submit(tasks=[{"type": "code"}])
        await failed_by(queue, "it cannot be done")
        assert (await client.send("tasks/get", taskId=last))["statusMessage"] == "it cannot be done"
        listed = (await client.send("tasks/list"))["tasks"]
        assert {each["taskId"]: each["status"] for each in listed} == {
            task_id: "completed",
            other: "cancelled",
            last: "failed",
        }
        with pytest.raises(MCPError, match="cannot be called as a task"):
            await client.send("tools/call", name="get", arguments={"task_id": task_id}, task={})
