"""Claude Agent SDK: a conversation whose transcript and result are steps of a task.

`await run(ctx, prompt, options)` in a handler takes the place of `query`.
"""

from shiftwork.integrations.claude_agent_sdk.claude_run import run

__all__ = ["run"]
