"""Records facts about an agent's work on the request's span, with the attributes of the GenAI conventions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shiftwork import tracing
from shiftwork.model.task import Usage

_SAME = {
    "agent_id": "gen_ai.agent.name",
    "provider": "gen_ai.provider.name",
    "model": "gen_ai.request.model",
    "session_id": "gen_ai.conversation.id",
}


def note(values: Mapping[str, Any]) -> None:
    """Use the queue's own attributes for tokens: the agent's span already counts them."""
    if not tracing.is_on():
        return
    facts: dict[str, Any] = {ours: values[name] for name, ours in _SAME.items() if isinstance(values.get(name), str)}
    if isinstance(used := values.get("usage"), Usage):
        facts |= {"gen_ai.response.model": used.model, "shiftwork.tokens_in": used.tokens_in}
        facts |= {"shiftwork.tokens_out": used.tokens_out, "shiftwork.cost_usd": used.cost_usd}
    tracing.annotate(facts)
