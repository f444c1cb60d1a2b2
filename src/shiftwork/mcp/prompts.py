"""The MCP server's instructions, and its prompts."""

from __future__ import annotations

from typing import NamedTuple

from shiftwork.mcp.roles import Role

_WORKER = (
    "You can work on tasks of a durable queue. `claim` gives you one with a `token`; pass the token in every call "
    "about the task. Save expensive results with `checkpoint`. End each task with `complete`, `fail` or `release`. "
    "After `wait`, `ask_human` and `spawn` with `wait` the task is no longer yours. An error says what to do `next`: "
    "do that."
)
_SUBMITTER = (
    "You can submit work to a durable queue and follow it up. `submit` takes one task or several that depend on each "
    "other; `get` shows a task's state and the reason; `list` with `for_people` shows what waits for a person."
)
_PARTS: dict[Role, tuple[str, ...]] = {
    "worker": (_WORKER,),
    "submitter": (_SUBMITTER,),
    "all": (_WORKER, _SUBMITTER),
}


def instructions(role: Role) -> str:
    return "\n\n".join(_PARTS[role])


class Prompt(NamedTuple):
    """A prompt that a person can choose."""

    name: str
    role: Role
    description: str
    arguments: dict[str, str]
    text: str


PROMPTS: tuple[Prompt, ...] = (
    Prompt(
        "work",
        "worker",
        "Work through the queue, task after task.",
        {"types": "Only tasks of these types, separated by commas."},
        """Work through the task queue{types}.

1. Call `claim` with `wait_sec` 20. If there is no task twice in a row, stop and tell me what you did.
2. Read the task: its prompt, payload, inputs and last_error. If it has checkpoints, waits or subtasks, continue from
   there instead of starting over.
3. Do it. Before and after each expensive step call `checkpoint` with a name of its own. Call `heartbeat` with your
   progress at least every ten minutes; if it does not answer `continue`, stop this task at once.
4. If it is too large, `spawn` smaller tasks with a `key` each and `wait`. If you need a decision, use `ask_human`. In
   both cases the task is released: go to 1.
5. Submit the result with `complete`, or `fail` with what the next attempt should know. `release` what you cannot do.
6. If a call is refused, do what `next` says. Then go to 1.""",
    ),
    Prompt(
        "plan",
        "submitter",
        "Split a goal into tasks and submit them.",
        {"goal": "The goal."},
        """Split this goal into tasks for the queue: {goal}

Give each task a type, a title, a self-contained prompt, and a `key`; let tasks depend on others by key, and pass
outputs on with `context_refs` (`task:KEY:output`). Show me the plan; when I agree, send it with one call of `submit`,
and tell me the dag_id.""",
    ),
)


def prompts_for(role: Role) -> list[Prompt]:
    return [prompt for prompt in PROMPTS if role in {"all", prompt.role}]


def filled(prompt: Prompt, arguments: dict[str, str]) -> str:
    """The prompt with its arguments."""
    types = arguments.get("types", "").strip()
    return prompt.text.format(goal=arguments.get("goal", ""), types=f" (claim with types: {types})" if types else "")
