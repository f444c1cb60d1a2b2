"""Everything a provider's limit said, with the account and the model that it is about.

It is in the events `queue.slowdown` and `cooldown.started` as `signal`. What counts the windows of accounts reads it.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from shiftwork.providers.provider_messages import Kind, Scope

PROVIDER_WINDOW = "provider_window"
"""Under this name our own workers put a `WindowState` into the data of a message."""


class LimitSignal(msgspec.Struct, frozen=True, omit_defaults=True):
    """A refusal, completed from the agent's registration and its claim."""

    kind: Kind
    scope: Scope
    provider: str | None = None
    account: str | None = None
    model: str | None = None
    window: str | None = None
    """Which of the account's windows is used up, e.g. five_hour."""
    utilization: float | None = None
    resets_at: float | None = None
    """The time that the provider named, in seconds since 1970."""
    wait_sec: float = 0.0
    """How long work on it is held back, as the settings bound it."""


class WindowState(msgspec.Struct, frozen=True, omit_defaults=True):
    """How far a window of an account is used, as an agent reports it also while its work goes well."""

    window: str
    status: Literal["allowed", "allowed_warning", "rejected"] = "allowed"
    utilization: float | None = None
    resets_at: float | None = None
    provider: str | None = None
    account: str | None = None
    model: str | None = None
