"""Hooks around a claim: another system may hand out the same tasks and must be asked first."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from shiftwork.engine.claim import ClaimAnswer
from shiftwork.settings.model import Settings

if TYPE_CHECKING:
    from shiftwork.operation.local import Call

Look = Callable[[], Awaitable[ClaimAnswer]]
Hook = Callable[["Call", Settings, Look], Awaitable[ClaimAnswer]]
"""Gets the workspace's settings and the claim, which it runs at most once."""

_hooks: list[Hook] = []


def around_claims(hook: Hook) -> Hook:
    """Run the decorated coroutine around every claim."""
    _hooks.append(hook)
    return hook


async def run(call: Call, settings: Settings, look: Look) -> ClaimAnswer:
    for hook in _hooks:
        look = functools.partial(hook, call, settings, look)
    return await look()
