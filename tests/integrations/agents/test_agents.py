"""Agent frameworks on a queue: kill -9 repeats no paid call, approvals are questions, usage is booked."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from shiftwork import Queue
from shiftwork.model.task import Task
from shiftwork.testing import run_until_idle
from shiftwork.worker import Worker
from tests.crashes.fork_server import ForkServer
from tests.integrations.agents.model_server import TOKENS_IN, TOKENS_OUT, WORDS, ModelServer, model_server
from tests.worker.steps import until

FRAMEWORKS = ["pydantic_ai", "openai_agents", "langgraph", "claude_agent_sdk"]
CALLS = ["weather", "publish", "words"]
TOOLS = ["weather", "publish"]


class Crew(NamedTuple):
    """Workers of one framework."""

    framework: str
    server: ForkServer

    async def work(self, queue: Queue, models: ModelServer, folder: Path) -> int:
        """Run a worker as on a separate machine; return its exit code. The tasks of a killed one are reclaimed."""
        await asyncio.to_thread(folder.mkdir)
        ended = await asyncio.to_thread(self.server.run, "work", queue.url, models.url, str(folder))
        for runtime in await queue.runtimes.list():
            await queue.runtimes.report_gone(runtime.id)
        return ended


@pytest.fixture(scope="module", params=FRAMEWORKS)
def crew(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crew]:
    state = str(tmp_path_factory.mktemp("state"))
    with ForkServer(f"{__package__}.{request.param}_worker", XDG_STATE_HOME=state, HOME=state) as server:
        yield Crew(request.param, server)


def worker_of(framework: str) -> Worker:
    found = import_module(f"{__package__}.{framework}_worker").worker
    assert isinstance(found, Worker)
    return found


async def submit(queue: Queue, **payload: Any) -> str:
    task = {"type": "forecast", "payload": payload, "retry": {"strategy": "immediate"}, "max_attempts": 5}
    return (await queue.submit(task)).id


def check_result(task: Task, answers: int = len(CALLS)) -> None:
    assert task.result is not None
    assert (task.status, task.result.data) == ("completed", WORDS)
    assert task.tokens_used == {"input": answers * TOKENS_IN, "output": answers * TOKENS_OUT}
    assert task.cost_usd > 0


async def test_killed_worker_repeats_no_paid_call(store_url: str, crew: Crew, tmp_path: Path) -> None:
    async with Queue.open(store_url) as queue, model_server() as server:
        server.kill_at = [2, "end"]
        killed = await submit(queue)
        if crew.framework == "claude_agent_sdk":  # which mirrors its transcript a moment after it has written it
            server.before_kill = lambda: until(lambda: mirrored(queue, killed, "toolu_1"))
        exits = [await crew.work(queue, server, tmp_path / machine) for machine in ("one", "two")]
        undisturbed = await submit(queue)
        exits.append(await crew.work(queue, server, tmp_path / "three"))
        tasks = [await queue.get(each) for each in (killed, undisturbed)]
    assert exits == [-signal.SIGKILL, -signal.SIGKILL, 0]
    assert (server.answered, server.tools) == (CALLS + CALLS, TOOLS + TOOLS)
    for task in tasks:
        check_result(task)
    assert tasks[0].cost_usd == pytest.approx(tasks[1].cost_usd)


async def mirrored(queue: Queue, task_id: str, call: str) -> bool:
    """Whether the result of a tool call is part of the transcript."""
    results = [str(step.result) for step in await queue.steps.list(task_id, limit=1000)]
    return any("tool_result" in result and call in result for result in results)


@pytest.fixture
async def desk(store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """An open queue and a model for agents that run in this process."""
    async with Queue.open(store_url) as queue, model_server() as server:
        monkeypatch.setenv("FAKE_MODEL_URL", server.url)
        monkeypatch.setenv("FAKE_HOME", str(tmp_path))
        yield queue, server


@pytest.mark.parametrize("framework", FRAMEWORKS)
async def test_approval_of_a_tool_call_is_a_question(desk: tuple[Queue, ModelServer], framework: str) -> None:
    queue, server = desk
    worker = worker_of(framework)
    approved, refused = [await submit(queue, careful=True) for _ in range(2)]
    await run_until_idle(worker, queue)
    asked = {each.task_id: each for each in await queue.approvals.list()}
    assert set(asked) == {approved, refused}
    question = asked[approved].question or ""
    assert "publish" in question
    assert WORDS in question
    assert server.tools == ["weather", "weather"]
    await queue.approvals.answer(approved, {"approved": True})
    await run_until_idle(worker, queue)
    assert server.tools == ["weather", "weather", "publish"]
    check_result(await queue.get(approved))
    await queue.approvals.answer(refused, {"approved": False, "note": "not on a Sunday"})
    await run_until_idle(worker, queue)
    assert server.tools == ["weather", "weather", "publish"]
    assert "not on a Sunday" in server.last
    check_result(await queue.get(refused))
    assert server.answered == ["weather", "publish", "weather", "publish", "words", "words"]


def test_frameworks_are_imported_only_by_their_integration() -> None:
    loaded = "import sys, shiftwork, shiftwork.worker, shiftwork.integrations; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True)
    packages = {name.partition(".")[0] for name in done.stdout.split()}
    assert packages & {"agents", "claude_agent_sdk", "genai_prices", "langgraph", "openai", "pydantic_ai"} == set()
