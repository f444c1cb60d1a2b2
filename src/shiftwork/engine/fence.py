"""Checks that a write names the live claim, and what the write answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from shiftwork.engine.engine import Caller, Engine
from shiftwork.engine.rows import TaskRow
from shiftwork.model import ids
from shiftwork.model.errors import LeaseLost, NotFound, NotYourClaim, ShiftworkError, VersionConflict, WrongState
from shiftwork.model.outcome import Outcome, Token
from shiftwork.model.states import CLAIMED_STATES
from shiftwork.store.store import Row, Tx

Verb = Callable[[Tx, Engine, Caller, Sequence[Any]], Awaitable[list[Outcome]]]


async def for_each(tx: Tx, engine: Engine, caller: Caller, verb: Verb, items: Sequence[Any]) -> list[Outcome]:
    """Run a verb on the items of a batch that have no outcome yet; the stored answer for a repeat contains all of
    them.
    """
    left = [item for item in items if not isinstance(item, Outcome)]
    answers = await verb(tx, engine, caller, left)
    if len(left) == len(items):
        return answers
    each = iter(answers)
    return [item if isinstance(item, Outcome) else next(each) for item in items]


async def lock_claims(tx: Tx, caller: Caller, tokens: Iterable[Token], *, ending: bool = False) -> dict[str, Row]:
    """The rows behind these tokens, locked in id order; without those hidden from the caller.

    Pass `ending` to read all that the ends of these claims need: this saves two round trips later.
    """
    items = [(id_,) for id_ in sorted({token.id for token in tokens})]
    rows = await tx.all("lock_ends" if ending else "lock_claims", items=items)
    return {row["id"]: row for row in rows if caller.may_see(row["workspace"])}


async def lock_claim(tx: Tx, caller: Caller, token: Token) -> Row | None:
    return (await lock_claims(tx, caller, [token])).get(token.id)


async def lock_live(tx: Tx, engine: Engine, caller: Caller, token: Token, allowed: frozenset[str]) -> Row:
    """Lock the row of a claim; raises if the claim may not write."""
    row = await lock_claim(tx, caller, token)
    if error := refusal(engine, caller, token, row, allowed):
        raise error
    assert row is not None
    return row


def check_version(engine: Engine, row: TaskRow, expected: int | None) -> ShiftworkError | None:
    if expected is None or row.version == expected:
        return None
    task_id = ids.show_task(row.id)
    engine.conflict("version_conflict", task=task_id, expected=expected, actual=row.version)
    return VersionConflict(
        f"task {task_id} is at version {row.version}, not {expected}", task_id=task_id, version=row.version
    )


def refusal(
    engine: Engine, caller: Caller, token: Token, row: Row | None, allowed: frozenset[str] = CLAIMED_STATES
) -> ShiftworkError | None:
    """Why a write under this token is refused, or None if it is allowed."""
    mine = row is not None and caller.may_write(row["holder"])
    if mine and row is not None and row["fence"] == token.fence and row["status"] in allowed:
        return None
    task_id = ids.show_task(token.id)
    if row is None:
        return NotFound(f"there is no task {task_id}", task_id=task_id)
    if row["status"] not in CLAIMED_STATES or row["fence"] != token.fence:
        engine.conflict("lease_lost", task=task_id, fence=token.fence, live_fence=row["fence"], status=row["status"])
        return LeaseLost(
            f"claim {token.text} no longer holds: the task is {row['status']}",
            task_id=task_id,
            status=row["status"],
            reason=row["cancel_reason"],
        )
    if not mine:
        return NotYourClaim(f"task {task_id} was claimed with another token", task_id=task_id, status=row["status"])
    names = " or ".join(sorted(allowed))
    return WrongState(f"task {task_id} is {row['status']}, not {names}", task_id=task_id, status=row["status"])
