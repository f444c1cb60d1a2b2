"""Leases: when a claim must start, send heartbeats and finish, and what follows if it does not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from shiftwork.model import reasons

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shiftwork.settings.model import Settings

ClaimedStatus = Literal["claimed", "running", "validating"]
Lost = Literal["fail", "reclaim", "requeue", "release", "fail_uncounted"]


class ClaimFacts(NamedTuple):
    """What is known about a live claim."""

    status: ClaimedStatus
    claimed_at: float
    started_at: float | None = None
    heartbeat_at: float | None = None
    runtime_seen_at: float | None = None
    ack_by: float | None = None
    run_until: float | None = None
    lease_until: float | None = None


class Deadlines(NamedTuple):
    """Limits to store with a claim; `check_at` is the earliest moment at which one can have passed."""

    ack_by: float | None
    run_until: float | None
    lease_until: float | None
    check_at: float | None


class Expired(NamedTuple):
    reason: str


class Alive(NamedTuple):
    check_at: float | None


def at_claim(settings: Settings, *, timeout_sec: float | None, claim_ttl_sec: float | None, now: float) -> Deadlines:
    """Limits of a fresh claim; with `auto_start` it is a started one."""
    if settings.auto_start:
        return at_start(settings, timeout_sec=timeout_sec, claimed_at=now, now=now)
    ttl = settings.claim_ttl_sec if claim_ttl_sec is None else claim_ttl_sec
    facts = ClaimFacts(
        status="claimed",
        claimed_at=now,
        runtime_seen_at=now,
        ack_by=None if ttl is None else now + ttl,
        run_until=_run_until(settings, timeout_sec, now) if settings.timeout_from == "claim" else None,
        lease_until=_fixed_lease(settings, timeout_sec, now),
    )
    return _deadlines(facts, settings)


def at_start(settings: Settings, *, timeout_sec: float | None, claimed_at: float, now: float) -> Deadlines:
    """Limits of a claim whose agent starts now."""
    counted_from = claimed_at if settings.timeout_from == "claim" else now
    facts = ClaimFacts(
        status="running",
        claimed_at=claimed_at,
        started_at=now,
        runtime_seen_at=now,
        run_until=_run_until(settings, timeout_sec, counted_from),
        lease_until=_fixed_lease(settings, timeout_sec, claimed_at),
    )
    return _deadlines(facts, settings)


def at_hand_in(
    settings: Settings, *, timeout_sec: float | None, run_until: float | None, judged: bool, now: float
) -> float:
    """The deadline for the verdict on an output.

    Tests belong to the attempt and share its limit. A judge has queued work of its own: it gets as long once more.
    """
    if not judged and run_until is not None:
        return run_until
    return now + (VERDICT_SEC if timeout_sec is None else timeout_sec * settings.timeout_grace)


VERDICT_SEC = 3600.0
"""How long to wait for a verdict if the work itself has no limit: without heartbeats, a lost judge would go
unnoticed."""


def _run_until(settings: Settings, timeout_sec: float | None, counted_from: float) -> float | None:
    return None if timeout_sec is None else counted_from + timeout_sec * settings.timeout_grace


def _fixed_lease(settings: Settings, timeout_sec: float | None, claimed_at: float) -> float | None:
    if settings.lease.mode != "fixed":
        return None
    length = settings.heartbeat_timeout_sec if settings.heartbeat_timeout_sec is not None else timeout_sec
    return None if length is None else claimed_at + length


def _deadlines(facts: ClaimFacts, settings: Settings) -> Deadlines:
    check_at = min((moment for moment, _ in _limits(facts, settings)), default=None)
    return Deadlines(facts.ack_by, facts.run_until, facts.lease_until, check_at)


def inspect(facts: ClaimFacts, settings: Settings, now: float) -> Expired | Alive:
    """Whether a claim still holds; if several limits have passed, the earliest is the reason."""
    # min() keeps the first of equals: a fixed lease as long as the timeout expires as a lease, not as a failure.
    first = min(_limits(facts, settings), key=lambda limit: limit[0], default=None)
    if first is None:
        return Alive(None)
    moment, reason = first
    return Expired(reason) if now >= moment else Alive(moment)


def _limits(facts: ClaimFacts, settings: Settings) -> Iterator[tuple[float, str]]:
    """Every moment at which the claim ends unless something happens before, with its reason."""
    if facts.status == "validating":
        # The agent is done and need not send heartbeats: only the verdict is missing.
        if facts.run_until is not None:
            yield facts.run_until, reasons.TIMEOUT
        return
    if facts.status == "claimed" and facts.ack_by is not None:
        yield facts.ack_by, reasons.CLAIM_EXPIRED
    if facts.lease_until is not None:
        yield facts.lease_until, reasons.HEARTBEAT_TIMEOUT
    if facts.run_until is not None:
        yield facts.run_until, reasons.TIMEOUT
    if (moment := _silent_at(facts, settings)) is not None:
        yield moment, reasons.HEARTBEAT_TIMEOUT
    if settings.runtime_offline_sec is not None and facts.runtime_seen_at is not None:
        seen = max(facts.runtime_seen_at, facts.claimed_at)
        yield seen + settings.runtime_offline_sec, reasons.RUNTIME_OFFLINE


def last_sign(facts: ClaimFacts) -> float:
    """The last sign of life of a claim's holder."""
    signs = (facts.claimed_at, facts.started_at, facts.heartbeat_at, facts.runtime_seen_at)
    return max(moment for moment in signs if moment is not None)


def _silent_at(facts: ClaimFacts, settings: Settings) -> float | None:
    """When the silence is too long. A claim not yet started is judged by its `ack_by`, if it has one."""
    limits = [sec for sec in (settings.heartbeat_timeout_sec, settings.agent_timeout_sec) if sec is not None]
    if settings.lease.mode != "heartbeat" or not limits:
        return None
    if facts.status == "claimed" and facts.ack_by is not None:
        return None
    last_seen = (facts.claimed_at, facts.started_at, facts.heartbeat_at)
    return max(moment for moment in last_seen if moment is not None) + min(limits)


def on_lost(settings: Settings, reason: str, reclaims: int, max_attempts: int) -> Lost:
    """The consequence of an expired claim, after `reclaims` earlier ones.

    `fail` costs an attempt and waits its delay; `requeue` costs one and is ready at once; `reclaim` and `release` cost
    none; `fail_uncounted` shows a failure, costs none and is ready at once.
    """
    if reason == reasons.CLAIM_EXPIRED:
        return settings.on_claim_expired
    if reason not in reasons.WORKER_LOST or settings.delivery == "at_most_once":
        return "fail"
    if settings.on_stale != "reclaim":
        return settings.on_stale
    if not may_reclaim(settings, reclaims, max_attempts):
        return "fail"
    return "requeue" if settings.reclaim_counts_attempt else "reclaim"


def may_reclaim(settings: Settings, reclaims: int, max_attempts: int) -> bool:
    """Whether a task may lose its holder once more without costing an attempt."""
    if settings.max_reclaims is None:
        return True
    limit = max_attempts if settings.max_reclaims == "max_attempts" else settings.max_reclaims
    return reclaims < limit
