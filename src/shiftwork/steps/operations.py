"""Implements the operations on steps and effects; a step is a result inside a task that outlives the attempt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from shiftwork.artifacts import artifact_rows as artifacts
from shiftwork.artifacts import transfer
from shiftwork.artifacts.artifact_rows import ArtifactUse
from shiftwork.budgets.booking import CostChanges
from shiftwork.engine import read
from shiftwork.engine.checked_reports import check_usage
from shiftwork.engine.engine import Caller, Engine
from shiftwork.engine.fence import lock_claim, lock_live, refusal
from shiftwork.engine.leases import Beat, heartbeat
from shiftwork.engine.unit_of_work import UnitOfWork
from shiftwork.model import check
from shiftwork.model.errors import InputError, ShiftworkError, TooLarge
from shiftwork.model.outcome import Token
from shiftwork.model.states import SLOT_STATES
from shiftwork.model.task import NO_USAGE, Usage, dollars, micros
from shiftwork.operation.local import Call, implements, reading
from shiftwork.settings.model import Bounds
from shiftwork.steps import effects
from shiftwork.steps.api import Effects, Steps
from shiftwork.steps.effects import EffectFilter
from shiftwork.steps.model import Effect, Step
from shiftwork.store.store import Row, Tx, record


class StoredStep(NamedTuple):
    """A stored result: its JSON, or the artifact that contains it."""

    result: str | None = None
    artifact: str | None = None


class StepAnswer(NamedTuple):
    """A step or an error, returned so that the error does not roll back booked usage."""

    step: Step | None = None
    error: ShiftworkError | None = None

    def unwrap(self) -> Step:
        if self.error is not None:
            raise self.error
        assert self.step is not None
        return self.step


@implements(Steps.begin)
async def begin_step(call: Call, token: str | Token, name: str) -> Step:
    return await _whole(call, await call.run(begin, await call.token(token), name))


@implements(Steps.complete)
async def complete_step(
    call: Call,
    token: str | Token,
    name: str,
    result: Any = None,
    usage: Usage | Mapping[str, Any] | None = None,
) -> Step:
    assert usage is None or isinstance(usage, Usage)
    claim = await call.token(token)
    done = await call.run(complete, claim, name, await _kept(call, result), check_usage(usage) or NO_USAGE)
    return await _whole(call, done.unwrap())


async def _kept(call: Call, result: Any) -> StoredStep:
    """Prepare a result for the store; a large one is uploaded before the transaction that refers to it."""
    bounds = await _bounds(call)
    text = check.to_json(result, bounds.step_bytes, bounds, "result")
    data = text.encode()
    if len(data) <= bounds.step_inline_bytes:
        return StoredStep(result=text)
    if call.engine.blob_store is None:
        what = f"{len(data)} bytes of JSON, at most {bounds.step_inline_bytes} are kept in the database"
        raise TooLarge(what, where="result", hint="Store less, or configure a place for artifacts.")
    kept = await transfer.put_bytes(call.engine, call.caller, call.workspace, data, "application/json")
    return StoredStep(artifact=kept)


async def _whole(call: Call, step: Step) -> Step:
    """The step with its result, even if that is in an artifact."""
    if step.artifact is None:
        return step
    found = await transfer.read_bytes(call.engine, call.workspace, step.artifact)
    return msgspec.structs.replace(step, result=msgspec.json.decode(found))


async def _bounds(call: Call) -> Bounds:
    return (await call.engine.settings_cache.get(call.engine.store, call.workspace)).settings().bounds


@reading(Steps.list)
async def list_steps(
    tx: Tx, engine: Engine, caller: Caller, workspace: str, task_id: str, *, after: int = 0, limit: int = 100
) -> list[Step]:
    uuid = await read.find(tx, workspace, task_id)
    rows = await tx.all("list_steps", workspace=workspace, task=uuid, after=after, count=limit)
    if not rows:
        await read.must_exist(tx, engine, workspace, uuid)
    return [_step(row, held=bool(row["held"])) for row in rows]


@implements(Effects.begin)
async def begin_effect(call: Call, token: str | Token, name: str | None = None, *, key: str | None = None) -> Effect:
    if (name is None) == (key is None):
        raise InputError("an effect has either a name or a key", where="name")
    return await call.run(effects.begin, await call.token(token), name, key)


@implements(Effects.finish)
async def finish_effect(
    call: Call, token: str | Token, key: str, result: Any = None, *, happened: bool = True
) -> Effect:
    text = await _effect_result(call, result)
    done = await call.run(effects.finish, await call.token(token), key, text, happened=happened)
    return done.unwrap()


@implements(Effects.resolve)
async def resolve_effect(
    call: Call, key: str, *, happened: bool, result: Any = None, note: str | None = None
) -> Effect:
    text = await _effect_result(call, result)
    return await call.run(effects.resolve, call.workspace, key, text, note, happened=happened)


async def _effect_result(call: Call, result: Any) -> str:
    bounds = await _bounds(call)
    return check.to_json(result, bounds.step_inline_bytes, bounds, "result")


@reading(Effects.of_task)
async def list_effects_of_task(
    tx: Tx,
    engine: Engine,
    caller: Caller,
    workspace: str,
    task_id: str,
    *,
    key: str | None = None,
    open_only: bool = False,
    after: str = "",
    limit: int = 100,
) -> list[Effect]:
    uuid = await read.find(tx, workspace, task_id)
    found = await effects.read(tx, workspace, EffectFilter(uuid, key, open_only, after, limit))
    if not found:
        await read.must_exist(tx, engine, workspace, uuid)
    return found


@reading(Effects.of_workspace)
async def list_effects(
    tx: Tx,
    engine: Engine,
    caller: Caller,
    workspace: str,
    *,
    key: str | None = None,
    open_only: bool = False,
    after: str = "",
    limit: int = 100,
) -> list[Effect]:
    return await effects.read(tx, workspace, EffectFilter(None, key, open_only, after, limit))


async def begin(tx: Tx, engine: Engine, caller: Caller, token: Token, name: str) -> Step:
    """The step stored by this or an earlier attempt; otherwise, it is in flight from now on."""
    row = await lock_live(tx, engine, caller, token, SLOT_STATES)
    kept = await tx.one("read_step", task=token.id, name=name)
    if kept is not None and (kept["done_at"] is not None or kept["fence"] == token.fence):
        return _step(kept, held=True)
    place = kept["place"] if kept is not None else await _next_place(tx, engine, row["workspace"], row["id"])
    begun = _blank(token, name, place, tx.now)
    await tx.run("save_step", **begun)
    await _emit(tx, engine, caller, row, begun, "in_flight")
    return _step(begun, held=True)


async def complete(
    tx: Tx, engine: Engine, caller: Caller, token: Token, name: str, result: StoredStep, usage: Usage
) -> StepAnswer:
    """Store the step's result and book its cost; the first result wins, and one claim pays for it once."""
    row = await lock_claim(tx, caller, token)
    if error := refusal(engine, caller, token, row, SLOT_STATES):
        work = UnitOfWork(tx, engine, caller)
        await work.part(CostChanges).book_late(token, usage, last=False)
        await work.save()
        return StepAnswer(error=error)
    assert row is not None
    kept = await tx.one("read_step", task=token.id, name=name)
    done = kept is not None and kept["done_at"] is not None
    if kept is not None and done and (kept["fence"] == token.fence or usage == Usage()):
        return StepAnswer(_step(kept, held=True))
    place = kept["place"] if kept is not None else await _next_place(tx, engine, row["workspace"], row["id"])
    stored = {**_blank(token, name, place, tx.now), "done_at": tx.now, **result._asdict()}
    if kept is not None:
        stored |= {field: kept[field] for field in (_FIRST if done else ("began_at",))}
    stored |= _added(kept, usage)
    await _use(tx, caller, row, stored)
    await tx.run("save_step", **stored)
    await heartbeat(tx, engine, caller, [Beat(token, None, usage)])
    if not done:
        await _emit(tx, engine, caller, row, stored, "done")
    return StepAnswer(_step(stored, held=True))


async def recall(tx: Tx, token: Token, name: str) -> Any:
    """A verb's result stored under this name, as JSON text, or None. The task's row is locked."""
    kept = await tx.one("read_step", task=token.id, name=name)
    return None if kept is None or kept["done_at"] is None else kept["result"]


async def keep(tx: Tx, engine: Engine, workspace: str, token: Token, name: str, result: str) -> None:
    """Store what a verb has done as a step, in the verb's own transaction: a later attempt finds it done."""
    place = await _next_place(tx, engine, workspace, token.id)
    await tx.run("save_step", **{**_blank(token, name, place, tx.now), "done_at": tx.now, "result": result})


_FIRST = ("began_at", "done_at", "result", "artifact")
"""Fields kept from a step that was done before."""


async def _use(tx: Tx, caller: Caller, row: Row, step: dict[str, Any]) -> None:
    """Keep the artifact of a result as long as the task."""
    if step["artifact"] is not None:
        held = await artifacts.hold(tx, row["workspace"], [step["artifact"]])
        artifacts.refuse_unknown(held, [step["artifact"]], "result")
        await artifacts.use(
            tx, caller, row["workspace"], [ArtifactUse(row["id"], "step", step["artifact"], step["name"])]
        )


async def _next_place(tx: Tx, engine: Engine, workspace: str, task_id: str) -> int:
    last = await tx.one("last_step", task=task_id)
    most = (await engine.settings_cache.load(tx, workspace)).settings().bounds.steps
    place = 1 if last is None else int(last["place"]) + 1
    if place > most:
        hint = "Put several results into one step, or raise bounds.steps."
        raise TooLarge(f"the task has {most} steps already, the maximum", where="name", hint=hint)
    return place


def _blank(token: Token, name: str, place: int, now: float) -> dict[str, Any]:
    return {
        "task": token.id,
        "name": name,
        "place": place,
        "fence": token.fence,
        "began_at": now,
        "done_at": None,
        "result": None,
        "artifact": None,
        "cost": 0,
        "tokens_in": 0,
        "tokens_out": 0,
    }


def _added(kept: Row | None, usage: Usage) -> dict[str, int]:
    """The total cost of the step, in this attempt and before."""
    used = {"cost": micros(usage.cost_usd or 0), "tokens_in": usage.tokens_in, "tokens_out": usage.tokens_out}
    return {name: amount + (int(kept[name]) if kept is not None else 0) for name, amount in used.items()}


async def _emit(tx: Tx, engine: Engine, caller: Caller, row: Row, step: dict[str, Any], status: str) -> None:
    work = UnitOfWork(tx, engine, caller)
    event_data = {"name": step["name"], "place": step["place"], "status": status}
    work.add_claim_event(row, "step", fence=step["fence"], data=event_data)
    await work.save_events()


def _step(row: Row, *, held: bool) -> Step:
    done = row["done_at"] is not None
    return record(
        Step,
        row,
        status="done" if done else "in_flight" if held else "interrupted",
        result=None if row["result"] is None else msgspec.json.decode(row["result"]),
        cost_usd=dollars(row["cost"]),
    )
