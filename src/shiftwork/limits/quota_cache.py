"""Per-process cache of workspace quotas and their usage."""

from __future__ import annotations

import time
from typing import NamedTuple

from shiftwork.store.store import Tx

FRESH_SEC = 1.0
"""How long a quota set by another process may go unnoticed."""


class QuotaUsage(NamedTuple):
    """The counted use, and what was added since."""

    tasks: int
    bytes: int
    counted_at: float


class QuotaCache:
    """Caches which workspaces have a quota."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[float, bool]] = {}
        self.counted: dict[str, tuple[float, QuotaUsage]] = {}
        """The last count, cached here because a refused submission stores nothing."""

    async def has(self, tx: Tx, workspace: str) -> bool:
        known = self._known.get(workspace)
        if known is None or time.monotonic() >= known[0]:
            found = await tx.one("read_quota", workspace=workspace) is not None
            known = self._known[workspace] = time.monotonic() + FRESH_SEC, found
        return known[1]

    def forget(self, workspace: str) -> None:
        self._known.pop(workspace, None)
        self.counted.pop(workspace, None)
