"""The ledger of a run: counts what the queue and the outside world recorded. Pure."""

from __future__ import annotations

import itertools
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Self

import msgspec

COST_USD = 0.01
"""What each attempt that comes to its end has spent."""

ENDED = frozenset({"completed", "cancelled", "dead_lettered", "failed"})


class Thought(NamedTuple):
    """The one step of a task, under the fence of a claim: it was begun, or the queue has kept it."""

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
    """What a claim did outside: `act`, or `look` whether an older claim has acted."""

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
    """How often each effect happened, outside of a system that refuses acts of claims older than one it has heard of.

    A process that is frozen between its intent and its act may act years later. Only the outside can refuse that.
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
    """Since the beginning of the run."""
    lasted_sec: float
    affected: int
    """Processes, connections, answers or requests that it met; 0 if it did not happen."""
    recovered_sec: float | None
    """From its beginning until all tasks that were held then had ended; None if they had not a minute later."""
    freed_sec: float | None = None
    """From its beginning until none of them was held under its claim of then: they had ended, or were given back."""


class FaultRow(msgspec.Struct, frozen=True, kw_only=True):
    """All faults of one kind."""

    fault: str
    times: int
    affected: int
    freed_median_sec: float | None
    """Until no task was held under its claim of then; what follows is the wait for another agent, and its work."""
    recovery_median_sec: float | None
    recovery_max_sec: float | None
    not_recovered: int
    """Times that work held at its beginning had not ended a minute later."""


class Ledger(msgspec.Struct, frozen=True, kw_only=True):
    """What happened, and below `tasks_per_sec` what went wrong: there the right numbers are zeros."""

    submitted: int
    completed: int
    subtasks: int
    """Of the submitted, spawned by a task that waited for them."""
    attempts: int
    effects: int
    """Actions outside, each between two writes of its own; a step of the task came before it."""
    late_writes: int
    """Writes that were tried under claims that had lost their task."""
    overlapping: int
    """Faults that came before the recovery from an earlier one."""
    took_sec: float
    tasks_per_sec: float
    lost: int
    """Submitted, and not in the queue any more."""
    stuck: int
    """Neither ended nor moving when the time was over."""
    failed: int
    """Ended otherwise than completed, although every failure may be tried again."""
    created_twice: int
    """Tasks that one request created twice."""
    done_twice: int
    """Tasks whose result was accepted more than once."""
    effects_twice: int
    """Outside actions that happened more than once."""
    effects_missing: int
    """Completed, and what it should have done outside did not happen."""
    late_accepted: int
    """Late writes that were accepted."""
    steps_repeated: int
    """Tasks whose step was done again by a later claim, although it had been kept."""
    not_booked: int
    """Completed, and what it cost at least was not booked."""
    misbooked_usd: float
    """By how much tasks, attempts and budgets differ about what was spent."""
    faults: list[FaultRow]

    @property
    def violations(self) -> dict[str, float]:
        """What went wrong, by name."""
        return {name: value for name in WRONG if abs(value := getattr(self, name)) > 1e-9}

    @property
    def unproven(self) -> list[str]:
        """Faults that were chosen and did not happen."""
        return [row.fault for row in self.faults if not row.affected]


WRONG = (
    "lost", "stuck", "failed", "created_twice", "done_twice", "effects_twice", "effects_missing", "late_accepted",
    "steps_repeated", "not_booked", "misbooked_usd",
)  # fmt: skip


class TaskRow(NamedTuple):
    """A task as the database has it."""

    id: str
    type: str
    status: str
    cost: int
    """In millionths of a dollar."""
    parent_id: str | None


class Records(msgspec.Struct, frozen=True, kw_only=True):
    """What is known after a run."""

    acknowledged: Mapping[str, str]
    """The id that each key of a submission was answered with."""
    unanswered: int
    """Submissions whose answer never came: they may be there or not."""
    tasks: Sequence[TaskRow]
    accepted_twice: int
    attempts: int
    tasks_cost: int
    """Of all tasks, read at the same moment as what their attempts cost."""
    attempts_cost: int
    budgets_misbooked: int
    """By how much budgets differ from the attempts that they paid for."""
    acts: Iterable[Act]
    thoughts: Sequence[Thought]
    """In the order in which they were written down."""
    late_writes: int
    late_accepted: int
    took_sec: float
    chosen: Sequence[str]
    occurrences: Sequence[Occurrence]


def count(records: Records, *, with_effects: frozenset[str], subtasks: int) -> Ledger:
    """The ledger of a run whose tasks of these types act outside once, and whose parents have this many subtasks."""
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
    """Subtasks that a completed parent must have had, and that are gone."""
    return sum(max(0, subtasks - below.get(task.id, 0)) for task in completed if task.type == "parent")


def _misbooked(records: Records) -> float:
    return (abs(records.tasks_cost - records.attempts_cost) + records.budgets_misbooked) / 1e6


def _steps_repeated(thoughts: Iterable[Thought]) -> set[str]:
    """A claim that was lost may still begin; one that comes after the claim that kept the thought may not."""
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
