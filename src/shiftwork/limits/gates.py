"""Gates: what closes whole lanes for now, for a claim and for `explain`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from shiftwork.engine import model_choice, retry
from shiftwork.limits.model import Closed, GateName
from shiftwork.model import keys
from shiftwork.model.keys import Key
from shiftwork.providers.prices import usual_cost

if TYPE_CHECKING:
    from shiftwork.engine.lanes import ClaimFilter, Lane
    from shiftwork.settings.resolve import Resolver
    from shiftwork.store.store import Row, Tx

WHOLE = "*"
NAMES: dict[str, GateName] = {
    "pause": "paused",
    "breaker": "breaker_open",
    "cooldown": "cooldown",
    "limit": "limit",
    "account": "account",
}
"""The message to callers for each kind of closed gate."""

OF_TYPES = frozenset({"pause", "breaker"})
"""Gates for a type or for everything; the others are for a key of provider, account, model and type."""


def is_shut(gate: Row, now: float) -> bool:
    return gate["until"] is None or bool(gate["until"] > now)


class Gates:
    """The gates and limits of a workspace that apply to one agent."""

    def __init__(
        self, rows: Iterable[Row], resolver: Resolver, agent: Row, claim_filter: ClaimFilter, now: float
    ) -> None:
        self.closed: list[Closed] = []
        self.slow_down_sec: float | None = None
        self.on_trial: set[str] = set()
        """Half-open types, of which one task may run as a test."""
        self.limits: list[Key] = []
        self.has_spare = True
        """Whether the account has quota that would lapse; types with `use_before_reset` run only then."""
        self._stopped: set[str] = set()
        self._resting: list[Key] = []
        self._suited: dict[int, bool] = {}
        self._resolver = resolver
        self._agent = agent
        self._wants = claim_filter
        self._now = now
        for row in rows:
            self._add(row)

    def _add(self, row: Row) -> None:
        kind, scope, until = row["kind"], row["scope"], row["until"]
        if kind == "limited":
            self.limits.append(keys.parse(scope))
        elif row["agent_id"] in {"", self._agent["id"]}:
            shut = is_shut(row, self._now)
            if kind == "slowdown" and shut:
                self.slow_down_sec = max(self.slow_down_sec or 0.0, until - self._now)
            elif kind == "breaker" and self._resolver.settings(scope).circuit_breaker is None:
                return  # the breaker was switched off while open
            elif kind == "breaker" and not shut:
                self.on_trial.add(scope)
            elif shut and kind in NAMES:
                self._close(kind, scope, until)

    def _close(self, kind: str, scope: str, until: float | None) -> None:
        self.closed.append(Closed(NAMES[kind], scope, until))
        if kind in OF_TYPES:
            self._stopped.add(scope)
        else:
            self._resting.append(keys.parse(scope))

    def open_for(self, lane: Lane) -> bool:
        """Whether this agent may take work of this lane now."""
        key = lane.key
        if WHOLE in self._stopped or key.type in self._stopped:
            return False
        if not self.has_spare and self._resolver.settings(key.type).use_before_reset:
            return False
        if not self._resting:
            return self._wants.may_take(lane)
        return self._wants.may_take(lane) and self.may_work_on(key.type, key.models, key.fallback)

    def prefers_lane(self, lane: Lane) -> bool:
        """Whether this agent has a model that the tasks of this lane prefer, or they prefer none."""
        if not lane.key.models:
            return True
        if lane.id not in self._suited:
            choice = self.choose(lane.key.type, lane.key.models, lane.key.fallback)
            self._suited[lane.id] = choice is not None and choice.standing == model_choice.ModelFit.PREFERRED
        return self._suited[lane.id]

    def use(self, type_: str, model: str | None = None) -> Key:
        """The key that this agent's work on such a task would use."""
        return Key(self._agent["provider"], self._agent["account"], model, type_)

    def rests(self, use: Key) -> bool:
        return any(key.covers(use) for key in self._resting)

    def model_for(self, row: Row, lane: Lane) -> str | None:
        """The model to work with, if the task restricts its models; only then is its body read."""
        if not lane.key.models and not lane.key.mixed:
            return None
        constraints = (msgspec.json.decode(row["body"]).get("spec") or {}).get("constraints") or {}
        fallback = constraints.get("fallback_models", ())
        preferences = retry.models(constraints.get("model_preferences", ()), fallback, row["attempts"])
        if not preferences:
            return None
        others = retry.fallback(fallback, row["attempts"])
        order = constraints.get("model_order") or self._resolver.settings(row["type"]).model_order
        if order == "cheapest":
            by_price = sorted({*preferences, *others}, key=lambda name: (usual_cost(name), name))
            preferences, others = tuple(by_price), ()
        choice = self.choose(row["type"], preferences, others)
        return None if choice is None else choice.model

    def may_work_on(self, type_: str, preferences: Sequence[str], fallback: Sequence[str]) -> bool:
        """Whether nothing that the work would use is in cooldown."""
        if not preferences:
            return not self.rests(self.use(type_))
        return self.choose(type_, preferences, fallback) is not None

    def choose(self, type_: str, preferences: Sequence[str], fallback: Sequence[str]) -> model_choice.Choice | None:
        """The model that this agent would use for such a task."""
        return self.choose_for(self._agent, self._wants, type_, preferences, fallback)

    def choose_for(
        self, agent: Row, claim_filter: ClaimFilter, type_: str, preferences: Sequence[str], fallback: Sequence[str]
    ) -> model_choice.Choice | None:
        """The model that another agent would use, as far as known here: a cooldown may apply only to that agent."""

        def rests(model: str) -> bool:
            return self.rests(Key(agent["provider"], agent["account"], model, type_))

        return model_choice.choose(preferences, fallback, claim_filter.models, rests)


async def wake(tx: Tx, workspace: str, opened: Iterable[Key]) -> None:
    """Wake waiting claims because a gate of these keys is open again."""
    wanted = list(opened)
    lanes = await tx.all("lanes_of_workspace", workspace=workspace) if wanted else []
    for lane in lanes:
        if any(_concerns(key, lane) for key in wanted):
            tx.wake(lane["id"])


def _concerns(key: Key, lane: Row) -> bool:
    if key.type not in {None, lane["type"]}:
        return False
    return key.model is None or lane["mixed"] or key.model in _names(lane["models"]) + _names(lane["fallback"])


def _names(text: str) -> list[str]:
    names: list[str] = msgspec.json.decode(text)
    return names


def key_of(kind: str, scope: str) -> Key:
    """What a gate applies to; everything if it is closed for all."""
    if kind in OF_TYPES:
        return Key() if scope == WHOLE else Key(type=scope)
    return keys.parse(scope)


class Reason(NamedTuple):
    """Describes why a ready task is not handed out, and what would change that."""

    kind: str
    what: str
    lifts: str
    until: float | None


def reasons(
    rows: Sequence[Row], resolver: Resolver, lane: Lane, able: Sequence[tuple[Row, ClaimFilter]], now: float
) -> list[Reason]:
    """The closed gates that keep a lane from every agent that could take its work."""
    views = [Gates(rows, resolver, agent, claim_filter, now) for agent, claim_filter in able]
    if any(view.open_for(lane) for view in views):
        return []
    shut = [row for row in rows if row["kind"] in NAMES and is_shut(row, now)]
    return [_reason(row) for row in shut if _keeps(row, resolver, lane, [agent for agent, _ in able])]


def _keeps(row: Row, resolver: Resolver, lane: Lane, able: Sequence[Row]) -> bool:
    key, of = key_of(row["kind"], row["scope"]), lane.key
    if row["kind"] == "breaker" and resolver.settings(row["scope"]).circuit_breaker is None:
        return False
    if key.type not in {None, of.type} or (key.model is not None and key.model not in of.models + of.fallback):
        return False
    if row["agent_id"] and row["agent_id"] not in {agent["id"] for agent in able}:
        return False
    mine = Key(key.provider, key.account)
    return mine == Key() or any(mine.covers(Key(agent["provider"], agent["account"])) for agent in able)


def _reason(row: Row) -> Reason:
    kind, scope, until = row["kind"], row["scope"], row["until"]
    if kind == "pause":
        where = "the whole queue" if scope == WHOLE else f"type {scope}"
        text = row["reason"] or "no reason given"
        return Reason("paused", f"{where} is paused by {row['closed_by']}: {text}", "resume it", until)
    if kind == "breaker":
        lifts = "the time passes and one task succeeds, or the breaker is reset"
        return Reason("breaker_open", f"the circuit breaker of type {scope} is open ({row['reason']})", lifts, until)
    if kind == "cooldown":
        who = f"agent {row['agent_id']}" if row["agent_id"] else "everyone"
        what = f"{scope} cools down for {who}: {row['reason'] or 'no reason given'}"
        lifts = "the time passes, or the cooldown is lifted"
        return Reason(
            "cooldown", what, lifts if until is not None else "its key is renewed and the cooldown lifted", until
        )
    if kind == "account":
        return Reason("account", f"{scope} rests: {row['reason']}", "the window resets", until)
    assert kind == "limit", f"`explain` has no words for a gate of kind {kind!r}"
    lifts = "a task that uses it ends" if until is None else "the time passes"
    return Reason("limit", f"the limit of {scope} is reached", f"{lifts}, or the limit is raised", until)
