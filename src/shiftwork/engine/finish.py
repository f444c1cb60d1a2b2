"""Ends attempts at the agent's request: complete, fail, release."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, tzinfo
from typing import Any

import msgspec

from shiftwork.artifacts import outputs
from shiftwork.budgets.booking import CostChanges
from shiftwork.engine import agent_sessions, dedupe_policy, dependents, plain_completion
from shiftwork.engine.checked_reports import CheckedFailure, CheckedResult
from shiftwork.engine.decide import AttemptFacts, Decision, after_death, after_failure, after_loss
from shiftwork.engine.engine import Caller, Engine, log
from shiftwork.engine.fence import lock_claims, refusal
from shiftwork.engine.fingerprint import fingerprint
from shiftwork.engine.lineage import add_retry_row
from shiftwork.engine.prepare import lane_now
from shiftwork.engine.rows import TaskRow
from shiftwork.engine.unit_of_work import UnitOfWork, as_json
from shiftwork.limits.cooldowns import Cooldowns, has_other_account, is_account_known
from shiftwork.model import ids, reasons
from shiftwork.model.errors import WrongState
from shiftwork.model.outcome import Outcome, Token
from shiftwork.model.reports import TaskFailure
from shiftwork.model.states import State
from shiftwork.model.task import NewVerdict, Verdict
from shiftwork.observe import alert_kinds
from shiftwork.providers import provider_limits
from shiftwork.settings.model import Settings
from shiftwork.store.store import Row, Tx
from shiftwork.validation import judges
from shiftwork.validation import operations as validation
from shiftwork.validation import policy as verdict

RUNNING_ONLY = frozenset({State.RUNNING.value})
_DONE = State.COMPLETED.value


async def complete(tx: Tx, engine: Engine, caller: Caller, items: Sequence[CheckedResult]) -> list[Outcome]:
    """Submit results: each is validated, accepted once, and frees its dependents.

    Results that take too long to validate in this transaction are postponed; their usage is booked.
    """
    requests = {item.token: item.request_id for item in items if item.request_id is not None}
    if len(requests) == 1:  # then it is also the cause of everything that follows
        caller = caller._replace(request_id=next(iter(requests.values())))
    work = UnitOfWork(tx, engine, caller)
    work.requests = requests
    by_token = {item.token: item for item in reversed(items)}
    named = {token: item.artifacts for token, item in by_token.items() if item.result.artifacts and item.artifacts}
    refused = await outputs.refuse_unknown(work, named) if named else {}
    for token in refused:
        del by_token[token]
    await _book(work, list(by_token.values()))
    unseen = await validation.needs_look(work)
    outcomes = await _accept(work, [item for item in by_token.values() if not unseen or item.reported])
    if len(outcomes) < len(by_token):
        left = [item for token, item in by_token.items() if token not in outcomes]
        outcomes.update(await _complete_slowly(work, left))
        await _book_late(work, [item for item in left if outcomes[item.token].error is not None])
    outcomes.update(refused)
    if named := {token: each for token, each in named.items() if not outcomes[token].postponed}:
        await outputs.use(work, named, outcomes)
    await work.save()
    return _answers([item.token for item in items], outcomes)


async def _book(work: UnitOfWork, items: list[CheckedResult]) -> None:
    used = [(item.token, item.usage) for item in items if item.result.usage is not None]
    if used:
        await work.part(CostChanges).book(used, status=State.RUNNING)


async def _accept(
    work: UnitOfWork, items: list[CheckedResult], checked: Mapping[str, Verdict | None] | None = None
) -> dict[Token, Outcome]:
    """The way most attempts end, in few statements and without loading whole rows.

    Results that need validation are skipped here unless they have been checked.
    """
    if not items:
        return {}
    ended: Sequence[Token] = ()
    tied: Sequence[Row] = ()
    if checked is None and plain_completion.may_be_plain(work, items):
        if len(items) > 1:
            ended, tied = await plain_completion.accept(work, items)
        elif await plain_completion.accept_one(work, items[0]):
            ended = [items[0].token]
    if len(ended) == len(items):
        return _completed(ended)
    known = {*ended, *(Token(row["id"], row["fence"]) for row in tied)}
    left = [item for item in items if item.token not in known] if known else items
    rows = await _end(work, left, checked)
    if tied:
        work.end_accepted(tied)
        rows = [*tied, *rows]
    if rows:
        await _free_keys(work, [row for row in rows if row["idempotency_key"] is not None])
        await _lock_roots(work, rows)
        if not await _is_alone(work, rows):
            await dependents.free_dependents(work, {row["root_id"] for row in rows})
    return _completed([*ended, *(Token(row["id"], row["fence"]) for row in rows)])


def _completed(tokens: Sequence[Token]) -> dict[Token, Outcome]:
    shown = ids.show_tasks([token.id for token in tokens])
    return {token: Outcome(task_id, _DONE) for token, task_id in zip(tokens, shown, strict=True)}


async def _end(
    work: UnitOfWork, items: list[CheckedResult], checked: Mapping[str, Verdict | None] | None
) -> Sequence[Row]:
    if not items:
        return ()
    rows = await work.tx.all(
        "complete_tasks",
        items=sorted(item.token for item in items),
        now=work.now,
        checked=checked is not None,
        workspace=work.caller.workspace,
        holder=work.caller.holder,
    )
    if rows:
        verdicts = {id_: as_json(found) for id_, found in (checked or {}).items() if found is not None}
        work.accept(rows, {item.token: item.stored for item in items}, verdicts)
    return rows


async def _lock_roots(work: UnitOfWork, rows: Sequence[Row]) -> None:
    """Lock the roots too: a new dependent waits at the root, and the update has locked only the newest row."""
    roots = sorted({row["root_id"] for row in rows if row["root_id"] != row["id"]})
    if roots:
        await work.tx.all("lock_tasks", items=[(root,) for root in roots])


async def _is_alone(work: UnitOfWork, rows: Sequence[Row]) -> bool:
    """Whether nothing waits for these and none has a DAG row: one query, made once they are locked."""
    ties = sorted({(row["root_id"], row["dag_id"]) for row in rows})
    if any(root != dag for root, dag in ties):
        return False
    found = await work.tx.one("ties_of", items=ties)
    if found is not None and not found["joined"]:
        work.mark_standalone(dag for _, dag in ties)
    return found is not None and not found["awaited"]


async def _complete_slowly(work: UnitOfWork, items: list[CheckedResult]) -> dict[Token, Outcome]:
    """Complete results that must be validated first, are repeats, or come too late."""
    rows = await lock_claims(work.tx, work.caller, (item.token for item in items))
    outcomes: dict[Token, Outcome] = {}
    live: dict[str, CheckedResult] = {}
    for item in items:
        row = rows.get(item.token.id)
        if _holds_claim(State.COMPLETED, work.caller, row, item.token):
            outcomes[item.token] = Outcome(ids.show_task(item.token.id), State.COMPLETED, repeated=True)
        elif _holds_claim(State.VALIDATING, work.caller, row, item.token):
            outcomes[item.token] = await _resubmit(work, item)
        elif error := refusal(work.engine, work.caller, item.token, row, RUNNING_ONLY):
            outcomes[item.token] = Outcome(ids.show_task(item.token.id), error=error)
        else:
            live[item.token.id] = item
    checked = await validation.check(work, live, rows)
    outcomes.update({item.token: Outcome(ids.show_task(item.token.id), error=e) for item, e in checked.refused})
    outcomes.update({item.token: Outcome(ids.show_task(item.token.id)) for item in checked.postponed})
    outcomes.update(await _accept(work, [live[id_] for id_ in checked.accepted], checked.accepted))
    outcomes.update(await _reject_outputs(work, checked.rejected))
    for awaited in checked.awaited:
        outcomes[awaited.item.token] = await judges.submit_result(work, awaited)
    for id_ in checked.accepted:
        if rows[id_]["validation"] == verdict.JUDGING:
            await _pass_judgement(work, rows[id_], live[id_])
    return outcomes


def _answers(tokens: Sequence[Token], outcomes: dict[Token, Outcome]) -> list[Outcome]:
    """The outcomes in the order requested; an item that occurs twice in a batch is done once and answered twice."""
    if len(outcomes) == len(tokens):
        return [outcomes[token] for token in tokens]
    answers, found = [], set()
    for token in tokens:
        outcome = outcomes[token]
        answers.append(
            msgspec.structs.replace(outcome, repeated=True) if token in found and not outcome.error else outcome
        )
        found.add(token)
    return answers


def _holds_claim(state: State, caller: Caller, row: Row | None, token: Token) -> bool:
    """A repeat of the same token, after its answer was lost: done once, answered twice."""
    if row is None or not caller.may_write(row["holder"]):
        return False
    return bool(row["status"] == state and row["fence"] == token.fence)


async def _resubmit(work: UnitOfWork, item: CheckedResult) -> Outcome:
    """An output that awaits its verdict may get it with the second submission."""
    if item.result.verdict is None:
        return Outcome(ids.show_task(item.token.id), State.VALIDATING, repeated=True)
    return await judge_output(work, item.token, item.result.verdict)


async def _free_keys(work: UnitOfWork, rows: list[Row]) -> None:
    settings = await work.in_force([(row["id"], row["workspace"], row["type"], row["own_settings"]) for row in rows])
    leaving = [
        (row["workspace"], row["idempotency_key"], row["id"])
        for row in rows
        if not dedupe_policy.in_scope(settings[row["id"]].idempotency, State.COMPLETED)
    ]
    if leaving:
        await work.tx.run("drop_keys", items=sorted(leaving))


async def _reject_outputs(work: UnitOfWork, rejected: list[tuple[CheckedResult, Verdict]]) -> dict[Token, Outcome]:
    """An output that fails its validation is a failed attempt."""
    failures = [_rejection(item.token, found)._replace(stored=item.stored) for item, found in rejected]
    return await _fail_locked(work, failures, validating=True)


def _rejection(token: Token, found: Verdict) -> CheckedFailure:
    error = "; ".join(found.reasons) or f"the output was rejected by {found.method}"
    return CheckedFailure(token, TaskFailure(reasons.INVALID_OUTPUT, error), verdict=found)


async def judge_output(work: UnitOfWork, token: Token, verdict: NewVerdict) -> Outcome:
    """Give a verdict from outside on an output that awaits one."""
    row = (await work.lock([token.id]))[0]
    if row.validation != "test-pass":
        shown = ids.show_task(row.id)
        return Outcome(shown, error=WrongState(f"the output of {shown} is judged by {row.validation}", task_id=shown))
    return await settle_output(work, row, validation.as_verdict(verdict, work.caller.for_agent(row.agent_id), work.now))


async def _pass_judgement(work: UnitOfWork, judge: Row, item: CheckedResult) -> None:
    """A judge's accepted answer becomes the verdict on the judged output, unless that no longer awaits one."""
    about = await work.tx.one("output_of_judge", judge=judge["root_id"])
    row = (await work.lock([about["task_id"]]))[0] if about is not None else None
    if about is None or row is None or row.status != State.VALIDATING or row.fence != about["fence"]:
        return
    passed, why = verdict.of_judge(item.result.data)
    by, evidence = f"agent:{judge['agent_id']}", {"task_id": ids.show_task(judge["id"])}
    await settle_output(work, row, Verdict("llm-judge", passed, by, work.now, why, evidence))


async def settle_output(work: UnitOfWork, row: TaskRow, found: Verdict) -> Outcome:
    """Accept or reject an output that awaited this verdict."""
    token = Token(row.id, row.fence)
    if not found.passed:
        return (await _fail_locked(work, [_rejection(token, found)]))[token]
    output = await dependents.take_output(work, row)
    result = None if output is None else output["result"]
    work.end_attempt(row, "completed", result=result, verdict=as_json(found))
    path = work.move(row, "accept_output")
    row.hold = row.failure_reason = None
    work.emit(row, "completed", path, fence=token.fence, actor=found.by)
    await dependents.free_dependents(work, {row.root_id})
    return Outcome(ids.show_task(row.id), _DONE)


async def fail(tx: Tx, engine: Engine, caller: Caller, items: Sequence[CheckedFailure]) -> list[Outcome]:
    """Report failed attempts: each is retried, dead-lettered or left failed, as its settings say."""
    work = UnitOfWork(tx, engine, caller)
    rows = await lock_claims(tx, caller, (item.token for item in items), ending=True)
    outcomes: dict[Token, Outcome] = {}
    live: dict[Token, CheckedFailure] = {}
    for item in items:
        error = refusal(engine, caller, item.token, rows.get(item.token.id))
        if error is not None:
            outcomes[item.token] = await _failed_before(tx, caller, item.token) or Outcome(
                ids.show_task(item.token.id), error=error
            )
        else:
            live[item.token] = item
    await work.load_locked(rows[token.id] for token in live)
    await work.part(CostChanges).book([(item.token, item.usage) for item in live.values()])
    outcomes.update(await _fail_locked(work, list(live.values())))
    await _book_late(work, [item for item in items if isinstance(outcomes[item.token].error, Exception)])
    await work.save()
    return _answers([item.token for item in items], outcomes)


async def _failed_before(tx: Tx, caller: Caller, token: Token) -> Outcome | None:
    """The same failure reported again, after its answer got lost."""
    attempt = await tx.one("read_attempt", id=token.id, fence=token.fence, workspace=caller.workspace)
    if attempt is None or attempt["outcome"] != "failed" or attempt["reason"] in reasons.SILENCE:
        return None
    row = await tx.one("read_tasks", items=[(token.id,)])
    return Outcome(ids.show_task(token.id), row["status"] if row else None, repeated=True)


async def _fail_locked(
    work: UnitOfWork, items: Sequence[CheckedFailure], *, validating: bool = False
) -> dict[Token, Outcome]:
    rows = await work.lock(item.token.id for item in items)
    by_id = {item.token.id: item for item in items}
    outcomes = {}
    for row in rows:
        if row.id not in by_id:
            continue
        item = by_id[row.id]
        if validating:
            row.status = State.VALIDATING
        settings = await work.settings_of(row)
        facts = await facts_of(work, row)
        found = item.failure
        if not found.retry:
            used_up = max(facts.attempts, facts.max_attempts - 1)
            facts = facts._replace(attempts=used_up, free_waits=False)
        limit, zone = settings.rate_limit, _zone_of(work.now)
        judged = provider_limits.classify_failure(found.reason, found.error, found.data, limit, work.now, zone)
        if judged.signal is not None and judged.signal.kind == "auth":
            facts = facts._replace(account_known=await is_account_known(work, row, item.named))
        elif judged.signal is not None and judged.signal.kind == "rate_limit":
            facts = facts._replace(other_account=await has_other_account(work, row, item.named))
        decision = after_failure(facts, settings, judged, work.engine.random.random())
        if decision.provider is not None:
            work.part(Cooldowns).report(row, item.named, decision.provider, found.data)
        await end_failed(
            work, row, decision, error=found.error, result=item.stored, verdict=item.verdict, validating=validating
        )
        outcomes[item.token] = Outcome(
            ids.show_task(row.id), row.status, data={"reason": decision.reason, "why": decision.why}
        )
    return outcomes


def _zone_of(now: float) -> tzinfo:
    """The time zone of this machine. Our own workers resolve clock times in their zone and report absolute times."""
    return datetime.fromtimestamp(now, UTC).astimezone().tzinfo or UTC


async def facts_of(work: UnitOfWork, row: TaskRow) -> AttemptFacts:
    """Collect the facts for the decision; the history is read only if it can matter."""
    agents: list[str] = []
    if row.attempts:
        history = await work.tx.all("failed_agents", id=row.id, round=row.round)
        agents = [attempt["agent_id"] for attempt in history]
    return AttemptFacts(
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
    work: UnitOfWork,
    row: TaskRow,
    decision: Decision,
    *,
    error: str | None = None,
    note: str | None = None,
    result: str | None = None,
    verdict: Verdict | None = None,
    lost: bool = False,
    validating: bool = False,
) -> None:
    """Carry out what was decided about an attempt that did not succeed."""
    fence, agent = row.fence, row.agent_id
    outcome = "failed" if State.FAILED in decision.path else "reclaimed"
    if row.status == State.VALIDATING and not validating and (output := await dependents.take_output(work, row)):
        result = output["result"]
    retired = await agent_sessions.record_health(work, row, decision)
    work.end_attempt(
        row,
        outcome,
        counted=decision.counted,
        reason=decision.reason,
        error=error,
        note="; ".join(filter(None, (note, retired))) or None,
        result=result,
        verdict=None if verdict is None else as_json(verdict),
        lost=lost,
    )
    path = work.apply_path(row, decision.path)
    if validating:
        path = f"running>{path}"
    row.attempts += decision.counted
    row.reclaims += decision.reclaimed
    row.rate_limits = row.rate_limits + 1 if decision.rate_limited else 0
    row.failure_reason = decision.reason
    row.lost_agent_id = agent if decision.reclaimed else None
    _log(row, decision, agent)
    await _prepare_next_attempt(work, row, decision)
    verb = "failed" if outcome == "failed" else "lease_expired"
    text = error or note or decision.reason
    data: dict[str, Any] = {"type": row.type, "error": error, "note": note, "why": decision.why, "session": retired}
    data |= {"attempt": row.attempts, "agent": agent, "signature": fingerprint(row.type, decision.reason, text)}
    if decision.delay_sec:
        data["delay_sec"] = round(decision.delay_sec, 3)
    work.emit(
        row,
        verb,
        path,
        reason=decision.reason,
        fence=fence,
        data={k: v for k, v in data.items() if v is not None},
        actor=None if lost else work.caller.for_agent(agent),
    )
    if decision.status == State.DEAD_LETTERED:
        work.dead_letter(row, reason=decision.reason, error=text, poison=decision.poison)
    if decision.reason == reasons.EFFECT_UNKNOWN:
        await _ask_about_effects(work, row)
    if decision.status in {State.DEAD_LETTERED, State.FAILED} and not decision.new_row:
        await dependents.fail_dependents(work, {row.root_id})


async def _ask_about_effects(work: UnitOfWork, row: TaskRow) -> None:
    """Ask a person: only a person can check the outside world."""
    for effect in await work.tx.all("open_effects", task=row.id):
        work.alert(row.workspace, "effect_unknown", row.id, key=effect["key"])


def _log(row: TaskRow, decision: Decision, agent: str | None) -> None:
    delay = round(decision.delay_sec, 3)
    if decision.reason == reasons.RATE_LIMIT and delay:
        log.info(alert_kinds.RATE_LIMITED, agent, delay, extra={"agent": agent, "wait_sec": delay})
    if decision.counted and (decision.new_row or decision.status in {State.RETRYING, State.READY}):
        task_id = ids.show_task(row.id)
        log.info(alert_kinds.RETRIED, task_id, row.attempts, delay, extra={"task": task_id, "retry": row.attempts})


async def _prepare_next_attempt(work: UnitOfWork, row: TaskRow, decision: Decision) -> None:
    """Prepare the row, or a new one, for its next attempt."""
    settings = await work.settings_of(row)
    row.available_at = work.now + decision.delay_sec if decision.status == State.RETRYING else None
    if decision.new_row:
        priority, lane = row.priority, row.lane
        if decision.counted:
            priority, lane = _next_priority(row, settings), await _next_lane(work, row)
        await add_retry_row(work, row, decision.delay_sec, priority=priority, lane=lane)
        return
    if decision.status not in {State.RETRYING, State.READY}:
        return
    if decision.counted:
        row.priority, row.lane = _next_priority(row, settings), await _next_lane(work, row)
    if not settings.retry.keep_position:
        row.ordered_at = row.available_at or work.now
    row.front = decision.front
    if decision.status == State.READY:
        work.mark_ready(row, settings)


def _next_priority(row: TaskRow, settings: Settings) -> float:
    return min(100.0, max(0.0, row.priority + settings.retry.priority_delta))


async def _next_lane(work: UnitOfWork, row: TaskRow) -> int:
    """From the second failure on, the fallback models decide which agents may take it."""
    return await lane_now(work, row) if row.attempts >= 2 else row.lane


async def stop_spent(work: UnitOfWork, why: Mapping[Token, str]) -> None:
    """End attempts that have used up their budget; they are not retried, whatever the retry lists say."""
    if why:
        stopped = {token: TaskFailure(reasons.BUDGET_EXCEEDED, found, retry=False) for token, found in why.items()}
        await _fail_locked(work, [CheckedFailure(token, failure) for token, failure in stopped.items()])


async def _book_late(work: UnitOfWork, items: Sequence[CheckedResult | CheckedFailure]) -> None:
    for item in items:
        await work.part(CostChanges).book_late(item.token, item.usage, last=True)


async def release(tx: Tx, engine: Engine, caller: Caller, tokens: Sequence[Token], reason: str | None) -> list[Outcome]:
    """Give claims back without cost: a graceful stop, a drain, a deploy, a preemption."""
    work = UnitOfWork(tx, engine, caller)
    raw = await lock_claims(tx, caller, tokens, ending=True)
    await work.load_locked(raw.values())
    outcomes = {}
    allowed = frozenset({State.CLAIMED.value, State.RUNNING.value})
    for token in dict.fromkeys(tokens):
        if error := refusal(engine, caller, token, raw.get(token.id), allowed):
            outcomes[token] = Outcome(ids.show_task(token.id), error=error)
            continue
        row = (await work.lock([token.id]))[0]
        await release_row(work, row, reason, actor=caller.for_agent(row.agent_id))
        outcomes[token] = Outcome(ids.show_task(row.id), row.status)
    await work.save()
    return _answers(tokens, outcomes)


async def release_row(work: UnitOfWork, row: TaskRow, reason: str | None, *, actor: str | None = None) -> None:
    settings = await work.settings_of(row)
    if settings.delivery == "at_most_once" and row.started_at is not None:
        decision = after_loss(await facts_of(work, row), settings, reasons.CRASH, 0.0)
        await end_failed(work, row, decision, error=reason)
        return
    fence = row.fence
    work.end_attempt(row, "released", reason=reason)
    path = work.move(row, "release")
    work.mark_ready(row, settings)
    work.emit(row, "released", path, reason=reason, fence=fence, actor=actor)


async def lose_claims(work: UnitOfWork, rows: Sequence[TaskRow], runtime_id: str) -> None:
    """The process that held these claims is known to be dead: treat it like silence, only sooner."""
    for row in rows:
        settings = await work.settings_of(row)
        decision = after_death(await facts_of(work, row), settings, work.engine.random.random())
        note = f"{decision.reason}: agent {row.agent_id}, the process of runtime {runtime_id} died"
        await end_failed(work, row, decision, note=note, lost=True)
