"""Checks the database between transactions: every invariant holds, and acknowledged changes are stored."""

from __future__ import annotations

from collections import Counter
from typing import Any

from shiftwork import Queue
from shiftwork.engine.engine import Caller, Engine
from shiftwork.engine.participants import PARTICIPANTS
from shiftwork.model import ids
from shiftwork.model.states import CLAIMED_STATES, FINAL, SETTLED
from shiftwork.operation.shared import Shared
from shiftwork.store.sqlite import SqliteStore, _run_through
from shiftwork.store.sqlite_tx import SqliteTx
from tests.machine import tables
from tests.simulation.faults import Faults


class _QuietStore(SqliteStore):
    """A store that reads immediately and without faults."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults
        super().__init__("sqlite://:memory:", faults.disk.connection, None, faults.clock, 0)
        self._thread.join()

    def _work(self) -> None:
        """Run without a thread."""

    async def run(self, verb: Any, /) -> Any:
        with self._faults.disk.quiet():
            return _run_through(verb, SqliteTx(self._connection, self._clock()))


class Acknowledged:
    """The acknowledged changes, which the queue must never lose."""

    def __init__(self) -> None:
        self.submitted: dict[str, None] = {}
        self.serial_keys: dict[str, str] = {}
        """Of each task that has one, by its id."""
        self.claims: dict[str, str] = {}
        """By token: the request that it answered."""
        self.completed: dict[str, None] = {}
        """Tokens under which a result was accepted."""
        self.failed: dict[str, None] = {}
        self.read: Counter[int] = Counter()
        """Events that a reader has seen, by number."""
        self.read_to = 0

    def claim(self, token: str, request: str) -> None:
        known = self.claims.setdefault(token, request)
        assert known == request, f"{token} was handed out twice, to {known} and {request}"


class Observer:
    def __init__(self, faults: Faults, acknowledged: Acknowledged, limits: dict[str, int]) -> None:
        engine = Engine(_QuietStore(faults), "standard", 0, participants=PARTICIPANTS)
        self.queue = Queue(Shared(engine), "default", Caller())
        self._acknowledged = acknowledged
        self._limits = limits
        """How many tasks of a type may be held at once."""
        self._before: tables.Tables | None = None
        self.checks = 0

    async def check(self) -> tables.Tables:
        """Everything that must be true after any commit."""
        now = await tables.look(self.queue)
        tables.check(now, self._before)
        await tables.check_explanations(self.queue, now, self._before)
        self._check_limits(now)
        self._check_acknowledged(now)
        await self._check_budgets(now)
        self._before = now
        self.checks += 1
        return now

    def _check_limits(self, now: tables.Tables) -> None:
        held = [row for row in now.tasks.values() if row["status"] in CLAIMED_STATES]
        by_type = Counter(row["type"] for row in held)
        for type_, most in self._limits.items():
            assert by_type[type_] <= most, f"{by_type[type_]} tasks of type {type_} run, {most} may"
        keys = self._acknowledged.serial_keys
        by_key = Counter(key for row in held if (key := keys.get(ids.show_task(row["root_id"]))))
        assert max(by_key.values(), default=0) <= 1, f"tasks of one serial key run at once: {by_key}"

    async def _check_budgets(self, now: tables.Tables) -> None:
        """No attempt spends more than it was granted here, so that only a wrong grant passes a ceiling.

        But for an attempt that was cancelled or released: its grant is given back, and what its agent reports
        afterwards is booked on top, as a fact.
        """
        late = sum(a["cost"] for a in now.attempts if a["outcome"] not in {"completed", "failed"}) / 1e6
        for budget in await self.queue.budgets.list(limit=1000):
            assert budget.granted_usd >= 0, budget
            if budget.ceiling_usd is not None:
                assert budget.spent_usd + budget.granted_usd <= budget.ceiling_usd + late + 1e-6, budget

    def _check_acknowledged(self, now: tables.Tables) -> None:
        known = self._acknowledged
        removed = bool(now.tombstones)
        outcomes = {(a["task_id"], a["fence"]): a["outcome"] for a in now.attempts}
        for id_ in known.submitted:
            uuid = ids.parse(id_)
            assert removed or uuid in now.tasks or uuid in now.archive, f"{id_} was acknowledged and is gone"
        for tokens, wanted in ((known.completed, {"completed"}), (known.failed, None)):
            for token in tokens:
                name, fence = ids.split_token(token) or ("", 0)
                uuid = ids.parse(name)
                if uuid not in now.tasks:
                    continue
                outcome = outcomes.get((uuid, fence))
                assert outcome is not None, f"the end of {token} was acknowledged and is gone"
                assert wanted is None or outcome in wanted, f"{token} was accepted and is {outcome}"
        for token in known.claims:
            name, fence = ids.split_token(token) or ("", 0)
            row = now.tasks.get(ids.parse(name) or "")
            assert row is None or row["fence"] >= fence, f"the claim {token} was acknowledged and is gone"

    async def check_end(self) -> None:
        """Check at the end that nothing is stuck and a reader has seen every event once."""
        now = await self.check()
        for row in now.tasks.values():
            if now.is_newest(row):
                assert row["status"] in FINAL | SETTLED | {"pending"}, await self._stuck(row)
        await self._check_titles()
        assert set(self._acknowledged.read) == {event["seq"] for event in now.events}, "a reader missed an event"
        assert set(self._acknowledged.read.values()) <= {1}, "a reader saw an event twice"

    async def _check_titles(self) -> None:
        """Check that a repeated submission created one task."""
        roots: dict[str, str] = {}
        for task in (await self.queue.tasks.list(limit=1000)).tasks:
            if task.title is not None:
                first = roots.setdefault(task.title, task.root_task_id)
                assert first == task.root_task_id, f"{task.title} was submitted once and is {first} and {task.id}"

    async def _stuck(self, row: Any) -> str:
        stated = await self.queue.explain(ids.show_task(row["id"]))
        return f"{ids.show_task(row['id'])} is {row['status']} and nothing happens: {stated}"
