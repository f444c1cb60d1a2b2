"""Affinity: of tasks of equal rank an agent gets those of its last type first, unless others have less to do."""

from __future__ import annotations

from collections.abc import Sequence

from shiftwork.core.settings import Settings
from shiftwork.queue.lanes import Lane
from shiftwork.store.store import Row, Tx

NOBODY: dict[int, float] = {}


async def favours(tx: Tx, agent: Row, lanes: Sequence[Lane], settings: Settings) -> dict[int, float]:
    """By lane, how many seconds older its tasks count for this agent.

    Rank goes before it, and so does a task that is older by more than that: nothing waits for an agent's liking.
    """
    if not settings.affinity_sec:
        return NOBODY
    alike = [lane for lane in lanes if lane.key.type == agent["last_type"]]
    if not alike or len(alike) == len(lanes) or await _has_more_than_others(tx, agent, settings):
        return NOBODY
    return {lane.id: settings.affinity_sec for lane in alike}


async def _has_more_than_others(tx: Tx, agent: Row, settings: Settings) -> bool:
    since = tx.now - (settings.heartbeat_timeout_sec or settings.agent_timeout_sec or 90)
    return await tx.one("lighter_agent", workspace=agent["workspace"], id=agent["id"], since=since) is not None
