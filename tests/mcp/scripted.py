"""An agent that follows the worker's prompt as a model would, without one."""

from __future__ import annotations

from typing import Any

from tests.mcp.talking import Agent

PAGE = [
    {"type": "research", "key": "facts", "title": "Find the facts"},
    {"type": "write", "key": "text", "dependencies": ["facts"], "context_refs": ["task:facts:output"]},
    {"type": "draw", "key": "picture", "dependencies": ["facts"]},
    {"type": "publish", "key": "page", "dependencies": ["text", "picture"]},
]
"""A DAG in which work is split, a person is asked, an attempt fails, and outputs are handed on."""


async def work_to_the_end(agent: Agent) -> list[str]:
    """Claim and complete tasks until none is left; return their types in order."""
    done: list[str] = []
    while "task" in (claimed := await agent("claim")):
        task = claimed["task"]
        result = await _do(agent, task)
        if result is not None:
            await agent("complete", token=task["token"], data=result)
            done.append(task["type"])
    return done


async def _do(agent: Agent, task: dict[str, Any]) -> Any:
    """Do the task; return its result, or None if it was released."""
    token, kind = task["token"], task["type"]
    if kind == "research":
        return await _research(agent, task)
    if kind == "write":
        (facts,) = task["inputs"]
        await agent("checkpoint", token=token, name="outline", result=["beginning", "end"])
        return {"words": facts["data"]["found"]}
    if kind == "draw" and "waits" not in task:
        await agent("ask_human", token=token, question="Which colour?", name="colour")
        (asked,) = (await agent("list", for_people=True))["tasks"]
        await agent("answer", task_id=asked["task_id"], value="blue")
        return None
    if kind == "draw":
        return {"colour": task["waits"][0]["value"]}
    if kind == "publish" and not task.get("last_error"):
        await agent("fail", token=token, error="the site did not answer", reason="agent_error")
        return None
    return {"seen": task.get("payload", {}).get("person", kind)}


async def _research(agent: Agent, task: dict[str, Any]) -> Any:
    if "subtasks" not in task:
        people = [{"type": "ask", "key": name, "payload": {"person": name}} for name in ("Ada", "Grace")]
        await agent("spawn", token=task["token"], tasks=people, wait=True)
        return None
    return {"found": [child["data"]["seen"] for child in task["subtasks"]]}
