"""An agent that speaks the Agent Client Protocol, written with its SDK: obeys its prompt, in its folder.

Its sessions are files, so that a later process can load them.
"""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import acp
from acp import schema

HOME = Path(os.environ["ACP_AGENT_HOME"])


class Agent:
    """Counts the prompts of a session; `write` asks for permission, `fail` answers with an error, `hang` waits."""

    def __init__(self) -> None:
        self._client: Any = None
        self._cancelled = asyncio.Event()

    def on_connect(self, conn: Any) -> None:
        self._client = conn

    async def initialize(self, protocol_version: int, **_: Any) -> Any:
        able = schema.AgentCapabilities(load_session=True)
        return schema.InitializeResponse(protocol_version=protocol_version, agent_capabilities=able)

    async def new_session(self, cwd: str, **_: Any) -> Any:
        session_id = _free_id()
        self._write(session_id, {"cwd": cwd, "prompts": []})
        return schema.NewSessionResponse(session_id=session_id)

    async def load_session(self, session_id: str, **_: Any) -> Any:
        if not (HOME / f"{session_id}.json").exists():
            raise acp.RequestError(-32_002, "Resource not found")
        await self._say(session_id, "this was said long ago")
        return schema.LoadSessionResponse()

    async def prompt(self, session_id: str, prompt: list[Any], **_: Any) -> Any:
        text = prompt[0].text
        known = json.loads((HOME / f"{session_id}.json").read_text())
        known["prompts"].append(text)
        self._write(session_id, known)
        if text == "fail":
            raise acp.RequestError(-32_603, "Internal error", {"details": "429 Too Many Requests, retry-after: 600"})
        if text == "login":
            raise acp.RequestError.auth_required()
        if text == "hang":
            await self._say(session_id, "waiting")
            await self._cancelled.wait()
            (HOME / "cancelled").write_text(session_id)
            return schema.PromptResponse(stop_reason="cancelled")
        if text == "die":
            if len(known["prompts"]) == 1:
                await self._say(session_id, "about to die")
                os._exit(3)
            await self._say(session_id, "back again")
            return schema.PromptResponse(stop_reason="end_turn")
        wrote = await self._write_file(session_id, Path(known["cwd"]))
        await self._say(session_id, f"It is {wrote}")
        await self._say(session_id, f" after {len(known['prompts'])}.")
        usage = schema.Usage(input_tokens=70, output_tokens=7, total_tokens=77)
        return schema.PromptResponse(stop_reason="end_turn", usage=usage)

    async def _write_file(self, session_id: str, cwd: Path) -> str:
        call: dict[str, Any] = {"tool_call_id": "call-1", "title": "write made.txt", "kind": "edit"}
        call["raw_input"] = {"path": "made.txt"}
        start = schema.ToolCallStart(session_update="tool_call", status="pending", **call)
        await self._client.session_update(session_id=session_id, update=start)
        options = [
            schema.PermissionOption(option_id="yes", name="Allow", kind="allow_once"),
            schema.PermissionOption(option_id="no", name="Reject", kind="reject_once"),
        ]
        asked = schema.ToolCallUpdate(**call)
        answer = await self._client.request_permission(session_id=session_id, tool_call=asked, options=options)
        if getattr(answer.outcome, "option_id", None) != "yes":
            return "refused"
        (cwd / "made.txt").write_text("made\n")
        return "written"

    async def _say(self, session_id: str, words: str) -> None:
        await self._client.session_update(session_id=session_id, update=acp.update_agent_message_text(words))

    async def cancel(self, **_: Any) -> None:
        self._cancelled.set()

    @staticmethod
    def _write(session_id: str, known: dict[str, Any]) -> None:
        (HOME / f"{session_id}.json").write_text(json.dumps(known))


def _free_id() -> str:
    return f"acp-{len(list(HOME.glob('*.json')))}"


if __name__ == "__main__":
    sys.stderr.write("the agent is up\n")
    asyncio.run(acp.run_agent(Agent()))  # type: ignore[arg-type]  # it has what is called here
