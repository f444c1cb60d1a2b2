"""Dead letters: what failed for good, and what people decide about it."""

from __future__ import annotations

from typing import Any

from shiftwork.core.errors import (
    IdempotencyKeyRequired,
    NotFound,
    UnknownReference,
    UnknownSetting,
    VersionConflict,
    WrongState,
)
from shiftwork.server.ask import Ask, outcomes, plain
from shiftwork.server.door import Doors, PageSize, Query, ViewQuery
from shiftwork.wire.shapes import LetterList, Listed, OutcomeReply, Outcomes, RedriveBody, ReviewBody

door = Doors("Dead letters")


class LetterQuery(ViewQuery):
    """Which dead letters."""

    reviewed_too: bool = False
    signature: str | None = None
    after: str | None = None
    limit: PageSize = 100


@door("GET /api/dead-letters", "read", query=LetterQuery, answer=LetterList)
async def list_letters(ask: Ask) -> Any:
    """Dead letters that wait for a decision, or all of them."""
    query = ask.query
    found = await ask.queue.dead_letters(
        reviewed_too=query.reviewed_too, signature=query.signature, after=query.after, limit=query.limit
    )
    if ask.view is None:
        return LetterList(found)
    return {"dead_letters": [ask.view.dead_letter_out(plain(letter)) for letter in found]}


class GroupQuery(Query):
    limit: PageSize = 100


@door("GET /api/dead-letters/groups", "read", query=GroupQuery, answer=Listed)
async def letter_groups(ask: Ask) -> Any:
    """Open dead letters grouped by what they have in common, the largest group first."""
    return Listed(await ask.queue.failure_groups(limit=ask.query.limit))


@door(
    "POST /api/dead-letters/{task_id}/review",
    "operate",
    body=ReviewBody,
    query=ViewQuery,
    answer=OutcomeReply,
    errors=(NotFound, WrongState, VersionConflict, UnknownSetting, IdempotencyKeyRequired, UnknownReference),
)
async def review(ask: Ask, body: ReviewBody) -> Any:
    """Decide about a dead letter: retry, retry_later, modify_and_retry, cancel, abandon, delete or escalate."""
    change = body.change if ask.view is None or body.change is None else ask.view.changes_in(body.change)
    told = await ask.queue.review(
        ask.path["task_id"],
        ask.resolution(body.decision),
        note=body.note,
        at=body.at,
        change=change,
        chain=body.chain,
        version=body.version,
    )
    return await ask.task_after(told)


@door("GET /api/dead-letters/{task_id}/reviews", "read", answer=Listed, errors=(NotFound,))
async def reviews(ask: Ask) -> Any:
    """Who decided what about a task, and why."""
    return Listed(await ask.queue.reviews(ask.path["task_id"]))


@door("POST /api/dead-letters/redrive", "operate", body=RedriveBody, answer=Outcomes)
async def redrive(ask: Ask, body: RedriveBody) -> Any:
    """The same decision for all dead letters that failed alike."""
    told = await ask.queue.redrive(body.signature, ask.resolution(body.decision), note=body.note, at=body.at)
    return outcomes(told)
