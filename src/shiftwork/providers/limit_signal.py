"""A provider's limit, with the account and the model that it applies to.

The events `queue.slowdown` and `cooldown.started` contain it as `signal`, from which account windows are updated.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from shiftwork.providers.provider_messages import Kind, Scope

PROVIDER_WINDOW = "provider_window"
"""The key under which our workers put a `WindowState` into the data of a message."""


class LimitSignal(msgspec.Struct, frozen=True, omit_defaults=True):
    """A refusal, completed from the agent's registration and its claim."""

    kind: Kind
    scope: Scope
    provider: str | None = None
    account: str | None = None
    model: str | None = None
    window: str | None = None
    """The window of the account that is used up, e.g. five_hour."""
    utilization: float | None = None
    resets_at: float | None = None
    """The reset time that the provider named, in seconds since 1970."""
    wait_sec: float = 0.0
    """How long work is held back, within the bounds of the settings."""


class WindowState(msgspec.Struct, frozen=True, omit_defaults=True):
    """How far a window of an account is used; agents can report it at any time, not only on failure."""

    window: str
    status: Literal["allowed", "allowed_warning", "rejected"] = "allowed"
    utilization: float | None = None
    resets_at: float | None = None
    provider: str | None = None
    account: str | None = None
    model: str | None = None
