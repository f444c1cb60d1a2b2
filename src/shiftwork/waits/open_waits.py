"""Waiting for a time, a signal or a person without holding a slot; each wait has a name and keeps its answer.

The task's row is locked before any of its waits is changed, and only an open wait ends, so that each counts once in
`tasks.waiting`, like an edge. Waiters and senders of a signal lock its name before any row: the signal finds the wait,
or the wait finds the signal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from shiftwork.engine import dependents
from shiftwork.engine.engine import Caller, Engine
from shiftwork.engine.fence import lock_live
from shiftwork.engine.rows import TaskRow
from shiftwork.engine.unit_of_work import UnitOfWork
from shiftwork.model import ids
from shiftwork.model.errors import InputError, NotFound, WrongState
from shiftwork.model.outcome import Outcome, Token
from shiftwork.model.states import FINAL, State
from shiftwork.model.task import Wait
from shiftwork.store.store import Row, Tx
from shiftwork.validation import policy as verdict
from shiftwork.waits import approval_guard, schedule
from shiftwork.waits.policy import decoded, wait_of
from shiftwork.waits.schedule import StoredWait

BATCH = 500
MAX_ALERTED = 500
"""Characters of a question in its alert; the rest is in the wait."""

KEEP_SIGNALS_SEC = 86_400.0
"""How long a signal is kept for later waits."""


class NewWait(NamedTuple):
    """What to wait for: a time, a signal by its name, or a person's answer."""

    name: str
    kind: str
    until: float | None = None
    timeout_sec: float | None = None
    signal: str | None = None
    question: str | None = None
    schema: str | None = None
    """JSON text, checked."""


class WaitEnd(NamedTuple):
    """How an open wait ends."""

    root_id: str
    name: str
    status: str
    value: str | None = None
    answered_by: str | None = None
    signal_seq: int | None = None


async def claimed(work: UnitOfWork, token: Token, *, need_running: bool) -> TaskRow:
    """The row under this claim, locked."""
    allowed = frozenset({"running"} if need_running else {"claimed", "running"})
    await lock_live(work.tx, work.engine, work.caller, token, allowed)
    return (await work.lock([token.id]))[0]


async def suspend(work: UnitOfWork, row: TaskRow, event_data: Mapping[str, Any]) -> None:
    """Free the slot until nothing is awaited; costs no attempt."""
    row.waiting = await dependents.count_waiting(work, row.root_id)
    row.expires_at = None  # it has started, and continues
    fence, actor = row.fence, work.caller.for_agent(row.agent_id)
    settings = await work.settings_of(row)
    work.end_attempt(row, "waiting")
    if row.waiting:
        path, data = work.move(row, "wait"), dict(event_data)
    else:
        path, passed = await approval_guard.unblock_or_guard(work, row, settings, "wait", "unblock", data=event_data)
        data = passed or {}
    work.emit(row, "waited", path, fence=fence, data=data, actor=actor)


async def wait(tx: Tx, engine: Engine, caller: Caller, token: Token, new: NewWait) -> Wait:
    """The result of this wait; while there is none, the task's slot is freed."""
    if new.signal is not None:
        await tx.advisory_lock(_lock_name(caller.workspace, new.signal))
    work = UnitOfWork(tx, engine, caller)
    row = await claimed(work, token, need_running=True)
    known = await tx.one("read_wait", root=row.root_id, name=new.name)
    if known is not None:
        _refuse_another(known, new)
        return wait_of(known)
    begun = await _begin(work, row, new)
    if begun.status == "open":
        row.hold = begun.kind
        await suspend(work, row, _event_data(begun))
        if begun.question is not None:
            work.alert(row.workspace, "question_asked", row.id, question=begun.question[:MAX_ALERTED], wait=begun.name)
    await work.save()
    return begun


def _refuse_another(known: Row, new: NewWait) -> None:
    """Refuse another wait under the same name: a name stands for one wait across all attempts."""
    if known["kind"] != new.kind or known["signal"] != new.signal:
        was = f"the signal {known['signal']!r}" if known["signal"] else f"a {known['kind']}"
        raise InputError(
            f"the wait {new.name!r} of this task was for {was}", where="name", hint="Give each wait a name of its own."
        )


async def _begin(work: UnitOfWork, row: TaskRow, new: NewWait) -> Wait:
    """Store the wait; a signal that was already sent answers it at once."""
    until = new.until if new.timeout_sec is None else work.now + new.timeout_sec
    met = new.kind == "time" and until is not None and until <= work.now
    signal: Row | None = None
    if new.signal is not None:
        asked = {"workspace": row.workspace, "signal": new.signal, "root": row.root_id}
        signal = await work.tx.one("signal_for", **asked)
    met = met or signal is not None
    wait = Wait(
        name=new.name,
        kind=new.kind,  # type: ignore[arg-type]  # one of the three
        status="met" if met else "open",
        began_at=work.now,
        until=until,
        signal=new.signal,
        question=new.question,
        schema=decoded(new.schema),
        ended_at=work.now if met else None,
        value=decoded(signal["data"]) if signal else None,
        answered_by=signal["actor"] if signal else None,
    )
    stored = StoredWait(
        row.root_id, new.name, row.id, row.workspace, new.kind, wait.status, until, work.now, wait.ended_at,
        new.signal, new.question, new.schema,
    )  # fmt: skip
    if signal is not None:
        stored = stored._replace(value=signal["data"], signal_seq=signal["seq"], answered_by=signal["actor"])
    await work.tx.insert("insert_waits", [stored])
    return wait


def _event_data(wait: Wait) -> dict[str, Any]:
    """A wait as event data."""
    facts = {
        "wait": wait.name,
        "kind": wait.kind,
        "signal": wait.signal,
        "question": wait.question,
        "until": wait.until,
    }
    return {name: value for name, value in facts.items() if value is not None}


async def end(work: UnitOfWork, endings: Sequence[WaitEnd], *, asked: Mapping[str, str] | None = None) -> list[TaskRow]:
    """End these waits if they are open; returns their rows, made ready if nothing else blocks them.

    `asked` names the verb for the events of those lineages whose wait was a question.
    """
    rows = {row.root_id: row for row in await dependents.lock_newest(work, {ending.root_id for ending in endings})}
    flips = await work.tx.all("end_waits", items=sorted(endings, key=_place), now=work.now)
    statuses = {(ending.root_id, ending.name): ending.status for ending in endings}
    freed = []
    for flip in flips:
        row = rows[flip["root_id"]]
        row.waiting -= 1
        row.hold = None
        work.touch(row)
        wait = "run_at" if flip["name"] == schedule.NAME else flip["name"]
        event_data = {"wait": wait, "ended": statuses[flip["root_id"], flip["name"]]}
        verb = (asked or {}).get(row.root_id, "unblocked")
        if row.waiting == 0 and row.status == State.PENDING:
            await dependents.unblock(work, row, verb, event_data)
        else:
            work.emit(row, verb, data=event_data)
        freed.append(row)
    return freed


def _place(ending: WaitEnd) -> tuple[str, str]:
    return ending.root_id, ending.name


class SignalPage(NamedTuple):
    """The result of freeing a page of a signal's waiters; `done` is false while there are more."""

    seq: int
    at: float
    freed: int
    done: bool


def _lock_name(workspace: str | None, signal: str) -> str:
    return f"signal:{workspace}:{signal}"


async def signal(
    tx: Tx, engine: Engine, caller: Caller, workspace: str, name: str, data: str | None, task_id: str | None
) -> SignalPage:
    """Send a signal: store it, and free the first page of its waiters."""
    await tx.advisory_lock(_lock_name(workspace, name))
    root = None if task_id is None else await _root(tx, workspace, task_id)
    sent = await tx.one(
        "insert_signal", now=tx.now, workspace=workspace, name=name, root=root, actor=caller.actor, data=data
    )
    assert sent is not None
    work = UnitOfWork(tx, engine, caller)
    event_data = {"name": name, **({"task": ids.show_task(root)} if root else {})}
    work.emit_for(workspace, "signal_sent", data=event_data)
    row = {"seq": sent["seq"], "at": tx.now, "workspace": workspace, "name": name, "root_id": root, "data": data}
    return await _spread(work, {**row, "actor": caller.actor})


async def spread(tx: Tx, engine: Engine, caller: Caller, workspace: str, seq: int) -> SignalPage:
    """Deliver a signal to the next page of its waiters."""
    sent = await tx.one("read_signal", seq=seq, workspace=workspace)
    if sent is None:
        raise NotFound(f"there is no signal {seq}")
    await tx.advisory_lock(_lock_name(workspace, sent["name"]))
    return await _spread(UnitOfWork(tx, engine, caller), sent)


async def _spread(work: UnitOfWork, sent: Row) -> SignalPage:
    asked = {"workspace": sent["workspace"], "signal": sent["name"], "root": sent["root_id"], "seq": sent["seq"]}
    found = await work.tx.all("waits_for_signal", **asked, now=work.now, count=BATCH)
    met = [WaitEnd(w["root_id"], w["name"], "met", sent["data"], sent["actor"], sent["seq"]) for w in found]
    freed = await end(work, met) if met else []
    done = len(found) < BATCH
    if done:
        await work.tx.run("mark_signal_sent", seq=sent["seq"])
    await work.save()
    return SignalPage(sent["seq"], sent["at"], len(freed), done)


async def _root(tx: Tx, workspace: str, task_id: str) -> str:
    """The lineage of a task that may still wait."""
    row = await tx.one("read_tasks", items=[(task_id,)])
    shown = ids.show_task(task_id)
    if row is None or row["workspace"] != workspace:
        raise NotFound(f"there is no task {shown}", task_id=shown)
    (newest,) = await tx.all("lineage_states", items=[(row["root_id"],)])
    if newest["status"] in FINAL:
        raise WrongState(f"task {shown} is {newest['status']} and can no longer wait", task_id=shown)
    return str(row["root_id"])


async def answer(tx: Tx, engine: Engine, caller: Caller, task_id: str, value: str) -> Outcome:
    """Answer a task's question; the task continues with the answer."""
    work = UnitOfWork(tx, engine, caller)
    question = await _open_question(work, await work.lock_named(task_id))
    if question["schema"] is not None:
        wrong = verdict.against_schema(decoded(question["schema"]), decoded(value))
        if wrong:
            found = "; ".join(each.removeprefix("output: ") for each in wrong)
            raise InputError(f"the answer does not fit the question: {found}", where="value")
    ending = WaitEnd(question["root_id"], question["name"], "met", value, caller.actor)
    (row,) = await end(work, [ending], asked={question["root_id"]: "question_answered"})
    await work.save()
    return Outcome(ids.show_task(row.id), row.status)


async def _open_question(work: UnitOfWork, row: TaskRow) -> Row:
    """The question of this lineage that may still be answered."""
    shown = ids.show_task(row.id)
    open_ = await work.tx.all("open_waits_of", items=[(row.root_id,)])
    question = next((wait for wait in open_ if wait["kind"] == "person"), None)
    if question is None:
        raise WrongState(
            f"task {shown} is {row.status} and has no open question",
            task_id=shown,
            status=row.status,
            hint=_ASKS_NOTHING,
        )
    if question["until"] is not None and question["until"] <= work.now:
        raise WrongState(f"the question of task {shown} has expired", task_id=shown, status=row.status)
    return question


_ASKS_NOTHING = "Its question was answered, has expired or was never asked; read the task."
