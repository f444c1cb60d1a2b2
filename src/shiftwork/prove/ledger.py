"""The ledger of a run: counts what the queue and the outside world recorded."""

from __future__ import annotations

import itertools
import statistics
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Self

import msgspec

COST_USD = 0.01
"""The cost of each attempt that runs to its end."""

ENDED = frozenset({"completed", "cancelled", "dead_lettered", "failed"})


class Thought(NamedTuple):
    """A record of a task's step under a claim's fence: it was begun, or the queue has stored it."""

    task: str
    fence: int
    what: str

    @property
    def line(self) -> str:
        return f"{self.task} {self.fence} {self.what}"

    @classmethod
    def read(cls, line: str) -> Self:
        task, fence, what = line.split()
        return cls(task, int(fence), what)


class Act(NamedTuple):
    """An outside action of a claim: `act`, or `look` whether an older claim has acted."""

    what: str
    key: str
    fence: int

    @property
    def line(self) -> str:
        return f"{self.what} {self.key} {self.fence}"

    @classmethod
    def read(cls, line: str) -> Self:
        what, key, fence = line.split()
        return cls(what, key, int(fence))


def accepted_acts(acts: Iterable[Act]) -> Counter[str]:
    """How often each effect happened in an outside system that refuses acts of claims older than the newest it knows.

    A process that is frozen between its intent and its act may act years later. Only the outside system can refuse
    that.
    """
    newest: dict[str, int] = {}
    accepted: Counter[str] = Counter()
    for act in acts:
        if act.what == "act" and act.fence >= newest.get(act.key, 0):
            accepted[act.key] += 1
        newest[act.key] = max(act.fence, newest.get(act.key, 0))
    return accepted


class Occurrence(NamedTuple):
    """One fault of a run."""

    fault: str
    at_sec: float
    """Seconds since the start of the run."""
    lasted_sec: float
    affected: int
    """How many processes, connections, answers or requests it affected; 0 if it did not happen."""
    recovered_sec: float | None
    """From its start until all tasks held at that time had ended; None if they had not a minute later."""
    freed_sec: float | None = None
    """From its start until none of them was held under its claim of that time: they had ended or been released."""


class FaultRow(msgspec.Struct, frozen=True, kw_only=True):
    """All faults of one kind."""

    fault: str
    times: int
    affected: int
    freed_median_sec: float | None
    """Until no task was held under its original claim; the rest is the wait for another agent, and its work."""
    recovery_median_sec: float | None
    recovery_max_sec: float | None
    not_recovered: int
    """How often tasks held at its start had not ended a minute later."""


class Ledger(msgspec.Struct, frozen=True, kw_only=True):
    """The results of a run. The fields after `tasks_per_sec` count violations and must be zero."""

    submitted: int
    completed: int
    subtasks: int
    """Submitted tasks that were spawned by a waiting parent."""
    attempts: int
    effects: int
    """Outside actions, each between two writes and after a step."""
    late_writes: int
    """Writes attempted under lost claims."""
    overlapping: int
    """Faults that began before the recovery from an earlier one."""
    took_sec: float
    tasks_per_sec: float
    lost: int
    """Submitted tasks that are no longer in the queue."""
    stuck: int
    """Tasks that had not ended when the time was up."""
    failed: int
    """Tasks that ended but not completed, although every failure can be retried."""
    created_twice: int
    """Tasks that one request created twice."""
    done_twice: int
    """Tasks whose result was accepted more than once."""
    effects_twice: int
    """Outside actions that happened more than once."""
    effects_missing: int
    """Completed tasks whose outside action did not happen."""
    late_accepted: int
    """Late writes that were accepted."""
    steps_repeated: int
    """Tasks whose stored step was repeated by a later claim."""
    not_booked: int
    """Completed tasks whose minimum cost was not booked."""
    misbooked_usd: float
    """The difference between the costs of tasks, attempts and budgets."""
    faults: list[FaultRow]

    @property
    def violations(self) -> dict[str, float]:
        """The violations by name."""
        return {name: value for name in WRONG if abs(value := getattr(self, name)) > 1e-9}

    @property
    def unproven(self) -> list[str]:
        """Chosen faults that did not happen."""
        return [row.fault for row in self.faults if not row.affected]


WRONG = (
    "lost", "stuck", "failed", "created_twice", "done_twice", "effects_twice", "effects_missing", "late_accepted",
    "steps_repeated", "not_booked", "misbooked_usd",
)  # fmt: skip


class TaskRow(NamedTuple):
    """A task's row in the database."""

    id: str
    type: str
    status: str
    cost: int
    """In millionths of a dollar."""
    parent_id: str | None


class Records(msgspec.Struct, frozen=True, kw_only=True):
    """Everything recorded during a run."""

    acknowledged: Mapping[str, str]
    """The id returned for each submission's key."""
    unanswered: int
    """Submissions without an answer, which may or may not exist."""
    tasks: Sequence[TaskRow]
    accepted_twice: int
    attempts: int
    tasks_cost: int
    """The cost of all tasks, read in the same snapshot as that of their attempts."""
    attempts_cost: int
    budgets_misbooked: int
    """The difference between budgets and the attempts that they paid for."""
    acts: Iterable[Act]
    thoughts: Sequence[Thought]
    """In the order in which they were recorded."""
    late_writes: int
    late_accepted: int
    took_sec: float
    chosen: Sequence[str]
    occurrences: Sequence[Occurrence]


def count(records: Records, *, with_effects: frozenset[str], subtasks: int) -> Ledger:
    """Compute the ledger. Tasks of the types in `with_effects` act outside once; parents have this many subtasks."""
    tasks = records.tasks
    there = {task.id for task in tasks}
    roots = [task for task in tasks if task.parent_id is None]
    below = Counter(task.parent_id for task in tasks if task.parent_id is not None)
    completed = [task for task in tasks if task.status == "completed"]
    acts = accepted_acts(records.acts)
    unexpected = len(roots) - len(records.acknowledged) - records.unanswered
    known = {*records.acknowledged.values()}
    return Ledger(
        submitted=len(records.acknowledged) + sum(below.values()),
        completed=len(completed),
        subtasks=sum(below.values()),
        attempts=records.attempts,
        effects=len(acts),
        late_writes=records.late_writes,
        overlapping=_overlapping(records.occurrences),
        took_sec=round(records.took_sec, 1),
        tasks_per_sec=round(len(completed) / records.took_sec, 1),
        lost=len(known - there) + _missing_below(completed, below, subtasks),
        stuck=sum(task.status not in ENDED for task in tasks),
        failed=sum(task.status in ENDED - {"completed"} for task in tasks),
        created_twice=max(0, unexpected) + sum(max(0, number - subtasks) for number in below.values()),
        done_twice=records.accepted_twice,
        effects_twice=sum(times > 1 for times in acts.values()),
        effects_missing=max(0, sum(task.type in with_effects for task in completed) - len(acts)),
        late_accepted=records.late_accepted,
        steps_repeated=len(_steps_repeated(records.thoughts)),
        not_booked=sum(task.cost < round(1e6 * COST_USD) for task in completed),
        misbooked_usd=_misbooked(records),
        faults=[_row(name, records.occurrences) for name in records.chosen],
    )


def _missing_below(completed: Iterable[TaskRow], below: Mapping[str, int], subtasks: int) -> int:
    """Missing subtasks of completed parents."""
    return sum(max(0, subtasks - below.get(task.id, 0)) for task in completed if task.type == "parent")


def _misbooked(records: Records) -> float:
    return (abs(records.tasks_cost - records.attempts_cost) + records.budgets_misbooked) / 1e6


def _steps_repeated(thoughts: Iterable[Thought]) -> set[str]:
    """Tasks whose step was begun again by a later claim than the one that stored it; an older one may still do so."""
    kept: dict[str, int] = {}
    again: set[str] = set()
    for thought in thoughts:
        if thought.what == "kept":
            kept[thought.task] = min(thought.fence, kept.get(thought.task, thought.fence))
        elif thought.fence > kept.get(thought.task, thought.fence):
            again.add(thought.task)
    return again


def _overlapping(occurrences: Iterable[Occurrence]) -> int:
    happened = sorted((each for each in occurrences if each.affected), key=lambda each: each.at_sec)
    ends = itertools.accumulate((each.at_sec + (each.recovered_sec or each.lasted_sec) for each in happened), max)
    return sum(later.at_sec < end for later, end in zip(happened[1:], ends, strict=False))


def _row(name: str, occurrences: Iterable[Occurrence]) -> FaultRow:
    those = [each for each in occurrences if each.fault == name and each.affected]
    recoveries = [each.recovered_sec for each in those if each.recovered_sec is not None]
    freed = [each.freed_sec for each in those if each.freed_sec is not None]
    return FaultRow(
        fault=name,
        times=len(those),
        affected=sum(each.affected for each in those),
        freed_median_sec=round(statistics.median(freed), 1) if freed else None,
        recovery_median_sec=round(statistics.median(recoveries), 1) if recoveries else None,
        recovery_max_sec=round(max(recoveries), 1) if recoveries else None,
        not_recovered=len(those) - len(recoveries),
    )


TASKS = "select id, type, status, cost, parent_id from tasks where type <> 'probe'"
TWICE = """
select count(*) from (
  select 1 from single_events where verb = 'completed' group by task_id having count(*) > 1
) twice"""
COSTS = """
select count(*), coalesce(sum(a.cost), 0) from attempts a join tasks t on t.id = a.task_id where t.type <> 'probe'"""
BUDGETS = """
select coalesce(sum(abs(b.spent - coalesce(used.cost, 0))), 0) from budgets b left join (
  select c.budget_id, sum(
    case when a.task_id is null then coalesce(t.attempt_cost, 0) when c.granted > a.cost then c.granted else a.cost end
  ) as cost
  from charges c left join attempts a on a.task_id = c.task_id and a.fence = c.fence
  left join tasks t on t.id = c.task_id and t.fence = c.fence and t.agent_id is not null
  group by c.budget_id
) used on used.budget_id = b.id"""
"""The difference between budgets and the attempts that they paid for. A running attempt has spent what it has reported
so far. The whole grant of a lost attempt counts as spent until it reports, which it may do at any time."""

Snapshot = Callable[[Sequence[str]], Awaitable[list[list[tuple[Any, ...]]]]]
"""Reads the rows of several queries in one snapshot."""


class StoredTotals(NamedTuple):
    """Tasks, and the costs of tasks, attempts and budgets, in millionths of a dollar."""

    tasks: list[TaskRow]
    accepted_twice: int
    attempts: int
    tasks_cost: int
    attempts_cost: int
    budgets_misbooked: int


async def read_stored_totals(snapshot: Snapshot) -> StoredTotals:
    tasks, twice, costs, budgets = await snapshot([TASKS, TWICE, COSTS, BUDGETS])
    found = [TaskRow(str(row[0]), row[1], row[2], row[3], row[4] and str(row[4])) for row in tasks]
    (attempts, cost), ((differs,),) = costs[0], budgets
    return StoredTotals(found, twice[0][0], attempts, sum(task.cost for task in found), int(cost), int(differs))
