"""Circuit breakers in the store: one row per type that has ever failed, and a gate while it is not closed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from shiftwork.engine.unit_of_work import AttemptEnd, Participant, UnitOfWork
from shiftwork.limits import breaker_policy, gates
from shiftwork.limits.breaker_policy import Circuit, TrialEnd
from shiftwork.model.keys import Key
from shiftwork.model.states import SETTLED
from shiftwork.settings.model import Breaker
from shiftwork.store.store import Row

Name = tuple[str, str]
"""A workspace and a type."""


class Change(NamedTuple):
    """A breaker before and after."""

    before: Circuit
    after: Circuit
    rule: Breaker


class _EndedAttempt(NamedTuple):
    name: Name
    claim: tuple[str, int]
    outcome: str
    reason: str | None = None


class Breakers(Participant):
    """Counts the attempts that one unit of work ends."""

    def __init__(self, work: UnitOfWork) -> None:
        super().__init__(work)
        self._ended: list[_EndedAttempt] = []
        self._lost: set[tuple[Name, str | None]] = set()

    def attempt_ended(self, end: AttemptEnd) -> None:
        self.asks = True
        row, name, outcome = end.row, (end.row.workspace, end.row.type), end.outcome
        if end.lost and outcome == "failed":
            # A process that died holding a hundred tasks is one failure of their type, not a hundred.
            if (name, row.runtime_id) in self._lost:
                outcome = "reclaimed"
            self._lost.add((name, row.runtime_id))
        self._ended.append(_EndedAttempt(name, (row.id, row.fence), outcome, end.reason))

    def attempts_accepted(self, rows: Sequence[Row]) -> None:
        if rows[0]["guarded"]:
            self.asks = True
            self._ended += [
                _EndedAttempt((row["workspace"], row["type"]), (row["id"], row["fence"]), "completed") for row in rows
            ]

    async def save(self) -> None:
        if self._ended and (self.work.found["tripped"] or any(ended.outcome == "failed" for ended in self._ended)):
            await record_ends(self.work, [(ended.name, self._end(ended)) for ended in self._ended])

    def _end(self, ended: _EndedAttempt) -> TrialEnd:
        row = self.work.rows.get(ended.claim[0])
        final = row is not None and row.status in SETTLED and self.work.is_newest(row)
        return TrialEnd(ended.claim, ended.outcome, ended.reason, final)


def load(row: Row) -> Circuit:
    probe = None if row["probe_task"] is None else (row["probe_task"], int(row["probe_fence"]))
    return Circuit(
        row["state"],
        int(row["failures"]),
        row["last_failure"],
        row["opened_at"],
        row["half_open_at"],
        probe,
        row["probe_until"],
    )


async def rule_of(work: UnitOfWork, name: Name) -> Breaker | None:
    workspace, type_ = name
    return (await work.engine.settings_cache.load(work.tx, workspace)).settings(type_).circuit_breaker


async def lock(work: UnitOfWork, names: Collection[Name], *, add: Collection[Name] = ()) -> dict[Name, Circuit]:
    """Lock the breakers of these types in order; those in `add` are created if they do not exist."""
    if add:
        await work.tx.run("add_breakers", items=sorted(add))
    rows = await work.tx.all("lock_breakers", items=sorted(names)) if names else []
    return {(row["workspace"], row["type"]): load(row) for row in rows}


async def record_ends(work: UnitOfWork, ends: Iterable[tuple[Name, TrialEnd]]) -> None:
    """Count the outcomes of ended claims for their types."""
    by_type: dict[Name, list[TrialEnd]] = defaultdict(list)
    rules: dict[Name, Breaker] = {}
    for name, end in ends:
        if (rule := await rule_of(work, name)) is not None:
            rules[name] = rule
            by_type[name].append(end)
    failing = [name for name, group in by_type.items() if any(end.outcome == "failed" for end in group)]
    found = await lock(work, by_type, add=failing)
    changes = {}
    for name, before in found.items():
        after = before
        for end in by_type[name]:
            after = breaker_policy.after(after, rules[name], end, work.now)
        if after != before:
            changes[name] = Change(before, after, rules[name])
    await save(work, changes)


async def save(work: UnitOfWork, changes: Mapping[Name, Change]) -> None:
    """Write changed breakers and their gates, and emit events."""
    if not changes:
        return
    items = [(*name, *_columns(change.after)) for name, change in sorted(changes.items())]
    await work.tx.run("save_breakers", items=items)
    for name, change in sorted(changes.items()):
        await _set_gate(work, name, change)
        if change.before.state != change.after.state:
            _emit(work, name, change.after)
    closed = [(name[0], "breaker_open", name[1]) for name, change in changes.items() if change.after.state == "closed"]
    if closed:
        await work.tx.run("resolve_alerts", items=sorted(closed), now=work.now, actor=work.caller.actor)


def _columns(circuit: Circuit) -> tuple[object, ...]:
    task, fence = circuit.probe or (None, None)
    return (*circuit[:5], task, fence, circuit.probe_until)


async def _set_gate(work: UnitOfWork, name: Name, change: Change) -> None:
    workspace, type_ = name
    before = breaker_policy.closed_until(change.before, change.rule, work.now)
    until = breaker_policy.closed_until(change.after, change.rule, work.now)
    if until is None and before is not None:
        await work.tx.all("open_gates", items=[(workspace, type_, "breaker")])
    elif until is not None and (until != before or change.before.state != change.after.state):
        await _close(work, name, change.after, until)
    if (until is None and before is not None) or (until is not None and until <= work.now):
        await gates.wake(work.tx, workspace, [Key(type=type_)])


async def _close(work: UnitOfWork, name: Name, circuit: Circuit, until: float | None) -> None:
    gate = (*name, "breaker", "", f"{circuit.failures} failures", until)
    await work.tx.run("move_gates", items=[gate], now=work.now, actor=work.caller.actor)


def _emit(work: UnitOfWork, name: Name, circuit: Circuit) -> None:
    workspace, type_ = name
    verb = {"open": "breaker_opened", "half-open": "breaker_half_open", "closed": "breaker_closed"}[circuit.state]
    work.emit_for(workspace, verb, data={"type": type_, "failures": circuit.failures})
    if circuit.state == "open":
        work.alert(workspace, "breaker_open", type=type_, subject=type_, failures=circuit.failures)


async def admit_trials(work: UnitOfWork, trials: Mapping[Name, Sequence[Row]]) -> dict[str, tuple[Name, Change] | None]:
    """The tasks of half-open types that may run, by id, each with the change its claim makes.

    The first of its type, if there is no other test task; all, if the breaker has closed meanwhile.
    """
    found = await lock(work, trials.keys())
    may_go: dict[str, tuple[Name, Change] | None] = {}
    for name, rows in trials.items():
        rule, before = await rule_of(work, name), found.get(name)
        if rule is None or before is None or before.state == "closed":
            may_go |= {row["id"]: None for row in rows}
            continue
        row = rows[0]
        settings = (await work.engine.settings_cache.load(work.tx, name[0])).settings(name[1])
        until = breaker_policy.probe_until(row["timeout_sec"], settings.timeout_grace, settings.claim_ttl_sec, work.now)
        after = breaker_policy.begin_test(before, rule, (row["id"], int(row["fence"]) + 1), until, work.now)
        if after is not None:
            may_go[row["id"]] = name, Change(before, after, rule)
        else:  # another claim was faster, or the setting has changed since the gate was closed
            await _close(work, name, before, breaker_policy.closed_until(before, rule, work.now))
    return may_go
