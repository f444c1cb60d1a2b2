"""What travels over HTTP about triggers, besides the records of the queue's own verbs."""

from __future__ import annotations

import msgspec

from shiftwork.core.task import Name
from shiftwork.core.trigger import Firing, NewTrigger, Trigger


class TriggerBody(NewTrigger):
    """A trigger to be saved; the secret is for a hook, which otherwise keeps its own or gets one."""

    secret: Name | None = None


class TriggerList(msgspec.Struct, frozen=True):
    """Triggers by name."""

    triggers: list[Trigger]


class FiringList(msgspec.Struct, frozen=True):
    """The newest first."""

    firings: list[Firing]
