"""How long a lease lasts, and what follows when it is lost."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shiftwork.engine.lease_policy import (
    Alive,
    ClaimedStatus,
    ClaimFacts,
    Deadlines,
    Expired,
    at_claim,
    at_hand_in,
    at_start,
    inspect,
    on_lost,
)
from shiftwork.settings.model import Lease, Settings

T0 = 1_770_000_000.0
STANDARD = Settings()
LOKI = Settings(
    auto_start=True,
    claim_ttl_sec=None,
    lease=Lease(mode="fixed"),
    heartbeat_timeout_sec=None,
    timeout_from="claim",
    on_stale="reclaim",
    on_claim_expired="release",
)
REDIS = msgspec.structs.replace(LOKI, heartbeat_timeout_sec=300, timeout_sec=None)
AEGIS = Settings(
    claim_ttl_sec=300, heartbeat_timeout_sec=None, agent_timeout_sec=None, runtime_offline_sec=75, timeout_sec=9000
)
COSCIENTIST = Settings(claim_ttl_sec=5, timeout_grace=1.2, on_stale="requeue", on_claim_expired="fail_uncounted")


def claimed(settings: Settings, **more: Any) -> ClaimFacts:
    """A claim taken at T0, with the limits that were stored then."""
    limits = at_claim(settings, timeout_sec=settings.timeout_sec, claim_ttl_sec=None, now=T0)
    return _with_limits(ClaimFacts("claimed", T0, **more), limits)


def running(settings: Settings, *, started: float = 0, **more: Any) -> ClaimFacts:
    """A claim taken at T0 and started `started` seconds later."""
    limits = at_start(settings, timeout_sec=settings.timeout_sec, claimed_at=T0, now=T0 + started)
    return _with_limits(ClaimFacts("running", T0, started_at=T0 + started, **more), limits)


def _with_limits(facts: ClaimFacts, limits: Deadlines) -> ClaimFacts:
    return facts._replace(ack_by=limits.ack_by, run_until=limits.run_until, lease_until=limits.lease_until)


@pytest.mark.parametrize(
    ("settings", "own_ttl", "expected"),
    [
        pytest.param(STANDARD, None, Deadlines(T0 + 60, None, None, T0 + 60), id="standard"),
        pytest.param(STANDARD, 20, Deadlines(T0 + 20, None, None, T0 + 20), id="the agent's own ttl"),
        pytest.param(COSCIENTIST, None, Deadlines(T0 + 5, None, None, T0 + 5), id="coscientist"),
        pytest.param(LOKI, 20, Deadlines(None, T0 + 3600, T0 + 3600, T0 + 3600), id="loki starts at once"),
        pytest.param(REDIS, None, Deadlines(None, None, T0 + 300, T0 + 300), id="redis"),
        pytest.param(AEGIS, None, Deadlines(T0 + 300, None, None, T0 + 75), id="aegis looks at the runtime"),
        pytest.param(
            Settings(claim_ttl_sec=None),
            None,
            Deadlines(None, None, None, T0 + 90),
            id="no ttl: it must beat",
        ),
        pytest.param(
            Settings(timeout_from="claim", timeout_sec=30),
            None,
            Deadlines(T0 + 60, T0 + 30, None, T0 + 30),
            id="the timeout counts from the claim",
        ),
    ],
)
def test_claim_gets_the_limits_of_its_settings(settings: Settings, own_ttl: float | None, expected: Deadlines) -> None:
    assert at_claim(settings, timeout_sec=settings.timeout_sec, claim_ttl_sec=own_ttl, now=T0) == expected


@pytest.mark.parametrize(
    ("settings", "timeout_sec", "expected"),
    [
        pytest.param(STANDARD, 3600, Deadlines(None, T0 + 3610, None, T0 + 100), id="standard"),
        pytest.param(COSCIENTIST, 100, Deadlines(None, T0 + 130, None, T0 + 100), id="a fifth more time"),
        pytest.param(LOKI, 3600, Deadlines(None, T0 + 3600, T0 + 3600, T0 + 3600), id="loki counts from the claim"),
        pytest.param(REDIS, None, Deadlines(None, None, T0 + 300, T0 + 300), id="redis counts from the claim"),
        pytest.param(AEGIS, 9000, Deadlines(None, T0 + 9010, None, T0 + 85), id="aegis"),
        pytest.param(
            Settings(heartbeat_timeout_sec=None, agent_timeout_sec=None),
            None,
            Deadlines(None, None, None, None),
            id="nothing to look at",
        ),
    ],
)
def test_start_ten_seconds_later_gets_the_limits_of_its_settings(
    settings: Settings, timeout_sec: float | None, expected: Deadlines
) -> None:
    assert at_start(settings, timeout_sec=timeout_sec, claimed_at=T0, now=T0 + 10) == expected


@pytest.mark.parametrize(
    ("facts", "settings", "last_alive", "first_expired", "reason"),
    [
        pytest.param(claimed(STANDARD), STANDARD, 59, 60, "claim_expired", id="never started"),
        pytest.param(claimed(COSCIENTIST), COSCIENTIST, 4.9, 5, "claim_expired", id="no acknowledgement in 5 s"),
        pytest.param(claimed(AEGIS), AEGIS, 299, 300, "claim_expired", id="dispatched, never started"),
        pytest.param(running(STANDARD), STANDARD, 89, 90, "heartbeat_timeout", id="silent since the start"),
        pytest.param(
            running(STANDARD, heartbeat_at=T0 + 40),
            STANDARD,
            129,
            130,
            "heartbeat_timeout",
            id="silent since a beat",
        ),
        pytest.param(
            running(STANDARD, started=50, heartbeat_at=T0 + 20),
            STANDARD,
            139,
            140,
            "heartbeat_timeout",
            id="a beat before the start does not count",
        ),
        pytest.param(
            running(STANDARD, heartbeat_at=T0 + 3590), STANDARD, 3599, 3600, "timeout", id="beating, but too long"
        ),
        pytest.param(
            running(AEGIS, runtime_seen_at=T0 + 8990), AEGIS, 8999, 9000, "timeout", id="two and a half hours"
        ),
        pytest.param(
            claimed(AEGIS, runtime_seen_at=T0 + 10),
            AEGIS,
            84,
            85,
            "runtime_offline",
            id="runtime of a claimed task",
        ),
        pytest.param(
            running(AEGIS, runtime_seen_at=T0),
            AEGIS,
            74,
            75,
            "runtime_offline",
            id="runtime of a running task",
        ),
        pytest.param(
            running(AEGIS, runtime_seen_at=T0 - 500),
            AEGIS,
            74,
            75,
            "runtime_offline",
            id="the claim itself is a sign of life",
        ),
        pytest.param(
            running(REDIS, heartbeat_at=T0 + 299),
            REDIS,
            299,
            300,
            "heartbeat_timeout",
            id="no beat extends a fixed lease",
        ),
        pytest.param(running(LOKI), LOKI, 3599, 3600, "heartbeat_timeout", id="a lease as long as the timeout"),
        pytest.param(
            ClaimFacts("claimed", T0),
            Settings(claim_ttl_sec=None),
            89,
            90,
            "heartbeat_timeout",
            id="claimed without a ttl",
        ),
    ],
)
def test_claim_holds_until_the_first_of_its_limits(
    facts: ClaimFacts, settings: Settings, last_alive: float, first_expired: float, reason: str
) -> None:
    assert inspect(facts, settings, T0 + last_alive) == Alive(T0 + first_expired)
    assert inspect(facts, settings, T0 + first_expired) == Expired(reason)


def test_late_check_names_the_limit_that_passed_first() -> None:
    assert inspect(running(STANDARD, heartbeat_at=T0 + 3400), STANDARD, T0 + 9999) == Expired("heartbeat_timeout")
    assert inspect(running(STANDARD, heartbeat_at=T0 + 3550), STANDARD, T0 + 9999) == Expired("timeout")


def test_claim_without_limits_is_never_checked_again() -> None:
    settings = Settings(heartbeat_timeout_sec=None, agent_timeout_sec=None, timeout_sec=None)
    assert inspect(running(settings), settings, T0 + 1e9) == Alive(None)


@pytest.mark.parametrize("heartbeat_timeout", [None, 300, 900])
def test_silence_is_bounded_by_the_worker_timeout(heartbeat_timeout: float | None) -> None:
    settings = Settings(heartbeat_timeout_sec=heartbeat_timeout)
    assert inspect(running(settings), settings, T0 + 299) == Alive(T0 + 300)
    assert inspect(running(settings), settings, T0 + 300) == Expired("heartbeat_timeout")


def test_validating_output_needs_no_heartbeats() -> None:
    facts = running(STANDARD, heartbeat_at=T0)._replace(status="validating", lease_until=T0 + 1, runtime_seen_at=T0)
    assert inspect(facts, STANDARD, T0 + 3599) == Alive(T0 + 3600)
    assert inspect(facts, STANDARD, T0 + 3600) == Expired("timeout")
    assert inspect(facts._replace(run_until=None), STANDARD, T0 + 1e9) == Alive(None)


@pytest.mark.parametrize(
    ("timeout", "run_until", "judged", "until"),
    [
        (100, T0 + 100, False, T0 + 100),
        (100, T0 + 100, True, T0 + 90 + 100),
        (None, None, False, T0 + 90 + 3600),
        (None, None, True, T0 + 90 + 3600),
        (100, None, False, T0 + 90 + 100),
    ],
)
def test_tests_share_the_run_limit_and_a_judge_gets_its_own(
    timeout: float | None, run_until: float | None, *, judged: bool, until: float
) -> None:
    found = at_hand_in(STANDARD, timeout_sec=timeout, run_until=run_until, judged=judged, now=T0 + 90)
    assert found == until


RECLAIM = Settings(on_stale="reclaim")


@pytest.mark.parametrize(
    ("settings", "reason", "reclaims", "expected"),
    [
        (STANDARD, "heartbeat_timeout", 0, "fail"),
        (STANDARD, "runtime_offline", 0, "fail"),
        (STANDARD, "timeout", 0, "fail"),
        (STANDARD, "claim_expired", 0, "fail"),
        (COSCIENTIST, "heartbeat_timeout", 0, "requeue"),
        (COSCIENTIST, "timeout", 0, "fail"),
        (COSCIENTIST, "claim_expired", 9, "fail_uncounted"),
        (LOKI, "claim_expired", 9, "release"),
        (LOKI, "timeout", 0, "fail"),
        (RECLAIM, "heartbeat_timeout", 2, "reclaim"),
        (RECLAIM, "heartbeat_timeout", 3, "fail"),
        (RECLAIM, "runtime_offline", 0, "reclaim"),
        (Settings(on_stale="reclaim", max_reclaims=1), "heartbeat_timeout", 0, "reclaim"),
        (Settings(on_stale="reclaim", max_reclaims=1), "heartbeat_timeout", 1, "fail"),
        (Settings(on_stale="reclaim", max_reclaims=0), "heartbeat_timeout", 0, "fail"),
        (Settings(on_stale="reclaim", max_reclaims=None), "heartbeat_timeout", 10_000, "reclaim"),
        (Settings(on_stale="reclaim", reclaim_counts_attempt=True), "heartbeat_timeout", 0, "requeue"),
        (Settings(on_stale="reclaim", delivery="at_most_once"), "heartbeat_timeout", 0, "fail"),
        (Settings(on_claim_expired="release", delivery="at_most_once"), "claim_expired", 0, "release"),
    ],
)
def test_lost_claim_ends_as_its_settings_say(settings: Settings, reason: str, reclaims: int, expected: str) -> None:
    assert on_lost(settings, reason, reclaims, max_attempts=3) == expected


limits = st.none() | st.floats(0, 1e5)
any_settings = st.builds(
    Settings,
    claim_ttl_sec=limits,
    auto_start=st.booleans(),
    heartbeat_timeout_sec=limits,
    runtime_offline_sec=limits,
    timeout_sec=limits,
    timeout_from=st.sampled_from(["start", "claim"]),
    lease=st.builds(Lease, mode=st.sampled_from(["heartbeat", "fixed"])),
)
any_facts = st.builds(
    ClaimFacts,
    status=st.sampled_from(["claimed", "running", "validating"]),
    claimed_at=st.just(T0),
    started_at=st.none() | st.floats(T0, T0 + 1e5),
    heartbeat_at=st.none() | st.floats(T0, T0 + 1e5),
    runtime_seen_at=st.none() | st.floats(T0, T0 + 1e5),
    ack_by=st.none() | st.floats(T0, T0 + 1e5),
    run_until=st.none() | st.floats(T0, T0 + 1e5),
    lease_until=st.none() | st.floats(T0, T0 + 1e5),
)


@given(facts=any_facts, settings=any_settings, wait=st.floats(0, 2e5))
def test_live_claim_is_checked_again_exactly_at_its_expiry(facts: ClaimFacts, settings: Settings, wait: float) -> None:
    found = inspect(facts, settings, T0 + wait)
    if isinstance(found, Alive) and found.check_at is not None:
        assert found.check_at > T0 + wait
        assert isinstance(inspect(facts, settings, found.check_at), Expired)


@given(settings=any_settings, started=st.floats(0, 1e4))
def test_first_check_after_start_is_at_the_first_limit(settings: Settings, started: float) -> None:
    now = T0 + started
    stored = at_start(settings, timeout_sec=settings.timeout_sec, claimed_at=T0, now=now)
    status: ClaimedStatus = "running"
    facts = _with_limits(ClaimFacts(status, T0, started_at=now, runtime_seen_at=now), stored)
    if stored.check_at is None or stored.check_at > now:
        assert inspect(facts, settings, now) == Alive(stored.check_at)
