"""Applies a batch's answers to its tasks, each once: the transaction that ends an attempt also closes its item."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from shiftwork.batches import policy
from shiftwork.batches.batch_claims import CALLER
from shiftwork.batches.policy import Answer
from shiftwork.engine import finish
from shiftwork.engine.checked_reports import CheckedFailure, CheckedResult, check_failure, check_result
from shiftwork.engine.engine import Engine
from shiftwork.engine.unit_of_work import UnitOfWork
from shiftwork.model import reasons
from shiftwork.model.bounds import MAX_TEXT
from shiftwork.model.errors import ShiftworkError
from shiftwork.model.outcome import Outcome, Token
from shiftwork.model.reports import TaskFailure, TaskResult
from shiftwork.model.states import State
from shiftwork.model.task import Usage, micros
from shiftwork.providers import prices
from shiftwork.store.store import Row, Tx

CHUNK = 100
"""Answers applied in one transaction."""


class Item(NamedTuple):
    """A task of a batch with its provider's answer, ready to be stored."""

    place: int
    report: CheckedResult | CheckedFailure


def prepare(items: Sequence[Row], answers: Mapping[int, Answer]) -> list[Item]:
    """Prepare the results of open items; outside of any transaction, since prices are read from a file."""
    return [
        Item(row["place"], _report(Token(row["task_id"], row["fence"]), row["body"], answers[row["place"]]))
        for row in items
        if row["place"] in answers and not answers[row["place"]].is_missing
    ]


def _report(token: Token, body: str | None, answer: Answer) -> CheckedResult | CheckedFailure:
    cost = prices.cost_usd(answer.model, answer.tokens_in, answer.tokens_out, cached=answer.cached)
    usage = Usage(
        cost_usd=cost * policy.PRICE_FACTOR,
        tokens_in=answer.tokens_in,
        tokens_out=answer.tokens_out,
        model=answer.model or None,
    )
    if answer.error is not None:
        return check_failure(token, TaskFailure(reasons.AGENT_ERROR, answer.error[:MAX_TEXT]))
    wants_json = _wants_json(msgspec.json.decode(body) if body else {})
    try:
        return check_result(token, TaskResult(_data(answer, wants_json=wants_json), answer.text, usage=usage))
    except ShiftworkError as error:  # the answer cannot be stored, but was paid for
        return check_failure(token, TaskFailure(reasons.INVALID_OUTPUT, str(error)[:MAX_TEXT], usage))


def _wants_json(body: Mapping[str, Any]) -> bool:
    output = body.get("output") or {}
    return output.get("type") == "json" or output.get("validation") == "json-schema"


def _data(answer: Answer, *, wants_json: bool) -> Any:
    """The answer's JSON if the task asks for JSON; otherwise its parts that are not text."""
    if wants_json and answer.text is not None:
        try:
            return msgspec.json.decode(answer.text)
        except (msgspec.MsgspecError, ValueError):
            return None
    return answer.content


async def hand_back(tx: Tx, engine: Engine, batch_id: str, items: Sequence[Item]) -> int:
    """End the attempts of those items that are still open."""
    if await tx.one("lock_batch", id=batch_id) is None:
        return 0
    still = {row["place"] for row in await tx.all("batch_items_held", batch=batch_id)}
    left = [item for item in items if item.place in still]
    results = {item.place: item.report for item in left if isinstance(item.report, CheckedResult)}
    failures = {item.place: item.report for item in left if isinstance(item.report, CheckedFailure)}
    outcomes: list[tuple[int, Outcome]] = []
    if results:
        for place, outcome in zip(
            results, await finish.complete(tx, engine, CALLER, list(results.values())), strict=True
        ):
            if outcome.error is None:
                outcomes.append((place, outcome))
            else:  # such as a missing report; if the claim is lost, the failure is refused, too
                refused = TaskFailure(reasons.INVALID_OUTPUT, str(outcome.error)[:MAX_TEXT])
                failures[place] = CheckedFailure(results[place].token, refused)
    if failures:
        outcomes += zip(failures, await finish.fail(tx, engine, CALLER, list(failures.values())), strict=True)
    ended = [(place, _status(outcome)) for place, outcome in outcomes if not outcome.postponed]
    if ended:
        await tx.run("end_batch_items", batch=batch_id, items=sorted(ended))
        costs = {item.place: micros(item.report.usage.cost_usd) for item in left}
        await tx.run("add_batch_cost", id=batch_id, cost=sum(costs[place] for place, _ in ended))
    return len(ended)


def _status(outcome: Outcome) -> str:
    if outcome.error is not None:
        return "late"
    return "completed" if outcome.status in {State.COMPLETED, State.VALIDATING} else "failed"


async def release_rest(work: UnitOfWork, batch_id: str, items: Sequence[Row], reason: str) -> None:
    """Release the items without an answer, so that any agent can claim them."""
    rows = {row.id: row for row in await work.lock(item["task_id"] for item in items)}
    ended = []
    for item in items:
        row = rows.get(item["task_id"])
        held = row is not None and row.status == State.RUNNING and row.fence == item["fence"]
        if row is not None and held:
            await finish.release_row(work, row, reason, actor=work.caller.for_agent(row.agent_id))
        ended.append((item["place"], "released" if held else "late"))
    if ended:
        await work.tx.run("end_batch_items", batch=batch_id, items=sorted(ended))
