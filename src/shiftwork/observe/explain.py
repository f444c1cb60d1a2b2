"""Why a task is not running: each hold by name, with what would lift it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from shiftwork.accounts import choice
from shiftwork.batches.policy import provider_of
from shiftwork.budgets import operations as budgets
from shiftwork.budgets.allocator import HOLD as HELD_BY_BUDGET
from shiftwork.engine import rank
from shiftwork.engine.engine import Engine
from shiftwork.engine.failed_ends import failed_dependencies
from shiftwork.engine.lanes import TARGETED, Lane, filter_of
from shiftwork.engine.read import PARTS
from shiftwork.engine.rows import TaskRow, load
from shiftwork.engine.unit_of_work import own_settings
from shiftwork.fairness import serial_keys
from shiftwork.fairness.policy import is_fair_share_on
from shiftwork.fairness.preferences import Needs, Preferences, needs_of
from shiftwork.limits import gates
from shiftwork.model import ids, reasons
from shiftwork.model.errors import NotFound
from shiftwork.model.states import FINAL, SETTLED, SLOT_STATES, State
from shiftwork.model.task import PUBLISHED, SCHEDULED
from shiftwork.model.times import shown
from shiftwork.observe import unavailable_agents
from shiftwork.observe.model import Blocker, Explanation, Share
from shiftwork.settings.model import Settings
from shiftwork.settings.resolve import Resolver
from shiftwork.store.store import Row, Tx
from shiftwork.waits import policy as guard
from shiftwork.waits import schedule


async def explain(tx: Tx, engine: Engine, workspace: str, uuid: str) -> Explanation:
    raw = await tx.one("read_tasks", items=[(uuid,)])
    if raw is None or raw["workspace"] != workspace:
        raise NotFound(f"there is no task {ids.show_task(uuid)}", task_id=ids.show_task(uuid))
    row = load(raw)
    body = await tx.one("read_bodies", items=[(uuid,)])
    resolver = await engine.settings_cache.load(tx, workspace)
    own = own_settings(msgspec.json.decode(body["body"])) if row.own_settings and body else None
    settings = resolver.settings(row.type, own)
    parts = rank.parts(row.rank_facts(), settings, tx.now)
    edges = await tx.all("edges_of", items=[(row.root_id,)])
    lanes = await engine.lanes.lanes(tx, [row.lane])
    case = _Case(raw, row, msgspec.json.decode(body["body"]) if body else {}, lanes[0], resolver)
    able = [agent for agent in await tx.all("list_agents", workspace=workspace) if _able(agent, case)]
    holds = [
        *await _waiting(tx, row, edges, settings),
        *await _ready(tx, engine, case, able),
        *await _in_batch(tx, row),
    ]
    in_line = row.status == State.READY and not row.hold
    position = await _position(tx, row) if in_line else None
    share = await _share(tx, engine, resolver, lanes[0]) if in_line else None
    return Explanation(
        task_id=ids.show_task(uuid),
        status=row.status,
        summary=_summary(row, holds, position, share),
        holds=holds,
        effective_priority=parts.effective,
        priority_parts={name: getattr(parts, name) for name in PARTS},
        position=position,
        able_agents=[agent["id"] for agent in able],
        share=share,
        failed_dependencies=failed_dependencies(edges),
    )


class _Case(NamedTuple):
    """The task in question, with the facts that decide which agents may take it."""

    raw: Row
    row: TaskRow
    body: dict[str, Any]
    lane: Lane
    resolver: Resolver

    @property
    def needs(self) -> Needs:
        return needs_of(self.raw, self.lane, self.body)


def _able(agent: Row, case: _Case) -> bool:
    return filter_of(agent).fits(case.row.type, case.needs.capabilities, case.row.target_agent_id)


async def _waiting(tx: Tx, row: TaskRow, edges: Sequence[Row], settings: Settings) -> list[Blocker]:
    """Holds of a task that is not ready."""
    if row.status == State.PENDING:
        holds = [*await _waits(tx, row), *await _dependencies(tx, row, edges, settings)]
        return holds or [Blocker("pending", "no known reason", "report this: it is a bug")]
    if row.status == State.RETRYING:
        return [
            Blocker(
                "retry",
                f"it waits for its retry after {row.failure_reason}",
                "the time passes",
                row.available_at,
            )
        ]
    if row.status == State.WAITING_APPROVAL:
        return await _approval(tx, row)
    if row.status == State.VALIDATING:
        return [await _verdict(tx, row)]
    if row.status in SETTLED and (newer := await _newer(tx, row)):
        return [Blocker("superseded", "it was retried as another task", "see that task", tasks=[newer])]
    return [hold] if (hold := _settled(row)) else []


async def _in_batch(tx: Tx, row: TaskRow) -> list[Blocker]:
    """The provider's batch that contains it, and since when."""
    held = row.status == State.RUNNING and provider_of(row.agent_id)
    batch = await tx.one("batch_of", task=row.id, fence=row.fence) if held else None
    if batch is None:
        return []
    since, until = batch["created_at"], batch["expires_at"]
    what = f"it waits in a batch at {batch['provider']} since {shown(since)}; at the latest until {shown(until)}"
    return [Blocker("batch", what, "the provider answers; otherwise any agent may take it", until)]


async def _newer(tx: Tx, row: TaskRow) -> str | None:
    """The current task of its lineage, instead of this one."""
    (newest,) = await tx.all("lineage_states", items=[(row.root_id,)])
    return None if newest["id"] == row.id else ids.show_task(newest["id"])


def _settled(row: TaskRow) -> Blocker | None:
    """Holds that only a person lifts."""
    if row.status == State.DEAD_LETTERED and row.failure_reason == reasons.DISPLACED:
        return Blocker(
            "displaced", "it was displaced by more urgent work", "it returns when there is room, or review it"
        )
    if row.status == State.DEAD_LETTERED:
        left = row.attempts < row.max_attempts
        what = f"{row.failure_reason} is not retried" if left else f"no attempts are left ({row.failure_reason})"
        return Blocker("dead_letter", what, "review it: retry, modify_and_retry or cancel")
    if row.status == State.FAILED:
        return Blocker("failed", f"it failed and is not retried ({row.failure_reason})", "rerun it")
    return None


async def _waits(tx: Tx, row: TaskRow) -> list[Blocker]:
    """The waits of its last attempt."""
    holds = []
    for wait in await tx.all("open_waits_of", items=[(row.root_id,)]):
        if wait["name"] == schedule.NAME:
            what = f"it is scheduled for {shown(wait['until'])}"
            holds.append(Blocker(SCHEDULED, what, "the time comes, or change its run_at", wait["until"]))
            continue
        what, lifts = {
            "time": ("a time", "the time comes"),
            "signal": (f"the signal {wait['signal']!r}", "someone sends it"),
            "person": (f"an answer to {wait['question']!r}", "answer it"),
        }[wait["kind"]]
        past = "" if wait["kind"] == "time" or wait["until"] is None else ", or the wait expires"
        holds.append(Blocker(wait["kind"], f"it waits for {what} ({wait['name']})", lifts + past, wait["until"]))
    return holds


async def _approval(tx: Tx, row: TaskRow) -> list[Blocker]:
    """The rule that stopped it, and what happens if no one decides."""
    asked = await tx.one("open_approvals_of", items=[(row.id,)])
    if asked is None:
        return [Blocker("approval", "a person must approve it first", "approve or reject it")]
    rule = guard.shown(msgspec.json.decode(asked["rule"]))
    expires = "" if asked["expires_at"] is None else f"; it is {_EXPIRED[rule['on_expire']]} when no one does in time"
    fits = ", ".join(f"{name} {value}" for name, value in rule.items() if name not in _OF_EXPIRY)
    return [
        Blocker(
            "approval",
            f"a person must approve revision {asked['revision']} first: the guard for {fits or 'all tasks'} stopped it",
            f"approve or reject it{expires}",
            asked["expires_at"],
        )
    ]


_EXPIRED = {"reject": "rejected", "approve": "approved"}
_OF_EXPIRY = frozenset({"on_expire", "expire_after_sec"})


async def _verdict(tx: Tx, row: TaskRow) -> Blocker:
    output = await tx.one("read_outputs", items=[(row.id,)])
    if output is None or output["judge_id"] is None:
        return Blocker(
            "verdict", "its output waits for the verdict of its tests", "its agent gives the verdict", row.run_until
        )
    judge = ids.show_task(output["judge_id"])
    return Blocker("verdict", f"its output waits for its judge, {judge}", "that task completes", row.run_until, [judge])


async def _dependencies(tx: Tx, row: TaskRow, edges: Sequence[Row], settings: Settings) -> list[Blocker]:
    open_ = [edge for edge in edges if not edge["satisfied"]]
    if not open_:
        return []
    missing = {
        edge["dependency"]: edge["name"] for edge in await tx.all("missing_dependencies", items=[(row.root_id,)])
    }
    states = {
        s["root_id"]: s["status"] for s in await tx.all("lineage_states", items=[(e["dependency"],) for e in open_])
    }
    holds = []
    for edge in open_:
        dependency = ids.show_task(edge["dependency"])
        if edge["dependency"] in missing:
            holds.append(
                Blocker(
                    "missing_dependency",
                    f"no task {missing[edge['dependency']]} has been submitted",
                    "submit it, or change the dependencies",
                    tasks=[dependency],
                )
            )
        else:
            kind = "subtask" if edge["waits"] else "dependency"
            status = states.get(edge["dependency"], "unknown")
            survives = edge["any_end"] if edge["waits"] else settings.on_dependency_failed == "continue"
            lifts = _lift(status, survives=survives)
            holds.append(Blocker(kind, f"it waits for {dependency}, which is {status}", lifts, tasks=[dependency]))
    return holds


def _lift(status: str, *, survives: bool) -> str:
    if survives and status not in FINAL | SETTLED:
        return "that task ends, whatever its outcome"
    if status in {State.DEAD_LETTERED, State.FAILED}:
        return "a person retries that task, or changes the dependencies"
    return "rerun that task, or change the dependencies" if status == State.CANCELLED else "that task completes"


async def _ready(tx: Tx, engine: Engine, case: _Case, able: list[Row]) -> list[Blocker]:
    """Holds of a task that is ready but not claimed."""
    row, resolver = case.row, case.resolver
    if row.status != State.READY:
        return []
    holds = []
    holds += [Blocker(HELD_BY_BUDGET, *short) for short in await budgets.shortages(tx, resolver, row)]
    if provider := provider_of(case.lane.key.target_agent_id):
        until = row.ordered_at + resolver.settings().batches.max_wait_sec
        what = f"it waits to be sent to {provider} in a batch; at the latest until {shown(until)}"
        return [*holds, Blocker("batch", what, _GATHERED, until)]
    if row.hold == serial_keys.HOLD:
        holds.append(await _serial(tx, row))
    if row.hold == PUBLISHED:
        return [Blocker(PUBLISHED, "it is offered in a stream to external workers", "one of them takes it")]
    if row.hold and not holds:
        holds.append(Blocker(row.hold, f"held back: {row.hold}", "the gate is opened"))
    closed = await tx.all("read_gates", workspace=row.workspace)
    if closed:
        who = [(view, filter_of(view)) for agent in able for view in choice.on_each(agent)]
        holds += [Blocker(*reason) for reason in gates.reasons(closed, resolver, case.lane, who, tx.now)]
    if not holds:
        holds += await _accounts(tx, case, able)
    if not able:
        needs = unavailable_agents.needs(row.type, case.needs.capabilities, row.target_agent_id)
        holds.append(
            Blocker("no_agent", f"no registered agent can take it: it needs {needs}", unavailable_agents.REGISTER)
        )
        return holds
    willing = unavailable_agents.active(able)
    holds += await _kept(tx, engine, case, willing, closed)
    return holds + unavailable_agents.blockers(willing, row.estimated_cost)


_GATHERED = "maintenance runs where the provider's API key is set; otherwise any agent may take it then"


async def _accounts(tx: Tx, case: _Case, able: Sequence[Row]) -> list[Blocker]:
    """The hold if the accounts of all able agents have no room for it now."""
    known = await choice.load(tx, case.row.workspace)
    uses = [use for agent in able for use in known.of(agent, case.row.workspace)]
    spare_only = case.resolver.settings(case.row.type).use_before_reset
    return [Blocker(*reason) for reason in choice.reasons(uses, tx.now, spare_only=spare_only)]


async def _serial(tx: Tx, row: TaskRow) -> Blocker:
    runner = await serial_keys.running(tx, row.id)
    if runner is None:
        return Blocker(serial_keys.HOLD, "a task with its serial key has just run", "the next claim")
    shown = ids.show_task(runner)
    what = f"it waits for {shown}, which runs under the same serial key"
    return Blocker(serial_keys.HOLD, what, "that task ends", tasks=[shown])


MAX_ASKED = 50
"""The most agents checked for whether a task is kept for a better one."""


async def _kept(tx: Tx, engine: Engine, case: _Case, willing: Sequence[Row], closed: Sequence[Row]) -> list[Blocker]:
    """The hold if it is kept for other agents, and until when."""
    if case.row.hold:
        return []
    known = await choice.load(tx, case.row.workspace)
    for agent in [agent for agent in willing if not unavailable_agents.is_full(agent)][:MAX_ASKED]:
        use = known.in_order(agent, case.row.workspace, tx.now)[0]
        view = gates.Gates(closed, case.resolver, use.agent, filter_of(agent), tx.now)
        preferences = Preferences(tx, engine, use, view, None)
        if not preferences.concern(case.raw, case.lane):
            continue
        if (wait := await preferences.wait(case.raw, case.lane, case.body)) is not None:
            what = f"it is kept for {', '.join(wait.agents[:5])} for some seconds, since {wait.why}"
            return [Blocker("preference", what, "one of them takes it, or the time passes", wait.until)]
    return []


MAX_AHEAD = 10_000
"""Positions beyond this are not counted."""


async def _position(tx: Tx, row: TaskRow) -> int:
    place = {"lane": row.lane, "rank": row.rank, "ordered_at": row.ordered_at, "id": row.id}
    before = await tx.one("ahead_in_lane", **place, most=MAX_AHEAD)
    return int(before["ahead"]) if before else 0


async def _share(tx: Tx, engine: Engine, resolver: Resolver, lane: Lane) -> Share | None:
    fair = resolver.settings().fair_share
    number = lane.key.share
    if number is None or not is_fair_share_on(fair):
        return None
    rows = await tx.all("open_lanes", bound=TARGETED)
    with_work = await engine.lanes.lanes(tx, [row["lane"] for row in rows])
    others = {each.key.share for each in with_work if each.key.workspace == lane.key.workspace}
    return Share(fair.by, number, fair.shares, len(others | {number}))


def _summary(row: TaskRow, holds: list[Blocker], position: int | None, share: Share | None) -> str:
    if row.status in SLOT_STATES and not holds:
        return f"{row.status} by {row.agent_id}"
    if row.status in {State.COMPLETED, State.CANCELLED}:
        return row.status + (f": {row.cancel_reason}" if row.cancel_reason else "")
    if holds:
        return "; ".join(hold.what for hold in holds)
    round_robin = "" if share is None else f", in share {share.number} of {share.waiting} that alternate by {share.by}"
    return f"ready, {_place(position)} in its lane{round_robin}"


def _place(position: int | None) -> str:
    if position == 0:
        return "first"
    number = f"{position} or more" if position == MAX_AHEAD else str(position)
    return f"with {number} task{'s' if position != 1 else ''} before it"
