"""Why a task is not running: each hold by name, with what would lift it."""

from __future__ import annotations

import msgspec

from shiftwork.core import ids
from shiftwork.core.errors import NotFound
from shiftwork.core.states import HELD, State
from shiftwork.core.task import dollars
from shiftwork.policy import rank
from shiftwork.queue.engine import Engine
from shiftwork.queue.lanes import Lane, Wants
from shiftwork.queue.read import PARTS
from shiftwork.queue.rows import TaskRow, load
from shiftwork.queue.work import own_settings
from shiftwork.store.store import Row, Tx


class Hold(msgspec.Struct, frozen=True):
    """One reason why a task waits."""

    kind: str
    what: str
    lifts: str
    until: float | None = None
    tasks: list[str] = []


class Explanation(msgspec.Struct, frozen=True):
    """A task's standing in a sentence, its holds, and its priority with its parts."""

    task_id: str
    status: str
    summary: str
    holds: list[Hold]
    effective_priority: float
    priority_parts: dict[str, float]
    position: int | None = None
    """How many ready tasks of its lane go before it."""
    able_agents: list[str] = []


async def explain(tx: Tx, engine: Engine, workspace: str, uuid: str) -> Explanation:
    raw = await tx.one("read_tasks", items=[(uuid,)])
    if raw is None or raw["workspace"] != workspace:
        raise NotFound(f"there is no task {ids.show_task(uuid)}", task_id=ids.show_task(uuid))
    row = load(raw)
    body = await tx.one("read_bodies", items=[(uuid,)])
    resolver = await engine.book.of(tx, workspace)
    own = own_settings(msgspec.json.decode(body["body"])) if row.own_settings and body else None
    parts = rank.parts(row.rank_facts(), resolver.settings(row.type, own), tx.now)
    agents = await tx.all("list_agents", workspace=workspace)
    lanes = await engine.lanes.lanes(tx, [row.lane])
    able = [agent for agent in agents if lanes and _able(agent, lanes[0])]
    holds = [*await _waiting(tx, row), *await _ready(tx, row, able, lanes)]
    position = await _position(tx, row) if row.status == State.READY and not row.hold else None
    return Explanation(
        task_id=ids.show_task(uuid),
        status=row.status,
        summary=_summary(row, holds, position),
        holds=holds,
        effective_priority=parts.effective,
        priority_parts={name: getattr(parts, name) for name in PARTS},
        position=position,
        able_agents=[agent["id"] for agent in able],
    )


def _able(agent: Row, lane: Lane) -> bool:
    types = None if agent["types"] is None else frozenset(msgspec.json.decode(agent["types"]))
    wants = Wants(
        agent["id"],
        types,
        frozenset(msgspec.json.decode(agent["capabilities"])),
        frozenset(msgspec.json.decode(agent["models"])),
    )
    return wants.may_take(lane)


async def _waiting(tx: Tx, row: TaskRow) -> list[Hold]:
    """Holds of a task that is not ready."""
    if row.status == State.PENDING:
        return await _dependencies(tx, row)
    if row.status == State.RETRYING:
        return [
            Hold(
                "retry",
                f"its next attempt waits after {row.failure_reason}",
                "the time passes",
                row.available_at,
            )
        ]
    if row.status == State.WAITING_APPROVAL:
        return [Hold("approval", "a person must approve it first", "approve or reject it")]
    if row.status == State.DEAD_LETTERED:
        return [
            Hold(
                "dead_letter",
                f"no attempts are left ({row.failure_reason})",
                "review it: retry, modify_and_retry or cancel",
            )
        ]
    if row.status == State.FAILED:
        return [Hold("failed", f"it rests failed ({row.failure_reason})", "rerun it")]
    return []


async def _dependencies(tx: Tx, row: TaskRow) -> list[Hold]:
    edges = await tx.all("edges_of", items=[(row.root_id,)])
    open_ = [edge for edge in edges if not edge["satisfied"]]
    if not open_:
        return [Hold("pending", "nothing is known to hold it", "report this: it is a bug")]
    missing = {edge["parent"]: edge["name"] for edge in await tx.all("missing_parents", items=[(row.root_id,)])}
    states = {s["root_id"]: s["status"] for s in await tx.all("lineage_states", items=[(e["parent"],) for e in open_])}
    holds = []
    for edge in open_:
        parent = ids.show_task(edge["parent"])
        if edge["parent"] in missing:
            holds.append(
                Hold(
                    "missing_dependency",
                    f"no task {missing[edge['parent']]} has been submitted",
                    "submit it, or change the dependencies",
                    tasks=[parent],
                )
            )
        else:
            kind = "child" if edge["waits"] else "dependency"
            status = states.get(edge["parent"], "unknown")
            holds.append(Hold(kind, f"it waits for {parent}, which is {status}", _lift(status), tasks=[parent]))
    return holds


def _lift(status: str) -> str:
    if status in {State.DEAD_LETTERED, State.FAILED}:
        return "a person retries that task, or changes the dependencies"
    return "rerun that task, or change the dependencies" if status == State.CANCELLED else "that task completes"


async def _ready(tx: Tx, row: TaskRow, able: list[Row], lanes: list[Lane]) -> list[Hold]:
    """Holds of a task that could be claimed but is not."""
    if row.status != State.READY:
        return []
    holds = []
    if row.hold:
        holds.append(Hold(row.hold, f"held back: {row.hold}", "whoever closed this opens it"))
    for gate in await tx.all("read_gates", workspace=row.workspace):
        if gate["scope"] in {"*", row.type}:
            where = "the whole queue" if gate["scope"] == "*" else f"type {row.type}"
            holds.append(
                Hold(
                    "paused",
                    f"{where} is paused by {gate['closed_by']}: {gate['reason'] or 'no reason given'}",
                    "resume it",
                )
            )
    if not able:
        needs = _needs(lanes)
        holds.append(
            Hold(
                "no_agent",
                f"no registered agent can take it{needs}",
                "register an agent that has what it needs",
            )
        )
        return holds
    willing = [agent for agent in able if agent["status"] == "active"]
    if not willing:
        holds.append(
            Hold(
                "agents_away",
                "every agent that could take it is draining, offline or failed",
                "set one active",
            )
        )
    elif all(_is_full(agent) for agent in willing):
        holds.append(
            Hold(
                "capacity",
                "every agent that could take it holds as much as it may",
                "one of them finishes, or another joins",
            )
        )
    elif row.cost_limit is not None and all(_is_short(agent, row.cost_limit) for agent in willing):
        holds.append(
            Hold(
                "budget",
                f"no able agent has {dollars(row.cost_limit):.2f} USD left",
                "raise an agent's budget",
            )
        )
    return holds


def _needs(lanes: list[Lane]) -> str:
    if not lanes:
        return ""
    key = lanes[0].key
    wanted = [f"type {key.type}", *(f"capability {c}" for c in key.capabilities)]
    if key.models:
        wanted.append("one of the models " + ", ".join(key.models))
    if key.target_agent_id:
        wanted.append(f"being agent {key.target_agent_id}")
    return ": it needs " + ", ".join(wanted)


def _is_full(agent: Row) -> bool:
    limit = agent["max_concurrent_tasks"]
    return limit is not None and agent["current_tasks"] >= limit


def _is_short(agent: Row, cost: int) -> bool:
    return agent["budget"] is not None and agent["budget"] - agent["spent"] - agent["reserved"] < cost


async def _position(tx: Tx, row: TaskRow) -> int:
    before = await tx.one("ahead_in_lane", lane=row.lane, rank=row.rank, ordered_at=row.ordered_at, id=row.id)
    return int(before["ahead"]) if before else 0


def _summary(row: TaskRow, holds: list[Hold], position: int | None) -> str:
    if row.status in HELD:
        return f"{row.status} by {row.agent_id}"
    if row.status in {State.COMPLETED, State.CANCELLED}:
        return row.status + (f": {row.cancel_reason}" if row.cancel_reason else "")
    if holds:
        return "; ".join(hold.what for hold in holds)
    return f"ready, with {position} task{'s' if position != 1 else ''} before it in its lane"
