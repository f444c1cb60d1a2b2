"""What travels over HTTP about snapshots."""

from __future__ import annotations

import msgspec

from shiftwork.queue.snapshots import Snapshot


class SnapshotList(msgspec.Struct, frozen=True):
    """The newest first."""

    snapshots: list[Snapshot]
