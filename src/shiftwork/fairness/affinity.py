"""Affinity: prefers an agent whose last task was similar.

It decides which agent gets a task, not which task goes first: a single agent takes tasks in order.
"""

from __future__ import annotations

from collections.abc import Sequence

from shiftwork.engine.lanes import Lane, requested_by
from shiftwork.fairness import patience
from shiftwork.settings.model import Settings
from shiftwork.store.store import Row, Tx

NONE: dict[int, float] = {}


async def affinity_bonus(tx: Tx, agent: Row, lanes: Sequence[Lane], settings: Settings) -> dict[int, float]:
    """Return, by lane, how many seconds its tasks count as older for this agent; negative if they suit another better.

    Rank takes precedence, and so does a task that is older by more than that, so that no task waits for long.
    """
    if not settings.affinity_sec or len(lanes) == 1:
        return NONE
    unlike = [lane for lane in lanes if lane.key.type != agent["last_type"]]
    names = {"workspace": agent["workspace"], "id": agent["id"]}
    asking = await tx.all("asking_agents", **names, since=tx.now - patience.ASKING_SEC) if unlike else ()
    others = [(other["last_type"], requested_by(other)) for other in asking]
    suited = [lane for lane in unlike if any(type_ == lane.key.type and w.may_take(lane) for type_, w in others)]
    if not suited or await _has_more_than_others(tx, agent, settings):
        return NONE
    return {lane.id: -settings.affinity_sec for lane in suited}


async def _has_more_than_others(tx: Tx, agent: Row, settings: Settings) -> bool:
    since = tx.now - (settings.heartbeat_timeout_sec or settings.agent_timeout_sec or 90)
    return await tx.one("lighter_agent", workspace=agent["workspace"], id=agent["id"], since=since) is not None
