"""What came of it, counted from what the queue and the world remember. Nothing here touches either."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec

ENDED = frozenset({"completed", "cancelled", "dead_lettered", "failed"})


class Ledger(msgspec.Struct, frozen=True, kw_only=True):
    """The right numbers below `faults` are zeros."""

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
    misbooked_usd: float
    """By how much the costs of attempts and tasks differ."""

    @property
    def clean(self) -> bool:
        wrong = (self.lost, self.stuck, self.failed, self.done_twice, self.acted_twice, self.not_acted)
        return not any(wrong) and abs(self.misbooked_usd) < 1e-9


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
    task_costs: float
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
        misbooked_usd=story.task_costs - story.attempt_costs,
    )
