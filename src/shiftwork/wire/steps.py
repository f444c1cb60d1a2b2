"""What callers send and get over HTTP about steps and effects."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from shiftwork.core.task import Fields, Name, Text, Usage
from shiftwork.queue.durable.effects import LONGEST_KEY, Effect
from shiftwork.queue.durable.steps import Step
from shiftwork.wire.shapes import Held

Key = Annotated[str, Meta(min_length=1, max_length=LONGEST_KEY)]


class BeginStepBody(Held, kw_only=True):
    name: Name


class StepBody(Held, kw_only=True):
    name: Name
    result: Any = None
    usage: Usage | None = None


class StepList(msgspec.Struct, frozen=True):
    steps: list[Step]


class BeginEffectBody(Held, kw_only=True):
    """The effect by its name inside the task, or by a key that means the same everywhere in the workspace."""

    name: Name | None = None
    key: Key | None = None


class FinishEffectBody(Held, kw_only=True):
    key: Key
    result: Any = None
    happened: bool = True


class ResolveBody(Fields, kw_only=True):
    """What a person found out about an effect."""

    key: Key
    happened: bool
    result: Any = None
    note: Text | None = None


class EffectList(msgspec.Struct, frozen=True):
    effects: list[Effect]
