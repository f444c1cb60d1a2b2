"""The circuit breaker of a type: closed, open, or half-open with one task under test that has an owner and an end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from shiftwork.limits.model import State
    from shiftwork.settings.model import Breaker

Verdict = Literal["success", "failure", "nothing"]
Claim = tuple[str, int]
"""A task and the fence it is held under."""

MAX_PROBE_SEC = 3600.0
"""How long a test task without an execution limit of its own may take."""


class Circuit(NamedTuple):
    """The state of a breaker. `opened_at` and `half_open_at` stay after it closes and report the last time."""

    state: State = "closed"
    failures: int = 0
    last_failure: float | None = None
    opened_at: float | None = None
    half_open_at: float | None = None
    probe: Claim | None = None
    """The task whose outcome decides, while half-open."""
    probe_until: float | None = None


class TrialEnd(NamedTuple):
    """How a claim ended."""

    claim: Claim
    outcome: str
    reason: str | None = None
    final: bool = False
    """Whether no automatic attempt follows: a dead letter, or a task left failed."""


def closed_until(circuit: Circuit, rule: Breaker, now: float) -> float | None:
    """When the next test task may be handed out; None while the breaker is closed."""
    if circuit.state == "closed":
        return None
    if circuit.state == "open":
        return (circuit.opened_at or 0.0) + rule.half_open_after
    return now if circuit.probe is None else circuit.probe_until


def begin_test(circuit: Circuit, rule: Breaker, claim: Claim, until: float, now: float) -> Circuit | None:
    """Make this claim the one under test; None if there is already one, or it is too early."""
    free_at = closed_until(circuit, rule, now)
    if free_at is None or free_at > now:
        return None
    began = now if circuit.state == "open" else circuit.half_open_at
    return circuit._replace(state="half-open", half_open_at=began, probe=claim, probe_until=until)


def probe_until(timeout_sec: float | None, grace: float, claim_ttl_sec: float | None, now: float) -> float:
    """When a test task that never reported its end is replaced by the next."""
    return now + (claim_ttl_sec or 0.0) + (timeout_sec or MAX_PROBE_SEC) * grace


def after(circuit: Circuit, rule: Breaker, end: TrialEnd, now: float) -> Circuit:
    """The breaker after a claim of its type has ended."""
    tested = circuit.probe == end.claim
    verdict = _verdict(rule, end, tested=tested)
    if verdict == "success":
        return _succeeded(circuit, rule, tested=tested)
    if verdict == "failure":
        return _failed(circuit, rule, now, tested=tested)
    return circuit._replace(probe=None, probe_until=None) if tested else circuit


def _verdict(rule: Breaker, end: TrialEnd, *, tested: bool) -> Verdict:
    """What an end says about the type. The first outcome of the test task always counts."""
    if end.outcome == "completed":
        return "success"
    if end.outcome != "failed" or end.reason in rule.ignore:
        return "nothing"
    return "failure" if tested or end.final or rule.count == "every_failure" else "nothing"


def _succeeded(circuit: Circuit, rule: Breaker, *, tested: bool) -> Circuit:
    """Ignore claims made before the breaker opened: they say nothing about the time since."""
    if tested or (circuit.state == "closed" and rule.reset_on_success == "any"):
        return circuit._replace(state="closed", failures=0, probe=None, probe_until=None)
    return circuit


def _failed(circuit: Circuit, rule: Breaker, now: float, *, tested: bool) -> Circuit:
    counted = circuit._replace(failures=circuit.failures + 1, last_failure=now)
    if tested or (circuit.state == "closed" and counted.failures >= rule.failure_threshold):
        return trip(counted, now)
    return counted


def trip(circuit: Circuit, now: float) -> Circuit:
    """Open the breaker."""
    return circuit._replace(state="open", opened_at=now, probe=None, probe_until=None)


def reset(circuit: Circuit) -> Circuit:
    """Close the breaker and clear its count."""
    return circuit._replace(state="closed", failures=0, probe=None, probe_until=None)
