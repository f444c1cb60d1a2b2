"""A2A: messages become tasks, agents pull them, and the protocol's own client follows them, on both stores."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from a2a.types import (
    CancelTaskRequest,
    GetTaskRequest,
    ListTasksRequest,
    StreamResponse,
    SubscribeToTaskRequest,
    TaskState,
)
from a2a.utils.errors import (
    A2AError,
    InvalidParamsError,
    InvalidRequestError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnsupportedOperationError,
)
from google.protobuf.json_format import MessageToDict

from shiftwork import Queue
from shiftwork.a2a import card as cards
from shiftwork.model.errors import InputError
from tests.a2a.serving import CARD, PATIENCE_SEC, A2aClient, connected, serving, state, take

UNKNOWN = "task_01ARZ3NDEKTSV4RRFFQ69G5FAV"


@pytest.fixture(autouse=True)
async def agents(queue: Queue) -> None:
    await queue.agents.register(id="crab")


@pytest.fixture
async def client(queue: Queue) -> AsyncIterator[A2aClient]:
    async with serving(queue) as url, connected(url) as found:
        yield found


@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON"])
async def test_message_becomes_a_task_that_an_agent_pulls(queue: Queue, binding: str) -> None:
    async with serving(queue) as url, connected(url, binding=binding) as client:
        sent = await client.send("Write a parser", data={"file": "a.py"})
        assert state(sent) == "submitted"
        assigned = await take(queue)
        task = assigned.task()
        assert (task.id, task.type) == (sent.id, "code")
        assert (task.spec["prompt"], task.payload) == ("Write a parser", {"file": "a.py"})
        working = await client.sdk.get_task(GetTaskRequest(id=sent.id))
        assert state(working) == "working"
        await queue.complete(assigned.token, {"lines": 7}, text="Here it is")
        done = await client.sdk.get_task(GetTaskRequest(id=sent.id))
    assert (state(done), done.context_id) == ("completed", sent.context_id)
    (artifact,) = done.artifacts
    assert [part.text for part in artifact.parts if part.text] == ["Here it is"]
    assert [MessageToDict(part.data) for part in artifact.parts if part.HasField("data")] == [{"lines": 7}]
    assert done.history[0].parts[0].text == "Write a parser"


async def test_call_waits_for_the_end_of_the_work(queue: Queue, client: A2aClient) -> None:
    sending = asyncio.create_task(client.send("Write it", wait=True))
    assigned = await take(queue)
    await queue.complete(assigned.token, text="done")
    assert state(await sending) == "completed"


async def test_call_waits_no_longer_than_the_server_allows(queue: Queue) -> None:
    async with serving(queue, max_wait_sec=0.2) as url, connected(url) as client:
        assert state(await client.send("Write it", wait=True)) == "submitted"


async def test_message_sent_again_is_the_same_task(queue: Queue, client: A2aClient) -> None:
    first = await client.send("Write it", message_id="m-1")
    again = await client.send("Write it", message_id="m-1")
    assert (first.id, first.context_id) == (again.id, again.context_id)
    assert sum((await queue.tasks.count()).values()) == 1


async def test_skill_decides_the_type(queue: Queue, client: A2aClient) -> None:
    drawn = await client.send("A cat", metadata={"skill": "draw"})
    assert (await queue.get(drawn.id)).type == "draw"
    with pytest.raises(InvalidParamsError, match="no skill 'dance'"):
        await client.send("A cat", metadata={"skill": "dance"})


async def test_failed_task_says_why(queue: Queue, client: A2aClient) -> None:
    sent = await client.send("Write it")
    assigned = await take(queue)
    await queue.fail(assigned.token, "invalid_input", "it cannot be done", retry=False)
    failed = await client.sdk.get_task(GetTaskRequest(id=sent.id))
    assert (state(failed), failed.status.message.parts[0].text) == ("failed", "it cannot be done")


def words(event: StreamResponse) -> str:
    if event.HasField("task"):
        return state(event.task)
    if event.HasField("artifact_update"):
        return "artifact"
    return TaskState.Name(event.status_update.status.state).removeprefix("TASK_STATE_").lower()


async def test_stream_has_every_state_up_to_the_result(queue: Queue) -> None:
    async with serving(queue) as url, connected(url, streaming=True) as client:
        seen: list[str] = []
        assigned: Any = None
        async with asyncio.timeout(PATIENCE_SEC):
            async for event in client.stream("Write it"):
                seen.append(words(event))
                if seen == ["submitted"]:
                    assigned = await take(queue)
                elif seen[-1] == "working" and len(seen) == 2:
                    await queue.claims.progress(assigned.token, "half")
                elif seen[-1] == "working":
                    assert event.status_update.status.message.parts[0].text == "half"
                    await queue.complete(assigned.token, text="done")
    assert seen == ["submitted", "working", "working", "artifact", "completed"]


async def test_stream_of_a_task_that_ended_at_once_has_its_artifact(queue: Queue) -> None:
    """An agent can be faster than the server's first read; a repeated message shows the same."""
    async with serving(queue) as url, connected(url) as client, connected(url, streaming=True) as streaming:
        made = await client.send("Write it", message_id="m-1")
        assigned = await take(queue)
        await queue.complete(assigned.token, text="done")
        async with asyncio.timeout(PATIENCE_SEC):
            events = [event async for event in streaming.stream("Write it", message_id="m-1")]
    assert [words(event) for event in events] == ["submitted", "artifact", "completed"]
    assert events[0].task.id == made.id
    assert events[1].artifact_update.artifact.parts[0].text == "done"


async def test_subscriber_of_a_task_follows_it(queue: Queue) -> None:
    async with serving(queue) as url, connected(url, streaming=True) as client:
        made = await queue.submit(type="code")  # not by a message: every task can be followed
        assigned = await take(queue)
        seen = []
        async with asyncio.timeout(PATIENCE_SEC):
            async for event in client.sdk.subscribe(SubscribeToTaskRequest(id=made.id)):
                seen.append(words(event))
                if len(seen) == 1:
                    await queue.complete(assigned.token, text="done")
        assert seen == ["working", "artifact", "completed"]
        with pytest.raises(UnsupportedOperationError, match="has ended"):
            async for _ in client.sdk.subscribe(SubscribeToTaskRequest(id=made.id)):
                pass


async def test_question_is_input_required_and_a_message_answers_it(queue: Queue, client: A2aClient) -> None:
    sending = asyncio.create_task(client.send("Draw it", wait=True))
    assigned = await take(queue)
    schema = {"type": "object", "properties": {"colour": {"type": "string"}}, "required": ["colour"]}
    await queue.waits.wait(assigned.token, "colour", question="Which colour?", schema=schema)
    asked = await sending
    assert (state(asked), asked.status.message.parts[0].text) == ("input_required", "Which colour?")
    assert MessageToDict(asked.status.message.parts[1].data) == {"schema": schema}
    with pytest.raises(InvalidParamsError):
        await client.send("blue", task_id=asked.id)
    answered = await client.send(data={"colour": "blue"}, task_id=asked.id, context_id=asked.context_id)
    assert state(answered) == "working"
    again = await take(queue)
    found = await queue.waits.wait(again.token, "colour", question="Which colour?", schema=schema)
    assert found.value == {"colour": "blue"}


@pytest.mark.parametrize(("word", "after"), [("Approve", "submitted"), ("reject", "canceled")])
async def test_approval_is_input_required(queue: Queue, client: A2aClient, word: str, after: str) -> None:
    await queue.settings.set("guards", [{"type": "code"}])
    asked = await client.send("Deploy it", wait=True)
    assert state(asked) == "input_required"
    with pytest.raises(InvalidParamsError, match="neither approves nor rejects"):
        await client.send("perhaps", task_id=asked.id)
    assert state(await client.send(word, task_id=asked.id)) == after


async def test_message_to_a_working_task_reaches_its_agent(queue: Queue, client: A2aClient) -> None:
    sent = await client.send("Write it")
    assigned = await take(queue)
    await client.send("Use tabs", data={"width": 4}, task_id=sent.id)
    (told,) = await queue.claims.inbox(assigned.token)
    assert told.text == 'Use tabs\n\n{"width":4}'
    await queue.complete(assigned.token, text="done")
    with pytest.raises(UnsupportedOperationError, match="has ended"):
        await client.send("faster", task_id=sent.id)


async def test_cancel(queue: Queue, client: A2aClient) -> None:
    sent = await client.send("Write it")
    cancelled = await client.sdk.cancel_task(CancelTaskRequest(id=sent.id))
    assert state(cancelled) == "canceled"
    assert (await queue.get(sent.id)).status == "cancelled"
    with pytest.raises(TaskNotCancelableError):
        await client.sdk.cancel_task(CancelTaskRequest(id=sent.id))


async def test_list_by_context_state_and_page(queue: Queue, client: A2aClient) -> None:
    one, two = [await client.send(text, context_id="c-1") for text in ("a", "b")]
    other = await client.send("c", context_id="c-2")
    await queue.submit(type="code")  # did not come by A2A
    await client.sdk.cancel_task(CancelTaskRequest(id=one.id))

    async def listed(**fields: Any) -> list[str]:
        return [task.id for task in (await client.sdk.list_tasks(ListTasksRequest(**fields))).tasks]

    assert await listed() == [other.id, two.id, one.id]
    assert await listed(context_id="c-1") == [two.id, one.id]
    assert await listed(status=TaskState.TASK_STATE_CANCELED) == [one.id]
    assert await listed(status=TaskState.TASK_STATE_REJECTED) == []
    page = await client.sdk.list_tasks(ListTasksRequest(page_size=2))
    assert (len(page.tasks), page.total_size) == (2, 3)
    rest = await client.sdk.list_tasks(ListTasksRequest(page_size=2, page_token=page.next_page_token))
    assert [task.id for task in rest.tasks] == [one.id]


async def test_unknown_or_invalid_objects_are_refused(client: A2aClient) -> None:
    for task_id in (UNKNOWN, "nope", "x" * 5000):
        with pytest.raises((TaskNotFoundError, InvalidParamsError)):
            await client.sdk.get_task(GetTaskRequest(id=task_id))
        with pytest.raises((TaskNotFoundError, InvalidParamsError)):
            await client.sdk.cancel_task(CancelTaskRequest(id=task_id))
    with pytest.raises(InvalidParamsError):
        await client.send("Write it", context_id="x" * 500)
    with pytest.raises(InvalidParamsError):
        await client.send("Write it", message_id="m" * 500)
    with pytest.raises(A2AError):
        await client.send()
    with pytest.raises(InvalidParamsError):
        await client.sdk.list_tasks(ListTasksRequest(page_size=1000))


async def test_calls_need_a_token_with_the_right_scopes(queue: Queue) -> None:
    reader = (await queue.tokens.create("reader", ["read"])).secret
    planner = (await queue.tokens.create("planner", ["submit"])).secret
    async with serving(queue, tokens=True) as url:
        async with httpx.AsyncClient() as http:
            shown = (await http.get(url + "/.well-known/agent-card.json")).json()
            assert shown["securitySchemes"]["token"]["httpAuthSecurityScheme"]["scheme"] == "bearer"
            refused = await http.post(url + "/a2a", json={})
            assert refused.status_code == 401
            metadata = refused.headers["www-authenticate"].partition('"')[2].rstrip('"')
            assert (await http.get(metadata)).json()["resource"] == url + "/a2a"
        async with connected(url, secret=planner) as client:
            sent = await client.send("Write it")
            assert (await queue.tasks.history(sent.id)).events[0].actor == "token:planner"
            with pytest.raises(InvalidRequestError, match="scope operate"):
                await client.sdk.cancel_task(CancelTaskRequest(id=sent.id))
        async with connected(url, secret=reader) as client:
            assert state(await client.sdk.get_task(GetTaskRequest(id=sent.id))) == "submitted"
            with pytest.raises(InvalidRequestError, match="scope submit"):
                await client.send("Write it")


async def test_client_of_version_0_3(queue: Queue) -> None:
    parts = [{"kind": "text", "text": "Write it"}]
    message = {"kind": "message", "messageId": "m-1", "role": "user", "parts": parts}
    params = {"message": message, "configuration": {"blocking": False}}
    async with serving(queue) as url, httpx.AsyncClient() as http:

        async def call(method: str, **given: Any) -> Any:
            body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": given}
            return (await http.post(url + "/a2a", json=body)).json()["result"]

        sent = await call("message/send", **params)
        assert sent["status"]["state"] == "submitted"
        assigned = await take(queue)
        await queue.complete(assigned.token, text="done")
        done = await call("tasks/get", id=sent["id"])
    assert (done["status"]["state"], done["artifacts"][0]["parts"][0]["text"]) == ("completed", "done")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("nonsense", "not a JSON file"),
        ("[]", "JSON object"),
        ("{}", "lacks name, description, version, skills"),
        (json.dumps({**CARD, "colour": "blue"}), "colour"),
        (json.dumps({**CARD, "skills": [{"name": "Code"}]}), "every skill needs an id"),
    ],
)
def test_bad_card_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "card.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=problem):
        cards.load(path)


async def test_task_survives_a_killed_server(store_url: str, tmp_path: Path) -> None:
    """All state is in the queue: a killed server continues where it was after a restart."""
    path = tmp_path / "card.json"
    path.write_text(json.dumps(CARD), encoding="utf-8")
    line = [sys.executable, "-m", "shiftwork", "--json", "a2a", "--store", store_url, "--card", str(path)]

    def started() -> tuple[subprocess.Popen[str], str]:
        running = subprocess.Popen([*line, "--http", "127.0.0.1:0"], stdout=subprocess.PIPE, text=True, env=os.environ)
        assert running.stdout is not None
        return running, json.loads(running.stdout.readline())["card"].removesuffix("/.well-known/agent-card.json")

    def end(running: subprocess.Popen[str]) -> int:
        with running:  # waits, and closes its output
            return running.wait(PATIENCE_SEC)

    running, url = await asyncio.to_thread(started)
    try:
        async with connected(url) as client:
            sent = await client.send("Write it")
        running.kill()
        end(running)
        async with await Queue.open(store_url) as queue:
            await queue.agents.register(id="crab")
            assigned = await take(queue)
            await queue.complete(assigned.token, text="done")
        running, url = await asyncio.to_thread(started)
        async with connected(url) as client:
            assert state(await client.sdk.get_task(GetTaskRequest(id=sent.id))) == "completed"
    finally:
        running.terminate()
        assert end(running) == 0
