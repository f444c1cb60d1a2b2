"""What callers send and get about breakers, cooldowns and limits, besides the records of the queue's own verbs."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from shiftwork.core.task import Fields, Text
from shiftwork.queue.protection.protect import Breaker, Cooldown, LimitInForce

LONGEST_COOLDOWN_SEC = 366 * 86_400


class BreakerList(msgspec.Struct, frozen=True):
    breakers: list[Breaker]


class CooldownList(msgspec.Struct, frozen=True):
    cooldowns: list[Cooldown]


class CooldownBody(Fields, kw_only=True):
    seconds: Annotated[float, Meta(gt=0, le=LONGEST_COOLDOWN_SEC)]
    reason: Text | None = None


class Lifted(msgspec.Struct, frozen=True):
    lifted: bool


class LimitList(msgspec.Struct, frozen=True):
    limits: list[LimitInForce]


class Removed(msgspec.Struct, frozen=True):
    removed: bool
