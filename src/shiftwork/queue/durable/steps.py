"""Steps: named results inside a task, each stored once, that outlive the attempt that made them."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import msgspec

from shiftwork.core.errors import ShiftworkError, TooLarge
from shiftwork.core.task import Usage, dollars, micros
from shiftwork.queue.content import artifacts
from shiftwork.queue.content.artifacts import Use
from shiftwork.queue.engine import Caller, Engine
from shiftwork.queue.fence import Token, lock_claim, lock_live, refusal
from shiftwork.queue.in_hand import STARTABLE, Beat, heartbeat, tell_of_claim
from shiftwork.queue.work import Work
from shiftwork.store.store import Row, Tx


class Step(msgspec.Struct, frozen=True):
    """A step of a task. Interrupted: the attempt that began it has ended without a result."""

    name: str
    status: Literal["done", "in_flight", "interrupted"]
    place: int
    fence: int
    result: Any
    """None also where it lies in an artifact and was read with others."""
    artifact: str | None
    began_at: float
    done_at: float | None
    cost_usd: float
    tokens_in: int
    tokens_out: int


class Kept(NamedTuple):
    """A result as it is stored: its JSON, or the artifact that holds it."""

    result: str | None = None
    artifact: str | None = None


class StepAnswer(NamedTuple):
    """A step, or why there is none: the refusal must not undo what was booked."""

    step: Step | None = None
    error: ShiftworkError | None = None

    def unwrap(self) -> Step:
        if self.error is not None:
            raise self.error
        assert self.step is not None
        return self.step


async def begin(tx: Tx, engine: Engine, caller: Caller, token: Token, name: str) -> Step:
    """The step as it was stored by this or an earlier attempt; else it is in flight from now on."""
    row = await lock_live(tx, engine, caller, token, STARTABLE)
    kept = await tx.one("read_step", task=token.id, name=name)
    if kept is not None and (kept["done_at"] is not None or kept["fence"] == token.fence):
        return _step(kept, held=True)
    place = kept["place"] if kept is not None else await _next_place(tx, engine, row["workspace"], row["id"])
    begun = _blank(token, name, place, tx.now)
    await tx.run("save_step", **begun)
    await _tell(tx, engine, caller, row, begun, "in_flight")
    return _step(begun, held=True)


async def complete(
    tx: Tx, engine: Engine, caller: Caller, token: Token, name: str, result: Kept, usage: Usage
) -> StepAnswer:
    """Store the step's result and book what it cost; the first result stands, and one claim pays for it once."""
    row = await lock_claim(tx, caller, token)
    if error := refusal(engine, caller, token, row, STARTABLE):
        work = Work(tx, engine, caller)
        await work.money.book_late(token, usage, last=False)
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
        await _tell(tx, engine, caller, row, stored, "done")
    return StepAnswer(_step(stored, held=True))


async def recall(tx: Tx, token: Token, name: str) -> Any:
    """What a verb kept under this name, as JSON text; None where nothing is kept. The task's row is locked."""
    kept = await tx.one("read_step", task=token.id, name=name)
    return None if kept is None or kept["done_at"] is None else kept["result"]


async def keep(tx: Tx, engine: Engine, workspace: str, token: Token, name: str, result: str) -> None:
    """Store what a verb has done as a step, in the verb's own transaction: a later attempt finds it done."""
    place = await _next_place(tx, engine, workspace, token.id)
    await tx.run("save_step", **{**_blank(token, name, place, tx.now), "done_at": tx.now, "result": result})


_FIRST = ("began_at", "done_at", "result", "artifact")
"""What stays of a step that was done before."""


async def _use(tx: Tx, caller: Caller, row: Row, step: dict[str, Any]) -> None:
    """The artifact that holds the result is kept for as long as the task."""
    if step["artifact"] is not None:
        held = await artifacts.hold(tx, row["workspace"], [step["artifact"]])
        artifacts.refuse_unknown(held, [step["artifact"]], "result")
        await artifacts.use(tx, caller, row["workspace"], [Use(row["id"], "step", step["artifact"], step["name"])])


async def _next_place(tx: Tx, engine: Engine, workspace: str, task_id: str) -> int:
    last = await tx.one("last_step", task=task_id)
    most = (await engine.book.of(tx, workspace)).settings().bounds.steps
    place = 1 if last is None else int(last["place"]) + 1
    if place > most:
        mend = "Put several results into one step, or raise bounds.steps."
        raise TooLarge(f"the task has {most} steps already, which are all it may have", where="name", mend=mend)
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
    """What the step has cost in all, in this attempt and before."""
    used = {"cost": micros(usage.cost_usd), "tokens_in": usage.tokens_in, "tokens_out": usage.tokens_out}
    return {name: amount + (int(kept[name]) if kept is not None else 0) for name, amount in used.items()}


async def _tell(tx: Tx, engine: Engine, caller: Caller, row: Row, step: dict[str, Any], status: str) -> None:
    work = Work(tx, engine, caller)
    told = {"name": step["name"], "place": step["place"], "status": status}
    tell_of_claim(work, row, "step", fence=step["fence"], data=told)
    await work.save_events()


async def read(tx: Tx, workspace: str, task_id: str, after: int, count: int) -> list[Step]:
    """The steps of a task in the order in which they were begun."""
    rows = await tx.all("list_steps", workspace=workspace, task=task_id, after=after, count=count)
    return [_step(row, held=bool(row["held"])) for row in rows]


def _step(row: Row, *, held: bool) -> Step:
    done = row["done_at"] is not None
    return Step(
        name=row["name"],
        status="done" if done else "in_flight" if held else "interrupted",
        place=row["place"],
        fence=row["fence"],
        result=None if row["result"] is None else msgspec.json.decode(row["result"]),
        artifact=row["artifact"],
        began_at=row["began_at"],
        done_at=row["done_at"],
        cost_usd=dollars(row["cost"]),
        tokens_in=row["tokens_in"],
        tokens_out=row["tokens_out"],
    )
