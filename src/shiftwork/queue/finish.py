"""How an attempt ends by its agent's word: complete, fail, release."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from shiftwork.core import alerts, ids, reasons
from shiftwork.core.states import State
from shiftwork.core.task import Usage, micros
from shiftwork.policy import dedupe, verdict
from shiftwork.policy.decide import Decision, Facts, after_departure, after_failure, after_loss
from shiftwork.queue import consequences
from shiftwork.queue.claims import Outcome, Token, lock_claims, refusal
from shiftwork.queue.engine import Caller, Engine, log
from shiftwork.queue.lineage import add_retry_row, relane
from shiftwork.queue.rows import TaskRow
from shiftwork.queue.work import Work, signature
from shiftwork.store.store import Row, Tx

RUNNING_ONLY = frozenset({State.RUNNING.value})
_DONE = State.COMPLETED.value

NO_USAGE = Usage()


class Completion(NamedTuple):
    token: Token
    result: str
    """The result as JSON text, checked before it joined the batch."""
    data: Any = None
    usage: Usage = NO_USAGE


class Failure(NamedTuple):
    token: Token
    reason: str | None = None
    error: str | None = None
    usage: Usage = NO_USAGE
    result: str | None = None
    retry: bool = True


async def complete(tx: Tx, engine: Engine, caller: Caller, items: Sequence[Completion]) -> list[Outcome]:
    """Hand in results: each is validated, accepted once, and frees those that wait for it."""
    work = Work(tx, engine, caller)
    by_token = {item.token: item for item in reversed(items)}
    outcomes = await _accept(work, list(by_token.values()))
    left = [item for token, item in by_token.items() if token not in outcomes]
    if left:
        outcomes.update(await _complete_slowly(work, left))
    await work.save()
    await _book_late(tx, caller, [item for token, item in by_token.items() if outcomes[token].error is not None])
    return _answers(items, outcomes)


async def _accept(work: Work, items: list[Completion], *, checked: bool = False) -> dict[Token, Outcome]:
    """The way most attempts end, in few statements and without loading whole rows.

    What must be validated is passed over here unless it has been checked.
    """
    used = [_used(item) for item in items if item.usage is not NO_USAGE]
    if used:
        await work.tx.run("add_usage", items=sorted(used), workspace=work.caller.workspace, holder=work.caller.holder)
    tokens = sorted(item.token for item in items)
    rows = await work.tx.all(
        "complete_tasks",
        items=tokens,
        now=work.now,
        checked=checked,
        workspace=work.caller.workspace,
        holder=work.caller.holder,
    )
    if not rows:
        return {}
    work.accept(rows, {item.token.id: item.result for item in items})
    await _free_keys(work, [row for row in rows if row["idempotency_key"] is not None])
    await _lock_roots(work, rows)
    await consequences.free_dependents(work, {row["root_id"] for row in rows})
    return {Token(row["id"], row["fence"]): Outcome(ids.show_task(row["id"]), _DONE) for row in rows}


async def _lock_roots(work: Work, rows: Sequence[Row]) -> None:
    """A task that starts to depend on a lineage waits at its root; the update has locked only the newest row."""
    roots = sorted({row["root_id"] for row in rows if row["root_id"] != row["id"]})
    if roots:
        await work.tx.all("lock_tasks", items=[(root,) for root in roots])


def _used(item: Completion) -> tuple[Any, ...]:
    usage = item.usage
    return (*item.token, micros(usage.cost_usd), usage.tokens_in, usage.tokens_out)


async def _complete_slowly(work: Work, items: list[Completion]) -> dict[Token, Outcome]:
    """Results that must be validated first, were sent before, or come too late."""
    rows = await lock_claims(work.tx, work.caller, (item.token for item in items))
    outcomes: dict[Token, Outcome] = {}
    valid: dict[str, Completion] = {}
    for item in items:
        row = rows.get(item.token.id)
        if _was_accepted(work.caller, row, item.token):
            outcomes[item.token] = Outcome(ids.show_task(item.token.id), State.COMPLETED, repeated=True)
        elif error := refusal(work.engine, work.caller, item.token, row, RUNNING_ONLY):
            outcomes[item.token] = Outcome(ids.show_task(item.token.id), error=error)
        else:
            valid[item.token.id] = item
    rejected = await _validate(work.tx, valid)
    if valid:
        plain = [item._replace(usage=NO_USAGE) for item in valid.values()]  # booked on the first way through
        outcomes.update(await _accept(work, plain, checked=True))
    outcomes.update(await _reject_outputs(work, rejected))
    return outcomes


def _answers(items: Sequence[Completion] | Sequence[Failure], outcomes: dict[Token, Outcome]) -> list[Outcome]:
    """In the order asked; what stands twice in a batch was done once and is told twice."""
    answers, told = [], set()
    for item in items:
        outcome = outcomes[item.token]
        answers.append(outcome._replace(repeated=True) if item.token in told and not outcome.error else outcome)
        told.add(item.token)
    return answers


def _was_accepted(caller: Caller, row: Row | None, token: Token) -> bool:
    """The same token again, after its answer got lost: accepted once, told twice."""
    if row is None or not caller.may_write(row["holder"]):
        return False
    return bool(row["status"] == State.COMPLETED and row["fence"] == token.fence)


async def _validate(tx: Tx, items: dict[str, Completion]) -> list[tuple[Completion, str]]:
    """Take out of `items` what does not pass its validation, with what is wrong."""
    rejected = []
    for body in await tx.all("read_bodies", items=[(id_,) for id_ in sorted(items)]) if items else []:
        output = msgspec.json.decode(body["body"]).get("output") or {}
        schema = output.get("validation_schema")
        item = items[body["task_id"]]
        if output.get("validation") != "json-schema" or schema is None:
            continue
        if wrong := verdict.against_schema(schema, item.data):
            del items[body["task_id"]]
            rejected.append((item, "; ".join(wrong)))
    return rejected


async def _free_keys(work: Work, rows: list[Row]) -> None:
    leaving = []
    for row in rows:
        settings = (await work.engine.book.of(work.tx, row["workspace"])).settings(row["type"])
        if not dedupe.in_scope(settings.idempotency, State.COMPLETED):
            leaving.append((row["workspace"], row["idempotency_key"], row["id"]))
    if leaving:
        await work.tx.run("drop_keys", items=sorted(leaving))


async def _reject_outputs(work: Work, rejected: list[tuple[Completion, str]]) -> dict[Token, Outcome]:
    """An output that fails its validation is a failed attempt."""
    failures = [Failure(item.token, reasons.INVALID_OUTPUT, error, NO_USAGE, item.result) for item, error in rejected]
    return await _fail_locked(work, failures, validating=True)


async def fail(tx: Tx, engine: Engine, caller: Caller, items: Sequence[Failure]) -> list[Outcome]:
    """Report failed attempts: each is retried, dead-lettered or left to rest, as its settings say."""
    work = Work(tx, engine, caller)
    rows = await lock_claims(tx, caller, (item.token for item in items))
    outcomes: dict[Token, Outcome] = {}
    live: dict[Token, Failure] = {}
    for item in items:
        error = refusal(engine, caller, item.token, rows.get(item.token.id))
        if error is not None:
            outcomes[item.token] = await _repeated(tx, caller, item.token) or Outcome(
                ids.show_task(item.token.id), error=error
            )
        else:
            live[item.token] = item
    outcomes.update(await _fail_locked(work, list(live.values())))
    await work.save()
    await _book_late(tx, caller, [item for item in items if isinstance(outcomes[item.token].error, Exception)])
    return _answers(items, outcomes)


async def _repeated(tx: Tx, caller: Caller, token: Token) -> Outcome | None:
    """The same failure reported again, after its answer got lost."""
    attempt = await tx.one("read_attempt", id=token.id, fence=token.fence, workspace=caller.workspace)
    if attempt is None or attempt["outcome"] != "failed" or attempt["reason"] in reasons.SILENCE:
        return None
    row = await tx.one("read_tasks", items=[(token.id,)])
    return Outcome(ids.show_task(token.id), row["status"] if row else None, repeated=True)


async def _fail_locked(work: Work, items: Sequence[Failure], *, validating: bool = False) -> dict[Token, Outcome]:
    rows = await work.lock(item.token.id for item in items)
    by_id = {item.token.id: item for item in items}
    outcomes = {}
    for row in rows:
        if row.id not in by_id:
            continue
        item = by_id[row.id]
        add_usage(row, item.usage)
        if validating:
            row.status = State.VALIDATING
        settings = (await work.settings([row]))[row.id]
        facts = await facts_of(work, row)
        if not item.retry:
            used_up = max(facts.attempts, facts.max_attempts - 1)
            facts = facts._replace(attempts=used_up, rate_limits=settings.rate_limit.max_waits)
        decision = after_failure(facts, settings, item.reason, item.error, work.engine.random.random())
        await end_failed(work, row, decision, error=item.error, result=item.result, validating=validating)
        outcomes[item.token] = Outcome(
            ids.show_task(row.id), row.status, data={"reason": decision.reason, "why": decision.why}
        )
    return outcomes


def add_usage(row: TaskRow, usage: Usage) -> None:
    row.attempt_cost += micros(usage.cost_usd)
    row.tokens_in += usage.tokens_in
    row.tokens_out += usage.tokens_out


async def facts_of(work: Work, row: TaskRow) -> Facts:
    """What the decision needs; the history is read only where it can matter."""
    agents: list[str] = []
    if row.attempts:
        history = await work.tx.all("failed_agents", items=[(row.id, row.round)])
        agents = [attempt["agent_id"] for attempt in history]
    return Facts(
        status=row.state,
        attempts=row.attempts,
        max_attempts=row.max_attempts,
        reclaims=row.reclaims,
        rate_limits=row.rate_limits,
        trigger_type=row.trigger_type,
        failed_agents=(*agents, row.agent_id or ""),
        started=row.started_at is not None,
        past_deadline=row.deadline is not None and work.now >= row.deadline,
    )


async def end_failed(
    work: Work,
    row: TaskRow,
    decision: Decision,
    *,
    error: str | None = None,
    note: str | None = None,
    result: str | None = None,
    lost: bool = False,
    validating: bool = False,
) -> None:
    """Carry out what was decided about an attempt that did not succeed."""
    fence, agent = row.fence, row.agent_id
    outcome = "failed" if State.FAILED in decision.path else "reclaimed"
    work.end_attempt(
        row,
        outcome,
        counted=decision.counted,
        reason=decision.reason,
        error=error,
        note=note,
        result=result,
        lost=lost,
    )
    path = work.follow(row, decision.path)
    if validating:
        path = f"running>{path}"
    row.attempts += decision.counted
    row.reclaims += decision.reclaimed
    row.rate_limits = row.rate_limits + 1 if decision.rate_limited else 0
    row.failure_reason = decision.reason
    row.lost_agent_id = agent if decision.reclaimed else None
    _log(row, decision, agent)
    await _go_on(work, row, decision)
    verb = "failed" if outcome == "failed" else "lease_expired"
    said = error or note or decision.reason
    data: dict[str, Any] = {"type": row.type, "error": error, "note": note, "why": decision.why}
    data |= {"attempt": row.attempts, "agent": agent, "signature": signature(row.type, decision.reason, said)}
    if decision.delay_sec:
        data["delay_sec"] = round(decision.delay_sec, 3)
    work.tell(
        row,
        verb,
        path,
        reason=decision.reason,
        fence=fence,
        data={k: v for k, v in data.items() if v is not None},
        actor=None if lost else work.caller.for_agent(agent),
    )
    if decision.status == State.DEAD_LETTERED:
        work.bury(row, reason=decision.reason, error=said, poison=decision.poison)
    if decision.status in {State.DEAD_LETTERED, State.FAILED} and not decision.new_row:
        await consequences.fail_dependents(work, {row.root_id})


def _log(row: TaskRow, decision: Decision, agent: str | None) -> None:
    delay = round(decision.delay_sec, 3)
    if decision.reason == reasons.RATE_LIMIT and delay:
        log.info(alerts.RATE_LIMITED, agent, delay, extra={"agent": agent, "wait_sec": delay})
    if decision.counted and (decision.new_row or decision.status in {State.RETRYING, State.READY}):
        task_id = ids.show_task(row.id)
        log.info(alerts.RETRIED, task_id, row.attempts, delay, extra={"task": task_id, "retry": row.attempts})


async def _go_on(work: Work, row: TaskRow, decision: Decision) -> None:
    """Prepare the row, or a new one, for its next attempt."""
    settings = (await work.settings([row]))[row.id]
    row.available_at = work.now + decision.delay_sec if decision.status == State.RETRYING else None
    if decision.new_row:
        await add_retry_row(work, row, decision.delay_sec)
        return
    if decision.status not in {State.RETRYING, State.READY}:
        return
    if decision.counted:
        row.priority = min(100.0, max(0.0, row.priority + settings.retry.priority_delta))
        await _fall_back(work, row)
    if not settings.retry.keep_position:
        row.ordered_at = row.available_at or work.now
    row.front = decision.front
    if decision.status == State.READY:
        work.arrive(row, settings)


async def _fall_back(work: Work, row: TaskRow) -> None:
    """From the second failure on, the fallback models decide who may take it."""
    if row.attempts >= 2:
        await relane(work, row)


async def _book_late(tx: Tx, caller: Caller, items: Sequence[Completion | Failure]) -> None:
    """Usage is a fact: under an old fence it changes no state, but it is booked to its attempt."""
    for item in items:
        await book_late_usage(tx, caller, item.token, item.usage, last=True)


async def book_late_usage(tx: Tx, caller: Caller, token: Token, usage: Usage, *, last: bool) -> bool:
    """A lost attempt was settled at its whole reservation: its last report replaces that, earlier ones use it up."""
    if not (usage.cost_usd or usage.tokens_in or usage.tokens_out):
        return False
    attempt = await tx.one("read_attempt", id=token.id, fence=token.fence, workspace=caller.workspace)
    if attempt is None:
        return False
    cost = micros(usage.cost_usd)
    reserved = 0 if last else attempt["reserved"]
    await tx.run("book_late_usage", id=token.id, fence=token.fence, cost=cost, reserved=reserved)
    await tx.run(
        "add_late_cost",
        id=token.id,
        cost=cost,
        tokens_in=usage.tokens_in,
        tokens_out=usage.tokens_out,
        now=tx.now,
    )
    row = await tx.one("read_tasks", items=[(token.id,)])
    if row is not None:
        more = max(attempt["cost"] + cost, reserved) - max(attempt["cost"], attempt["reserved"])
        await tx.run("settle_agents", items=[(row["workspace"], attempt["agent_id"], 0, more)])
    return True


async def release(tx: Tx, engine: Engine, caller: Caller, tokens: Sequence[Token], reason: str | None) -> list[Outcome]:
    """Give claims back without cost: a graceful stop, a drain, a deploy, a preemption."""
    work = Work(tx, engine, caller)
    raw = await lock_claims(tx, caller, tokens)
    await work.lock(raw)  # all at once: one by one it was a round trip for each
    outcomes = {}
    allowed = frozenset({State.CLAIMED.value, State.RUNNING.value})
    for token in tokens:
        if error := refusal(engine, caller, token, raw.get(token.id), allowed):
            outcomes[token] = Outcome(ids.show_task(token.id), error=error)
            continue
        row = (await work.lock([token.id]))[0]
        await release_row(work, row, reason, actor=caller.for_agent(row.agent_id))
        outcomes[token] = Outcome(ids.show_task(row.id), row.status)
    await work.save()
    return [outcomes[token] for token in tokens]


async def release_row(work: Work, row: TaskRow, reason: str | None, *, actor: str | None = None) -> None:
    settings = (await work.settings([row]))[row.id]
    if settings.delivery == "at_most_once" and row.started_at is not None:
        decision = after_loss(await facts_of(work, row), settings, reasons.CRASH, 0.0)
        await end_failed(work, row, decision, error=reason)
        return
    fence = row.fence
    work.end_attempt(row, "released", reason=reason)
    path = work.move(row, "release")
    work.arrive(row, settings)
    work.tell(row, "released", path, reason=reason, fence=fence, actor=actor)


async def hand_back(work: Work, rows: Sequence[TaskRow], note: str) -> None:
    """The holder's process is known to be gone: its tasks go back at once."""
    for row in rows:
        settings = (await work.settings([row]))[row.id]
        decision = after_departure(await facts_of(work, row), settings, work.engine.random.random())
        await end_failed(work, row, decision, note=note, lost=True)
