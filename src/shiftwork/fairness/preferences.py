"""Preferences: a task waits a few seconds for an agent that suits it better, while such an agent is claiming.

A retry prefers an agent other than the one that failed, or its own runtime; an output prefers a judge that did not
produce it; a task prefers agents that have its models; a task that is not urgent prefers an agent whose account has
much more left. None of them is a requirement: after the wait, any able agent takes the task.

Affinity prefers an agent whose last task was similar. It decides which agent gets a task, not which task goes first: a
single agent takes tasks in order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from shiftwork.engine import model_choice as models
from shiftwork.engine import rank, retry
from shiftwork.engine.lanes import ClaimFilter, Lane, requested_by
from shiftwork.engine.unit_of_work import own_settings
from shiftwork.fairness import policy
from shiftwork.model.keys import Key
from shiftwork.settings.model import Settings
from shiftwork.store.store import Row, Tx
from shiftwork.validation import policy as verdict

if TYPE_CHECKING:
    from shiftwork.accounts.choice import AccountUse
    from shiftwork.engine.engine import Engine
    from shiftwork.limits.gates import Gates

Suits = Callable[["Row", ClaimFilter], bool]
"""Whether another agent suits a task better."""


class Needs(NamedTuple):
    """A task's requirements and preferences for its agent; models as of its next attempt."""

    capabilities: Sequence[str]
    models: Sequence[str] = ()
    fallback: Sequence[str] = ()


def needs_of(row: Row, lane: Lane, body: Mapping[str, Any] | None) -> Needs:
    """Read them from the lane, or, in a mixed lane, from the task's body."""
    if not lane.key.mixed:
        return Needs(lane.key.capabilities, lane.key.models, lane.key.fallback)
    constraints = ((body or {}).get("spec") or {}).get("constraints") or {}
    fallback = constraints.get("fallback_models", ())
    preferred = retry.models(constraints.get("model_preferences", ()), fallback, row["attempts"])
    rest = retry.fallback(fallback, row["attempts"]) if preferred else ()
    return Needs(constraints.get("required_capabilities", ()), preferred, rest)


class Wait(NamedTuple):
    """Why an agent does not get a task yet, until when, and which agents it is kept for."""

    why: str
    until: float
    agents: Sequence[str]


class Preferences:
    """Decides which tasks wait for an agent other than this one."""

    def __init__(self, tx: Tx, engine: Engine, use: AccountUse, gates: Gates, runtime_id: str | None) -> None:
        self._tx = tx
        self._engine = engine
        self._use = use
        self._agent = use.agent
        self._gates = gates
        self._runtime_id = runtime_id
        self._others: list[tuple[Row, ClaimFilter]] | None = None
        self._groups: dict[str, str | None] = {}
        self._kept: defaultdict[str, set[str]] = defaultdict(set)
        """By agent: the tasks kept for it because its account has more left."""
        self.soonest: float | None = None
        """When the first waiting task becomes available to any agent."""

    def concern(self, row: Row, lane: Lane) -> bool:
        """Whether a preference could keep this task from this agent; most tasks have none."""
        if row["last_agent_id"] is not None or lane.key.mixed or not self._gates.prefers_lane(lane):
            return True
        return self._use.fleet is not None and rank.level(row["priority"]) != "high"

    def concern_new(self, lane: Lane) -> bool:
        """The same for tasks of this lane that no agent has had yet."""
        return lane.key.mixed or not self._gates.prefers_lane(lane) or self._use.fleet is not None

    @staticmethod
    def reads_body(row: Row, lane: Lane) -> bool:
        return bool(lane.key.mixed or row["own_settings"] or row["type"] == verdict.JUDGE)

    async def wait(self, row: Row, lane: Lane, body: Mapping[str, Any] | None) -> Wait | None:
        """The wait of a task that is kept for other agents; None if this agent may take it."""
        needs = needs_of(row, lane, body)
        settings = await self._settings(row, body)
        until = policy.wait_until(row["updated_at"], settings)
        if self._tx.now >= until:
            return None
        found = await self._kept_for(row, needs, settings, body)
        if found is None:
            return None
        self.soonest = until if self.soonest is None else min(until, self.soonest)
        return Wait(found[0], until, found[1])

    async def _settings(self, row: Row, body: Mapping[str, Any] | None) -> Settings:
        resolver = await self._engine.settings_cache.load(self._tx, row["workspace"])
        return resolver.settings(row["type"], own_settings(dict(body)) if row["own_settings"] and body else None)

    async def _kept_for(
        self, row: Row, needs: Needs, settings: Settings, body: Mapping[str, Any] | None
    ) -> tuple[str, Sequence[str]] | None:
        preference = settings.retry.agent_preference
        author = verdict.author_of(body) if body is not None and row["type"] == verdict.JUDGE else None
        last = row["last_agent_id"]
        if author is not None and await self._is_like(author):
            if others := await self._asking(row, needs, lambda other, _: self._is_apart(other)):
                return f"{author} produced the output to be judged", others
        elif last is not None and preference == "different" and await self._is_like(last):
            if others := await self._asking(row, needs, lambda other, _: other["id"] != last and self._is_apart(other)):
                return f"{last} failed at it", others
        elif last is not None and preference == "same_runtime" and await self._runtime_waits(row, settings):
            return f"runtime {row['last_runtime_id']} has its session", [row["last_runtime_id"]]
        return await self._better_models(row, needs) or await self._more_left(row, needs, settings)

    async def _better_models(self, row: Row, needs: Needs) -> tuple[str, Sequence[str]] | None:
        if not needs.models:
            return None
        own = self._gates.choose(row["type"], needs.models, needs.fallback)
        if own is None or own.standing == models.ModelFit.PREFERRED:
            return None

        def has_better(other: Row, claim_filter: ClaimFilter) -> bool:
            theirs = self._gates.choose_for(other, claim_filter, row["type"], needs.models, needs.fallback)
            return theirs is not None and theirs.standing < own.standing

        others = await self._asking(row, needs, has_better)
        return (f"{self._agent['id']} has none of the models it prefers", others) if others else None

    async def _more_left(self, row: Row, needs: Needs, settings: Settings) -> tuple[str, Sequence[str]] | None:
        """Urgent work uses any account; other work leaves nearly exhausted accounts to it."""
        if self._use.name is None or rank.level(row["priority"]) == "high":
            return None
        workspace, now = self._agent["workspace"], self._tx.now
        own = self._gates.choose(row["type"], needs.models, needs.fallback) if needs.models else None

        def may_work(view: Row, claim_filter: ClaimFilter) -> bool:
            if not needs.models:
                return not self._gates.rests(Key(view["provider"], view["account"], None, row["type"]))
            theirs = self._gates.choose_for(view, claim_filter, row["type"], needs.models, needs.fallback)
            return theirs is not None and (own is None or theirs.standing <= own.standing)

        def has_more(other: Row, claim_filter: ClaimFilter) -> bool:
            better = self._use.clearly_better(other, workspace, now, spare_only=settings.use_before_reset)
            rooms = [use.room(now) for use in better if may_work(use.agent, claim_filter)]
            return bool(rooms) and self._is_free_for(row, other, max(rooms))

        others = await self._asking(row, needs, has_more)
        if not others:
            return None
        self._kept[others[0]].add(row["id"])
        return f"their accounts have more left than {self._use.name.key().text}", others

    def _is_free_for(self, row: Row, other: Row, room: float) -> bool:
        """Whether the other agent has room for it besides tasks already kept for it; if not, the task must not wait."""
        kept = self._kept[other["id"]]
        free = room if other["free_slots"] is None else min(room, other["free_slots"])
        return row["id"] in kept or len(kept) < free

    async def _asking(self, row: Row, needs: Needs, suits: Suits) -> list[str]:
        """Other free agents that are claiming such work and suit it better."""
        if self._others is None:
            names = {"workspace": self._agent["workspace"], "id": self._agent["id"]}
            found = await self._tx.all("asking_agents", **names, since=self._tx.now - policy.ASKING_SEC)
            self._others = [(other, requested_by(other)) for other in found]
        type_, target = row["type"], row["target_agent_id"]
        return [
            other["id"]
            for other, claim_filter in self._others
            if claim_filter.fits(type_, needs.capabilities, target) and suits(other, claim_filter)
        ]

    async def _is_like(self, agent_id: str) -> bool:
        """Whether the agents are the same, or of the same isolation group."""
        if agent_id == self._agent["id"] or self._agent["isolation_group"] is None:
            return bool(agent_id == self._agent["id"])
        if agent_id not in self._groups:
            found = await self._tx.one("read_agent", workspace=self._agent["workspace"], id=agent_id)
            self._groups[agent_id] = None if found is None else found["isolation_group"]
        return bool(self._groups[agent_id] == self._agent["isolation_group"])

    def _is_apart(self, other: Row) -> bool:
        return other["isolation_group"] is None or other["isolation_group"] != self._agent["isolation_group"]

    async def _runtime_waits(self, row: Row, settings: Settings) -> bool:
        if row["last_runtime_id"] in {None, self._runtime_id}:
            return False
        runtime = await self._tx.one("read_runtime", workspace=row["workspace"], id=row["last_runtime_id"])
        recently = self._tx.now - (settings.runtime_offline_sec or 75)
        return runtime is not None and runtime["status"] == "active" and bool(runtime["seen_at"] >= recently)


def decoded(body: str) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.json.decode(body)
    return found


NONE: dict[int, float] = {}


async def affinity_bonus(tx: Tx, agent: Row, lanes: Sequence[Lane], settings: Settings) -> dict[int, float]:
    """Return, by lane, how many seconds its tasks count as older for this agent; negative if they suit another better.

    Rank takes precedence, and so does a task that is older by more than that, so that no task waits for long.
    """
    if not settings.affinity_sec or len(lanes) == 1:
        return NONE
    unlike = [lane for lane in lanes if lane.key.type != agent["last_type"]]
    names = {"workspace": agent["workspace"], "id": agent["id"]}
    asking = await tx.all("asking_agents", **names, since=tx.now - policy.ASKING_SEC) if unlike else ()
    others = [(other["last_type"], requested_by(other)) for other in asking]
    suited = [lane for lane in unlike if any(type_ == lane.key.type and w.may_take(lane) for type_, w in others)]
    if not suited or await _has_more_than_others(tx, agent, settings):
        return NONE
    return {lane.id: -settings.affinity_sec for lane in suited}


async def _has_more_than_others(tx: Tx, agent: Row, settings: Settings) -> bool:
    since = tx.now - (settings.heartbeat_timeout_sec or settings.agent_timeout_sec or 90)
    return await tx.one("lighter_agent", workspace=agent["workspace"], id=agent["id"], since=since) is not None
