"""The packaged profiles: the numbers of each document, written out."""

from typing import Any

import pytest

from shiftwork.settings.model import Settings
from shiftwork.settings.resolve import PROFILES, Resolver, flat, load_profile

LIVE = ["pending", "waiting_approval", "ready", "claimed", "running", "validating", "retrying", "completed"]
EVERY_STATE = {*LIVE, "failed", "dead_lettered", "cancelled"}

STANDARD = {
    "ordering": "effective",
    "priority_boost_per_minute": 0.1,
    "escalation": [],
    "age_boost": None,
    "starvation_threshold_sec": None,
    "deadline.urgent_sec": 120,
    "deadline.preempt_running": False,
    "requeue_front": False,
    "max_attempts": 3,
    "retry.mode": "same_task",
    "retry.strategy": "exponential",
    "retry.initial_delay_sec": 10,
    "retry.backoff_multiplier": 2,
    "retry.max_delay_sec": 300,
    "retry.jitter": True,
    "retry.jitter_range": [0.5, 1.5],
    "retry.retry_on": ["timeout", "crash", "rate_limit", "invalid_output"],
    "retry.no_retry_on": ["auth_failure", "budget_exceeded", "cancelled"],
    "retry.otherwise": "retry",
    "retry.exclude_triggers": [],
    "retry.agent_preference": "any",
    "retry.priority_delta": 0,
    "retry.keep_position": True,
    "maintenance.retry_promoter_sec": 5,
    "on_exhausted": "dead_letter",
    "poison.min_agents": 2,
    "poison.min_attempts": 3,
    "delivery": "at_least_once",
    "claim_ttl_sec": 60,
    "auto_start": False,
    "on_claim_expired": "fail",
    "heartbeat_interval_sec": 30,
    "heartbeat_timeout_sec": 90,
    "heartbeat.log_every_sec": 0,
    "lease.mode": "heartbeat",
    "on_stale": "fail",
    "max_reclaims": "max_attempts",
    "timeout_sec": 3600,
    "timeout_grace": 1,
    "timeout_from": "start",
    "max_concurrent_tasks": 1,
    "on_dependency_failed": "wait",
    "on_dependency_cancelled": "cancel",
    "missing_dependency": "wait",
    "dependency_wait_sec": 300,
    "idempotency.source": "caller",
    "idempotency.window_sec": None,
    "idempotency.on_duplicate": "return_existing",
    "require_decision_report": False,
    "guards": [],
    "circuit_breaker.failure_threshold": 5,
    "circuit_breaker.half_open_after": 60,
    "circuit_breaker.count": "every_failure",
    "circuit_breaker.ignore": ["rate_limit", "cancelled", "invalid_input", "budget_exceeded"],
    "rate_limit.classify": True,
    "rate_limit.counts_attempt": False,
    "rate_limit.max_waits": 20,
    "cooldown.others": 1,
    "max_queue_size": None,
    "overflow": "displace_to_dlq",
    "warning_at": 0.8,
    "critical_at": 0.95,
}

LOKI = {
    "ordering": "static",
    "priority_boost_per_minute": 0,
    "deadline.urgent_sec": None,
    "max_attempts": 3,
    "retry.mode": "same_task",
    "retry.strategy": "exponential",
    "retry.initial_delay_sec": 60,
    "retry.backoff_multiplier": 2,
    "retry.max_delay_sec": None,
    "retry.jitter": False,
    "retry.keep_position": True,
    "on_exhausted": "dead_letter",
    "poison": None,
    "claim_ttl_sec": None,
    "auto_start": True,
    "on_claim_expired": "release",
    "heartbeat_timeout_sec": None,
    "lease.mode": "fixed",
    "on_stale": "reclaim",
    "reclaim_counts_attempt": False,
    "max_reclaims": "max_attempts",
    "timeout_sec": 3600,
    "timeout_from": "claim",
    "timeout_grace": 1,
    "max_concurrent_tasks": None,
    "on_dependency_failed": "wait",
    "missing_dependency": "wait",
    "dependency_wait_sec": None,
    "idempotency.source": "payload_hash",
    "idempotency.window_sec": None,
    "idempotency.on_duplicate": "return_existing",
    "require_decision_report": True,
    "on_missing_report": "refuse",
    "circuit_breaker.failure_threshold": 5,
    "circuit_breaker.half_open_after": 60,
    "circuit_breaker.cooldown_seconds": 300,
    "circuit_breaker.count": "dead_letter",
    "circuit_breaker.reset_on_success": "any",
    "rate_limit.counts_attempt": False,
    "rate_limit.base_sec": 60,
    "rate_limit.max_wait_sec": 3600,
    "rate_limit.jitter_range": [1, 1.1],
    "cooldown.others": 0.5,
    "lock_timeout_sec": 10,
    "cancel.from": [s for s in LIVE if s != "completed"],
    "max_queue_size": None,
}

FACTORY = {
    "ordering": "effective",
    "priority_boost_per_minute": 0.1,
    "deadline.urgent_sec": None,
    "max_attempts": 3,
    "retry.mode": "same_task",
    "retry.strategy": "exponential",
    "retry.initial_delay_sec": 10,
    "retry.backoff_multiplier": 2,
    "retry.max_delay_sec": 300,
    "retry.jitter": True,
    "retry.jitter_range": [0.5, 1.5],
    "retry.retry_on": ["timeout", "crash", "rate_limit", "invalid_output"],
    "retry.no_retry_on": ["auth_failure", "budget_exceeded", "cancelled"],
    "retry.otherwise": "retry",
    "on_exhausted": "dead_letter",
    "poison.min_agents": 2,
    "poison.min_attempts": 3,
    "claim_ttl_sec": 60,
    "on_claim_expired": "fail",
    "heartbeat_interval_sec": 30,
    "heartbeat_timeout_sec": 90,
    "lease.mode": "heartbeat",
    "on_stale": "fail",
    "timeout_sec": None,
    "timeout_from": "start",
    "on_dependency_failed": "wait",
    "missing_dependency": "reject",
    "idempotency.source": "caller",
    "idempotency.on_duplicate": "return_existing",
    "circuit_breaker": None,
    "rate_limit.counts_attempt": True,
    "poll_interval_sec": 5,
    "fallback_poll_sec": 30,
    "maintenance.retry_promoter_sec": 5,
}

REDIS = {
    "ordering": "fifo",
    "priority_boost_per_minute": 0,
    "deadline.urgent_sec": None,
    "max_attempts": 4,
    "retry.mode": "same_task",
    "retry.strategy": "schedule",
    "retry.schedule_sec": [60, 300, 900],
    "retry.max_delay_sec": None,
    "retry.jitter": False,
    "retry.otherwise": "retry",
    "retry.keep_position": False,
    "on_exhausted": "dead_letter",
    "poison": None,
    "claim_ttl_sec": None,
    "auto_start": True,
    "heartbeat_interval_sec": 30,
    "heartbeat_timeout_sec": 300,
    "heartbeat.log_every_sec": 30,
    "lease.mode": "fixed",
    "on_stale": "reclaim",
    "reclaim_counts_attempt": False,
    "timeout_sec": None,
    "timeout_from": "claim",
    "max_concurrent_tasks": None,
    "recover": "keep",
    "idempotency.source": "required",
    "idempotency.window_sec": None,
    "circuit_breaker": None,
    "rate_limit.counts_attempt": True,
}

AEGIS = {
    "ordering": "fifo",
    "priority_boost_per_minute": 0,
    "deadline.urgent_sec": None,
    "max_attempts": 2,
    "retry.mode": "new_task",
    "retry.strategy": "immediate",
    "retry.jitter": False,
    "retry.retry_on": ["runtime_offline", "timeout"],
    "retry.otherwise": "fail",
    "retry.exclude_triggers": ["autopilot"],
    "retry.agent_preference": "same_runtime",
    "retry.keep_position": False,
    "on_exhausted": "stay_failed",
    "poison": None,
    "claim_ttl_sec": 300,
    "on_claim_expired": "fail",
    "runtime_offline_sec": 75,
    "lease.mode": "heartbeat",
    "on_stale": "fail",
    "timeout_sec": 9000,
    "timeout_from": "start",
    "timeout_grace": 1,
    "max_concurrent_tasks": None,
    "recover": "fail",
    "idempotency.source": "none",
    "circuit_breaker": None,
    "rate_limit.classify": False,
}

COSCIENTIST = {
    "ordering": "strict_level",
    "priority_boost_per_minute": 0,
    "escalation": [{"after_sec": 600, "to_level": "medium"}, {"after_sec": 1200, "to_level": "high"}],
    "age_boost.threshold_sec": 300,
    "age_boost.pct_per_min": 10,
    "starvation_threshold_sec": 3600,
    "deadline.urgent_sec": 120,
    "deadline.preempt_running": True,
    "requeue_front": True,
    "max_attempts": 3,
    "retry.mode": "same_task",
    "retry.strategy": "schedule",
    "retry.schedule_sec": [5, 30, 120],
    "retry.backoff_multiplier": 2,
    "retry.max_delay_sec": 300,
    "retry.jitter_range": [0.5, 1.5],
    "retry.otherwise": "retry",
    "retry.agent_preference": "different",
    "retry.priority_delta": 0,
    "on_exhausted": "dead_letter",
    "poison": None,
    "delivery": "at_least_once",
    "claim_ttl_sec": 5,
    "on_claim_expired": "fail_uncounted",
    "heartbeat_interval_sec": 30,
    "heartbeat_timeout_sec": 90,
    "health_checks": 3,
    "agent_timeout_sec": 300,
    "lease.mode": "heartbeat",
    "on_stale": "requeue",
    "timeout_grace": 1.2,
    "max_concurrent_tasks": 1,
    "recover": "requeue",
    "on_dependency_failed": "cancel",
    "on_dependency_cancelled": "cancel",
    "missing_dependency": "wait",
    "dependency_wait_sec": 300,
    "idempotency.source": "params_hash",
    "idempotency.on_duplicate": "merge",
    "circuit_breaker": None,
    "rate_limit.counts_attempt": True,
    "max_queue_size": 10000,
    "priority_quotas.high": 1000,
    "priority_quotas.medium": 5000,
    "priority_quotas.low": 4000,
    "overflow": "displace_to_dlq",
    "warning_at": 0.8,
    "critical_at": 0.95,
    "operation_max_sec": 30,
    "maintenance.dead_letter_sec": 300,
    "maintenance.metrics_sec": 30,
    "maintenance.snapshot_sec": 60,
    "snapshots.wanted": True,
    "maintenance.stale_sec": 600,
}

EXPECTED = {
    "standard": STANDARD,
    "loki": LOKI,
    "factory": FACTORY,
    "redis": REDIS,
    "aegis": AEGIS,
    "coscientist": COSCIENTIST,
}
ROWS = [(name, key, value) for name, table in EXPECTED.items() for key, value in table.items()]


def values(profile: str, type_name: str | None = None) -> dict[str, Any]:
    return dict(flat(Resolver(load_profile(profile)).settings(type_name)))


@pytest.mark.parametrize(("profile", "key", "value"), ROWS)
def test_profile_has_the_numbers_of_its_document(profile: str, key: str, value: object) -> None:
    assert values(profile)[key] == value


def test_every_profile_is_in_the_table() -> None:
    assert set(EXPECTED) == set(PROFILES)


def test_standard_profile_equals_the_defaults() -> None:
    assert Resolver(load_profile("standard")).settings() == Settings()


def test_loki_breakers_have_own_thresholds_for_two_types() -> None:
    thresholds = {
        name: values("loki", name)["circuit_breaker.failure_threshold"]
        for name in ("ops-security", "biz-marketing", "eng-backend")
    }
    assert thresholds == {"ops-security": 3, "biz-marketing": 10, "eng-backend": 5}


def test_loki_type_overrides_keep_the_rest_of_the_breaker() -> None:
    assert values("loki", "ops-security")["circuit_breaker.count"] == "dead_letter"


@pytest.mark.parametrize("profile", ["standard", "loki", "aegis", "coscientist"])
def test_keys_of_ended_tasks_can_be_used_again(profile: str) -> None:
    assert sorted(values(profile)["idempotency.scope_states"]) == sorted(LIVE)


@pytest.mark.parametrize("profile", ["factory", "redis"])
def test_keys_are_kept_in_every_state_where_profile_says_so(profile: str) -> None:
    assert set(values(profile)["idempotency.scope_states"]) == EVERY_STATE


@pytest.mark.parametrize(
    ("profile", "reason"),
    [
        ("redis", "invalid_input"),
        ("aegis", "agent_error"),
        ("coscientist", "invalid_input"),
        ("coscientist", "safety_violation"),
        ("coscientist", "resource_permanent"),
    ],
)
def test_final_failure_reasons_are_in_the_profile(profile: str, reason: str) -> None:
    assert reason in values(profile)["retry.no_retry_on"]


@pytest.mark.parametrize("reason", ["timeout", "resource_unavailable", "network", "transient_api"])
def test_coscientist_lists_its_transient_reasons(reason: str) -> None:
    assert reason in values("coscientist")["retry.retry_on"]


@pytest.mark.parametrize("profile", PROFILES)
def test_no_failure_reason_is_both_retried_and_final(profile: str) -> None:
    found = values(profile)
    assert not set(found["retry.retry_on"]) & set(found["retry.no_retry_on"])
