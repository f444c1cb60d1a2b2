"""Which model works on a task: a preferred one, else a fallback, that the agent has and that does not rest."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence


def choose(
    preferences: Sequence[str], fallback: Sequence[str], has: Collection[str], rests: Callable[[str], bool]
) -> str | None:
    """The model for this agent now, or None where it has to wait; an agent that names no models has them all.

    An agent that has none of the preferred models may fall back only when every one of them rests: else the task is
    for others.
    """
    able = [model for model in preferences if not has or model in has]
    for model in able:
        if not rests(model):
            return model
    if able or all(map(rests, preferences)):
        return next((model for model in fallback if (not has or model in has) and not rests(model)), None)
    return None
