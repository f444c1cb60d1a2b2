"""The states of a task and the only map of how it moves between them.

The drawing in the docs, the CHECK in the database and the tests are made from `TRANSITIONS`.
"""

from __future__ import annotations

from enum import StrEnum


class State(StrEnum):
    """What a task is doing. `created` and the passing `failed` are in the history, not in the row."""

    CREATED = "created"
    PENDING = "pending"
    WAITING_APPROVAL = "waiting_approval"
    READY = "ready"
    CLAIMED = "claimed"
    RUNNING = "running"
    VALIDATING = "validating"
    COMPLETED = "completed"
    FAILED = "failed"
    RETRYING = "retrying"
    DEAD_LETTERED = "dead_lettered"
    CANCELLED = "cancelled"


MEANING: dict[State, str] = {
    State.CREATED: "accepted, not yet placed; never stored",
    State.PENDING: "waits for dependencies, subtasks, a person, a signal or a time",
    State.WAITING_APPROVAL: "a guard requires a person's approval first",
    State.READY: "may be claimed now",
    State.CLAIMED: "an agent holds it and has not started",
    State.RUNNING: "an agent works on it and must beat",
    State.VALIDATING: "its output was submitted and is being validated",
    State.COMPLETED: "final: its output was accepted",
    State.FAILED: "one attempt failed; tasks stay here only under some profiles",
    State.RETRYING: "waits for its delay",
    State.DEAD_LETTERED: "settled: only a person brings it back",
    State.CANCELLED: "final: ended by a person, a program or a dependency",
}

FINAL = frozenset({State.COMPLETED, State.CANCELLED})
SETTLED = frozenset({State.DEAD_LETTERED, State.FAILED})
ENDED = FINAL | SETTLED  # the queue does nothing more by itself: calls that wait for the result are answered
CLAIMED_STATES = frozenset({State.CLAIMED, State.RUNNING, State.VALIDATING})  # under a claim
SLOT_STATES = CLAIMED_STATES - {State.VALIDATING}  # its agent sends heartbeats, and it takes a slot of that agent
IN_MOTION = CLAIMED_STATES | {State.WAITING_APPROVAL, State.READY, State.RETRYING}  # its DAG is open
WAITING = frozenset({State.PENDING, State.WAITING_APPROVAL, State.READY, State.RETRYING})  # not claimed yet
STORED = tuple(s for s in State if s is not State.CREATED)

_MOVES: dict[str, dict[State, State]] = {
    "accept": {State.CREATED: State.PENDING},
    "unblock": {State.PENDING: State.READY},
    "guard": {State.PENDING: State.WAITING_APPROVAL},
    "approve": {State.WAITING_APPROVAL: State.READY},
    "defer": {State.PENDING: State.RETRYING},
    "block": dict.fromkeys((State.WAITING_APPROVAL, State.READY, State.RETRYING), State.PENDING),
    "claim": {State.READY: State.CLAIMED},
    "start": {State.CLAIMED: State.RUNNING},
    "wait": {State.RUNNING: State.PENDING},
    "release": {State.CLAIMED: State.READY, State.RUNNING: State.READY},
    "reclaim": {State.CLAIMED: State.READY, State.RUNNING: State.READY, State.VALIDATING: State.READY},
    "submit_output": {State.RUNNING: State.VALIDATING},
    "accept_output": {State.VALIDATING: State.COMPLETED},
    "fail": dict.fromkeys(CLAIMED_STATES, State.FAILED),
    "retry": {State.FAILED: State.RETRYING},
    "requeue": {State.FAILED: State.READY},
    "exhaust": {State.FAILED: State.DEAD_LETTERED},
    "promote": {State.RETRYING: State.READY},
    "displace": {State.PENDING: State.DEAD_LETTERED, State.READY: State.DEAD_LETTERED},
    "overdue": dict.fromkeys(WAITING, State.DEAD_LETTERED),
    "review_retry": dict.fromkeys(SETTLED, State.READY),
    "review_block": dict.fromkeys(SETTLED, State.PENDING),
    "review_later": dict.fromkeys(SETTLED, State.RETRYING),
    "cancel": dict.fromkeys((s for s in STORED if s not in FINAL), State.CANCELLED),
    "revive": {State.CANCELLED: State.PENDING},
}

TRANSITIONS: dict[tuple[State, str], State] = {
    (source, name): moves[source] for name, moves in _MOVES.items() for source in State if source in moves
}


def move(state: State, *names: str) -> list[State]:
    """The path of states passed from `state` by these transitions, first and last included.

    A KeyError here is a bug of the caller: verbs check what is allowed before they move.
    """
    path = [state]
    for name in names:
        path.append(TRANSITIONS[path[-1], name])
    return path


def write_path(path: list[State]) -> str:
    """The form of a path in an event: `created>pending>ready`."""
    return ">".join(path)
