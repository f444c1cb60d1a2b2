"""One verb's unit of work: rows locked, changed, and saved together with attempts, keys, agents, DAGs and events.

Locks are taken in one order: tasks by id (ended, then dependents), DAGs, agents, budgets; then serial keys, breakers,
gates and limits; events and alerts come last.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from shiftwork.core import alerts, ids, reasons
from shiftwork.core.errors import NotFound
from shiftwork.core.settings import Settings
from shiftwork.core.states import FINAL, SETTLED, State, move, write_path
from shiftwork.policy import dedupe
from shiftwork.policy.fingerprint import fingerprint
from shiftwork.queue.engine import Caller, Engine
from shiftwork.queue.fairness import serials
from shiftwork.queue.fence import Token
from shiftwork.queue.money.booking import Holder, Money
from shiftwork.queue.protection.ends import Ends
from shiftwork.queue.rows import TaskRow, load, to_save
from shiftwork.store.store import Row, Tx

_encode = msgspec.json.Encoder().encode
_COMPLETED = write_path([State.RUNNING, State.VALIDATING, State.COMPLETED])
_LONE = '{"dag":"completed"}'
WAITS = frozenset({"time", "signal", "person"})
"""Holds of a pending task that has an open wait, by its kind."""


def as_json(value: Any) -> str:
    return _encode(value).decode()


class Work:
    """Collects what a verb decides, then writes it set by set."""

    def __init__(self, tx: Tx, engine: Engine, caller: Caller) -> None:
        self.tx = tx
        self.engine = engine
        self.caller = caller
        self.now = tx.now
        self.rows: dict[str, TaskRow] = {}
        self._was: dict[str, str] = {}
        self._held: dict[str, str] = {}
        self._dirty: dict[str, None] = {}
        self._events: list[list[Any]] = []
        self._written: list[tuple[Any, ...]] = []
        self._accepted: list[Row] = []
        self._attempts: list[tuple[Any, ...]] = []
        self._letters: list[tuple[Any, ...]] = []
        self._alerts: list[tuple[Any, ...]] = []
        self._open: dict[str, int] = defaultdict(int)
        self._settled: dict[str, int] = defaultdict(int)
        self._superseded: set[str] = set()
        self._lone: set[str] = set()
        self._own_settings: dict[str, dict[str, Any]] = {}
        self.ends = Ends()
        self.money = Money(self)
        self._lost_agents: set[tuple[str, str]] = set()
        self.dag_cancellers: dict[str, str] = {}
        self.requests: dict[Token, str] = {}
        """By claim, where this transaction joins several requests."""

    # -- loading -----------------------------------------------------------------------------------------------

    async def take_up(self, rows: Iterable[Row]) -> None:
        """Whole rows that this transaction has locked already."""
        for row in rows:
            self.adopt(load(row))
        await self._lock_roots()

    async def lock(self, task_ids: Iterable[str]) -> list[TaskRow]:
        """Lock rows by id. Ids without a row are simply not in the answer."""
        wanted = list(dict.fromkeys(task_ids))
        missing = sorted(i for i in wanted if i not in self.rows)
        if missing:
            for row in await self.tx.all("lock_tasks", items=[(i,) for i in missing]):
                if self.caller.sees(row["workspace"]):
                    self.adopt(load(row))
            await self._lock_roots()
        return [self.rows[i] for i in wanted if i in self.rows]

    async def _lock_roots(self) -> None:
        """A lineage is locked at its root, where submits that depend on it wait."""
        roots = sorted({row.root_id for row in self.rows.values()} - self.rows.keys())
        if roots:
            for row in await self.tx.all("lock_tasks", items=[(i,) for i in roots]):
                self.adopt(load(row))

    def adopt(self, row: TaskRow) -> TaskRow:
        self.rows[row.id] = row
        self._was[row.id] = row.status
        if row.hold is not None:
            self._held[row.id] = row.hold
        return row

    async def settings(self, rows: Sequence[TaskRow]) -> dict[str, Settings]:
        """What is in force for each row; bodies are read only for tasks with settings of their own."""
        return await self.in_force([(row.id, row.workspace, row.type, row.own_settings) for row in rows])

    async def in_force(self, tasks: Sequence[tuple[str, str, str, bool]]) -> dict[str, Settings]:
        """The same for tasks of which no more is known than id, workspace, type and whether they brought settings."""
        unread = [(id_,) for id_, _, _, own in tasks if own and id_ not in self._own_settings]
        if unread:
            for body in await self.tx.all("read_bodies", items=unread):
                self._own_settings[body["task_id"]] = own_settings(msgspec.json.decode(body["body"]))
        known = await self.engine.book.of_many(self.tx, {workspace for _, workspace, _, _ in tasks})
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

    # -- changing ----------------------------------------------------------------------------------------------

    def move(self, row: TaskRow, *transitions: str) -> str:
        """Take these transitions; answers the path as events write it."""
        return self.follow(row, move(row.state, *transitions))

    def follow(self, row: TaskRow, path: list[State]) -> str:
        row.status = path[-1].value
        row.finished_at = self.now if path[-1] in FINAL else None
        self.touch(row)
        return write_path(path)

    def touch(self, row: TaskRow) -> None:
        """A change that counts: a new version, saved at the end."""
        if row.id not in self._dirty:
            row.version += 1
            row.updated_at = self.now
            self._dirty[row.id] = None

    def arrive(self, row: TaskRow, settings: Settings) -> None:
        """The row has become ready: give it its place and wake who may take it."""
        row.place(settings, self.now)
        self.tx.wake(row.lane)

    def tell(
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
        """One event for this verb and task."""
        self._events.append(
            [
                self.now,
                row.workspace,
                row.id,
                row.dag_id,
                verb,
                path,
                actor or self.caller.actor,
                self.request_of(row.id, row.fence),
            ]
            + [fence, reason, data]
        )

    def request_of(self, task_id: str, fence: int) -> str | None:
        return self.requests.get(Token(task_id, fence), self.caller.request_id)

    def tell_of(
        self, workspace: str, verb: str, *, dag_id: str | None = None, data: dict[str, Any] | None = None
    ) -> None:
        """An event that is about no single task."""
        self._events.append(
            [
                self.now,
                workspace,
                None,
                dag_id,
                verb,
                None,
                self.caller.actor,
                self.caller.request_id,
                None,
                None,
                data,
            ]
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
        """Write the attempt's only row, settle its money, and let the claim go.

        A lost attempt may have spent all it was allowed; it settles at that until a late report corrects it.
        """
        assert row.agent_id is not None
        assert row.claimed_at is not None
        self.add_attempt(
            (
                row.id,
                row.fence,
                row.round,
                row.agent_id,
                row.runtime_id,
                row.claimed_at,
                row.started_at,
                self.now,
            )
            + (outcome, counted, reason, error, note, row.attempt_cost, row.granted if lost else 0, result, verdict)
        )
        holder = Holder(Token(row.id, row.fence), row.workspace, row.agent_id, row.granted, row.charged)
        self.money.end(holder, row.attempt_cost, lost=lost)
        self.ends.add(row, outcome, reason, lost=lost)
        row.cost += row.attempt_cost
        row.last_agent_id, row.last_runtime_id = row.agent_id, row.runtime_id
        row.forget_claim()
        self.touch(row)

    def accept(self, rows: Sequence[Row], results: Mapping[Token, str], verdicts: Mapping[str, str | None]) -> None:
        """Attempts that the statement `complete_tasks` has ended: their rows and events are written at the end."""
        now, self._accepted = self.now, [*self._accepted, *rows]
        if rows and rows[0]["guarded"]:
            self.ends.accept(rows)
        if rows and rows[0]["serialized"]:
            self.ends.end_serials(rows)
        self._attempts += [
            (
                row["id"], row["fence"], row["round"], row["last_agent_id"], row["last_runtime_id"], row["claimed_at"],
                row["started_at"], now, "completed", False, None, None, None, row["attempt_cost"], 0,
                results[Token(row["id"], row["fence"])], verdicts.get(row["id"]),
            )
            for row in rows
        ]  # fmt: skip
        for row in rows:
            self._open[row["dag_id"]] -= 1
            if row["charged"]:
                token = Token(row["id"], row["fence"])
                holder = Holder(token, row["workspace"], row["last_agent_id"], row["granted"], charged=True)
                self.money.end(holder, row["attempt_cost"])

    def add_attempt(self, attempt: tuple[Any, ...]) -> None:
        """In the column order of the statement `insert_attempts`."""
        self._attempts.append(attempt)

    def add_event(self, event: list[Any]) -> None:
        """In the column order of the statement `insert_events`."""
        self._events.append(event)

    def add_events(self, events: list[tuple[Any, ...]]) -> None:
        """The same for many that are written as they are: data is JSON text already."""
        self._written += events

    def bury(self, row: TaskRow, *, reason: str, error: str | None, poison: bool) -> None:
        """Add the dead letter of this round."""
        self._letters.append(
            (row.id, row.round, row.workspace, row.type, reason, error, fingerprint(row.type, reason, error))
            + (row.attempts, poison, self.now)
        )
        for kind in alerts.of_letter(reason, poison=poison):
            self.alert(row.workspace, kind, row.id, type=row.type, reason=reason)

    def alert(self, workspace: str, kind: str, task_id: str | None = None, **facts: Any) -> None:
        """Somebody should look at this. Called after its event was told, which then names it, too."""
        event = self._events[-1]
        event[10] = {**(event[10] or {}), "alerts": [*(event[10] or {}).get("alerts", ()), kind]}
        named = facts if task_id is None else {**facts, "task": ids.show_task(task_id)}
        message = alerts.words(kind, named)
        self._alerts.append((self.now, workspace, kind, alerts.KINDS[kind].severity, message, task_id, as_json(facts)))

    def count_in_dag(self, dag_id: str, was: str | None, now: str | None) -> None:
        """A task of this DAG changed its state; None stands for a row that is not there yet or no longer counts."""
        self._open[dag_id] += (now is not None and now not in FINAL) - (was is not None and was not in FINAL)
        self._settled[dag_id] += (now in SETTLED) - (was in SETTLED)

    def lose_agents(self, workspace: str, agents: Iterable[str]) -> None:
        """The process of these agents has died; one that holds something elsewhere has another and goes on."""
        self._lost_agents |= {(workspace, agent) for agent in agents}

    def know_lone(self, dag_ids: Iterable[str]) -> None:
        """These DAGs are a single task each, which is locked: none can get a row before the end."""
        self._lone.update(dag_ids)

    def supersede(self, row: TaskRow, by: str) -> None:
        """A newer row of the lineage answers from now on."""
        root = self.rows[row.root_id]
        root.newest_id = by
        self.touch(root)
        self.touch(row)
        self._superseded.add(row.id)

    def is_newest(self, row: TaskRow) -> bool:
        """Whether this row answers for its lineage."""
        return self.rows[row.root_id].newest_id in {None, row.id}

    # -- saving ------------------------------------------------------------------------------------------------

    async def save(self) -> None:
        """Write everything, in lock order. Nothing may be changed after it."""
        await self._follow_holds()
        around = await self._lock_around()
        await self.save_rows()
        await self._forget_asked()
        await self._free_keys()
        await self._save_dags({row["id"]: row for row in around if row["id"] is not None})
        await self._fail_agents()
        await self.money.save_agents()
        await self.money.save()
        if self.ends:
            await self.ends.save(self, around[0])
        await self.tx.insert("insert_attempts", self._attempts)
        await self.tx.insert("insert_dead_letters", self._letters)
        await self.save_events()

    async def _follow_holds(self) -> None:
        held = [id_ for id_, hold in self._held.items() if hold == serials.HELD and id_ in self._dirty]
        if held:
            await serials.follow(self, [self.rows[id_] for id_ in held])

    async def save_rows(self) -> None:
        if self._dirty:
            await self.tx.run("save_tasks", items=[to_save(self.rows[i]) for i in sorted(self._dirty)])

    async def save_events(self) -> None:
        told = [(*event[:10], None if event[10] is None else as_json(event[10])) for event in self._events]
        await self.tx.insert("insert_events", self._written + told)
        if self._alerts:
            await self.tx.insert("insert_alerts", self._alerts)

    async def _fail_agents(self) -> None:
        for workspace, agent in sorted(self._lost_agents):
            if await self.tx.one("fail_lost_agent", workspace=workspace, id=agent) is not None:
                self.tell_of(workspace, "agent_status", data={"agent": agent, "status": "failed"})
                self.alert(workspace, "agent_failed", agent=agent)

    async def _forget_asked(self) -> None:
        """What has ended waits for nobody's word, no event and no time."""
        ended = [self.rows[id_] for id_ in sorted(self._dirty) if self.rows[id_].status in FINAL]
        guarded = [row.id for row in ended if self._was[row.id] == State.WAITING_APPROVAL]
        parked = [row.root_id for row in ended if self._held.get(row.id) in WAITS]
        if guarded:
            items = [(id_, "withdrawn", None) for id_ in guarded]
            await self.tx.run("decide_approvals", items=items, now=self.now, actor=self.caller.actor)
        if parked:
            await self.tx.run("drop_open_waits", items=[(root,) for root in parked])

    async def _free_keys(self) -> None:
        leaving = []
        for id_ in self._dirty:
            row = self.rows[id_]
            if row.idempotency_key is not None and row.status != self._was[id_]:
                settings = (await self.settings_of(row)).idempotency
                if not dedupe.in_scope(settings, row.status) and row.failure_reason != reasons.DISPLACED:
                    leaving.append((row.workspace, row.idempotency_key, row.id))
        if leaving:
            await self.tx.run("drop_keys", items=sorted(leaving))

    async def _lock_around(self) -> Sequence[Row]:
        """The DAGs of what has changed, locked, and what else its end may touch.

        Asked before anything is written, so that all writes can be sent together.
        """
        for id_ in self._dirty:
            row, was = self.rows[id_], self._was[id_]
            if row.status != was or id_ in self._superseded:
                self.count_in_dag(row.dag_id, was, None if id_ in self._superseded else row.status)
        asked = [(id_,) for id_ in sorted(self._open.keys() - self._lone)]
        around = await self.tx.all("lock_what_ends_touch", items=asked) if asked or self.ends else ()
        self._tell_of_lone(self._open.keys() - {row["id"] for row in around})
        return around

    def _tell_of_lone(self, lone: set[str]) -> None:
        """A lone task is its own DAG: its last event says how that ended."""
        caller = self.caller
        accepted = [
            (
                self.now, row["workspace"], row["id"], row["dag_id"], "completed", _COMPLETED,
                caller.for_agent(row["last_agent_id"]), self.request_of(row["id"], row["fence"]), row["fence"], None,
                _LONE if row["dag_id"] in lone else None,
            )
            for row in self._accepted
        ]  # fmt: skip
        self._written = accepted + self._written  # an end stands before what it frees
        for event in self._events:
            if event[2] is None or event[3] not in lone or event[5] is None:
                continue
            end = event[5].rpartition(">")[2]
            status = {
                "completed": "completed",
                "cancelled": "cancelled",
                "dead_lettered": "failed",
                "failed": "failed",
            }.get(end)
            if status and event[4] != "retried" and event[2] not in self._superseded:
                event[10] = {**(event[10] or {}), "dag": status}

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
                self.tell_of(row["workspace"], f"dag_{status}", dag_id=id_)
        await self.tx.run("save_dags", items=items)

    async def _motion(self, dag_ids: list[str]) -> dict[str, Any]:
        """Reads whole DAGs, so only of those that may have come to an end."""
        rows = await self.tx.all("dag_motion", items=[(i,) for i in sorted(dag_ids)]) if dag_ids else []
        return {row["dag_id"]: row for row in rows}


def dag_status(open_: int, settled: int, motion: Any, cancelled_by: str | None) -> str:
    """Open while something can move by itself; failed when only a person can move it on."""
    moving = int(motion["moving"]) if motion else 0
    completed = int(motion["completed"]) if motion else 0
    if open_ == 0:
        return "cancelled" if cancelled_by or not completed else "completed"
    return "failed" if settled and not moving else "open"


def own_settings(body: dict[str, Any]) -> dict[str, Any]:
    """The settings a task brought itself, as a level."""
    own: dict[str, Any] = dict(body.get("settings") or {})
    if body.get("retry"):
        own["retry"] = {**own.get("retry", {}), **body["retry"]}
    if body.get("delivery"):
        own["delivery"] = body["delivery"]
    return own


def shown(row: TaskRow) -> str:
    return ids.show_task(row.id)
