"""Snapshots as they are shown."""

from __future__ import annotations

import msgspec


class Snapshot(msgspec.Struct, frozen=True):
    """The whole queue, all its workspaces, as it was at `created_at`."""

    name: str
    created_at: float
    size: int
    checksum: str
    schema: str
