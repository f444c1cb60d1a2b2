"""Accounts and their windows, as callers see them."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from shiftwork.model.task import Fields, Name

Unit = Literal["tokens", "usd", "tasks"]
State = Literal["available", "resting", "refused"]


class NewWindow(Fields):
    """A window of a known size: an amount per period, counted from the usage that attempts report."""

    name: Name
    """`minute`, `five_hour`, `day` and `seven_day` have their length; other names need one."""
    unit: Unit
    capacity: Annotated[float, Meta(gt=0, le=1e15)]
    length_sec: Annotated[float, Meta(ge=1, le=366 * 86_400)] | None = None
    model: Name | None = None
    """Set if the window applies to this model only."""


class Window(msgspec.Struct, frozen=True):
    """A window of an account, and how far it is used."""

    name: str
    model: str | None
    unit: Unit | None
    """Null if it is only known from the provider's reports."""
    capacity: float | None
    used: float | None
    """In its unit."""
    utilization: float
    """0 to 1; above 1 if more was used than the window allows."""
    length_sec: float | None
    resets_at: float | None
    """Null while it is unused."""


class Account(msgspec.Struct, frozen=True):
    """An account at a provider: whether work can use it, which agents use it, and its windows."""

    provider: str
    account: str
    state: State
    """`resting` until a time; `refused` until its credentials are renewed."""
    until: float | None
    reason: str | None
    running: int
    """Tasks running on it now."""
    agents: list[str]
    windows: list[Window]
