"""A model on 127.0.0.1 that follows a script and counts what it was asked, and the tools that agents call.

The script is a list of tool calls; the next one follows from the tool results in the request, so a resumed conversation
gets the same answers. After the last one the model answers `WORDS`.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from aiohttp import web

WORDS = "It rains in Oslo."
TOKENS_IN, TOKENS_OUT = 120, 30
"""Of each answer."""


class ToolCall(NamedTuple):
    """A tool call of the model."""

    tool: str
    arguments: dict[str, Any]


FORECAST = [ToolCall("weather", {"city": "Oslo"}), ToolCall("publish", {"text": WORDS})]


class ModelServer:
    """OpenAI's Responses and Anthropic's Messages, and `POST /tools/NAME` for what the tools do."""

    def __init__(self, script: list[ToolCall]) -> None:
        self.script = script
        self.answered: list[str] = []
        """For each request of an agent that was answered: the tool called, or `words`."""
        self.tools: list[str] = []
        """The tools that were called, in their order."""
        self.kill_at: list[int | str] = []
        """Kill the worker instead of answering: at the request after so many answers; `end`: once the agent is done."""
        self.before_kill: Callable[[], Awaitable[None]] | None = None
        """What must be so before a worker is killed in the middle."""
        self.worker: int | None = None
        """The process that works now, as it has said."""
        self.last = ""
        """The last request, as JSON."""
        self.url = ""

    async def responses(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.last = json.dumps(body, ensure_ascii=False)
        done = sum(each.get("type") == "function_call_output" for each in body["input"] if isinstance(each, dict))
        if not await self._answers(done):
            return web.Response(status=503)
        item = self._response_item(body, done)
        used: dict[str, Any] = {"input_tokens": TOKENS_IN, "output_tokens": TOKENS_OUT}
        used |= {"total_tokens": TOKENS_IN + TOKENS_OUT}
        used |= {"input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0}}
        used |= {"output_tokens_details": {"reasoning_tokens": 0}}
        known = {"id": f"resp_{done}", "object": "response", "created_at": 1_790_000_000, "model": body["model"]}
        more = {"parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
        return web.json_response({**known, **more, "status": "completed", "output": [item], "usage": used})

    def _response_item(self, body: dict[str, Any], done: int) -> dict[str, Any]:
        if done >= len(self.script):
            content = [{"type": "output_text", "text": WORDS, "annotations": []}]
            return {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed", "content": content}
        wanted = self.script[done]
        known = {"type": "function_call", "id": f"fc_{done}", "call_id": f"call_{done}", "status": "completed"}
        return {**known, "name": offered(body, wanted.tool), "arguments": json.dumps(wanted.arguments)}

    async def messages(self, request: web.Request) -> web.StreamResponse:
        """Anthropic's stream. Claude Code also asks for titles and the like, without tools: these are not counted."""
        body = await request.json()
        self.last = json.dumps(body, ensure_ascii=False)
        blocks = [block for each in body["messages"] for block in each["content"] if isinstance(block, dict)]
        done = sum(block.get("type") == "tool_result" for block in blocks)
        if body.get("tools") and not await self._answers(done):
            return web.Response(status=503)
        answer = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await answer.prepare(request)
        for event in self._events(body, done if body.get("tools") else len(self.script)):
            await answer.write(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())
        return answer

    def _events(self, body: dict[str, Any], done: int) -> Iterator[dict[str, Any]]:
        known = {"id": f"msg_{done}", "type": "message", "role": "assistant", "model": body["model"], "content": []}
        begun = {**known, "stop_reason": None, "stop_sequence": None}
        yield {"type": "message_start", "message": {**begun, "usage": {"input_tokens": TOKENS_IN, "output_tokens": 1}}}
        if done >= len(self.script):
            block: dict[str, Any] = {"type": "text", "text": ""}
            delta = {"type": "text_delta", "text": WORDS}
            reason = "end_turn"
        else:
            wanted = self.script[done]
            block = {"type": "tool_use", "id": f"toolu_{done}", "name": offered(body, wanted.tool), "input": {}}
            delta = {"type": "input_json_delta", "partial_json": json.dumps(wanted.arguments)}
            reason = "tool_use"
        yield {"type": "content_block_start", "index": 0, "content_block": block}
        yield {"type": "content_block_delta", "index": 0, "delta": delta}
        yield {"type": "content_block_stop", "index": 0}
        ended = {"stop_reason": reason, "stop_sequence": None}
        yield {"type": "message_delta", "delta": ended, "usage": {"output_tokens": TOKENS_OUT}}
        yield {"type": "message_stop"}

    async def _answers(self, done: int) -> bool:
        """Whether the request is answered, and counted; or the worker is killed."""
        if await self._kills(len(self.answered)):
            return False
        self.answered.append(self.script[done].tool if done < len(self.script) else "words")
        return True

    async def tool(self, request: web.Request) -> web.Response:
        self.tools.append(request.match_info["name"])
        return web.Response(text="rain")

    async def begin(self, request: web.Request) -> web.Response:
        self.worker = int(request.match_info["pid"])
        return web.Response()

    async def end(self, _: web.Request) -> web.Response:
        return web.Response(status=503 if await self._kills("end") else 200)

    async def _kills(self, now: int | str) -> bool:
        if self.worker is None or self.kill_at[:1] != [now]:
            return False
        del self.kill_at[0]
        if self.before_kill is not None:
            await self.before_kill()
        os.kill(self.worker, signal.SIGKILL)
        self.worker = None
        return True


def offered(body: dict[str, Any], tool: str) -> str:
    """The tool's name as the agent offers it; an MCP server puts its own name before it."""
    names = [str(each.get("name")) for each in body.get("tools") or []]
    return next((name for name in names if name == tool or name.endswith(f"__{tool}")), tool)


@asynccontextmanager
async def model_server(script: list[ToolCall] | None = None) -> AsyncIterator[ModelServer]:
    """The server on a free port."""
    server = ModelServer(FORECAST if script is None else script)
    app = web.Application(client_max_size=64 * 2**20)
    app.router.add_post("/v1/responses", server.responses)
    app.router.add_post("/v1/messages", server.messages)
    app.router.add_post("/begin/{pid}", server.begin)
    app.router.add_post("/end", server.end)
    app.router.add_post("/tools/{name}", server.tool)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield server
    finally:
        await runner.cleanup()
