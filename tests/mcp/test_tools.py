"""Every tool calls its verb on both stores, and every refusal has a next step."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from mcp.shared.exceptions import MCPError

from shiftwork import Queue
from shiftwork.mcp import claimed_task
from shiftwork.mcp.mcp_server import McpServer, Options
from shiftwork.mcp.tool_calls import TOOLS
from shiftwork.model.errors import StoreUnavailable
from shiftwork.testing import MovedClock, pass_time
from tests.mcp.talking import MODES, Agent, in_one_task, talking
from tests.worker.steps import until_status

NARROWED = {
    *[("claim", "wait"), ("checkpoint", "result"), ("spawn", "tasks"), ("wait", "tasks"), ("fail", "error")],
    *[("ask_human", "question"), ("ask_human", "name"), ("list", "status"), ("list", "limit")],
}
"""Parameters that a tool bounds or requires where the operation does not."""
WORKER = ["claim", "heartbeat", "checkpoint", "spawn", "wait", "ask_human", "complete", "fail", "release"]
SUBMITTER = ["submit", "get", "list", "cancel", "approve", "answer"]


@pytest.fixture
def desk(queue: Queue) -> McpServer:
    return McpServer(queue, Options(agent_id="crab"))


@pytest.fixture
async def agent(desk: McpServer) -> AsyncIterator[Agent]:
    async with in_one_task(talking(desk)) as speaking:
        yield speaking


@pytest.mark.parametrize(
    ("role", "names"), [("all", [*WORKER, *SUBMITTER]), ("worker", [*WORKER, "get"]), ("submitter", SUBMITTER)]
)
async def test_role_has_exactly_its_tools(queue: Queue, role: Any, names: list[str]) -> None:
    async with talking(McpServer(queue, Options(role=role))) as agent:
        assert await agent.tools() == names
        for other in {*WORKER, *SUBMITTER} - {*names}:
            with pytest.raises(MCPError, match="there is no tool"):
                await agent(other, token="x", task_id="x")


@pytest.mark.parametrize("mode", MODES)
async def test_tool_descriptions_are_short_and_complete(desk: McpServer, mode: str) -> None:
    async with talking(desk, mode) as agent:
        tools = (await agent.client.list_tools()).tools
    for tool in tools:
        assert tool.description, tool.name
        assert tool.input_schema["type"] == "object"
        assert tool.input_schema["additionalProperties"] is False
        assert tool.output_schema is not None
    found = json.dumps([tool.model_dump(exclude_none=True, exclude={"output_schema"}) for tool in tools])
    assert len(found) < 20_000


def test_every_tool_is_covered_here() -> None:
    assert list(TOOLS) == [*WORKER, *SUBMITTER]


async def test_task_is_claimed_and_completed(agent: Agent, queue: Queue) -> None:
    spec = {"prompt": "Write it well"}
    made = await queue.submit(type="code", title="Write it", payload={"file": "a.py"}, spec=spec, tags=["web"])
    task = await agent.take()
    assert task["task_id"] == made.id
    assert (task["prompt"], task["payload"], task["attempt"]) == ("Write it well", {"file": "a.py"}, 1)
    assert (await queue.get(made.id)).status == "running"
    done = await agent("complete", token=task["token"], data={"n": 1}, text="done", usage={"cost_usd": 0.5})
    assert done["status"] == "completed"
    kept = await queue.get(made.id)
    assert kept.result is not None
    assert (kept.result.data, kept.result.text, kept.cost_usd) == ({"n": 1}, "done", 0.5)


async def test_repeated_result_is_accepted_once(agent: Agent, queue: Queue) -> None:
    made = await queue.submit(type="code")
    task = await agent.take()
    first = await agent("complete", token=task["token"], data=1, usage={"cost_usd": 1})
    again = await agent("complete", token=task["token"], data=2, usage={"cost_usd": 1})
    assert "repeated" not in first
    assert again["repeated"]
    kept = await queue.get(made.id)
    assert kept.result is not None
    assert (kept.result.data, kept.cost_usd) == (1, 1)


async def test_empty_claim_explains_the_reason(agent: Agent, queue: Queue) -> None:
    assert "no work for you" in (await agent("claim"))["next"]
    await queue.submit_many([{"type": "code"}, {"type": "code"}])
    await queue.control.pause("code")
    assert (await agent("claim"))["closed"] == ["paused: code"]
    await queue.control.resume("code")
    task = await agent.take()
    full = await agent("claim")
    assert "is at capacity" in full["next"]
    assert full["holding"] == [task["token"]]


async def test_claim_takes_only_types_the_server_was_started_for(queue: Queue) -> None:
    await queue.submit(type="code", spec={"constraints": {"required_capabilities": ["ocr"]}})
    await queue.submit(type="docs")
    async with talking(McpServer(queue, Options(agent_id="a", types=("code",)))) as blind:
        assert "task" not in await blind("claim")
        refused = await blind.refusal("claim", types=["docs"])
        assert refused["hint"] == "It has code."
    async with talking(McpServer(queue, Options(agent_id="b", types=("code",), capabilities=("ocr",)))) as able:
        assert (await able.take(types=["code"]))["type"] == "code"
    assert (await queue.agents.get("b")).capabilities == ["ocr"]


async def test_registered_agent_is_not_changed_by_a_claim(agent: Agent, queue: Queue) -> None:
    await queue.agents.register(id="crab", max_concurrent_tasks=2, budget_remaining_usd=5, types=["code"])
    await queue.submit(type="code")
    await agent.take()
    known = await queue.agents.get("crab")
    assert (known.max_concurrent_tasks, known.types) == (2, ["code"])
    assert (known.budget_remaining_usd or 0) + known.granted_usd == 5


async def test_claim_that_cannot_be_answered_is_released(
    agent: Agent, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unable(_queue: Any, _assignment: Any) -> Any:
        raise StoreUnavailable("it went away")

    made = await queue.submit(type="code")
    monkeypatch.setattr(claimed_task, "work_of", unable)
    assert (await agent.refusal("claim"))["code"] == "store_unavailable"
    await until_status(queue, made.id, "ready")  # beside the answer, which waits for nothing
    assert (await queue.get(made.id)).attempts == 0


async def test_internal_error_is_logged_and_not_revealed(
    agent: Agent, queue: Queue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(_queue: Any, _assignment: Any) -> Any:
        raise ZeroDivisionError("what was divided")

    await queue.submit(type="code")
    monkeypatch.setattr(claimed_task, "work_of", broken)
    refused = await agent.refusal("claim")
    assert refused["code"] == "internal"
    assert "divided" not in json.dumps(refused)
    assert "what was divided" in caplog.text


async def test_heartbeat_stores_progress_and_reports_cancel(agent: Agent, queue: Queue) -> None:
    made = await queue.submit(type="code")
    token = (await agent.take())["token"]
    assert (await agent("heartbeat", token=token, progress="half"))["action"] == "continue"
    assert (await queue.get(made.id)).progress == "half"
    await queue.cancel(made.id, "unwanted")
    stopped = await agent("heartbeat", token=token)
    assert (stopped["action"], stopped["reason"]) == ("cancel", "unwanted")
    assert "Stop working" in stopped["next"]


async def test_instructions_come_with_claim_and_heartbeat_until_acknowledged(agent: Agent, queue: Queue) -> None:
    made = await queue.submit(type="code")
    await made.tell("before")
    held = await agent.take()
    assert [each["text"] for each in held["instructions"]] == ["before"]
    await made.tell("use the blue one")
    answer = await agent("heartbeat", token=held["token"], acknowledge=1)
    assert [(each["seq"], each["text"]) for each in answer["instructions"]] == [(2, "use the blue one")]
    assert "acknowledge" in answer["next"]
    answer = await agent("heartbeat", token=held["token"], acknowledge=2)
    assert "instructions" not in answer
    assert [each.status for each in await queue.tasks.instructions(made.id)] == ["acknowledged"] * 2


async def test_checkpoints_are_returned_with_the_next_attempt(agent: Agent, queue: Queue, clock: MovedClock) -> None:
    await queue.submit(type="code")
    token = (await agent.take())["token"]
    assert await agent("checkpoint", token=token, name="plan") == {"name": "plan"}
    kept = await agent("checkpoint", token=token, name="plan", result={"steps": 3}, usage={"cost_usd": 0.1})
    assert kept == {"name": "plan", "done": True, "result": {"steps": 3}}
    assert await agent("checkpoint", token=token, name="plan", result="another") == kept
    await agent("fail", token=token, error="the site was down", reason="network")
    await pass_time(queue, clock, 3600)
    second = await agent.take()
    assert (second["attempt"], second["last_error"]) == (2, "the site was down")
    assert second["checkpoints"] == [{"name": "plan", "done": True, "result": {"steps": 3}}]


async def test_empty_checkpoint_result_is_kept(agent: Agent, queue: Queue) -> None:
    await queue.submit(type="code")
    token = (await agent.take())["token"]
    assert (await agent("checkpoint", token=token, name="nothing", result=None))["done"]


async def test_failure_without_retry_is_dead_lettered(agent: Agent, queue: Queue) -> None:
    made = await queue.submit(type="code")
    done = await agent("fail", token=(await agent.take())["token"], error="no such file", retry=False)
    assert done["status"] == "dead_lettered"
    assert (await queue.get(made.id)).last_error == "no such file"


async def test_task_is_released_without_cost(agent: Agent, queue: Queue) -> None:
    made = await queue.submit(type="code")
    done = await agent("release", token=(await agent.take())["token"], reason="not mine")
    assert done["status"] == "ready"
    assert (await queue.get(made.id)).attempts == 0


async def test_split_task_returns_with_results_of_its_subtasks(agent: Agent, queue: Queue) -> None:
    whole = await queue.submit(type="survey", priority=10)
    token = (await agent.take())["token"]
    parts = [{"type": "ask", "key": "ada", "title": "Ask Ada"}, {"type": "ask", "key": "sum", "dependencies": ["ada"]}]
    spawned = await agent("spawn", token=token, tasks=parts, wait=True)
    assert "was released" in spawned["next"]
    assert [each["status"] for each in spawned["tasks"]] == ["ready", "pending"]
    for _ in parts:
        part = await agent.take()
        assert part["type"] == "ask"
        await agent("complete", token=part["token"], data=part["task_id"])
    again = await agent.take()
    assert again["task_id"] == whole.id
    assert [child["data"] for child in again["subtasks"]] == [each["task_id"] for each in spawned["tasks"]]
    assert again["subtasks"][0]["title"] == "Ask Ada"


async def test_split_task_returns_when_a_subtask_failed(agent: Agent, queue: Queue) -> None:
    await queue.submit(type="survey", priority=10)
    token = (await agent.take())["token"]
    parts = {"tasks": [{"type": "ask", "key": "ada"}], "wait": True, "failures": "return"}
    assert "was released" in (await agent("spawn", token=token, **parts))["next"]
    part = await agent.take()
    await agent("fail", token=part["token"], reason="crash", error="she is away", retry=False)
    again = await agent.take()
    (failed,) = again["failed_dependencies"]
    assert (failed["task_id"], failed["status"], failed["error"]) == (part["task_id"], "dead_lettered", "she is away")
    found = await agent("wait", token=again["token"], tasks=[part["task_id"]], failures="return")
    assert (found["status"], found["failed"]) == ("met", [failed])


@pytest.mark.parametrize("keys", [("ada", "bob"), ("x" * 254 + "a", "x" * 254 + "b")], ids=["short", "long"])
async def test_repeated_spawn_with_the_same_keys_returns_the_same_tasks(
    agent: Agent, queue: Queue, keys: tuple[str, str]
) -> None:
    await queue.submit(type="survey")
    token = (await agent.take())["token"]
    tasks = [{"type": "ask", "key": key} for key in keys]
    first = await agent("spawn", token=token, tasks=tasks)
    again = await agent("spawn", token=token, tasks=tasks)
    assert again["tasks"] == [{**each, "duplicate": True} for each in first["tasks"]]
    assert len((await queue.tasks.list(type="ask")).tasks) == 2


async def test_question_is_asked_and_its_answer_returned_with_the_task(agent: Agent, queue: Queue) -> None:
    made = await queue.submit(type="code")
    token = (await agent.take())["token"]
    question: dict[str, Any] = {"question": "Which one?", "name": "which", "schema": {"type": "string"}}
    assert (await agent("ask_human", token=token, **question))["status"] == "waiting"
    (asked,) = (await agent("list", for_people=True))["tasks"]
    assert (asked["task_id"], asked["question"], asked["schema"]) == (made.id, "Which one?", {"type": "string"})
    assert (await agent.refusal("answer", task_id=made.id, value=7))["code"] == "invalid_input"
    assert (await agent("answer", task_id=made.id, value="the blue one"))["status"] == "ready"
    again = await agent.take()
    (wait,) = again["waits"]
    assert (wait["name"], wait["status"], wait["value"]) == ("which", "met", "the blue one")
    repeated = await agent("ask_human", token=again["token"], **question)
    assert (repeated["status"], repeated["value"]) == ("met", "the blue one")


async def test_task_waits_for_time_signal_or_other_tasks(agent: Agent, queue: Queue, clock: MovedClock) -> None:
    made = await queue.submit(type="code")
    token = (await agent.take())["token"]
    assert (await agent("wait", token=token, seconds=60, name="nap"))["status"] == "waiting"
    await pass_time(queue, clock, 61)
    token = (await agent.take())["token"]
    assert (await agent("wait", token=token, signal="built", name="build", timeout_sec=600))["status"] == "waiting"
    await queue.waits.signal("built", {"ok": True})
    resumed = await agent.take()
    assert [(each["name"], each["status"]) for each in resumed["waits"]] == [("nap", "met"), ("build", "met")]
    assert resumed["waits"][1]["value"] == {"ok": True}
    other = await queue.submit(type="docs", priority=0)
    waiting = await agent("wait", token=resumed["token"], tasks=[other.id])
    assert waiting["status"] == "waiting"
    assert (await queue.get(made.id)).blocked_by == [other.id]


async def test_expired_wait_is_reported(agent: Agent, queue: Queue, clock: MovedClock) -> None:
    await queue.submit(type="code")
    terms: dict[str, Any] = {"signal": "never", "name": "never", "timeout_sec": 60}
    await agent("wait", token=(await agent.take())["token"], **terms)
    await pass_time(queue, clock, 61)
    over = await agent("wait", token=(await agent.take())["token"], **terms)
    assert over["status"] == "expired"
    assert "The wait expired" in over["next"]


@pytest.mark.parametrize(
    ("terms", "where"), [({}, "tasks"), ({"tasks": ["a"], "seconds": 1}, "tasks"), ({"seconds": 1}, "name")]
)
async def test_wait_requires_one_condition_and_a_name(
    agent: Agent, queue: Queue, terms: dict[str, Any], where: str
) -> None:
    await queue.submit(type="code")
    token = (await agent.take())["token"]
    assert (await agent.refusal("wait", token=token, **terms))["where"] == where
    assert (await agent("heartbeat", token=token))["action"] == "continue"


async def test_task_is_submitted_and_read(agent: Agent, queue: Queue) -> None:
    draft = {"type": "code", "title": "Write it", "prompt": "Well", "payload": {"n": 1}, "idempotency_key": "k"}
    made = await agent("submit", tasks=[{**draft, "output_schema": {"type": "object"}, "max_attempts": 2}])
    (task,) = made["tasks"]
    kept = await queue.get(task["task_id"])
    assert (kept.title, kept.payload, kept.max_attempts) == ("Write it", {"n": 1}, 2)
    assert kept.output is not None
    assert kept.output["validation"] == "json-schema"
    seen = await agent("get", task_id=task["task_id"])
    assert (seen["status"], seen["prompt"]) == ("ready", "Well")
    assert "no registered agent" in seen["why"]
    (again,) = (await agent("submit", tasks=[draft]))["tasks"]
    assert (again["task_id"], again["duplicate"]) == (task["task_id"], True)


async def test_several_tasks_are_submitted_together_or_not_at_all(agent: Agent, queue: Queue) -> None:
    tasks: list[dict[str, Any]] = [{"type": "code", "key": "a"}, {"type": "docs", "key": "b", "dependencies": ["a"]}]
    made = await agent("submit", title="Page", tasks=tasks)
    assert (await queue.dags.get(made["dag_id"])).title == "Page"
    seen = await agent("get", task_id=made["tasks"][1]["task_id"])
    assert seen["blocked_by"] == [made["tasks"][0]["task_id"]]
    tasks[0]["dependencies"] = ["b"]
    refused = await agent.refusal("submit", tasks=tasks)
    assert refused["code"] == "circular_dependency"
    assert (await queue.status()).counts == {"ready": 1, "pending": 1}


async def test_list_continues_after_its_last_task(agent: Agent, queue: Queue) -> None:
    await queue.submit_many([{"type": "code", "tags": ["web"]} for _ in range(3)])
    first = await agent("list", status="ready", type="code", tag="web", limit=2)
    rest = await agent("list", after=first["next"])
    assert (len(first["tasks"]), len(rest["tasks"])) == (2, 1)


async def test_task_is_cancelled_with_a_reason(agent: Agent, queue: Queue) -> None:
    made = await queue.submit(type="code")
    assert (await agent("cancel", task_id=made.id, reason="seen enough"))["status"] == "cancelled"
    assert (await queue.get(made.id)).cancel_reason == "seen enough"


@pytest.mark.parametrize(("decision", "status"), [("approve", "ready"), ("reject", "cancelled")])
async def test_guarded_task_is_approved_or_rejected(agent: Agent, queue: Queue, decision: str, status: str) -> None:
    await queue.settings.set("guards", [{"type": "ship"}])
    made = await queue.submit(type="ship", title="Ship it")
    (asked,) = (await agent("list", for_people=True))["tasks"]
    terms = {"task_id": made.id, "decision": decision, "note": "as told"}
    assert (await agent.refusal("approve", **terms, revision="another"))["code"] == "revision_changed"
    assert (await agent("approve", **terms, revision=asked["revision"]))["status"] == status
    assert (await queue.tasks.history(made.id)).events[-1].actor == "agent:crab"


async def test_configured_actor_is_recorded(queue: Queue) -> None:
    made = await queue.submit(type="code")
    async with talking(McpServer(queue, Options(actor="human:ada"))) as agent:
        await agent("cancel", task_id=made.id)
    assert (await queue.tasks.history(made.id)).events[-1].actor == "human:ada"


async def test_lost_claim_is_answered_with_a_stop_hint(agent: Agent, queue: Queue, clock: MovedClock) -> None:
    made = await queue.submit(type="code")
    token = (await agent.take())["token"]
    await pass_time(queue, clock, 3600)
    refused = await agent.refusal("complete", token=token, text="late")
    assert (refused["code"], refused["task_id"]) == ("lease_lost", made.id)
    assert refused["next"].startswith("Stop working on this task")


@pytest.mark.parametrize(
    ("tool", "arguments", "code", "where"),
    [
        ("complete", {"token": "nonsense"}, "fence_required", "token"),
        ("complete", {}, "invalid_input", None),
        ("complete", {"token": 7}, "invalid_input", "token"),
        ("claim", {"wait_sec": 26}, "invalid_input", "wait_sec"),
        ("claim", {"speed": "high"}, "invalid_input", None),
        ("get", {"task_id": "task_none"}, "not_found", None),
        ("list", {"status": "lost"}, "invalid_input", "status"),
        ("submit", {"tasks": []}, "invalid_input", "tasks"),
        ("submit", {"tasks": [{"type": "a", "dependencies": ["b"]}]}, None, None),
        ("submit", {"tasks": [{"title": "what kind?"}]}, "invalid_input", "tasks[0]"),
        ("submit", {"tasks": [{"type": "a", "payload": {"b": "\0"}}]}, "bad_text", None),
        ("answer", {"task_id": "x"}, "invalid_input", None),
    ],
)
async def test_invalid_arguments_are_named_and_change_nothing(
    agent: Agent, queue: Queue, tool: str, arguments: dict[str, Any], code: str | None, where: str | None
) -> None:
    if code is None:
        assert (await agent(tool, **arguments))["tasks"][0]["status"] == "pending"
        return
    refused = await agent.refusal(tool, **arguments)
    assert refused["code"] == code
    assert refused["hint"]
    assert refused["next"]
    assert where is None or refused["where"] == where
    assert (await queue.status()).counts == {}


async def test_unknown_argument_is_refused_with_the_known_ones(agent: Agent) -> None:
    refused = await agent.refusal("claim", speed="high")
    assert "speed" in refused["what"]
    assert refused["hint"] == "claim takes wait_sec, types; nothing was changed."


async def test_queue_and_tasks_can_be_read_as_resources(agent: Agent, queue: Queue) -> None:
    made = await queue.submit(type="code", title="Write it")
    listed = [str(each.uri) for each in (await agent.client.list_resources()).resources]
    assert listed == ["shiftwork://queue", "shiftwork://people"]
    (template,) = (await agent.client.list_resource_templates()).resource_templates
    uri = template.uri_template.replace("{task_id}", made.id)

    async def read(name: str) -> Any:
        (content,) = (await agent.client.read_resource(name)).contents
        assert content.mime_type == "application/json"
        return json.loads(content.text)  # type: ignore[union-attr]  # ours are text

    assert (await read(listed[0]))["counts"] == {"ready": 1}
    assert await read(listed[1]) == []
    assert (await read(uri))["title"] == "Write it"
    for wrong in ("shiftwork://nothing", "shiftwork://task/task_none"):
        with pytest.raises(MCPError, match="not_found"):
            await agent.client.read_resource(wrong)


async def test_prompts_are_listed_for_each_role(agent: Agent, queue: Queue) -> None:
    prompts = (await agent.client.list_prompts()).prompts
    assert [prompt.name for prompt in prompts] == ["work", "plan"]
    found = await agent.client.get_prompt("work", {"types": "code, docs"})
    text = found.messages[0].content.text  # type: ignore[union-attr]  # ours is text
    assert "claim with types: code, docs" in text
    plan = await agent.client.get_prompt("plan", {"goal": "a page {braces}"})
    assert "a page {braces}" in plan.messages[0].content.text  # type: ignore[union-attr]  # ours is text
    with pytest.raises(MCPError, match="there are work, plan"):
        await agent.client.get_prompt("rest")
    async with talking(McpServer(queue, Options(role="worker"))) as worker:
        assert [prompt.name for prompt in (await worker.client.list_prompts()).prompts] == ["work"]
        assert "submit" not in (worker.client.instructions or "")


async def test_payload_that_does_not_fit_its_type_is_refused(agent: Agent, queue: Queue) -> None:
    schema = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
    await queue.types.save("summarise", payload_schema=schema)
    refused = await agent.refusal("submit", tasks=[{"type": "summarise", "payload": {"text": 1}}])
    assert (refused["code"], refused["where"]) == ("invalid_payload", "task.payload.text")
    assert (await queue.tasks.list()).tasks == []


async def test_submit_waits_for_the_end_of_its_work(agent: Agent, queue: Queue) -> None:
    submitting = asyncio.create_task(agent("submit", tasks=[{"type": "code"}], wait_sec=20))
    while not (claimed := await queue.claim("other", start=True, wait=5)):
        pass
    await queue.complete(claimed[0].token, {"n": 1})
    made = await submitting
    (task,) = made["tasks"]
    assert (task["status"], task["result"]) == ("completed", {"data": {"n": 1}})
    assert "next" not in made


async def test_submit_of_a_dag_names_the_failed_tasks(agent: Agent, queue: Queue) -> None:
    tasks = [{"type": "code", "key": "a"}, {"type": "code", "key": "b", "dependencies": ["a"]}]
    submitting = asyncio.create_task(agent("submit", tasks=tasks, wait_sec=20))
    while not (claimed := await queue.claim("other", start=True, wait=5)):
        pass
    await queue.fail(claimed[0].token, "invalid_input", "no such file")
    made = await submitting
    assert [task["status"] for task in made["tasks"]] == ["dead_lettered", "pending"]
    assert made["tasks"][0]["result"]["error"] == "no such file"
    assert "wait_sec" in made["next"]


async def test_get_waits_no_longer_than_it_was_asked_to(agent: Agent, queue: Queue) -> None:
    made = await queue.submit(type="code")
    assert (await agent("get", task_id=made.id, wait_sec=0.05))["status"] == "ready"
    waiting = asyncio.create_task(agent("get", task_id=made.id, wait_sec=20))
    await queue.cancel(made.id, "enough")
    assert (await waiting)["status"] == "cancelled"
    refused = await agent.refusal("get", task_id=made.id, wait_sec=30)
    assert "20" in refused["what"]


async def test_task_is_submitted_for_later(agent: Agent, queue: Queue) -> None:
    later = {"type": "code", "key": "later", "delay": 60}
    dated = {"type": "code", "key": "dated", "run_at": "2100-01-01T00:00:00Z", "expires_in": 9e9}
    made = (await agent("submit", tasks=[later]))["tasks"] + (await agent("submit", tasks=[dated]))["tasks"]
    delayed, timed = [await queue.get(each["task_id"]) for each in made]
    assert delayed.run_at is not None
    assert delayed.hold == "scheduled"
    assert delayed.run_at - delayed.created_at == pytest.approx(60, abs=1)
    assert (timed.run_at, timed.status) == (4102444800.0, "pending")
    assert timed.expires_at is not None
    assert "task" not in await agent("claim")
    refused = await agent.refusal("submit", tasks=[{"type": "code", "run_at": "2100-01-01T00:00:00"}])
    assert refused["code"] == "invalid_input"


async def test_list_finds_tasks_by_words(agent: Agent, queue: Queue) -> None:
    made = await queue.submit(type="code", title="Rewrite the parser", payload={"file": "lexer.py"})
    await queue.submit(type="code", title="Draw the logo")
    for words in ("parser", "pars", "lexer rewrite"):
        assert [each["task_id"] for each in (await agent("list", search=words))["tasks"]] == [made.id]
    assert (await agent("list", search="nowhere"))["tasks"] == []
    newest = await agent("list", newest=True, limit=1)
    assert newest["tasks"][0]["title"] == "Draw the logo"


def test_parameters_are_those_of_the_operation() -> None:
    """Types, bounds and defaults are declared once, on the operation; a tool narrows only what it declares."""
    for tool in TOOLS.values():
        known = tool.operation.parameters.sent
        for field in msgspec.structs.fields(tool.takes):
            if field.name in known and (tool.name, field.name) not in NARROWED:
                declared = msgspec.json.schema(known[field.name][1])
                given = msgspec.json.schema(field.type)
                given.pop("description", None)
                assert given == declared, (tool.name, field.name)
                assert field.required == (len(known[field.name]) == 2), (tool.name, field.name)
