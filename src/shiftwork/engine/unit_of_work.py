"""One verb's unit of work: rows locked, changed, and saved together with attempts, keys, agents, DAGs and events.

Features take part in it as the engine's `participants`: they are notified of the ends of attempts, and save what
follows.

Locks are taken in one order: tasks by id (ended, then dependents), DAGs, agents, then what participants lock, in their
order; events and alerts come last.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec

from shiftwork.engine import dedupe_policy
from shiftwork.engine.engine import Caller, Engine
from shiftwork.engine.fingerprint import fingerprint
from shiftwork.engine.new_events import Alike, BatchItem, EventBatches, NewEvent
from shiftwork.engine.new_rows import NewAlert, NewAttempt, NewDeadLetter
from shiftwork.engine.rows import TaskRow, load, to_save
from shiftwork.model import ids, reasons
from shiftwork.model.errors import NotFound
from shiftwork.model.outcome import Token
from shiftwork.model.states import ENDED, FINAL, IN_MOTION, SETTLED, State, move, write_path
from shiftwork.observe import alert_kinds
from shiftwork.settings.model import Settings
from shiftwork.store.store import Row, Tx

_encode = msgspec.json.Encoder().encode
_COMPLETED = write_path([State.RUNNING, State.VALIDATING, State.COMPLETED])
_LONE = '{"dag":"completed"}'
_DAG_ENDS = {"completed": "completed", "cancelled": "cancelled", "dead_lettered": "failed", "failed": "failed"}
"""The outcome of a single-task DAG, by the task's last state."""
P = TypeVar("P", bound="Participant")


def as_json(value: Any) -> str:
    return _encode(value).decode()


class UnitOfWork:
    """Collects what a verb decides, then writes it set by set."""

    def __init__(self, tx: Tx, engine: Engine, caller: Caller) -> None:
        self.tx = tx
        self.engine = engine
        self.caller = caller
        self.now = tx.now
        self.rows: dict[str, TaskRow] = {}
        self.status_before: dict[str, str] = {}
        """The state of each row when it was loaded."""
        self.hold_before: dict[str, str] = {}
        """The hold of each row that had one when it was loaded."""
        self.changed: dict[str, None] = {}
        """Ids of rows to save."""
        self._events: list[NewEvent] = []
        self._batches = EventBatches()
        self._accepted: list[Row] = []
        self._attempts: list[NewAttempt] = []
        self._results: list[tuple[str, str, str | None]] = []
        self._letters: list[NewDeadLetter] = []
        self._alerts: list[NewAlert] = []
        self._open: dict[str, int] = defaultdict(int)
        self._settled: dict[str, int] = defaultdict(int)
        self._superseded: set[str] = set()
        self._lone: set[str] = set()
        self._own_settings: dict[str, dict[str, Any]] = {}
        self._lost_agents: set[tuple[str, str]] = set()
        self.dag_cancellers: dict[str, str] = {}
        self.requests: dict[Token, str] = {}
        """The request id by claim, if this transaction joins several requests."""
        self._looked_for: frozenset[str] | None = None
        """The rows whose ends `found` is about already."""
        self.found: Row = {}
        """Which kinds of state the ends of attempts can affect; read before anything is written, if a participant needs
        it."""

    @functools.cached_property
    def _parts(self) -> dict[type[Any], Any]:
        """Created on first access: a plain submission needs none of them."""
        return {kind: kind(self) for kind in self.engine.participants}

    def part(self, kind: type[P]) -> P:
        """A feature's part in this unit of work."""
        found: P = self._parts[kind]
        return found

    async def load_locked(self, rows: Iterable[Row]) -> None:
        """Add the rows of the statement `lock_ends`."""
        for row in rows:
            self.attach(load(row))
            self.found = row
        await self._lock_roots()
        self._looked_for = frozenset(self.rows)

    async def lock(self, task_ids: Iterable[str]) -> list[TaskRow]:
        """Lock rows by id. Ids without a row are left out."""
        wanted = list(dict.fromkeys(task_ids))
        missing = sorted(i for i in wanted if i not in self.rows)
        if missing:
            for row in await self.tx.all("lock_tasks", items=[(i,) for i in missing]):
                if self.caller.may_see(row["workspace"]):
                    self.attach(load(row))
            await self._lock_roots()
        return [self.rows[i] for i in wanted if i in self.rows]

    async def _lock_roots(self) -> None:
        """A lineage is locked at its root, where submits that depend on it wait."""
        roots = sorted({row.root_id for row in self.rows.values()} - self.rows.keys())
        if roots:
            for row in await self.tx.all("lock_tasks", items=[(i,) for i in roots]):
                self.attach(load(row))

    def attach(self, row: TaskRow) -> TaskRow:
        self.rows[row.id] = row
        self.status_before[row.id] = row.status
        if row.hold is not None:
            self.hold_before[row.id] = row.hold
        return row

    async def settings(self, rows: Sequence[TaskRow]) -> dict[str, Settings]:
        """The effective settings of each row; bodies are read only for tasks with settings of their own."""
        return await self.in_force([(row.id, row.workspace, row.type, row.own_settings) for row in rows])

    async def in_force(self, tasks: Sequence[tuple[str, str, str, bool]]) -> dict[str, Settings]:
        """The same, given only id, workspace, type and whether the task has settings of its own."""
        unread = [(id_,) for id_, _, _, own in tasks if own and id_ not in self._own_settings]
        if unread:
            for body in await self.tx.all("read_bodies", items=unread):
                self._own_settings[body["task_id"]] = own_settings(msgspec.json.decode(body["body"]))
        known = await self.engine.settings_cache.load_many(self.tx, {workspace for _, workspace, _, _ in tasks})
        return {
            id_: known[workspace].settings(type_, self._own_settings.get(id_) if own else None)
            for id_, workspace, type_, own in tasks
        }

    async def settings_of(self, row: TaskRow) -> Settings:
        return (await self.settings([row]))[row.id]

    async def lock_named(self, task_id: str) -> TaskRow:
        """The task that a caller names, locked."""
        rows = await self.lock([task_id])
        if not rows:
            shown = ids.show_task(task_id)
            raise NotFound(f"there is no task {shown}", task_id=shown)
        return rows[0]

    def move(self, row: TaskRow, *transitions: str) -> str:
        """Take these transitions; returns the path in the form of events."""
        return self.apply_path(row, move(row.state, *transitions))

    def apply_path(self, row: TaskRow, path: list[State]) -> str:
        row.status = path[-1].value
        row.finished_at = self.now if path[-1] in FINAL else None
        self.touch(row)
        return write_path(path)

    def touch(self, row: TaskRow) -> None:
        """Mark the row as changed: it gets a new version and is saved at the end."""
        if row.id not in self.changed:
            row.version += 1
            row.updated_at = self.now
            self.changed[row.id] = None

    def mark_ready(self, row: TaskRow, settings: Settings) -> None:
        """Make the row ready: compute its place and wake claims that may take it."""
        row.place(settings, self.now)
        self.tx.wake(row.lane)

    def emit(
        self,
        row: TaskRow,
        verb: str,
        path: str | None = None,
        *,
        reason: str | None = None,
        data: dict[str, Any] | None = None,
        fence: int | None = None,
        actor: str | None = None,
    ) -> None:
        """Add an event for this verb and task."""
        if path is not None and path.rpartition(">")[2] in ENDED:
            self.tx.announce_end(row.root_id)
        self._events.append(
            NewEvent(
                self.now,
                row.workspace,
                verb,
                actor or self.caller.actor,
                row.id,
                row.dag_id,
                path,
                self.request_of(row.id, row.fence),
                fence,
                reason,
                data,
            )
        )

    def request_of(self, task_id: str, fence: int) -> str | None:
        return self.requests.get(Token(task_id, fence), self.caller.request_id)

    def emit_for(
        self, workspace: str, verb: str, *, dag_id: str | None = None, data: dict[str, Any] | None = None
    ) -> None:
        """Add an event that concerns no single task."""
        caller = self.caller
        self._events.append(
            NewEvent(self.now, workspace, verb, caller.actor, dag_id=dag_id, request_id=caller.request_id, data=data)
        )

    def end_attempt(
        self,
        row: TaskRow,
        outcome: str,
        *,
        counted: bool = False,
        reason: str | None = None,
        error: str | None = None,
        note: str | None = None,
        result: str | None = None,
        verdict: str | None = None,
        lost: bool = False,
    ) -> None:
        """Write the attempt's only row, and clear the claim.

        A lost attempt may have spent its whole grant: its row says so until a late report corrects it.
        """
        assert row.agent_id is not None
        assert row.claimed_at is not None
        self.add_attempt(
            NewAttempt(
                row.id, row.fence, row.round, row.agent_id, row.runtime_id, row.claimed_at, row.started_at, self.now,
                outcome, counted, reason, error, note, row.attempt_cost, row.granted if lost else 0, result, verdict,
            )
        )  # fmt: skip
        end = AttemptEnd(row, outcome, reason, lost)
        for part in self._parts.values():
            part.attempt_ended(end)
        row.cost += row.attempt_cost
        row.last_agent_id, row.last_runtime_id = row.agent_id, row.runtime_id
        row.forget_claim()
        self.touch(row)

    def accept(self, rows: Sequence[Row], results: Mapping[Token, str], verdicts: Mapping[str, str | None]) -> None:
        """Add attempts ended by the statement `complete_tasks`: their rows and events are written at the end."""
        self._results += [(row["id"], results[Token(row["id"], row["fence"])], verdicts.get(row["id"])) for row in rows]
        self.end_accepted(rows)

    def end_accepted(self, rows: Sequence[Row]) -> None:
        """The same, for attempts whose rows are already written."""
        self._accepted += rows
        for row in rows:
            self._open[row["dag_id"]] -= 1
            self.tx.announce_end(row["root_id"], to_others=bool(row["awaited"]))
        for part in self._parts.values():
            part.attempts_accepted(rows)

    def add_attempt(self, attempt: NewAttempt) -> None:
        self._attempts.append(attempt)

    def add_event(self, event: NewEvent) -> None:
        self._events.append(event)

    def add_claim_event(
        self, row: Row, verb: str, *, path: str | None = None, fence: int | None = None, data: Any = None
    ) -> None:
        """One event of the task that a claim holds, by its agent."""
        actor = self.caller.actor if self.caller.actor != "system" else f"agent:{row['agent_id']}"
        request = self.request_of(row["id"], row["fence"])
        place = (row["workspace"], verb, actor, row["id"], row["dag_id"])
        self.add_event(NewEvent(self.now, *place, path, request, fence, data=data))

    def add_batch(self, alike: Alike, items: Iterable[BatchItem]) -> None:
        """Add the same event for tasks that are DAGs of their own."""
        self._batches.add(alike, items)

    def dead_letter(self, row: TaskRow, *, reason: str, error: str | None, poison: bool) -> None:
        """Add the dead letter of this round."""
        self._letters.append(
            NewDeadLetter(
                row.id, row.round, row.workspace, row.type, reason, error, fingerprint(row.type, reason, error),
                row.attempts, poison, self.now,
            )
        )  # fmt: skip
        for kind in alert_kinds.of_letter(reason, poison=poison):
            self.alert(row.workspace, kind, row.id, type=row.type, reason=reason)

    def error_of(self, row: TaskRow) -> str | None:
        """The error of this row's dead letter or failed attempt, if that is not written yet."""
        letters = [each.error for each in self._letters if (each.task_id, each.round) == (row.id, row.round)]
        attempts = [each.error or each.note for each in self._attempts if each.task_id == row.id]
        return next((error for error in (*letters, *reversed(attempts)) if error), None)

    def alert(self, workspace: str, kind: str, task_id: str | None = None, **facts: Any) -> None:
        """Raise an alert and attach its kind to the event just emitted."""
        event = self._events[-1]
        data = event.data or {}
        event.data = {**data, "alerts": [*data.get("alerts", ()), kind]}
        named = facts if task_id is None else {**facts, "task": ids.show_task(task_id)}
        message, severity = alert_kinds.words(kind, named), alert_kinds.KINDS[kind].severity
        self._alerts.append(NewAlert(self.now, workspace, kind, severity, message, task_id, as_json(facts)))

    def count_in_dag(self, dag_id: str, was: str | None, now: str | None) -> None:
        """Count a change of state in a DAG; None stands for a row that does not exist yet or no longer counts."""
        self._open[dag_id] += (now is not None and now not in FINAL) - (was is not None and was not in FINAL)
        self._settled[dag_id] += (now in SETTLED) - (was in SETTLED)

    def lose_agents(self, workspace: str, agents: Iterable[str]) -> None:
        """Mark agents whose process died as failed; an agent with claims in another process continues."""
        self._lost_agents |= {(workspace, agent) for agent in agents}

    def mark_standalone(self, dag_ids: Iterable[str]) -> None:
        """Record DAGs of a single, locked task: none of them can get a row before the commit."""
        self._lone.update(dag_ids)

    def supersede(self, row: TaskRow, by: str) -> None:
        """Make a newer row the current one of its lineage."""
        root = self.rows[row.root_id]
        root.newest_id = by
        self.touch(root)
        self.touch(row)
        self._superseded.add(row.id)

    def is_newest(self, row: TaskRow) -> bool:
        """Whether this row is the current one of its lineage."""
        return self.rows[row.root_id].newest_id in {None, row.id}

    async def save(self) -> None:
        """Write everything, in lock order. Nothing may be changed after it."""
        for part in self._parts.values():
            await part.before_rows()
        context = await self._lock_context()
        await self.save_rows()
        for part in self._parts.values():
            await part.after_rows()
        await self._free_keys()
        await self._save_dags({row["id"]: row for row in context if row["id"] is not None})
        await self._fail_agents()
        for part in self._parts.values():
            await part.save()
        if self._results:
            await self.tx.run("insert_accepted", items=self._results, now=self.now)
        await self.tx.insert("insert_attempts", self._attempts)
        await self.tx.insert("insert_dead_letters", self._letters)
        await self.save_events()

    async def save_rows(self) -> None:
        if self.changed:
            await self.tx.run("save_tasks", items=[to_save(self.rows[i]) for i in sorted(self.changed)])

    async def save_events(self) -> None:
        await self._batches.save(self.tx)
        await self.tx.insert("insert_events", [event.row() for event in self._events])
        if self._alerts:
            await self.tx.insert("insert_alerts", self._alerts)

    async def _fail_agents(self) -> None:
        for workspace, agent in sorted(self._lost_agents):
            if await self.tx.one("fail_lost_agent", workspace=workspace, id=agent) is not None:
                self.emit_for(workspace, "agent_status", data={"agent": agent, "status": "failed"})
                self.alert(workspace, "agent_failed", agent=agent)

    async def _free_keys(self) -> None:
        leaving = []
        for id_ in self.changed:
            row = self.rows[id_]
            if row.idempotency_key is not None and row.status != self.status_before[id_]:
                settings = (await self.settings_of(row)).idempotency
                if not dedupe_policy.in_scope(settings, row.status) and row.failure_reason != reasons.DISPLACED:
                    leaving.append((row.workspace, row.idempotency_key, row.id))
        if leaving:
            await self.tx.run("drop_keys", items=sorted(leaving))

    async def _lock_context(self) -> Sequence[Row]:
        """Lock the DAGs of changed tasks, and read what else their ends may affect.

        Runs before anything is written, so that all writes can be sent together.
        """
        for id_ in self.changed:
            row, was = self.rows[id_], self.status_before[id_]
            if id_ in self._superseded:
                self.count_in_dag(row.dag_id, was, None)
            elif row.status != was and not {row.status, was} <= IN_MOTION:  # otherwise its DAG is and stays open
                self.count_in_dag(row.dag_id, was, row.status)
        asked = [(id_,) for id_ in sorted(self._open.keys() - self._lone)]
        context: Sequence[Row] = ()
        if asked or (self._is_asked() and self.rows.keys() != self._looked_for):
            context = await self.tx.all("lock_what_ends_touch", items=asked)
            self.found = context[0]
        self._emit_for_standalone(self._open.keys() - {row["id"] for row in context})
        return context

    def _is_asked(self) -> bool:
        return any(part.asks for part in self._parts.values())

    def _emit_for_standalone(self, lone: set[str]) -> None:
        """A standalone task is its own DAG: its last event reports the DAG's end."""
        self._emit_accepted(lone)
        for event in self._events:
            if event.task_id is None or event.dag_id not in lone or event.path is None:
                continue
            status = _DAG_ENDS.get(event.path.rpartition(">")[2])
            if status and event.verb != "retried" and event.task_id not in self._superseded:
                event.data = {**(event.data or {}), "dag": status}

    def _emit_accepted(self, lone: set[str]) -> None:
        """Write these before the other events: an end precedes what it frees."""
        batches: dict[tuple[str, str, str, str | None], list[BatchItem]] = defaultdict(list)
        members: list[NewEvent] = []
        for row in self._accepted:
            id_, fence, workspace, agent = row["id"], row["fence"], row["workspace"], row["last_agent_id"]
            request_id = self.request_of(id_, fence)
            if row["dag_id"] == id_ and id_ in lone:
                began = row["claimed_at"] if row["started_at"] is None else row["started_at"]
                batches[workspace, agent, row["type"], request_id].append((id_, fence, self.now - began))
            else:
                actor = self.caller.for_agent(agent)
                members.append(
                    NewEvent(
                        self.now, workspace, "completed", actor, id_, row["dag_id"], _COMPLETED, request_id, fence,
                        data={"dag": "completed"} if row["dag_id"] in lone else None,
                    )
                )  # fmt: skip
        for (workspace, agent, type_, request_id), items in batches.items():
            self.add_batch(self.completion_events(workspace, agent, type_, request_id), items)
        self._events = members + self._events

    def completion_events(self, workspace: str, agent: str, type_: str, request_id: str | None) -> Alike:
        """The common fields of the completion events of tasks that are DAGs of their own."""
        actor = self.caller.for_agent(agent)
        return Alike(workspace, "completed", _COMPLETED, actor, request_id, _LONE, type_)

    async def _save_dags(self, locked: dict[str, Any]) -> None:
        if not locked:
            return
        counts = {i: (row["open"] + self._open[i], row["settled"] + self._settled[i]) for i, row in locked.items()}
        motion = await self._motion([i for i, (open_, settled) in counts.items() if open_ == 0 or settled])
        items = []
        for id_, row in sorted(locked.items()):
            open_, settled = counts[id_]
            again = row["status"] != "open" and open_ > row["open"]  # one of its tasks was brought back
            cancelled_by = self.dag_cancellers.get(id_, None if again else row["cancelled_by"])
            status = dag_status(open_, settled, motion.get(id_), cancelled_by)
            finished = self.now if status != "open" else None
            items.append((id_, open_, settled, status, finished, cancelled_by))
            if status not in {"open", row["status"]}:
                self.emit_for(row["workspace"], f"dag_{status}", dag_id=id_)
                listened = not self._accepted or any(row["awaited"] for row in self._accepted)
                self.tx.announce_end(id_, to_others=listened)
        await self.tx.run("save_dags", items=items)

    async def _motion(self, dag_ids: list[str]) -> dict[str, Any]:
        """Reads whole DAGs, so call it only for those that may have ended."""
        rows = await self.tx.all("dag_motion", items=[(i,) for i in sorted(dag_ids)]) if dag_ids else []
        return {row["dag_id"]: row for row in rows}


class AttemptEnd(NamedTuple):
    """An attempt that ends without an accepted result, or with one whose row was locked first."""

    row: TaskRow
    outcome: str
    reason: str | None
    lost: bool


class Participant:
    """A feature's part in one unit of work; every method defaults to doing nothing.

    The methods are called in the order below, the participants in the order in which they are declared: this is the
    order of their locks.
    """

    asks = False
    """Whether `save` reads `work.found`."""

    def __init__(self, work: UnitOfWork) -> None:
        self.work = work

    def attempt_ended(self, end: AttemptEnd) -> None:
        """Called before a claim is cleared; its row still holds it."""

    def attempts_accepted(self, rows: Sequence[Row]) -> None:
        """Called with claims whose results were accepted, as returned by the statement `complete_tasks`."""

    async def before_rows(self) -> None:
        """Called before anything is saved: rows can still be changed."""

    async def after_rows(self) -> None:
        """Called when the tasks are written, but not the DAGs and agents."""

    async def save(self) -> None:
        """Write what follows, once DAGs and agents are written."""


def dag_status(open_: int, settled: int, motion: Any, cancelled_by: str | None) -> str:
    """Open while something can move by itself; failed when only a person can move it on.

    A failed task does not fail the DAG if every dependent continued without it.
    """
    moving = int(motion["moving"]) if motion else 0
    completed = int(motion["completed"]) if motion else 0
    survived = open_ == settled and motion is not None and not motion["unaccepted"]
    if open_ == 0 or survived:
        return "cancelled" if cancelled_by or not completed else "completed"
    return "failed" if settled and not moving else "open"


def own_settings(body: dict[str, Any]) -> dict[str, Any]:
    """The task's own settings, as a level."""
    own: dict[str, Any] = dict(body.get("settings") or {})
    if body.get("retry"):
        own["retry"] = {**own.get("retry", {}), **body["retry"]}
    if body.get("delivery"):
        own["delivery"] = body["delivery"]
    return own


def shown(row: TaskRow) -> str:
    return ids.show_task(row.id)
