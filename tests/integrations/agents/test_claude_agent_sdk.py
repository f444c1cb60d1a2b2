"""Claude Agent SDK: what is stored of a conversation, what is booked, and how failures are reported."""

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from datetime import UTC
from pathlib import Path
from typing import Any

import pytest
from claude_agent_sdk import ClaudeAgentOptions, ResultMessage, SessionKey
from claude_agent_sdk.types import DeferredToolUse

from shiftwork import Queue
from shiftwork.integrations.claude_agent_sdk.claude_run import _Guard, _Turn
from shiftwork.integrations.claude_agent_sdk.transcript import CONTINUE, Transcript
from shiftwork.providers import provider_limits
from shiftwork.testing import run_until_idle
from shiftwork.worker import Context, Worker
from tests.worker.steps import until

KEY: SessionKey = {"project_key": "p", "session_id": "s"}


def result(cost: float = 0.0, **fields: Any) -> ResultMessage:
    known: dict[str, Any] = {"subtype": "success", "duration_ms": 1, "duration_api_ms": 1, "is_error": False}
    known |= {"num_turns": 1, "session_id": "s", "total_cost_usd": cost}
    return ResultMessage(**{**known, **fields})


def answer(name: str, tokens_out: int, **message: Any) -> Any:
    used = {"input_tokens": 10, "cache_read_input_tokens": 5, "output_tokens": tokens_out}
    known = {"id": name, "model": "claude-sonnet-4-5", "usage": used, "content": []}
    return {"type": "assistant", "uuid": name, "message": {**known, **message}}


async def in_task(url: str, *handlers: Callable[[Context], Awaitable[None]]) -> Any:
    """Run each in a separate attempt of one task; return the task."""
    worker = Worker(concurrency=1)
    left = list(handlers)

    @worker.handler("t")
    async def handle(ctx: Context) -> None:
        await left.pop(0)(ctx)
        if left:
            raise ConnectionError("the connection broke")

    async with Queue.open(url) as queue:
        task = await queue.submit(type="t", retry={"strategy": "immediate"}, max_attempts=len(handlers))
        await run_until_idle(worker, queue)
        found = await queue.get(task.id)
    assert found.status == "completed", found.result
    return found


async def test_transcript_outlives_the_attempt(store_url: str) -> None:
    entries: list[Any] = [{"type": "user", "message": {"content": "a \u0000 in a file"}}, answer("m1", 7)]

    async def first(ctx: Context) -> None:
        transcript = await Transcript.open(ctx, "claude")
        assert transcript.prompt("go") == "go"
        await transcript.append(KEY, entries)
        await transcript.append({**KEY, "subpath": "subagents/agent-1"}, [{"type": "user"}])

    async def second(ctx: Context) -> None:
        transcript = await Transcript.open(ctx, "claude")
        assert transcript.id == "s"
        assert await transcript.load({**KEY, "project_key": "another machine"}) == entries
        assert await transcript.list_subkeys({"project_key": "p", "session_id": "s"}) == ["subagents/agent-1"]
        assert transcript.prompt("go") == CONTINUE

    task = await in_task(store_url, first, second)
    assert task.tokens_used == {"input": 15, "output": 7}


async def test_deferred_call_is_continued_without_a_prompt(sqlite_url: str) -> None:
    waiting = DeferredToolUse("toolu_1", "Bash", {"command": "ls"})

    async def first(ctx: Context) -> None:
        transcript = await Transcript.open(ctx, "claude")
        await transcript.append(KEY, [answer("m1", 7)])
        await transcript.finish(result(deferred_tool_use=waiting))

    async def second(ctx: Context) -> None:
        transcript = await Transcript.open(ctx, "claude")
        assert transcript.result is not None
        assert transcript.result.deferred_tool_use == waiting
        assert transcript.prompt("go") is None
        done = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "x"}
        entry: Any = {"type": "user", "message": {"content": [done]}}
        await transcript.append(KEY, [entry])

    async def third(ctx: Context) -> None:  # killed after the call and before the result: there is nothing to take up
        assert (await Transcript.open(ctx, "claude")).prompt("go") == CONTINUE

    await in_task(sqlite_url, first, second, third)


async def test_usage_is_booked_once_and_settled_by_the_result(sqlite_url: str) -> None:
    async def first(ctx: Context) -> None:
        transcript = await Transcript.open(ctx, "claude")
        await transcript.append(KEY, [answer("m1", 1), answer("m1", 7), answer("m2", 3)])
        counted = {"inputTokens": 20, "outputTokens": 12, "cacheReadInputTokens": 10, "cacheCreationInputTokens": 0}
        await transcript.finish(result(0.5, model_usage={"claude-sonnet-4-5": counted}))

    async def second(ctx: Context) -> None:
        transcript = await Transcript.open(ctx, "claude")
        counted = {"inputTokens": 21, "outputTokens": 13, "cacheReadInputTokens": 10, "cacheCreationInputTokens": 0}
        await transcript.finish(result(0.75, model_usage={"claude-sonnet-4-5": counted}))

    task = await in_task(sqlite_url, first, second)
    assert task.tokens_used == {"input": 31, "output": 13}
    assert task.cost_usd == pytest.approx(0.75)


def test_rate_limit_is_passed_on_with_its_reset() -> None:
    resets = int(time.time()) + 7200
    turn = _Turn(None, _Guard(()), ClaudeAgentOptions(), None)  # type: ignore[arg-type]  # it is not looked at
    turn._limit = {"status": "rejected", "resetsAt": resets, "rateLimitType": "five_hour"}
    refused = result(is_error=True, api_error_status=429, result="You've hit your session limit")
    failure = turn._failure(refused)
    signal = provider_limits.read(failure.error, failure.data, time.time(), UTC)
    assert failure.reason == "agent_error"
    assert signal is not None
    assert signal.resets_at == pytest.approx(resets, abs=1)


async def test_second_call_that_needs_approval_has_to_wait() -> None:
    guard = _Guard(lambda tool, arguments: tool == "Bash" and "rm" in arguments["command"])

    async def decide(call: str, command: str) -> Any:
        event: Any = {"hook_event_name": "PreToolUse", "tool_name": "Bash", "tool_input": {"command": command}}
        given = (await guard(event, call, {"signal": None})).get("hookSpecificOutput", {})
        assert isinstance(given, dict)
        return given.get("permissionDecision")

    assert [await decide("1", "ls"), await decide("2", "rm a"), await decide("3", "rm b")] == [None, "defer", "deny"]


PARENT = """
import subprocess, sys
from claude_agent_sdk import ClaudeAgentOptions
from shiftwork.integrations.claude_agent_sdk.claude_run import tied_to_this_process
with tied_to_this_process(ClaudeAgentOptions(cli_path=sys.argv[1])) as tied:
    subprocess.run([str(tied.cli_path), "--print"])
"""


async def test_program_ends_when_its_worker_is_killed(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\necho $$ $@\nexec sleep 600\n")
    program.chmod(0o700)
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PARENT, str(program), stdout=asyncio.subprocess.PIPE
    )
    assert parent.stdout is not None
    pid, *given = (await parent.stdout.readline()).decode().split()
    assert given == ["--print"]
    parent.kill()
    await parent.wait()
    await until(lambda: not _runs(int(pid)))


def _runs(pid: int) -> bool:
    """Return whether the process runs and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
