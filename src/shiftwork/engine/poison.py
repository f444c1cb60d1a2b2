"""Detects poison tasks: one that fails with several agents is not retried."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shiftwork.settings.model import Poison


def is_poison(poison: Poison | None, agents: Iterable[str], failures: int) -> bool:
    """Whether `failures` failed attempts under these agents show that the task itself is at fault."""
    if poison is None or failures < poison.min_attempts:
        return False
    return len(set(agents)) >= poison.min_agents
