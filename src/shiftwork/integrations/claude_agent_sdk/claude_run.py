"""Runs Claude on a prompt inside a task: turns, approvals and failures."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import Any, Self

import claude_agent_sdk
from claude_agent_sdk import (
    ClaudeAgentOptions,
    HookContext,
    HookInput,
    HookJSONOutput,
    HookMatcher,
    Message,
    RateLimitEvent,
    ResultMessage,
    query,
)
from claude_agent_sdk.types import PreToolUseHookSpecificOutput

from shiftwork.integrations import agent_run
from shiftwork.integrations.agent_run import Decision
from shiftwork.integrations.claude_agent_sdk.transcript import Transcript
from shiftwork.model import reasons
from shiftwork.model.times import Duration
from shiftwork.providers.provider_limits import PROVIDER_ERROR
from shiftwork.worker.context import Context, Fail

_TIE = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""


@contextmanager
def tied_to_this_process(options: ClaudeAgentOptions) -> Iterator[ClaudeAgentOptions]:
    """Options under which Linux kills the program when this process dies. On other systems they are unchanged."""
    program = _program(options)
    if sys.platform != "linux" or program is None:
        yield options
        return
    with tempfile.TemporaryDirectory(prefix="shiftwork-claude-") as folder:
        script = Path(folder) / "claude"
        line = shlex.join([sys.executable, "-ISc", _TIE, str(os.getpid()), program])
        script.write_text(f'#!/bin/sh\nexec {line} "$@"\n')
        script.chmod(0o700)
        yield dataclasses.replace(options, cli_path=script)


def _program(options: ClaudeAgentOptions) -> str | None:
    """The program named in the options, bundled with the SDK, or on the PATH. If None, the SDK reports the error."""
    bundled = Path(claude_agent_sdk.__file__).parent / "_bundled" / "claude"
    if options.cli_path is not None:
        return str(options.cli_path)
    return str(bundled) if bundled.exists() else shutil.which("claude")


NeedsApproval = Collection[str] | Callable[[str, dict[str, Any]], bool]
REFUSED = "A person has refused this call."
ONE_AT_A_TIME = "Another call waits for a person. Repeat this call when that one is done."


async def run(
    ctx: Context,
    prompt: str,
    options: ClaudeAgentOptions | None = None,
    *,
    needs_approval: NeedsApproval = (),
    approval_timeout_sec: Duration | None = None,
    on_message: Callable[[Message], Awaitable[None] | None] | None = None,
    name: str = "claude",
) -> ResultMessage:
    """Run Claude on a prompt and return its result. A later attempt gets the stored result, or continues.

        The transcript is mirrored into steps of the task, so any machine can continue the conversation where it
        stopped.
    Usage is booked with the steps. A call of a tool that `needs_approval` names, or returns True for, becomes a
    question to a person; the program ends, and the slot is released until they answer.
    """
    transcript = await Transcript.open(ctx, name)
    guard = _Guard(needs_approval)
    while True:
        last = transcript.result
        if last is not None and last.deferred_tool_use is None:
            return last
        if last is not None and last.deferred_tool_use is not None:
            waiting = last.deferred_tool_use
            guard.decided[waiting.id] = await agent_run.ask_approval(
                ctx, waiting.name, waiting.input, waiting.id, approval_timeout_sec
            )
        turn = _Turn(transcript, guard, options or ClaudeAgentOptions(), on_message)
        await transcript.finish(await turn.take(transcript.prompt(prompt)))


class _Guard:
    """A hook before each tool call: calls that need approval are deferred until a person has decided."""

    def __init__(self, needs_approval: NeedsApproval) -> None:
        self._needs_approval = needs_approval
        self.decided: dict[str, Decision] = {}
        self.deferred: str | None = None

    async def __call__(self, event: HookInput, tool_use_id: str | None, _: HookContext) -> HookJSONOutput:
        if event["hook_event_name"] != "PreToolUse" or not self._asks(event["tool_name"], event["tool_input"]):
            return {}
        call_id = tool_use_id or event["tool_use_id"]
        answer: PreToolUseHookSpecificOutput = {"hookEventName": "PreToolUse", "permissionDecision": "defer"}
        if (decided := self.decided.get(call_id)) is not None:
            answer["permissionDecision"] = "allow" if decided.approved else "deny"
            answer["permissionDecisionReason"] = decided.note or ("approved" if decided.approved else REFUSED)
        elif self.deferred not in {None, call_id}:
            answer["permissionDecision"] = "deny"
            answer["permissionDecisionReason"] = ONE_AT_A_TIME
        else:
            self.deferred = call_id
        return {"hookSpecificOutput": answer}

    def _asks(self, tool: str, arguments: dict[str, Any]) -> bool:
        needed = self._needs_approval
        return needed(tool, arguments) if callable(needed) else tool in needed


class _Silence:
    """Empty input that stays open: the program reads its hooks' answers from the same pipe."""

    def __init__(self, over: asyncio.Event) -> None:
        self._over = over

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> dict[str, Any]:
        await self._over.wait()
        raise StopAsyncIteration


class _Turn:
    """One run of the program."""

    def __init__(
        self,
        transcript: Transcript,
        guard: _Guard,
        options: ClaudeAgentOptions,
        on_message: Callable[[Message], Awaitable[None] | None] | None,
    ) -> None:
        self._transcript = transcript
        self._guard = guard
        self._options = options
        self._on_message = on_message
        self._limit: dict[str, Any] | None = None
        self._over = asyncio.Event()

    async def take(self, prompt: str | None) -> ResultMessage:
        """Run the turn and return its result. Without a prompt, the program resumes the call that it deferred."""
        self._guard.deferred = None
        hooks = dict(self._options.hooks or {})
        hooks["PreToolUse"] = [*hooks.get("PreToolUse", []), HookMatcher(hooks=[self._guard])]
        known = self._transcript.id if self._transcript.begun else None
        options = dataclasses.replace(
            self._options,
            hooks=hooks,
            resume=known,
            session_id=None if known else self._transcript.id,
            session_store=self._transcript,
            session_store_flush="eager",
        )
        with tied_to_this_process(options) as tied:
            input_ = _Silence(self._over) if prompt is None else prompt
            result = await self._listen(query(prompt=input_, options=tied))
        if result is None or result.is_error:
            raise self._failure(result)
        return result

    async def _listen(self, messages: AsyncIterator[Message]) -> ResultMessage | None:
        result: ResultMessage | None = None
        async with aclosing(messages) as stream:  # type: ignore[type-var]  # the SDK's is a generator
            async for message in stream:
                if isinstance(message, RateLimitEvent) and message.rate_limit_info.status == "rejected":
                    self._limit = message.rate_limit_info.raw
                if isinstance(message, ResultMessage):
                    result = message
                    self._over.set()
                if self._on_message is not None and inspect.isawaitable(listening := self._on_message(message)):
                    await listening
        return result

    def _failure(self, result: ResultMessage | None) -> Fail:
        """The failure, with the facts that show the queue whether the provider caused it."""
        if result is None:
            return Fail(reasons.AGENT_ERROR, "the program ended without a result")
        facts: dict[str, Any] = {"status": result.api_error_status} if result.api_error_status else {}
        facts |= {"rate_limit_info": self._limit} if self._limit else {}
        error = result.result or "; ".join(result.errors or []) or result.subtype
        return Fail(reasons.AGENT_ERROR, error, data={PROVIDER_ERROR: facts} if facts else None)
