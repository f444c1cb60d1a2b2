"""Decides what follows the end of an attempt: the one place that chooses a task's next transitions."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from shiftwork.engine import lease_policy, retry
from shiftwork.model import reasons
from shiftwork.model.states import State, move
from shiftwork.providers import provider_limits
from shiftwork.providers.provider_limits import ClassifiedFailure, Signal
from shiftwork.settings.model import Settings

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shiftwork.settings.model import Poison


def is_poison(poison: Poison | None, agents: Iterable[str], failures: int) -> bool:
    """Whether `failures` failed attempts under these agents show that the task itself is at fault."""
    if poison is None or failures < poison.min_attempts:
        return False
    return len(set(agents)) >= poison.min_agents


class AttemptFacts(NamedTuple):
    """The facts about an attempt and its task on which a decision depends."""

    status: State
    attempts: int
    max_attempts: int
    reclaims: int = 0
    rate_limits: int = 0
    trigger_type: str | None = None
    failed_agents: tuple[str, ...] = ()
    """Agents of the counted failures of this round, this one included."""
    started: bool = True
    past_deadline: bool = False
    free_waits: bool = True
    """Whether it may wait for a provider without cost; false if the report rules out a retry."""
    account_known: bool = False
    """Whether the account whose credentials were refused is known."""
    other_account: bool = False
    """Whether the fleet has an account other than the limited one."""


class ProviderWait(NamedTuple):
    """A provider's limit that the attempt hit, and how long everything that shares it must wait."""

    signal: Signal
    wait_sec: float
    is_named: bool
    """Whether the provider itself set the wait: then it applies even if the limit is retried like any failure."""


class Decision(NamedTuple):
    """The transitions to take, and what they cost."""

    path: list[State]
    reason: str
    why: str
    counted: bool = True
    delay_sec: float = 0.0
    poison: bool = False
    new_row: bool = False
    reclaimed: bool = False
    rate_limited: bool = False
    front: bool = False
    provider: ProviderWait | None = None

    @property
    def status(self) -> State:
        return self.path[-1]


def after_failure(facts: AttemptFacts, settings: Settings, judged: ClassifiedFailure, roll: float) -> Decision:
    """A worker reported that its attempt failed, or the queue found that it did."""
    reason, signal = judged
    if signal is not None and signal.kind == "auth" and facts.account_known and settings.cooldown.others:
        return _after_refusal(facts, settings, reason, signal, roll)
    if reason != reasons.RATE_LIMIT or signal is None:
        return _after_report(facts, settings, reason, None, roll)
    wait = provider_limits.wait_for(settings.rate_limit, signal, facts.rate_limits + 1, roll)
    met = ProviderWait(signal, wait, provider_limits.is_named(signal))
    return _after_report(facts, settings, reason, met, roll)._replace(provider=met)


def _after_refusal(facts: AttemptFacts, settings: Settings, reason: str, signal: Signal, roll: float) -> Decision:
    """The account is not used until a person renews its key; the task goes to another account at once, or waits."""
    met = ProviderWait(signal, 0.0, is_named=False)
    once = settings.delivery == "at_most_once" and facts.started
    if once or not _waits_for_free(facts, settings):
        return _after_report(facts, settings, reason, None, roll)._replace(provider=met)
    path = move(facts.status, "fail", "retry", "promote")
    return Decision(path, reason, "credentials_refused", counted=False, rate_limited=True, provider=met)


def _after_report(
    facts: AttemptFacts, settings: Settings, reason: str, met: ProviderWait | None, roll: float
) -> Decision:
    if settings.delivery == "at_most_once" and facts.started:
        return _settle(facts, settings, reason, "at_most_once", counted=True, poisoned=False)
    if met is not None and _waits_for_free(facts, settings):
        if facts.other_account and met.is_named and settings.cooldown.others == 1:
            path = move(facts.status, "fail", "retry", "promote")
            return Decision(path, reason, "account_rests", counted=False, rate_limited=True)
        path = move(facts.status, "fail", "retry")
        return Decision(path, reason, "rate_limited", counted=False, delay_sec=met.wait_sec, rate_limited=True)
    return _after_counted_failure(facts, settings, reason, roll, met=met)


def _waits_for_free(facts: AttemptFacts, settings: Settings) -> bool:
    """A rate limit costs no attempt under some profiles, a bounded number of times, so that no task waits forever."""
    limit = settings.rate_limit
    in_time = facts.free_waits and not facts.past_deadline
    return in_time and not limit.counts_attempt and facts.rate_limits < limit.max_waits


def _after_counted_failure(
    facts: AttemptFacts,
    settings: Settings,
    reason: str,
    roll: float,
    *,
    at_once: bool = False,
    met: ProviderWait | None = None,
) -> Decision:
    failures = facts.attempts + 1
    poisoned = is_poison(settings.poison, facts.failed_agents, failures)
    decision = retry.decide_retry(
        settings.retry,
        reason=reason,
        failures=failures,
        max_attempts=facts.max_attempts,
        trigger_type=facts.trigger_type,
        poisoned=poisoned,
        roll=roll,
    )
    if not decision.again:
        return _settle(facts, settings, reason, decision.why, counted=True, poisoned=poisoned)
    delay = 0.0 if at_once else decision.delay_sec
    if met is not None and met.is_named:
        delay = max(met.wait_sec, delay)
    if settings.retry.mode == "new_task":
        path = move(facts.status, "fail")
        return Decision(path, reason, "retry", delay_sec=delay, new_row=True)
    if at_once:
        path = move(facts.status, "fail", "requeue")
        return Decision(path, reason, "requeue", front=settings.requeue_front)
    moves = ("fail", "retry", "promote") if delay <= 0 else ("fail", "retry")
    return Decision(move(facts.status, *moves), reason, "retry", delay_sec=delay)


def _settle(
    facts: AttemptFacts, settings: Settings, reason: str, why: str, *, counted: bool, poisoned: bool
) -> Decision:
    """No further automatic attempt: the task is dead-lettered, or stays failed if dead letters are off."""
    moves = ("fail",) if settings.on_exhausted == "stay_failed" else ("fail", "exhaust")
    return Decision(move(facts.status, *moves), reason, why, counted=counted, poison=poisoned)


def after_loss(facts: AttemptFacts, settings: Settings, reason: str, roll: float) -> Decision:
    """A claim that ended without a report: never started, silent, over its time limit, or its process died."""
    if settings.delivery == "at_most_once" and facts.started and reason in reasons.WORKER_LOST:
        return _settle(facts, settings, reasons.DELIVERY_UNKNOWN, "at_most_once", counted=True, poisoned=False)
    action = lease_policy.on_lost(settings, reason, facts.reclaims, facts.max_attempts)
    return _carry_out(facts, settings, reason, action, roll)


def after_death(facts: AttemptFacts, settings: Settings, roll: float) -> Decision:
    """The holder's process is known to be dead: decide as its silence would have been, only sooner.

    If runtimes are watched, the reason is that of a silent runtime.
    """
    reason = reasons.CRASH if settings.runtime_offline_sec is None else reasons.RUNTIME_OFFLINE
    if facts.started or settings.on_claim_expired == "fail":
        return after_loss(facts, settings, reason, roll)
    return _carry_out(facts, settings, reason, settings.on_claim_expired, roll)


def _carry_out(
    facts: AttemptFacts, settings: Settings, reason: str, action: lease_policy.Lost, roll: float
) -> Decision:
    if action == "reclaim":
        return Decision(move(facts.status, "reclaim"), reason, "reclaim", counted=False, reclaimed=True)
    if action == "release":
        return Decision(move(facts.status, "reclaim"), reason, "release", counted=False)
    if action == "fail_uncounted":
        return Decision(move(facts.status, "fail", "requeue"), reason, "release", counted=False)
    return _after_counted_failure(facts, settings, reason, roll, at_once=action == "requeue")


def after_deadline(facts: AttemptFacts, settings: Settings) -> Decision:
    """The task's deadline passed while an agent held it, which counts as a failure."""
    return _settle(facts, settings, reasons.DEADLINE_EXCEEDED, "deadline", counted=True, poisoned=False)


def after_takeover(facts: AttemptFacts, settings: Settings, roll: float) -> Decision:
    """Another worker took the task over and has begun; this costs no attempt, a bounded number of times."""
    if settings.delivery == "at_most_once" and facts.started:
        return _settle(facts, settings, reasons.DELIVERY_UNKNOWN, "at_most_once", counted=True, poisoned=False)
    if not lease_policy.may_reclaim(settings, facts.reclaims, facts.max_attempts):
        return _after_counted_failure(facts, settings, reasons.CRASH, roll)
    return Decision(move(facts.status, "reclaim"), reasons.CRASH, "reclaim", counted=False, reclaimed=True)
