"""Effects: outside actions that happen once per key, across attempts and crashes."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import msgspec

from shiftwork.dead_letters.operations import ReviewDecision, review
from shiftwork.engine.engine import Caller, Engine
from shiftwork.engine.fence import lock_claim, lock_live, refusal
from shiftwork.engine.read import read_body
from shiftwork.engine.rows import TaskRow
from shiftwork.engine.unit_of_work import UnitOfWork
from shiftwork.model import ids, reasons
from shiftwork.model.errors import EffectInFlight, NotFound, ShiftworkError, WrongState
from shiftwork.model.outcome import Token
from shiftwork.model.states import CLAIMED_STATES, SETTLED, SLOT_STATES
from shiftwork.steps.model import Effect
from shiftwork.steps.policy import Owner, status_of
from shiftwork.store.store import Row, Tx, record


class EffectAnswer(NamedTuple):
    """An effect or an error, returned so that the error does not roll back what was recorded."""

    effect: Effect | None = None
    error: ShiftworkError | None = None

    def unwrap(self) -> Effect:
        if self.error is not None:
            raise self.error
        assert self.effect is not None
        return self.effect


async def begin(tx: Tx, engine: Engine, caller: Caller, token: Token, name: str | None, key: str | None) -> Effect:
    """Record the intent to perform an action, unless another task was first."""
    row = await lock_live(tx, engine, caller, token, SLOT_STATES)
    place = {"workspace": row["workspace"], "key": key or await _own_key(tx, row, name or "")}
    claim = {"task": token.id, "fence": token.fence}
    while await tx.one("take_effect", **place, **claim, begun_by=token.text, now=tx.now) is None:
        kept = await tx.one("lock_effect", **place)
        if kept is None:
            continue  # withdrawn between the two
        found = await _standing(tx, kept, token)
        if found == "unknown":
            await tx.run("take_over_effect", **place, **claim)
            kept = {**kept, "task_id": token.id, "fence": token.fence}
            await _emit(tx, engine, caller, row, kept, "unknown")
        return _effect(kept, found)
    begun = {**_NOTHING, "key": place["key"], "task_id": token.id, "fence": token.fence}
    begun |= {"begun_by": token.text, "began_at": tx.now}
    await _emit(tx, engine, caller, row, begun, "in_flight")
    return _effect(begun, "new")


_NOTHING: dict[str, Any] = {"done_at": None, "result": None, "resolved_by": None}


async def own_key(tx: Tx, task_id: str, name: str) -> str:
    """The key of an effect with this name; see `_own_key`."""
    row = await tx.one("read_tasks", items=[(task_id,)])
    assert row is not None
    return await _own_key(tx, row, name)


async def _own_key(tx: Tx, row: Row, name: str) -> str:
    """The same key for every attempt and for repeated submissions of the task's key; a different one for a rerun."""
    given = row["idempotency_key"]
    if given is None or (await read_body(tx, row["id"])).get("idempotency_key") != given:  # a hash is no one's word
        first = await tx.one("lineage_start", id=row["id"])
        given = ids.show_task(row["id"] if first is None else first["id"])
    return f"{given.replace('%', '%25').replace('/', '%2F')}/{name}"


async def _standing(tx: Tx, kept: Row, token: Token) -> Literal["done", "in_flight", "unknown"]:
    owner = await tx.one("read_tasks", items=[(kept["task_id"],)])
    status = None if owner is None else owner["status"]
    seen = Owner(status, kept["task_id"] == token.id, _holds(owner, kept))
    return status_of(seen, done=kept["done_at"] is not None)


def _holds(owner: Row | None, kept: Row) -> bool:
    return owner is not None and owner["fence"] == kept["fence"] and owner["status"] in CLAIMED_STATES


async def finish(
    tx: Tx, engine: Engine, caller: Caller, token: Token, key: str, result: str, *, happened: bool
) -> EffectAnswer:
    """Record the outcome of an action. It is a fact: it is recorded even if the claim is lost, unless another claim
    took over.
    """
    row = await lock_claim(tx, caller, token)
    error = refusal(engine, caller, token, row, SLOT_STATES)
    kept = None if row is None else await tx.one("lock_effect", workspace=row["workspace"], key=key)
    mine = kept is not None and (kept["task_id"], kept["fence"]) == (token.id, token.fence)
    if row is None or kept is None or not mine or not caller.may_write(row["holder"]):
        what = f"effect {key!r} was not begun under the claim {token.text}"
        return EffectAnswer(error=error or NotFound(what, where="key", hint="Begin it first, with the same `key`."))
    if kept["done_at"] is not None:
        return EffectAnswer(_effect(kept, "done"), error)
    ended = await _end(tx, kept, result, happened=happened)
    await _emit(tx, engine, caller, row, ended, "done" if happened else "withdrawn")
    return EffectAnswer(_effect(ended, "done" if happened else "withdrawn"), error)


async def _end(tx: Tx, kept: Row, result: str, *, happened: bool, actor: str | None = None) -> Row:
    place = {"workspace": kept["workspace"], "key": kept["key"]}
    if not happened:
        await tx.run("drop_effect", **place)
        return kept
    await tx.run("finish_effect", **place, result=result, now=tx.now, actor=actor)
    return {**kept, "done_at": tx.now, "result": result, "resolved_by": actor}


async def _emit(tx: Tx, engine: Engine, caller: Caller, row: Row, effect: Row, status: str) -> None:
    work = UnitOfWork(tx, engine, caller)
    work.add_claim_event(row, "effect", fence=effect["fence"], data={"key": effect["key"], "status": status})
    await work.save_events()


async def resolve(
    tx: Tx, engine: Engine, caller: Caller, workspace: str, key: str, result: str, note: str | None, *, happened: bool
) -> Effect:
    """Resolve an effect by a person's word: it is done or withdrawn, and the task that failed over it is retried."""
    work = UnitOfWork(tx, engine, caller)
    seen = await tx.one("read_effect", workspace=workspace, key=key)
    owner = next(iter(await work.lock([seen["task_id"]])), None) if seen is not None else None
    kept = await tx.one("lock_effect", workspace=workspace, key=key)
    if seen is None or kept is None:
        raise NotFound(f"there is no effect {key!r}", where="key")
    if kept["done_at"] is not None:
        raise WrongState(
            f"effect {key!r} is done", where="key", hint="An effect that is known to have happened cannot be changed."
        )
    if kept["task_id"] != seen["task_id"] or (owner is not None and _performs(owner, kept)):
        raise EffectInFlight(f"effect {key!r} is being performed", where="key", task_id=ids.show_task(kept["task_id"]))
    ended = await _end(tx, kept, result, happened=happened, actor=caller.actor)
    status: Literal["done", "withdrawn"] = "done" if happened else "withdrawn"
    answers = {"key": key, "status": status, "resolved_by": caller.actor}
    if owner is None:
        work.emit_for(workspace, "effect", data=answers)
    else:
        work.emit(owner, "effect", reason=note, data=answers)
    await work.save_events()
    if owner is not None and owner.status in SETTLED and owner.failure_reason == reasons.EFFECT_UNKNOWN:
        await review(tx, engine, caller, [owner.id], ReviewDecision("retry", note or f"effect {key} is {status}"))
    return _effect(ended, status)


def _performs(owner: TaskRow, kept: Row) -> bool:
    return owner.held and owner.fence == kept["fence"]


class EffectFilter(NamedTuple):
    """Which effects to list, in the order of their keys."""

    task_id: str | None = None
    key: str | None = None
    open_only: bool = False
    after: str = ""
    most: int = 100

    def fits(self, row: Row) -> bool:
        """Whether the one with the key is among them."""
        asked_for = self.task_id in {None, row["task_id"]} and not (self.open_only and row["done_at"] is not None)
        return asked_for and row["key"] > self.after


async def read(tx: Tx, workspace: str, which: EffectFilter) -> list[Effect]:
    page = {"workspace": workspace, "after": which.after, "count": which.most}
    if which.key is not None:
        found = await tx.all("effect_with_key", workspace=workspace, key=which.key)
        rows = [row for row in found if which.fits(row)]
    elif which.task_id is not None:
        rows = list(await tx.all("effects_of_task", task=which.task_id, open_only=which.open_only, **page))
    else:
        rows = list(await tx.all("list_open_effects" if which.open_only else "list_effects", **page))
    return [_effect(row, _status(row)) for row in rows]


def _status(row: Row) -> Literal["done", "in_flight", "unknown"]:
    if row["done_at"] is not None:
        return "done"
    return "in_flight" if row["held"] else "unknown"


def _effect(row: Row, status: Literal["new", "done", "in_flight", "unknown", "withdrawn"]) -> Effect:
    done = row["done_at"] is not None
    return record(
        Effect,
        row,
        status=status,
        task_id=ids.show_task(row["task_id"]),
        result=msgspec.json.decode(row["result"]) if done else None,
    )
