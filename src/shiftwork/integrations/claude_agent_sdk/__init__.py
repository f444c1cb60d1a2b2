"""Claude Agent SDK: a conversation whose transcript and result are steps of a task.

In a handler, call `await run(ctx, prompt, options)` instead of `query`.
"""

from shiftwork.integrations.claude_agent_sdk.claude_run import run

__all__ = ["run"]
