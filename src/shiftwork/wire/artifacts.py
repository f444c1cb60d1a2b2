"""What travels about artifacts, besides their bytes."""

from __future__ import annotations

import msgspec

from shiftwork.queue.content.artifacts import Attached
from shiftwork.queue.content.inputs import Input


class AttachedList(msgspec.Struct, frozen=True):
    """The artifacts a task refers to."""

    artifacts: list[Attached]


class InputList(msgspec.Struct, frozen=True):
    """What the references of a task lead to."""

    inputs: list[Input]
