"""Chooses a task's model: a preferred one, a fallback, or another of the agent; never one in cooldown."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from enum import IntEnum
from typing import NamedTuple


class ModelFit(IntEnum):
    """How well a model suits a task; smaller is better."""

    PREFERRED = 0
    FALLBACK = 1
    OTHER = 2


class Choice(NamedTuple):
    model: str
    standing: ModelFit
    """If it is not preferred, the task waits for an agent with a better one until its patience runs out."""


def choose(
    preferences: Sequence[str], fallback: Sequence[str], has: Collection[str], rests: Callable[[str], bool]
) -> Choice | None:
    """The model for this agent now, or None if all it could use are in cooldown; an agent that names no models can use
    all.

    A fallback counts as preferred for an agent whose own preferred models are in cooldown, and for all agents if all
    preferred ones are.
    """
    able = [model for model in preferences if not has or model in has]
    if awake := _first_awake(able, rests):
        return Choice(awake, ModelFit.PREFERRED)
    is_fallback = bool(able) or all(map(rests, preferences))
    if awake := _first_awake((model for model in fallback if not has or model in has), rests):
        return Choice(awake, ModelFit.PREFERRED if is_fallback else ModelFit.FALLBACK)
    listed = {*preferences, *fallback}
    awake = _first_awake(sorted(model for model in has if model not in listed), rests)
    return None if awake is None else Choice(awake, ModelFit.OTHER)


def _first_awake(models: Iterable[str], rests: Callable[[str], bool]) -> str | None:
    return next((model for model in models if not rests(model)), None)
