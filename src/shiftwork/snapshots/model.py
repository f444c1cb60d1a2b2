"""Snapshots, as callers see them."""

from __future__ import annotations

import msgspec


class Snapshot(msgspec.Struct, frozen=True):
    """The whole queue, with all its workspaces, at `created_at`."""

    name: str
    created_at: float
    size: int
    checksum: str
    schema: str
