"""Lanes: sets of ready tasks that the same agents can claim."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from shiftwork.batches.model import AGENTS as BATCH_AGENTS
from shiftwork.store.store import Row, Store, Tx

TARGETED = 1 << 30
"""Lanes of tasks for one agent have ids from here on; a claim looks up its own instead of walking all."""

SHARED_LIMIT = 256
"""Shared lanes of a workspace. Beyond it a type's work goes into one mixed lane that is matched row by row."""


Serial = Literal["agent_type", "key"]


class LaneKey(NamedTuple):
    """Everything that decides who may take a task."""

    workspace: str
    type: str
    capabilities: tuple[str, ...]
    models: tuple[str, ...]
    rate: float
    target_agent_id: str | None
    mixed: bool = False
    fallback: tuple[str, ...] = ()
    """Models to use while all of `models` are in cooldown."""
    share: int | None = None
    """Its fair share."""
    serial: Serial | None = None
    """Whether its tasks run one after another, and by which key."""

    def key_hash(self) -> str:
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()[:32]

    def mix(self) -> LaneKey:
        return self._replace(capabilities=(), models=(), fallback=(), mixed=True)


class Lane(NamedTuple):
    id: int
    key: LaneKey


class ClaimFilter(NamedTuple):
    """What an agent can do and is willing to take; an absent condition is true. Models are a preference of tasks."""

    agent_id: str
    types: frozenset[str] | None
    capabilities: frozenset[str]
    models: frozenset[str]

    def fits(self, type_: str, capabilities: Collection[str], target: str | None) -> bool:
        """An agent that stands for a provider's batches takes only what is in the batch lane."""
        return (
            (self.types is None or type_ in self.types)
            and (target == self.agent_id or (target is None and self.agent_id not in BATCH_AGENTS))
            and self.capabilities.issuperset(capabilities)
        )

    def may_take(self, lane: Lane) -> bool:
        key = lane.key
        return self.fits(key.type, key.capabilities, key.target_agent_id)

    def text(self) -> str:
        """The form in which it is stored with the agent."""
        stated = [None if names is None else sorted(names) for names in (self.types, self.capabilities, self.models)]
        return msgspec.json.encode(stated).decode()


def filter_of(agent: Row) -> ClaimFilter:
    """What an agent that is not claiming now registered."""
    types = None if agent["types"] is None else frozenset(msgspec.json.decode(agent["types"]))
    able, models = (frozenset(msgspec.json.decode(agent[name])) for name in ("capabilities", "models"))
    return ClaimFilter(agent["id"], types, able, models)


def requested_by(agent: Row) -> ClaimFilter:
    """What an agent asked for in its last claim; if unknown, what it registered."""
    if agent["asked"] is None:
        return filter_of(agent)
    types, able, models = msgspec.json.decode(agent["asked"], type=tuple[list[str] | None, list[str], list[str]])
    return ClaimFilter(agent["id"], None if types is None else frozenset(types), frozenset(able), frozenset(models))


def lane_key(
    workspace: str,
    type_: str,
    capabilities: Iterable[str],
    models: Iterable[str],
    rate: float,
    target: str | None,
    fallback: Iterable[str] = (),
    *,
    share: int | None = None,
    serial: Serial | None = None,
) -> LaneKey:
    needs, wants, others = (tuple(sorted(set(names))) for names in (capabilities, models, fallback))
    return LaneKey(workspace, type_, needs, wants, rate, target, fallback=others, share=share, serial=serial)


class LaneRegistry:
    """Lanes known to this process. They never change, so they are kept forever."""

    def __init__(self) -> None:
        self._by_key: dict[LaneKey, int] = {}
        self._by_id: dict[int, Lane] = {}

    async def intern(self, store: Store, keys: Collection[LaneKey]) -> dict[LaneKey, int]:
        """Ids of these lanes, made in a transaction of their own so that no submitter waits for another's."""
        unknown = [key for key in keys if key not in self._by_key]
        if unknown:
            found = await store.run(lambda tx: self.intern_in(tx, unknown))
            self._by_key.update(found)
        return self.known(keys)

    def known(self, keys: Iterable[LaneKey]) -> dict[LaneKey, int]:
        """Ids of lanes already interned."""
        return {key: self._by_key[key] for key in keys}

    async def intern_in(self, tx: Tx, keys: Collection[LaneKey]) -> dict[LaneKey, int]:
        """The same inside a verb. Not remembered: the transaction may still be rolled back."""
        found = {key: self._by_key[key] for key in keys if key in self._by_key}
        missing = sorted((key for key in keys if key not in found), key=LaneKey.key_hash)  # the same in every process
        if missing:
            found.update(await _find(tx, missing))
            for key in missing:
                if key not in found:
                    found[key] = await _make(tx, key)
        return found

    async def lanes(self, tx: Tx, ids: Sequence[int]) -> list[Lane]:
        unknown = [(id_,) for id_ in ids if id_ not in self._by_id]
        if unknown:
            for row in await tx.all("read_lanes", items=unknown):
                self._remember(row)
        return [self._by_id[id_] for id_ in ids if id_ in self._by_id]

    def all(self) -> list[Lane]:
        """Shared lanes of all workspaces, as known to this process."""
        return [lane for lane in self._by_id.values() if lane.id < TARGETED]

    def might_take(self, lane_id: int, workspace: str, claim_filter: ClaimFilter) -> bool:
        """Whether a claim should look at a lane that got work; the agent's registration is not known here."""
        lane = self._by_id.get(lane_id)
        meant_for_it = lane is None or lane.key.target_agent_id in {None, claim_filter.agent_id}
        return meant_for_it and self.might_hold(lane_id, workspace, claim_filter.types)

    def might_hold(self, lane_id: int, workspace: str, types: frozenset[str] | None) -> bool:
        """Whether a lane belongs to this workspace and to these types, for any agent."""
        lane = self._by_id.get(lane_id)
        return lane is None or (lane.key.workspace == workspace and (types is None or lane.key.type in types))

    def _remember(self, row: Row) -> Lane:
        lane = Lane(row["id"], _key_of(row))
        self._by_id[lane.id] = lane
        return lane


def _key_of(row: Row) -> LaneKey:
    def names(text: str) -> tuple[str, ...]:
        return tuple(msgspec.json.decode(text, type=list[str]))

    return LaneKey(
        row["workspace"],
        row["type"],
        names(row["capabilities"]),
        names(row["models"]),
        row["rate"],
        row["target_agent_id"],
        bool(row["mixed"]),
        names(row["fallback"]),
        row["share"],
        row["serial"],
    )


async def _find(tx: Tx, keys: Collection[LaneKey]) -> dict[LaneKey, int]:
    wanted = {key.key_hash(): key for key in keys}
    rows = await tx.all("find_lanes", items=[(signature,) for signature in wanted])
    return {wanted[row["signature"]]: row["id"] for row in rows}


async def _make(tx: Tx, key: LaneKey) -> int:
    await tx.advisory_lock("lanes")
    again = await _find(tx, [key])  # another process may have created it while we waited for the lock
    if again:
        return again[key]
    counts = await tx.one("next_lane_ids", bound=TARGETED, workspace=key.workspace)
    assert counts is not None
    if key.target_agent_id is None and counts["taken"] >= SHARED_LIMIT and not key.mixed:
        return (await _find_or_make(tx, key.mix()))[key.mix()]
    number = int(counts["shared" if key.target_agent_id is None else "targeted"]) + 1
    await tx.insert("insert_lanes", [_lane_row(number, key)])
    if key.share is not None:
        await tx.run("add_turns", workspace=key.workspace)
    return number


async def _find_or_make(tx: Tx, key: LaneKey) -> dict[LaneKey, int]:
    return await _find(tx, [key]) or {key: await _make(tx, key)}


def _lane_row(number: int, key: LaneKey) -> tuple[Any, ...]:
    def text(names: tuple[str, ...]) -> str:
        return msgspec.json.encode(names).decode()

    return (
        number,
        key.key_hash(),
        key.workspace,
        key.type,
        text(key.capabilities),
        text(key.models),
        text(key.fallback),
        key.rate,
        key.target_agent_id,
        key.mixed,
        key.share,
        key.serial,
    )


async def wake_all(tx: Tx, workspace: str) -> None:
    """Wake all waiting claims of this workspace: there may be work now."""
    for lane in await tx.all("lanes_of_workspace", workspace=workspace):
        tx.wake(lane["id"])
