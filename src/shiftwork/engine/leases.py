"""Verbs of an agent that holds a task: start, heartbeat, progress, messages, session."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from shiftwork.accounts import windows
from shiftwork.agents.model import RuntimeHeartbeat
from shiftwork.budgets.booking import CostChanges
from shiftwork.engine import agent_sessions, lease_policy
from shiftwork.engine.engine import Caller, Engine
from shiftwork.engine.fence import lock_claim, lock_claims, refusal
from shiftwork.engine.finish import stop_spent
from shiftwork.engine.new_events import NewEvent
from shiftwork.engine.read import read_body
from shiftwork.engine.unit_of_work import UnitOfWork, own_settings
from shiftwork.fairness import preemption
from shiftwork.model import ids, reasons
from shiftwork.model.errors import ShiftworkError
from shiftwork.model.outcome import Outcome, Token
from shiftwork.model.reports import HeartbeatReply
from shiftwork.model.states import CLAIMED_STATES, SLOT_STATES, State, write_path
from shiftwork.model.task import NO_USAGE, Usage
from shiftwork.providers.limit_signal import PROVIDER_WINDOW
from shiftwork.settings.model import Settings
from shiftwork.steering import instruction_delivery as delivery
from shiftwork.store.store import Row, Tx

TO_RUNNING = write_path([State.CLAIMED, State.RUNNING])
MAX_TERMS = 16
"""A start sends the limits of all types of a workspace, up to this many."""


class Beat(NamedTuple):
    """A sign of life for one claim, with the changes since the last one."""

    token: Token
    progress: str | None = None
    usage: Usage = NO_USAGE

    @property
    def is_bare(self) -> bool:
        """Whether it reports neither progress nor usage."""
        used = self.usage
        return self.progress is None and not (used.cost_usd or used.tokens_in or used.tokens_out)


async def start(
    tx: Tx, engine: Engine, caller: Caller, tokens: Sequence[Token], requests: Mapping[Token, str] | None = None
) -> list[Outcome]:
    """Start claims: from now on, the agent must send heartbeats. `requests` are those of joined calls."""
    requests = requests or {}
    if len(tokens) == 1 and await _start_plain(tx, engine, caller, tokens[0], requests.get(tokens[0])):
        return [Outcome(ids.show_task(tokens[0].id), State.RUNNING)]
    rows = await lock_claims(tx, caller, tokens)
    work = UnitOfWork(tx, engine, caller)
    work.requests = dict(requests)
    outcomes, saved = [], []
    begun: set[Token] = set()
    for token in tokens:
        row = rows.get(token.id)
        task_id = ids.show_task(token.id)
        if error := refusal(engine, caller, token, row, SLOT_STATES):
            outcomes.append(Outcome(task_id, error=error))
            continue
        assert row is not None
        if row["status"] == State.RUNNING or token in begun:
            outcomes.append(Outcome(task_id, State.RUNNING, repeated=True))
            continue
        begun.add(token)
        resolver = await engine.settings_cache.load(tx, row["workspace"])
        own = own_settings(await read_body(tx, token.id)) if row["own_settings"] else None
        limits = lease_policy.at_start(
            resolver.settings(row["type"], own),
            timeout_sec=row["timeout_sec"],
            claimed_at=row["claimed_at"],
            now=tx.now,
        )
        saved.append((token.id, limits.run_until, limits.lease_until, limits.check_at))
        work.add_claim_event(row, "started", path=TO_RUNNING, fence=token.fence)
        outcomes.append(Outcome(task_id, State.RUNNING))
    if saved:
        await tx.run("start_tasks", items=saved, now=tx.now)
        await _touch_runtimes(tx, engine, [rows[item[0]] for item in saved])
    await work.save_events()
    return outcomes


async def _start_plain(tx: Tx, engine: Engine, caller: Caller, token: Token, request_id: str | None) -> bool:
    """Start in a single statement if only the task's type determines the limits of the claim.

    Returns False, without any change, if that is not so or the claim may not be started.
    """
    workspace = caller.workspace
    if engine.store.one_writer or workspace is None or not engine.plain_starts.is_likely(workspace):
        return False
    resolver = await engine.settings_cache.load(tx, workspace)
    types = {lane.key.type for lane in engine.lanes.all() if lane.key.workspace == workspace}
    if len(types) > MAX_TERMS or resolver.settings().runtime_offline_sec is not None:
        return False
    terms = [term for type_ in sorted(types) if (term := _terms(type_, resolver.settings(type_), tx.now))]
    started = await tx.alone(
        "start_plain",
        id=token.id,
        fence=token.fence,
        terms=terms,
        workspace=workspace,
        holder=caller.holder,
        actor=None if caller.actor == "system" else caller.actor,
        request_id=request_id or caller.request_id,
        path=TO_RUNNING,
        now=tx.now,
    )
    if started is not None:
        engine.plain_starts.record(workspace, is_plain=bool(started))
    return bool(started)


def _terms(type_: str, settings: Settings, now: float) -> tuple[Any, ...] | None:
    """In the column order of the statement `start_plain`; None if limits depend on the time of the claim."""
    if settings.timeout_from == "claim" or settings.lease.mode == "fixed":
        return None
    limits = lease_policy.at_start(settings, timeout_sec=settings.timeout_sec, claimed_at=now, now=now)
    return type_, settings.timeout_sec, limits.run_until, limits.lease_until, limits.check_at


async def _touch_runtimes(tx: Tx, engine: Engine, rows: Sequence[Row]) -> None:
    """A write under a claim is a sign of life of its runtime, if runtimes are watched."""
    for workspace, runtime_id in sorted({(row["workspace"], row["runtime_id"]) for row in rows}):
        if (await engine.settings_cache.load(tx, workspace)).settings().runtime_offline_sec is not None:
            await tx.run("touch_runtime", workspace=workspace, id=runtime_id, now=tx.now, heartbeat_at=None)


async def heartbeat(
    tx: Tx,
    engine: Engine,
    caller: Caller,
    beats: Sequence[Beat],
    requests: Mapping[Token, str] | None = None,
    *,
    instruct: bool = True,
) -> list[HeartbeatReply]:
    """Extend the leases of these tasks, book their usage, and answer whether each may continue."""
    if (plain := await _beat_plain(tx, engine, caller, beats)) is not None:
        return plain
    rows = await lock_claims(tx, caller, [beat.token for beat in beats])
    work = UnitOfWork(tx, engine, caller)
    work.requests = dict(requests or {})
    answers, live = [], []
    for beat in beats:
        row = rows.get(beat.token.id)
        error = refusal(engine, caller, beat.token, row)
        if error is None and row is not None:
            live.append((beat, row))
            answers.append(HeartbeatReply(ids.show_task(row["id"]), "continue"))
        else:
            await work.part(CostChanges).book_late(beat.token, beat.usage, last=False)
            answers.append(_stop(beat.token, row, error))
    spent = await _book(work, live)
    answers = [replace(answer, **_SPENT) if answer.task_id in spent else answer for answer in answers]
    if live:
        await _beat_live(tx, engine, work, live)
    await work.save()
    answers = await _ask_to_yield(tx, engine, live, answers)
    slow, instructed = await _beat_runtimes(tx, engine, live)
    if instructed and instruct:
        answers = await _instruct(tx, engine, caller, live, answers)
    return answers if slow is None else [replace(answer, slow_down_sec=slow) for answer in answers]


async def _beat_plain(tx: Tx, engine: Engine, caller: Caller, beats: Sequence[Beat]) -> list[HeartbeatReply] | None:
    """Write the heartbeats in a single statement if they report nothing and each may simply continue.

    Returns None, without any change, if that is not so of all of them.
    """
    workspace = caller.workspace
    if engine.store.one_writer or workspace is None or not engine.plain_beats.is_likely(workspace):
        return None
    if not all(beat.is_bare for beat in beats):
        return None
    resolver = await engine.settings_cache.load(tx, workspace)
    if resolver.anywhere(_heartbeats_do_more):
        return None
    items = sorted({beat.token for beat in beats})
    covers_all = tx.now if resolver.settings().heartbeat.scope == "runtime" else None
    words = {"workspace": workspace, "holder": caller.holder, "heartbeat_at": covers_all}
    beaten = await tx.alone("beat_plain", items=items, count=len(items), now=tx.now, **words)
    if beaten is not None:
        engine.plain_beats.record(workspace, is_plain=bool(beaten))
    if not beaten:
        return None
    slow = _slow_down(beaten[0], tx.now)
    return [HeartbeatReply(ids.show_task(beat.token.id), "continue", slow_down_sec=slow) for beat in beats]


def _heartbeats_do_more(settings: Settings) -> bool:
    """Whether a heartbeat may write an event or be answered with a request to yield."""
    return bool(settings.heartbeat.log_every_sec) or preemption.preempts(settings)


async def _instruct(
    tx: Tx, engine: Engine, caller: Caller, live: Sequence[tuple[Beat, Row]], answers: list[HeartbeatReply]
) -> list[HeartbeatReply]:
    going_on = {answer.task_id for answer in answers if answer.action in {"continue", "yield"}}
    rows = [row for _, row in live if ids.show_task(row["id"]) in going_on]
    found = {
        ids.show_task(id_): given for id_, given in (await delivery.with_heartbeat(tx, engine, caller, rows)).items()
    }
    return [
        replace(answer, instructions=found[answer.task_id]) if answer.task_id in found else answer for answer in answers
    ]


async def heartbeat_each(
    tx: Tx, engine: Engine, caller: Caller, beats: Sequence[Beat | HeartbeatReply]
) -> list[HeartbeatReply]:
    """The same for claims without an answer yet."""
    answers = iter(await heartbeat(tx, engine, caller, [beat for beat in beats if isinstance(beat, Beat)]))
    return [next(answers) if isinstance(beat, Beat) else beat for beat in beats]


async def _ask_to_yield(
    tx: Tx, engine: Engine, live: Sequence[tuple[Beat, Row]], answers: list[HeartbeatReply]
) -> list[HeartbeatReply]:
    found = await preemption.asked(tx, engine, (row["workspace"] for _, row in live), (beat.token for beat, _ in live))
    why = {ids.show_task(token.id): seen for token, seen in found.items()}
    return [
        replace(answer, action="yield", reason=why[answer.task_id])
        if answer.action == "continue" and answer.task_id in why
        else answer
        for answer in answers
    ]


_SPENT: dict[str, Any] = {"action": "cancel", "reason": reasons.BUDGET_EXCEEDED}


async def _book(work: UnitOfWork, live: Sequence[tuple[Beat, Row]]) -> set[str]:
    """Book the usage, and end the attempts that are out of budget; returns their tasks."""
    rows = await work.part(CostChanges).book([(beat.token, beat.usage) for beat, _ in live])
    why = await work.part(CostChanges).exceeded(rows) if rows else {}
    await stop_spent(work, {Token(row["id"], row["fence"]): why[row["id"]] for row in rows if row["id"] in why})
    return {ids.show_task(id_) for id_ in why}


def _stop(token: Token, row: Row | None, error: ShiftworkError | None) -> HeartbeatReply:
    task_id = ids.show_task(token.id)
    if row is not None and row["fence"] == token.fence and row["status"] == State.CANCELLED:
        return HeartbeatReply(task_id, "cancel", row["cancel_reason"])
    if row is not None and row["fence"] == token.fence and row["failure_reason"] == reasons.BUDGET_EXCEEDED:
        return HeartbeatReply(task_id, **_SPENT)
    return HeartbeatReply(task_id, "lost", error.what if error else None)


async def _beat_live(tx: Tx, engine: Engine, work: UnitOfWork, live: list[tuple[Beat, Row]]) -> None:
    """Write the beats of tasks and their agents."""
    await tx.run("beat_tasks", items=sorted({(row["id"],) for _, row in live}), now=tx.now)
    await _save_progress(tx, work, [(row, beat.progress) for beat, row in live if beat.progress is not None])
    await work.part(CostChanges).save_agents()
    for agent in sorted({(row["workspace"], row["agent_id"]) for _, row in live}):
        await tx.run("beat_agent", workspace=agent[0], id=agent[1], now=tx.now)
    for _, row in live:
        every = (await engine.settings_cache.load(tx, row["workspace"])).settings(row["type"]).heartbeat.log_every_sec
        began, before = row["claimed_at"], row["heartbeat_at"] or row["claimed_at"]
        if every and (tx.now - began) // every > (before - began) // every:
            work.add_claim_event(row, "heartbeat", fence=row["fence"])


async def _beat_runtimes(tx: Tx, engine: Engine, live: Sequence[tuple[Beat, Row]]) -> tuple[float | None, bool]:
    """Write the runtimes last, as a claim does. Returns how long to slow down, and whether an instruction waits."""
    slow, instructed = None, False
    for runtime in sorted({(row["workspace"], row["runtime_id"]) for _, row in live}):
        settings = (await engine.settings_cache.load(tx, runtime[0])).settings()
        covers_all = tx.now if settings.heartbeat.scope == "runtime" else None
        seen = await tx.one("touch_runtime", workspace=runtime[0], id=runtime[1], now=tx.now, heartbeat_at=covers_all)
        slow = _slow_down(seen, tx.now)
        instructed = instructed or _instructed(seen)
    return slow, instructed


def _instructed(seen: Row | None) -> bool:
    return seen is not None and bool(seen["instructed"])


def _slow_down(seen: Row | None, now: float) -> float | None:
    return None if seen is None or seen["slow_until"] is None else float(seen["slow_until"] - now)


async def _save_progress(tx: Tx, work: UnitOfWork, items: Sequence[tuple[Row, str]]) -> None:
    if not items:
        return
    newest = {row["id"]: value for row, value in items}
    await tx.run("save_progress", items=sorted(newest.items()), now=tx.now)
    for row, value in items:
        work.add_event(
            NewEvent(
                tx.now,
                row["workspace"],
                "progress",
                f"agent:{row['agent_id']}",
                row["id"],
                row["dag_id"],
                request_id=work.request_of(row["id"], row["fence"]),
                fence=row["fence"],
                data={"progress": msgspec.Raw(value.encode())},
            )
        )


async def progress(tx: Tx, engine: Engine, caller: Caller, token: Token, value: str) -> Outcome:
    """Report progress; also counts as a heartbeat."""
    task_id = ids.show_task(token.id)
    row = await lock_claim(tx, caller, token)
    if error := refusal(engine, caller, token, row):
        return Outcome(task_id, error=error)
    await heartbeat(tx, engine, caller, [Beat(token, value)], instruct=False)  # its answer has no room for them
    return Outcome(task_id, State.RUNNING)


async def message(
    tx: Tx, engine: Engine, caller: Caller, token: Token, kind: str, text: str, data: Mapping[str, Any] | None
) -> Outcome:
    """Record one line of the agent's activity: a tool call, text, an error."""
    row = await lock_claim(tx, caller, token)
    if error := refusal(engine, caller, token, row):
        return Outcome(ids.show_task(token.id), error=error)
    assert row is not None
    work = UnitOfWork(tx, engine, caller)
    work.add_claim_event(
        row,
        "message",
        fence=token.fence,
        data={"kind": kind, "text": text, **({"data": data} if data else {})},
    )
    await _touch_runtimes(tx, engine, [row])
    if states := windows.states_in(data, PROVIDER_WINDOW):
        await windows.report_for_claim(work, token, row, states)
    await work.save_events()
    return Outcome(ids.show_task(token.id), row["status"])


async def pin_session(
    tx: Tx, engine: Engine, caller: Caller, token: Token, session_id: str | None, work_dir: str | None
) -> Outcome:
    """Pin the agent's session to the task, so that a retry can resume it."""
    row = await lock_claim(tx, caller, token)
    if error := refusal(engine, caller, token, row):
        return Outcome(ids.show_task(token.id), error=error)
    assert row is not None
    work = UnitOfWork(tx, engine, caller)
    kept = session_id is None or await agent_sessions.pin(tx, row, session_id)
    await tx.run("pin_sessions", items=[(token.id, session_id if kept else None, work_dir)], now=tx.now)
    data = {"session_id": session_id, "work_dir": work_dir} | ({} if kept else {"retired": True})
    work.add_claim_event(row, "session", fence=token.fence, data=data)
    await _touch_runtimes(tx, engine, [row])
    await work.save_events()
    return Outcome(ids.show_task(token.id), row["status"])


async def runtime_heartbeat(
    tx: Tx, engine: Engine, caller: Caller, workspace: str, runtime_id: str, holding: Sequence[Token]
) -> RuntimeHeartbeat:
    """Extend the lease of everything the runtime holds, with one write."""
    # The agent before its runtime, as a claim locks them: the reverse order deadlocked, at a second each.
    await tx.run("beat_agent", workspace=workspace, id=runtime_id, now=tx.now)
    seen = await tx.one("touch_runtime", workspace=workspace, id=runtime_id, now=tx.now, heartbeat_at=tx.now)
    cancel: dict[str, str | None] = {}
    lost: list[str] = []
    live: dict[str, Row] = {}
    rows = await tx.all("read_tasks", items=[(t.id,) for t in sorted(set(holding))]) if holding else []
    found = {row["id"]: row for row in rows if caller.may_see(row["workspace"])}
    for token in holding:
        row = found.get(token.id)
        if row is not None and row["status"] in CLAIMED_STATES and row["fence"] == token.fence:
            if caller.may_write(row["holder"]):
                live[token.text] = row
            continue
        if row is not None and row["status"] == State.CANCELLED and row["fence"] == token.fence:
            cancel[token.text] = row["cancel_reason"]
        else:
            lost.append(token.text)
    held = await tx.all("held_by_runtime", runtime=runtime_id, workspace=workspace)
    named = {token.id for token in holding}
    unnamed = [Token(row["id"], row["fence"]).text for row in held if row["id"] not in named]
    asked = await preemption.asked(tx, engine, [workspace], holding)
    yields = {token.text: why for token, why in asked.items() if token.text not in cancel and token.text not in lost}
    handed = await delivery.with_heartbeat(tx, engine, caller, live.values()) if live and _instructed(seen) else {}
    instructions = {text: handed[row["id"]] for text, row in live.items() if row["id"] in handed}
    return RuntimeHeartbeat(cancel, lost, unnamed, _slow_down(seen, tx.now), yields, instructions)
