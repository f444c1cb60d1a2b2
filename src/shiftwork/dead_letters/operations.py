"""Dead letters: people's decisions about one, or about all with the same signature."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, get_args

import msgspec

from shiftwork.artifacts import inputs
from shiftwork.dead_letters.api import DeadLetters
from shiftwork.dead_letters.model import DeadLetter, Decision, FailureGroup, Review
from shiftwork.engine import dedupe_policy, read
from shiftwork.engine import dependents as consequences
from shiftwork.engine.engine import Caller, Engine
from shiftwork.engine.fence import check_version
from shiftwork.engine.prepare import prepare, relane, without_times
from shiftwork.engine.read import read_body
from shiftwork.engine.rows import TaskRow
from shiftwork.engine.submit import recheck_dependencies
from shiftwork.engine.unit_of_work import UnitOfWork, as_json
from shiftwork.model import check, ids, reasons
from shiftwork.model.errors import InputError, NotFound, ShiftworkError, WrongState
from shiftwork.model.outcome import Outcome
from shiftwork.model.states import FINAL, SETTLED, State
from shiftwork.model.task import NewTask, Task, dollars
from shiftwork.model.times import Time, epoch
from shiftwork.operation.local import Call, implements, reading
from shiftwork.steps.policy import is_same_work
from shiftwork.store.store import Row, Tx, record
from shiftwork.waits import approval_guard, schedule

REDRIVE_BATCH = 500
DECISIONS: tuple[str, ...] = get_args(Decision)
_LEAVES = frozenset({"retry", "retry_later", "modify_and_retry", "cancel"})
_FIXED = frozenset(
    {"id", "key", "idempotency_key", "issue_id", "trigger_type", "session_id", "work_dir"}
    | {"force_fresh_session", "priority_boost_per_minute", "tree_budget_usd"}
    | {"run_at", "delay", "expires_at", "expires_in"}
)
"""Fields of a task's identity and origin, which a review cannot change."""


class ReviewDecision(NamedTuple):
    """A person's decision about dead letters."""

    decision: str
    note: str | None = None
    at: float | None = None
    """When to retry, for `retry_later`."""
    change: dict[str, Any] | None = None
    """Fields of the task to be replaced, for `modify_and_retry`."""
    chain: bool = False
    """Also restore the dependents that were cancelled because of it."""
    version: int | None = None


def check_verdict(verdict: ReviewDecision) -> None:
    check.one_of(verdict.decision, DECISIONS, "decision")
    if verdict.decision == "modify_and_retry" and not verdict.change:
        raise InputError("modify_and_retry needs the fields to change", where="change")
    if verdict.decision == "retry_later" and (verdict.at is None or not check.is_float(verdict.at)):
        raise InputError("retry_later needs a time", where="at")


async def review(
    tx: Tx, engine: Engine, caller: Caller, task_ids: Sequence[str], verdict: ReviewDecision
) -> list[Outcome]:
    """Carry out the decision on each task, and record who decided it and why."""
    check_verdict(verdict)
    work = UnitOfWork(tx, engine, caller)
    found = {row.id: row for row in await work.lock(sorted(task_ids))}
    outcomes = []
    for task_id in task_ids:
        row = found.get(task_id)
        error = _refusal(work, row, task_id, verdict)
        if error is None and row is not None:
            await _carry_out(work, row, verdict)
            outcomes.append(Outcome(ids.show_task(task_id), row.status))
        else:
            outcomes.append(Outcome(ids.show_task(task_id), error=error))
    await work.save()
    return outcomes


def _refusal(work: UnitOfWork, row: TaskRow | None, task_id: str, verdict: ReviewDecision) -> ShiftworkError | None:
    shown = ids.show_task(task_id)
    if row is None:
        return NotFound(f"there is no task {shown}", task_id=shown)
    if row.status not in SETTLED or not work.is_newest(row):
        what = f"task {shown} is {row.status}, not a dead letter"
        hint = "Use rerun to repeat a task that has ended." if row.status in FINAL else None
        return WrongState(what, hint=hint, task_id=shown, status=row.status)
    return check_version(work.engine, row, verdict.version)


async def _carry_out(work: UnitOfWork, row: TaskRow, verdict: ReviewDecision) -> None:
    round_ = row.round
    change = as_json(verdict.change) if verdict.change else None
    await work.tx.insert(
        "insert_reviews",
        [(row.id, round_, work.now, work.caller.actor, verdict.decision, verdict.note, change)],
    )
    letter = (row.id, round_, verdict.decision, verdict.decision != "escalate", verdict.decision == "delete")
    await work.tx.run("review_letters", items=[letter])
    if verdict.decision == "modify_and_retry":
        await _modify(work, row, verdict.change or {})
    if verdict.decision in {"abandon", "delete"}:
        await _give_up_key(work, row)
    path, event_data = await _leave(work, row, verdict) if verdict.decision in _LEAVES else (None, None)
    data = {"decision": verdict.decision, "round": round_, **(event_data or {})}
    work.emit(row, "reviewed", path, reason=verdict.note, data=data)
    if verdict.decision != "escalate":
        await work.tx.run("resolve_alerts_of", items=[(row.id,)], now=work.now, actor=work.caller.actor)
    if verdict.decision == "escalate":
        work.alert(row.workspace, "escalated", row.id, actor=work.caller.actor, note=verdict.note)
    await recheck_dependencies(work, row)
    if verdict.decision == "cancel":
        await consequences.cancel_dependents(work, {row.root_id})
    if verdict.chain and verdict.decision in _LEAVES - {"cancel"} and row.status != State.CANCELLED:
        await _revive_chain(work, {row.root_id})


async def _leave(work: UnitOfWork, row: TaskRow, verdict: ReviewDecision) -> tuple[str, dict[str, Any] | None]:
    """Apply the decision; returns the path for the event."""
    if verdict.decision == "cancel":
        path = work.move(row, "cancel")
        row.cancel_reason = verdict.note or "cancelled on review"
        row.failure_reason = reasons.CANCELLED
        return path, None
    settings = await work.settings_of(row)
    await _retake_key(work, row)
    await work.tx.run("drop_expired_waits", items=[(row.root_id,)])  # a retry gives them another chance
    await work.tx.run("forget_failed_waits", items=[(row.root_id,)])
    row.round += 1
    row.expires_at = None  # a person wants it now
    if row.failure_reason != reasons.DISPLACED:  # a displacement was not its fault, and cost no attempt
        row.attempts = row.reclaims = row.rate_limits = 0
    row.failure_reason = None
    if row.own_settings or verdict.decision == "modify_and_retry":
        await relane(work, row)
    if verdict.decision == "retry_later":
        row.available_at = verdict.at
        return work.move(row, "review_later"), None
    if row.waiting:
        return work.move(row, "review_block"), None
    return await approval_guard.unblock_or_guard(work, row, settings, "review_retry")


async def _modify(work: UnitOfWork, row: TaskRow, change: dict[str, Any]) -> None:
    """Replace fields of the body; the result must be a task that could be submitted."""
    before = await read_body(work.tx, row.id)
    body = {**without_times(before), **change}
    new = check.read(body, NewTask, "change")
    if fixed := sorted(set(change) & (_FIXED | {"dependencies"})):
        hint = "Use update for dependencies." if fixed == ["dependencies"] else None
        raise InputError(f"{', '.join(fixed)} cannot be changed here", where="change", hint=hint)
    if new.type != row.type:
        raise InputError("the type of a task cannot be changed", where="change.type")
    resolver = await work.engine.settings_cache.load(work.tx, row.workspace)
    prepared = prepare(new, row.workspace, resolver, work.now, "change")
    if "spec" in change:
        prepared = await inputs.resettle(work.tx, work.caller, row, prepared)
    await work.tx.run("save_bodies", items=[(row.id, prepared.body)])
    if not is_same_work(before, msgspec.json.decode(prepared.body)):
        await work.tx.run("delete_steps", items=[(row.id,)])
        await work.tx.run("drop_ended_waits", items=[(row.root_id,)])
    row.priority, row.deadline = float(new.priority), epoch(new.deadline)
    row.timeout_sec = prepared.timeout_sec
    row.estimated_cost, row.own_settings = prepared.estimated_cost, prepared.has_own_settings
    row.max_attempts = new.max_attempts or prepared.settings.max_attempts
    row.validation, row.at_most_once = prepared.plan.validation, prepared.plan.at_most_once
    row.target_agent_id = new.target_agent_id
    if "tags" in change:
        await work.tx.run("delete_tags", items=[(row.id,)])
        await work.tx.insert("insert_tags", [(row.workspace, tag, row.id) for tag in dict.fromkeys(new.tags)])


async def _retake_key(work: UnitOfWork, row: TaskRow) -> None:
    """Restore its idempotency key, unless another task has taken it meanwhile."""
    if row.idempotency_key is not None:
        until = dedupe_policy.until((await work.settings_of(row)).idempotency, work.now)
        taken = [(row.workspace, row.idempotency_key, row.id, until)]
        await work.tx.run("take_keys", items=taken, now=work.now)


async def _give_up_key(work: UnitOfWork, row: TaskRow) -> None:
    """Displaced work keeps its key, because it returns by itself; abandoned work does not."""
    if row.idempotency_key is not None and not dedupe_policy.in_scope(
        (await work.settings_of(row)).idempotency, row.status
    ):
        await work.tx.run("drop_keys", items=[(row.workspace, row.idempotency_key, row.id)])


async def _revive_chain(work: UnitOfWork, roots: set[str]) -> None:
    """Make dependents that were cancelled because of these wait again, and so on down."""
    while roots:
        edges = await work.tx.all("open_dependents", items=[(root,) for root in sorted(roots)])
        dependents = {edge["dependent"] for edge in edges}
        roots = set()
        for row in await consequences.lock_newest(work, dependents):
            if row.status != State.CANCELLED or not (row.cancel_reason or "").startswith(("Dependency ", "Parent ")):
                continue
            await _retake_key(work, row)
            row.round += 1
            row.cancel_reason = row.failure_reason = None
            await _wait_again(work, row)
            path = work.move(row, "revive")
            work.emit(row, "reviewed", path, data={"decision": "retry_chain", "round": row.round})
            roots.add(row.root_id)


async def _wait_again(work: UnitOfWork, row: TaskRow) -> None:
    """Wait for its start time again, if that has not come: the cancellation ended that wait."""
    run_at = (await read_body(work.tx, row.id)).get("run_at")
    if run_at is not None and run_at > work.now:
        await schedule.begin(work, row, run_at)
    if row.expires_at is not None and row.expires_at <= work.now:
        row.expires_at = None
    row.waiting = await consequences.count_waiting(work, row.root_id)


async def _redrive(
    tx: Tx, engine: Engine, caller: Caller, workspace: str, signature: str, verdict: ReviewDecision, count: int
) -> list[Outcome]:
    """Make one decision about all open dead letters with the same signature, a bounded number at a time."""
    rows = await tx.all("letters_by_signature", workspace=workspace, signature=signature, count=count)
    return await review(tx, engine, caller, [row["task_id"] for row in rows], verdict)


@implements(DeadLetters.review)
async def review_one(
    call: Call,
    task_id: str,
    decision: Decision,
    *,
    note: str | None = None,
    at: Time | None = None,
    change: Mapping[str, Any] | None = None,
    chain: bool = False,
    version: int | None = None,
) -> Outcome:
    verdict = ReviewDecision(decision, note, epoch(at), dict(change) if change else None, chain, version)
    (outcome,) = await call.run(review, [await call.find(task_id)], verdict)
    return outcome.unwrap()


@implements(DeadLetters.redrive)
async def redrive(
    call: Call, signature: str, decision: Decision = "retry", *, note: str | None = None, at: Time | None = None
) -> list[Outcome]:
    verdict = ReviewDecision(decision, note, epoch(at))
    done: list[Outcome] = []
    while page := await call.run(_redrive, call.workspace, signature, verdict, REDRIVE_BATCH):
        done += page
        if len(page) < REDRIVE_BATCH:
            break
    return done


@reading(DeadLetters.list)
async def list_letters(
    tx: Tx,
    engine: Engine,
    caller: Caller,
    workspace: str,
    *,
    reviewed_too: bool = False,
    signature: str | None = None,
    after: str | None = None,
    limit: int = 100,
) -> list[DeadLetter]:
    rows = await tx.all(
        "list_dead_letters",
        workspace=workspace,
        reviewed_too=reviewed_too,
        signature=signature,
        after=check.cursor(after),
        count=limit,
    )
    tasks = await read.tasks(tx, engine, workspace, sorted({row["task_id"] for row in rows}))
    by_id = {task.id: task for task in tasks}
    return [_letter(row, by_id[ids.show_task(row["task_id"])]) for row in rows]


def _letter(row: Row, task: Task) -> DeadLetter:
    return record(
        DeadLetter,
        row,
        task_id=task.id,
        dag_id=task.dag_id,
        tool_name=task.tool_name,
        payload=task.payload,
        retry_count=row["attempts"],
        failure_history=task.failure_history,
        total_cost_usd=dollars(row["cost"]),
        reviewed=bool(row["reviewed"]),
        poison_pill=bool(row["poison_pill"]),
        external_id=task.external_id,
    )


@reading(DeadLetters.groups)
async def groups(tx: Tx, engine: Engine, caller: Caller, workspace: str, *, limit: int = 100) -> list[FailureGroup]:
    rows = await tx.all("letter_groups", workspace=workspace, count=limit)
    return [FailureGroup(**{**dict(row), "total": int(row["total"])}) for row in rows]


@reading(DeadLetters.reviews)
async def reviews(tx: Tx, engine: Engine, caller: Caller, workspace: str, task_id: str) -> list[Review]:
    uuid = await read.must_find(tx, engine, workspace, task_id)
    return [_review(row) for row in await tx.all("reviews_of", id=uuid)]


def _review(row: Row) -> Review:
    change = msgspec.json.decode(row["change"]) if row["change"] else None
    return Review(row["round"], row["at"], row["actor"], row["decision"], row["note"], change)
