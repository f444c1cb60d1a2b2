"""Circuit breakers: a type that keeps failing is not assigned, except for one probe at a time."""

import asyncio
from typing import Any

import pytest

from shiftwork import Assignment, Failure, Queue
from shiftwork.limits.model import Breaker, Closed
from shiftwork.model.errors import ConflictError, InputError
from shiftwork.testing import MovedClock, pass_time
from tests.conformance.steps import events_named, everything, take

HALF_OPEN_SEC = 60


async def fail_some(queue: Queue, count: int, type_: str = "code", reason: str = "crash", **options: Any) -> None:
    """Fail this many tasks of a type for good."""
    for _ in range(count):
        await queue.submit(type=type_)
        held = await take(queue, types=[type_])
        await queue.fail(held.token, reason, "boom", retry=False, **options)


async def breaker(queue: Queue, type_: str = "code") -> Breaker:
    (found,) = await queue.breakers.list(type_)
    return found


async def open_breaker(queue: Queue, type_: str = "code") -> None:
    await fail_some(queue, 5, type_)
    assert (await breaker(queue, type_)).state == "open"


async def to_test(queue: Queue, clock: MovedClock, **fields: Any) -> Assignment:
    """Return the task that is handed out as a probe."""
    await open_breaker(queue)
    await queue.submit_many([{"type": "code", **fields}] * 3)
    clock.advance(HALF_OPEN_SEC)
    return await take(queue)


@pytest.mark.requirement("L-106", "L-107", "L-108", "L-109", "L-110")
async def test_breaker_of_a_type_without_failures_is_closed(queue: Queue) -> None:
    fresh = await breaker(queue, "eng-backend")
    assert (fresh.state, fresh.failures, fresh.last_failure) == ("closed", 0, None)
    assert (fresh.opened_at, fresh.half_open_at, fresh.tested_task_id) == (None, None, None)
    assert await queue.breakers.list() == []
    await queue.submit_many([{"type": "b"}, {"type": "a"}])
    assert [found.type for found in await queue.breakers.list()] == ["a", "b"]


@pytest.mark.requirement("L-120", "L-126", "L-127", "L-129")
async def test_breaker_opens_at_the_failure_threshold(queue: Queue, clock: MovedClock) -> None:
    await fail_some(queue, 4)
    clock.advance(1)
    before = await breaker(queue)
    assert (before.state, before.failures, before.last_failure) == ("closed", 4, clock() - 1)
    await fail_some(queue, 1)
    after = await breaker(queue)
    assert (after.state, after.failures, after.last_failure, after.opened_at) == ("open", 5, clock(), clock())
    assert after.closed_until == clock() + HALF_OPEN_SEC


@pytest.mark.requirement("L-047", "L-112", "L-122")
async def test_type_with_open_breaker_is_not_assigned_while_others_are(queue: Queue, clock: MovedClock) -> None:
    await open_breaker(queue)
    await queue.submit(type="code")
    clock.advance(HALF_OPEN_SEC / 2)
    answered = await queue.claims.request("worker")
    until = clock() + HALF_OPEN_SEC / 2
    assert (answered.assignments, answered.closed) == ([], (Closed("breaker_open", "code", until),))
    await queue.submit(type="docs")
    assert (await take(queue)).type == "docs"
    assert (await breaker(queue)).state == "open"


async def test_explain_names_an_open_breaker_and_its_end(queue: Queue, clock: MovedClock) -> None:
    await open_breaker(queue)
    task_id = (await queue.submit(type="code")).id
    (hold,) = (await queue.explain(task_id)).holds
    assert (hold.kind, hold.until) == ("breaker_open", clock() + HALF_OPEN_SEC)
    await queue.breakers.reset("code")
    assert (await queue.explain(task_id)).holds == []


@pytest.mark.requirement("L-130")
async def test_breaker_opening_emits_one_event_and_one_alert(queue: Queue) -> None:
    held = [await _started(queue, f"agent-{number}") for number in range(7)]
    for assignment in held:
        await queue.fail(assignment.token, "crash", retry=False)
    assert len(await events_named(queue, "breaker.opened")) == 1
    (alert,) = await queue.alerts.list(kind="breaker_open")
    assert (alert.message, alert.severity) == ("Circuit breaker OPEN for code", "critical")
    assert (await breaker(queue)).failures == 7


async def _started(queue: Queue, agent: str) -> Assignment:
    await queue.submit(type="code")
    return await take(queue, agent)


async def test_each_type_and_workspace_has_its_own_breaker(queue: Queue) -> None:
    await fail_some(queue, 4, "code")
    await fail_some(queue, 4, "docs")
    other = queue.in_workspace("other")
    await fail_some(other, 4, "code")
    assert [(found.type, found.failures) for found in await queue.breakers.list()] == [("code", 4), ("docs", 4)]
    await fail_some(queue, 1, "docs")
    assert [found.state for found in await queue.breakers.list()] == ["closed", "open"]
    assert (await breaker(other)).state == "closed"


async def test_failures_of_one_batch_all_count_for_breaker(queue: Queue) -> None:
    await queue.submit_many([{"type": "code"}] * 5)
    await queue.agents.register(id="many", max_concurrent_tasks=5)
    held = await queue.claim("many", 5, start=True)
    await queue.batch.fail([Failure("crash", retry=False, token=assignment.token) for assignment in held])
    assert (await breaker(queue)).state == "open"


@pytest.mark.parametrize("reason", ["rate_limit", "cancelled", "invalid_input", "budget_exceeded"])
async def test_failure_reasons_unrelated_to_type_are_not_counted(queue: Queue, reason: str) -> None:
    await queue.settings.set("cooldown.others", 0)
    await fail_some(queue, 2, reason=reason)
    assert (await breaker(queue)).failures == 0


async def test_every_failed_attempt_counts_in_default_profile(queue: Queue, clock: MovedClock) -> None:
    await queue.submit(type="code", max_attempts=3)
    await queue.fail((await take(queue)).token, "crash")
    assert (await breaker(queue)).failures == 1
    await pass_time(queue, clock, 60)
    await queue.claim("worker", start=True)
    await pass_time(queue, clock, 3600)
    assert (await breaker(queue)).failures == 2


@pytest.mark.requirement("L-074")
async def test_only_dead_letters_count_in_loki_profile(loki: Queue, clock: MovedClock) -> None:
    await loki.submit(type="code", payload={"n": 1})
    for failures in (0, 0, 1):
        await loki.fail((await take(loki)).token, "crash")
        assert (await breaker(loki)).failures == failures
        await pass_time(loki, clock, 600)


@pytest.mark.requirement("L-068", "L-125")
async def test_success_resets_the_failure_count(queue: Queue) -> None:
    await fail_some(queue, 4)
    await queue.submit(type="code")
    await queue.complete((await take(queue)).token)
    assert (await breaker(queue)).failures == 0
    await fail_some(queue, 4)
    assert (await breaker(queue)).state == "closed"


async def test_half_open_only_setting_keeps_failure_count_on_other_success(queue: Queue) -> None:
    await queue.settings.set("circuit_breaker.reset_on_success", "half_open_only")
    await fail_some(queue, 4)
    await queue.submit(type="code")
    await queue.complete((await take(queue)).token)
    assert (await breaker(queue)).failures == 4


async def test_success_in_another_process_resets_the_failure_count(
    queue: Queue, store_url: str, clock: MovedClock
) -> None:
    await queue.submit(type="code")
    held = await take(queue, "early")
    async with Queue.open(store_url, clock=clock) as other:
        await fail_some(other, 3)
        await queue.complete(held.token)
        assert (await breaker(other)).failures == 0


@pytest.mark.parametrize("profile", ["factory", "redis", "aegis", "coscientist"])
async def test_profiles_without_breaker_never_open_one(queue: Queue, profile: str) -> None:
    await queue.settings.use_profile(profile)
    await queue.settings.set("idempotency.source", "none")
    await fail_some(queue, 6)
    found = await breaker(queue)
    assert (found.enabled, found.state, found.failures) == (False, "closed", 0)
    with pytest.raises(ConflictError):
        await queue.breakers.trip("code")


async def test_disabling_the_breaker_releases_its_tasks(queue: Queue) -> None:
    await open_breaker(queue)
    await queue.submit(type="code")
    await queue.settings.set("circuit_breaker", None)
    assert len(await queue.claim("worker")) == 1


@pytest.mark.requirement("L-113", "L-117", "L-121", "L-123", "L-110")
async def test_exactly_one_probe_is_assigned_after_the_interval(queue: Queue, clock: MovedClock) -> None:
    await open_breaker(queue)
    await queue.submit_many([{"type": "code"}] * 3)
    clock.advance(HALF_OPEN_SEC - 1)
    assert await queue.claim("worker") == []
    clock.advance(1)
    await queue.agents.register(id="many", max_concurrent_tasks=10)
    (tested,) = await queue.claim("many", 10)
    found = await breaker(queue)
    assert (found.state, found.half_open_at, found.tested_task_id) == ("half-open", clock(), tested.id)
    assert await queue.claim("other") == []
    assert await events_named(queue, "breaker.half_open") == [None]


async def test_claim_at_half_open_is_filled_with_other_types(queue: Queue, clock: MovedClock) -> None:
    await open_breaker(queue)
    await queue.submit_many([{"type": "code", "priority": 1}] * 3 + [{"type": "docs"}] * 3)
    clock.advance(HALF_OPEN_SEC)
    await queue.agents.register(id="many", max_concurrent_tasks=10)
    assert sorted(task.type for task in await queue.claim("many", 10)) == ["code", "docs", "docs", "docs"]


@pytest.mark.requirement("L-124", "L-111")
async def test_success_of_the_probe_closes_the_breaker(queue: Queue, clock: MovedClock) -> None:
    tested = await to_test(queue, clock)
    await queue.complete(tested.token)
    found = await breaker(queue)
    assert (found.state, found.failures, found.tested_task_id) == ("closed", 0, None)
    await queue.agents.register(id="many", max_concurrent_tasks=10)
    assert len(await queue.claim("many", 10)) == 2
    assert len(await events_named(queue, "breaker.closed")) == 1


@pytest.mark.requirement("L-128")
async def test_failure_of_the_probe_reopens_the_breaker(queue: Queue, clock: MovedClock) -> None:
    tested = await to_test(queue, clock)
    clock.advance(5)
    await queue.fail(tested.token, "crash")
    found = await breaker(queue)
    assert (found.state, found.opened_at, found.failures) == ("open", clock(), 6)
    clock.advance(HALF_OPEN_SEC - 1)
    assert await queue.claim("other") == []
    clock.advance(1)
    assert len(await queue.claim("other")) == 1
    assert len(await queue.alerts.list(kind="breaker_open")) == 2


async def test_released_or_cancelled_probe_is_replaced_by_the_next(queue: Queue, clock: MovedClock) -> None:
    tested = await to_test(queue, clock)
    await queue.release(tested.token)
    found = await breaker(queue)
    assert (found.state, found.tested_task_id) == ("half-open", None)
    (second,) = await queue.claim("second")
    await queue.cancel(second.id)
    (third,) = await queue.claim("third")
    assert third.id != second.id
    assert await queue.claim("fourth") == []


async def test_reclaimed_probe_is_replaced_by_the_next(queue: Queue, clock: MovedClock) -> None:
    await queue.settings.set("on_stale", "reclaim")
    await to_test(queue, clock)
    await queue.runtimes.report_gone("worker")
    assert (await breaker(queue)).tested_task_id is None
    assert len(await queue.claim("second")) == 1


async def test_probe_counts_as_failed_when_its_runtime_dies(queue: Queue, clock: MovedClock) -> None:
    await to_test(queue, clock)
    await queue.runtimes.report_gone("worker")
    found = await breaker(queue)
    assert (found.state, found.tested_task_id) == ("open", None)


async def test_probe_counts_as_failed_when_its_agent_goes_silent(queue: Queue, clock: MovedClock) -> None:
    await to_test(queue, clock)
    await pass_time(queue, clock, 100)
    found = await breaker(queue)
    assert (found.state, found.opened_at) == ("open", clock())


async def test_probe_without_end_is_replaced_after_its_time_limit(queue: Queue, clock: MovedClock) -> None:
    """Held by an agent that sends heartbeats forever; the task's own time limit was removed."""
    await queue.settings.set("heartbeat_timeout_sec", None)
    tested = await to_test(queue, clock, timeout_sec=1000)
    until = (await breaker(queue)).closed_until
    assert until == clock() + 1060
    clock.advance(1060)
    (second,) = await queue.claim("second")
    assert (await breaker(queue)).tested_task_id == second.id != tested.id


async def test_work_claimed_before_opening_does_not_close_the_breaker(queue: Queue, clock: MovedClock) -> None:
    early = await _started(queue, "early")
    await open_breaker(queue)
    await queue.complete(early.token)
    assert (await breaker(queue)).state == "open"


async def test_maintenance_reports_an_open_breaker_once(queue: Queue, clock: MovedClock) -> None:
    await open_breaker(queue)
    assert (await pass_time(queue, clock, HALF_OPEN_SEC))["gates"] == {"opened": 1}
    assert (await pass_time(queue, clock, 1)).get("gates") is None
    assert (await breaker(queue)).state == "open"


async def test_breaker_can_be_opened_and_closed_by_an_operator(queue: Queue, clock: MovedClock) -> None:
    await queue.submit(type="code")
    tripped = await queue.as_caller("human:ada").breakers.trip("code")
    assert (tripped.state, tripped.opened_at) == ("open", clock())
    closed = await queue.breakers.reset("code")
    assert (closed.state, closed.failures) == ("closed", 0)
    assert len(await queue.claim("taker")) == 1
    assert (await queue.breakers.reset("never seen")).state == "closed"


@pytest.mark.requirement("L-131")
async def test_open_breaker_stays_open_after_restart(store_url: str, clock: MovedClock) -> None:
    async with Queue.open(store_url, clock=clock) as queue:
        await open_breaker(queue)
        before = await breaker(queue)
        await queue.submit(type="code")
    clock.advance(10)
    async with Queue.open(store_url, clock=clock) as queue:
        assert await breaker(queue) == before
        assert await queue.claim("worker") == []


async def test_breaker_configuration_of_the_document_becomes_settings(queue: Queue) -> None:
    await queue.settings.set("circuit_breaker.failure_threshold", 8, type="old")
    overrides = {"ops-security": {"failureThreshold": 3}}
    await queue.breakers.configure({"defaults": {"failureThreshold": 4, "cooldownSeconds": 7}, "overrides": overrides})
    found = {name: await breaker(queue, name) for name in ("ops-security", "old", "other")}
    assert {name: each.failure_threshold for name, each in found.items()} == {
        "ops-security": 3,
        "old": 4,
        "other": 4,
    }
    assert {each.cooldown_seconds for each in found.values()} == {7}
    await fail_some(queue, 3, "ops-security")
    assert (await breaker(queue, "ops-security")).state == "open"


@pytest.mark.parametrize("type_", ["", "x" * 256, "a\0b"])
async def test_invalid_breaker_type_is_refused_without_changes(queue: Queue, type_: str) -> None:
    before = await everything(queue)
    for verb in (queue.breakers.trip, queue.breakers.reset):
        with pytest.raises(InputError):
            await verb(type_)
    with pytest.raises(InputError):
        await queue.breakers.configure({"overrides": {type_: {"failureThreshold": 3}}})
    assert await everything(queue) == before


async def test_concurrent_claims_get_one_probe_at_a_time(queue: Queue, clock: MovedClock) -> None:
    await open_breaker(queue)
    await queue.submit_many([{"type": "code"}] * 30)
    for _ in range(5):
        clock.advance(HALF_OPEN_SEC)
        claims = await asyncio.gather(*(queue.claim(f"agent-{number}", start=True) for number in range(8)))
        (held,) = [assignment for found in claims for assignment in found]
        await queue.fail(held.token, "crash", retry=False)


async def test_death_of_a_process_is_one_failure_however_much_it_held(queue: Queue, clock: MovedClock) -> None:
    await queue.agents.register(id="coder", max_concurrent_tasks=10)
    await queue.submit_many([{"type": "code", "max_attempts": 1}] * 10)
    assert len(await queue.claim("coder", 10, start=True)) == 10
    await pass_time(queue, clock, 86_400)
    assert (await queue.status(fresh=True)).counts == {"dead_lettered": 10}
    found = await breaker(queue)
    assert (found.state, found.failures) == ("closed", 1)
