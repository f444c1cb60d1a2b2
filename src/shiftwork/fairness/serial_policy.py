"""Serial execution: by which key tasks run one after another."""

from __future__ import annotations

from typing import Literal

Kind = Literal["agent_type", "key"]


def kind(serialize_by: Kind | None, serial_key: str | None) -> Kind | None:
    """By which key a task is serialized; one without a key runs in parallel with all others."""
    return None if serialize_by == "key" and serial_key is None else serialize_by


def key(by: Kind, type_: str, serial_key: str | None) -> str:
    """The key, under which a type and a name of the caller never meet."""
    return f"type:{type_}" if by == "agent_type" else f"key:{serial_key}"
