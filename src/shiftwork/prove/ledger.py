"""The ledger of a run: counts what the queue and the world recorded. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

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


def read_thought(line: str) -> Thought:
    task, fence, what = line.split()
    return Thought(task, int(fence), what)


class Ledger(msgspec.Struct, frozen=True, kw_only=True):
    """What happened, and below `took_sec` what went wrong: there the right numbers are zeros."""

    submitted: int
    completed: int
    attempts: int
    kills: int
    freezes: int
    floods: int
    """Times that the same request was sent again."""
    took_sec: float
    lost: int
    """Submitted, and not in the queue any more."""
    stuck: int
    """Neither ended nor moving when the time was over."""
    failed: int
    """Ended otherwise than completed, although every slip may be tried again."""
    done_twice: int
    """Tasks whose result was accepted more than once."""
    acted_twice: int
    """Outside actions that happened more than once."""
    not_acted: int
    """Completed, and what it should have done outside did not happen."""
    late_accepted: int
    """Writes that were accepted under a claim that had lost its task to another."""
    thought_twice: int
    """Tasks whose step was done again by a later claim, although it had been kept."""
    not_booked: int
    """Completed, and what it cost at least was not booked."""
    misbooked_usd: float
    """By how much the costs of attempts and tasks differ."""

    @property
    def faults(self) -> int:
        """Processes that were hurt. Where none was, nothing is proven."""
        return self.kills + self.freezes

    @property
    def clean(self) -> bool:
        wrong = (self.lost, self.stuck, self.failed, self.done_twice, self.acted_twice, self.not_acted)
        broken = (self.late_accepted, self.thought_twice, self.not_booked)
        return not any(wrong) and not any(broken) and abs(self.misbooked_usd) < 1e-9


class Story(msgspec.Struct, frozen=True, kw_only=True):
    """What is remembered of one run."""

    submitted: Sequence[str]
    statuses: Mapping[str, str]
    """Of each task that is still there."""
    accepted: Mapping[str, int]
    """How often each task's result was taken, by the log."""
    attempts: int
    world: Iterable[str]
    """The key of each outside action, as often as it happened."""
    thoughts: Sequence[Thought]
    """In the order in which they were written down."""
    late_accepted: int
    costs: Mapping[str, float]
    """Of each task, in dollars."""
    attempt_costs: float
    kills: int
    freezes: int
    floods: int
    took_sec: float


def count(story: Story) -> Ledger:
    """The ledger of a run."""
    there = {task: story.statuses[task] for task in story.submitted if task in story.statuses}
    completed = [task for task, status in there.items() if status == "completed"]
    acts = Counter(story.world)
    return Ledger(
        submitted=len(story.submitted),
        completed=len(completed),
        attempts=story.attempts,
        kills=story.kills,
        freezes=story.freezes,
        floods=story.floods,
        took_sec=story.took_sec,
        lost=len(story.submitted) - len(there),
        stuck=sum(status not in ENDED for status in there.values()),
        failed=sum(status in ENDED - {"completed"} for status in there.values()),
        done_twice=sum(times > 1 for times in story.accepted.values()),
        acted_twice=sum(times > 1 for times in acts.values()),
        not_acted=max(0, len(completed) - len(acts)),
        late_accepted=story.late_accepted,
        thought_twice=len(_thought_twice(story.thoughts)),
        not_booked=sum(story.costs.get(task, 0.0) < COST_USD - 1e-9 for task in completed),
        misbooked_usd=round(sum(story.costs.values()) - story.attempt_costs, 6),
    )


def _thought_twice(thoughts: Iterable[Thought]) -> set[str]:
    """A claim that was lost may still begin; one that comes after the claim that kept the thought may not."""
    kept: dict[str, int] = {}
    again: set[str] = set()
    for thought in thoughts:
        if thought.what == "kept":
            kept[thought.task] = min(thought.fence, kept.get(thought.task, thought.fence))
        elif thought.fence > kept.get(thought.task, thought.fence):
            again.add(thought.task)
    return again
