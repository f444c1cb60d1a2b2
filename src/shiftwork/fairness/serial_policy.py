"""Serial execution: the key whose tasks run one after another."""

from __future__ import annotations

from typing import Literal

Kind = Literal["agent_type", "key"]


def kind(serialize_by: Kind | None, serial_key: str | None) -> Kind | None:
    """The kind of key that serializes a task; a task without a key runs in parallel with all others."""
    return None if serialize_by == "key" and serial_key is None else serialize_by


def key(by: Kind, type_: str, serial_key: str | None) -> str:
    """The key, in which a type and a caller's key never collide."""
    return f"type:{type_}" if by == "agent_type" else f"key:{serial_key}"
