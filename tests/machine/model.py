"""A small queue in plain Python: the expected state of each lineage after a verb."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from shiftwork.model import ids

FINAL = {"completed", "cancelled"}
SETTLED = {"dead_lettered", "failed"}
CLAIMED_STATES = {"claimed", "running"}
WAITING = {"pending", "ready", "retrying"}

MAX_ATTEMPTS = 2
RETRY_DELAY = 10.0
CLAIM_TTL = 60.0
SILENCE = 90.0
TIMEOUT = 3600.0
RATE_LIMIT_WAIT = 60.0
RATE_LIMIT_WAITS = 1
NEVER_RETRIED = {"invalid_input", "auth_failure"}


@dataclass(frozen=True)
class Rules:
    """The settings that differ from one run to the next."""

    new_task: bool = False
    exhausted: str = "dead_lettered"
    stale: str = "fail"
    claim_expired: str = "fail"
    recover: str = "fail"
    parent_cancelled: str = "cancel"
    parent_failed: str = "wait"
    purge: str = "cancel"
    archive_after: float | None = None

    def settings(self) -> dict[str, object]:
        """The same as settings of the queue."""
        return {
            "max_attempts": MAX_ATTEMPTS,
            "poison": None,
            "retry": {
                "mode": "new_task" if self.new_task else "same_task",
                "strategy": "fixed",
                "initial_delay_sec": RETRY_DELAY,
                "jitter": False,
            },
            "rate_limit": {"jitter_range": (1.0, 1.0), "max_waits": RATE_LIMIT_WAITS},
            "on_exhausted": "dead_letter" if self.exhausted == "dead_lettered" else "stay_failed",
            "on_stale": self.stale,
            "on_claim_expired": self.claim_expired,
            "recover": self.recover,
            "on_dependency_cancelled": self.parent_cancelled,
            "on_dependency_failed": self.parent_failed,
            "purge.mode": self.purge,
            "archive_after_sec": self.archive_after,
            # What stops whole types has walks of its own.
            "circuit_breaker": None,
            "cooldown": {"others": 0},
        }


PLAIN = Rules()
NEW_ROWS = Rules(new_task=True, exhausted="failed", purge="delete", parent_cancelled="wait", parent_failed="cancel")
LENIENT = Rules(
    stale="reclaim",
    claim_expired="release",
    recover="requeue",
    parent_cancelled="satisfy",
    purge="delete",
    archive_after=600.0,
)


@dataclass
class Agent:
    id: str
    capabilities: frozenset[str]
    types: frozenset[str] | None
    slots: int
    budget: float | None
    runtime: str


@dataclass
class Lineage:
    """One task with all its retries and reruns; `dependencies` says of each whether it is satisfied."""

    label: str
    type: str
    capability: str | None
    target: str | None
    cost: float
    key: str | None
    status: str
    dependencies: dict[str, bool] = field(default_factory=dict)
    attempts: int = 0
    reclaims: int = 0
    rate_limits: int = 0
    agent: str | None = None
    runtime: str | None = None
    token: str | None = None
    heard: float = 0.0
    started: float | None = None
    available_at: float = 0.0
    by_parent: bool = False
    """Cancelled because of a task it depends on."""

    @property
    def open(self) -> int:
        return sum(1 for satisfied in self.dependencies.values() if not satisfied)

    def let_go(self) -> None:
        self.agent = self.runtime = self.token = self.started = None


class Model:
    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.all: dict[str, Lineage] = {}
        self.gone: set[str] = set()
        """Purged: no one can name them any more."""
        self.archived: dict[str, str] = {}
        self.names: dict[str, str] = {}
        self.keys: dict[str, str] = {}
        self.beats: dict[str, float] = {}
        self.paused: set[str] = set()

    def in_state(self, states: Collection[str]) -> list[Lineage]:
        return [task for task in self.all.values() if task.status in states]

    def children(self, label: str) -> list[Lineage]:
        """Return the tasks that still wait for this one."""
        return [task for task in self.all.values() if task.dependencies.get(label) is False]

    def status_of(self, label: str) -> str:
        """Return the state of a dependency; `pending` if it was never submitted, or was purged while awaited."""
        return self.archived.get(label) or (self.all[label].status if label in self.all else "pending")

    def leads_to(self, start: Iterable[str], goal: str, more: dict[str, list[str]] | None = None) -> bool:
        """Whether one of these waits for the goal, directly or not; `more` are edges about to be added."""
        todo, seen = list(start), set()
        while todo:
            label = todo.pop()
            if label == goal:
                return True
            if label in seen:
                continue
            seen.add(label)
            todo += (more or {}).get(label, [])
            if label in self.all:
                todo += [d for d, satisfied in self.all[label].dependencies.items() if not satisfied]
        return False

    def add(self, task: Lineage, dependencies: Iterable[str], name: str | None = None) -> None:
        """Add a task. Tasks that waited for its name wait for it from now on."""
        task.dependencies = {label: self.status_of(label) == "completed" for label in dependencies}
        task.status = "pending" if task.open else "ready"
        self.all[task.label] = task
        if task.key is not None:
            self.keys[task.key] = task.label
        if name is not None:
            self.names[name] = task.label
            for other in self.all.values():
                if f"?{name}" in other.dependencies:
                    other.dependencies[task.label] = other.dependencies.pop(f"?{name}")

    def waiters(self, name: str) -> list[str]:
        """Which tasks wait for this id, that no task has yet."""
        awaited = {f"?{name}", ids.show_task(name) if ids.parse(name) else ""}
        return [
            label
            for label, task in self.all.items()
            if awaited & {d for d, met in task.dependencies.items() if not met}
        ]

    def alias(self, name: str, label: str) -> None:
        """Let the id of a duplicate name the existing task, also for tasks that waited for that id."""
        waiters = [self.all[waiter] for waiter in self.waiters(name)]
        self.names[name] = label
        for task in waiters:
            task.dependencies.pop(f"?{name}", None)
            if ids.parse(name):
                task.dependencies.pop(ids.show_task(name), None)
            task.dependencies.setdefault(label, self.status_of(label) == "completed")
            if task.status == "pending" and not task.open:
                task.status = "ready"
        self.meet_fate(task.label for task in waiters)

    def meet_fate(self, labels: Iterable[str]) -> None:
        """Treat new edges to tasks that ended without success as if these ended now."""
        born = list(labels)
        for label in born:
            task = self.all[label]
            ended = {d: self.status_of(d) for d, satisfied in task.dependencies.items() if not satisfied}
            if "cancelled" in ended.values():
                gone = {d for d, status in ended.items() if status == "cancelled"}
                self._lose_parents(task, gone)
        for label in born:
            task = self.all[label]
            failed = any(self.status_of(d) in SETTLED for d, satisfied in task.dependencies.items() if not satisfied)
            if failed and self.rules.parent_failed == "cancel" and task.status == "pending":
                self._cancel_with_dependents(task)

    def complete(self, task: Lineage) -> None:
        task.let_go()
        self._set(task, "completed")
        for child in self.children(task.label):
            self._satisfy(child, task.label)

    def _satisfy(self, child: Lineage, label: str) -> None:
        child.dependencies[label] = True
        if child.status == "pending" and not child.open:
            child.status = "ready"

    def fail(self, task: Lineage, reason: str, now: float, *, retry: bool = True) -> None:
        """A worker reported a failure."""
        task.let_go()
        free = reason == "rate_limit" and task.rate_limits < RATE_LIMIT_WAITS and retry
        if free:
            task.rate_limits += 1
            task.available_at = now + RATE_LIMIT_WAIT * 2 ** (task.rate_limits - 1)
            self._set(task, "retrying")
            return
        again = retry and reason not in NEVER_RETRIED
        self._count_failure(task, now, again=again, delay=RETRY_DELAY)

    def _count_failure(self, task: Lineage, now: float, *, again: bool, delay: float) -> None:
        task.attempts += 1
        task.rate_limits = 0
        if not again or task.attempts >= MAX_ATTEMPTS:
            self._settle(task)
        elif delay:
            task.available_at = now + delay
            self._set(task, "retrying")
        else:
            self._set(task, "ready")
        if self.rules.new_task and task.status not in SETTLED:
            task.reclaims = 0

    def _settle(self, task: Lineage) -> None:
        self._set(task, self.rules.exhausted)
        if self.rules.parent_failed == "cancel":
            for child in self.children(task.label):
                if child.status == "pending":
                    self._cancel_with_dependents(child)

    def release(self, task: Lineage) -> None:
        task.let_go()
        task.status = "ready"

    def _reclaim(self, task: Lineage) -> None:
        self.release(task)
        task.reclaims += 1
        task.rate_limits = 0

    def depart(self, task: Lineage, now: float) -> None:
        """End a claim whose process is known to be dead."""
        if task.started is None and self.rules.claim_expired == "release":
            self.release(task)
            task.rate_limits = 0
        elif self.rules.stale == "reclaim" and task.reclaims < MAX_ATTEMPTS:
            self._reclaim(task)
        else:
            task.let_go()
            self._count_failure(task, now, again=True, delay=RETRY_DELAY)

    def orphan(self, task: Lineage, now: float) -> None:
        """End a claim whose process has restarted."""
        task.let_go()
        self._count_failure(task, now, again=True, delay=RETRY_DELAY if self.rules.recover == "fail" else 0.0)

    def pass_time(self, now: float) -> None:
        """Do what the maintenance jobs do: reclaim silent tasks, then promote due ones."""
        for task in self.in_state(CLAIMED_STATES):
            self._inspect(task, now)
        for task in self.in_state({"retrying"}):
            if task.available_at <= now:
                self._wait_again(task)

    def _inspect(self, task: Lineage, now: float) -> None:
        if task.started is None:
            if now >= task.heard + CLAIM_TTL:
                if self.rules.claim_expired == "release":
                    self.release(task)
                    task.rate_limits = 0
                else:
                    task.let_go()
                    self._count_failure(task, now, again=True, delay=RETRY_DELAY)
            return
        silent = max(task.heard, self.beats.get(task.runtime or "", 0.0)) + SILENCE
        late = task.started + TIMEOUT
        if now < min(silent, late):
            return
        if silent <= late and self.rules.stale == "reclaim" and task.reclaims < MAX_ATTEMPTS:
            self._reclaim(task)
        else:
            task.let_go()
            self._count_failure(task, now, again=True, delay=RETRY_DELAY)

    def cancel(self, tasks: Iterable[Lineage]) -> None:
        """Cancel several tasks at once, then their dependents."""
        ended = list(tasks)
        for task in ended:
            task.let_go()
            self._set(task, "cancelled")
            task.by_parent = False
        for task in ended:
            self._notify_children(task)

    def _notify_children(self, task: Lineage) -> None:
        for child in self.children(task.label):
            self._lose_parents(child, {task.label})

    def _lose_parents(self, child: Lineage, parents: Collection[str]) -> None:
        if self.rules.parent_cancelled == "satisfy":
            for label in parents:
                self._satisfy(child, label)
        elif self.rules.parent_cancelled == "cancel" and child.status == "pending":
            self._cancel_with_dependents(child)

    def _cancel_with_dependents(self, child: Lineage) -> None:
        self._set(child, "cancelled")
        child.by_parent = True
        self._notify_children(child)

    def purge(self, tasks: Iterable[Lineage]) -> None:
        matched = list(tasks)
        self.cancel(task for task in matched if task.status not in FINAL)
        if self.rules.purge == "delete":
            for task in matched:
                self.forget(task.label)
                self.gone.add(task.label)

    def forget(self, label: str) -> None:
        """Remove a row; an archived task keeps its name and its key."""
        del self.all[label]
        if label not in self.archived:
            self.names = {name: known for name, known in self.names.items() if known != label}
            self.keys = {key: owner for key, owner in self.keys.items() if owner != label}

    def claim(self, task: Lineage, agent: Agent, token: str, now: float, *, start: bool) -> None:
        task.status = "running" if start else "claimed"
        task.agent, task.runtime, task.token, task.heard = agent.id, agent.runtime, token, now
        task.started = now if start else None

    def retry(self, task: Lineage, *, at: float | None = None) -> None:
        """Retry a settled task; it gets its idempotency key back unless another task has taken it."""
        self._take_key_back(task)
        task.attempts = task.reclaims = task.rate_limits = 0
        if at is not None:
            task.status, task.available_at = "retrying", at
        else:
            self._wait_again(task)

    def _wait_again(self, task: Lineage) -> None:
        """Wait again; dependencies may have ended meanwhile."""
        task.status = "pending" if task.open else "ready"
        if task.open:
            self.meet_fate([task.label])

    def revive(self, label: str) -> None:
        """Restore the tasks that were cancelled because of this one, recursively."""
        for child in self.children(label):
            if child.status == "cancelled" and child.by_parent:
                self._take_key_back(child)
                child.status, child.by_parent = "pending", False
                self.revive(child.label)

    def _take_key_back(self, task: Lineage) -> None:
        if task.key is not None:
            self.keys.setdefault(task.key, task.label)

    def rerun(self, task: Lineage) -> None:
        """Create a new task for the same work, without an idempotency key."""
        if task.status in WAITING:
            self.drop_key(task)
        task.key = None
        self.retry(task)

    def wait(self, task: Lineage, labels: Iterable[str]) -> None:
        """The holder frees its slot until these are done."""
        task.let_go()
        for label in labels:
            task.dependencies[label] = self.status_of(label) == "completed"
        task.status = "pending" if task.open else "ready"
        self.meet_fate([task.label])

    def _set(self, task: Lineage, status: str) -> None:
        task.status = status
        if status in SETTLED | {"cancelled"}:
            self.drop_key(task)

    def drop_key(self, task: Lineage) -> None:
        """The task has left the states in which its idempotency key counts."""
        if task.key is not None and self.keys.get(task.key) == task.label:
            del self.keys[task.key]
