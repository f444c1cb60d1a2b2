"""Circuit breakers: a type that keeps failing is not handed out, but for one task at a time as a test."""

import asyncio
from typing import Any

import pytest

from shiftwork import Assignment, Problem, Queue
from shiftwork.core.errors import ConflictError, InputError
from shiftwork.queue.protection.gates import Closed
from shiftwork.queue.protection.protect import Breaker
from shiftwork.testing import MovedClock, pass_time
from tests.conformance.steps import events_named, everything, take

HALF_OPEN_SEC = 60


async def fail_some(queue: Queue, count: int, type_: str = "code", reason: str = "crash", **options: Any) -> None:
    """So many tasks of a type that fail for good."""
    for _ in range(count):
        await queue.submit(type=type_)
        held = await take(queue, types=[type_])
        await queue.fail(held.token, reason, "boom", retry=False, **options)


async def breaker(queue: Queue, type_: str = "code") -> Breaker:
    (found,) = await queue.breakers(type_)
    return found


async def open_breaker(queue: Queue, type_: str = "code") -> None:
    await fail_some(queue, 5, type_)
    assert (await breaker(queue, type_)).state == "open"


async def to_test(queue: Queue, clock: MovedClock, **fields: Any) -> Assignment:
    """The task that is let through to see whether the type fares better."""
    await open_breaker(queue)
    await queue.submit_many([{"type": "code", **fields}] * 3)
    clock.advance(HALF_OPEN_SEC)
    return await take(queue)


# -- closed and open ---------------------------------------------------------------------------------------------


@pytest.mark.requirement("L-106", "L-107", "L-108", "L-109", "L-110")
async def test_a_type_that_never_failed_reads_closed(queue: Queue) -> None:
    fresh = await breaker(queue, "eng-backend")
    assert (fresh.state, fresh.failures, fresh.last_failure) == ("closed", 0, None)
    assert (fresh.opened_at, fresh.half_open_at, fresh.tested_task_id) == (None, None, None)
    assert await queue.breakers() == []
    await queue.submit_many([{"type": "b"}, {"type": "a"}])
    assert [found.type for found in await queue.breakers()] == ["a", "b"]


@pytest.mark.requirement("L-120", "L-126", "L-127", "L-129")
async def test_it_opens_with_the_failure_that_reaches_the_threshold(queue: Queue, clock: MovedClock) -> None:
    await fail_some(queue, 4)
    clock.advance(1)
    before = await breaker(queue)
    assert (before.state, before.failures, before.last_failure) == ("closed", 4, clock() - 1)
    await fail_some(queue, 1)
    after = await breaker(queue)
    assert (after.state, after.failures, after.last_failure, after.opened_at) == ("open", 5, clock(), clock())
    assert after.closed_until == clock() + HALF_OPEN_SEC


@pytest.mark.requirement("L-047", "L-112", "L-122")
async def test_an_open_type_is_not_handed_out_and_others_flow(queue: Queue, clock: MovedClock) -> None:
    await open_breaker(queue)
    await queue.submit(type="code")
    clock.advance(HALF_OPEN_SEC / 2)
    answered = await queue.claim_answer("worker")
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
    await queue.reset_breaker("code")
    assert (await queue.explain(task_id)).holds == []


@pytest.mark.requirement("L-130")
async def test_opening_is_told_once(queue: Queue) -> None:
    held = [await _started(queue, f"agent-{number}") for number in range(7)]
    for assignment in held:
        await queue.fail(assignment.token, "crash", retry=False)
    assert len(await events_named(queue, "breaker.opened")) == 1
    (alert,) = await queue.alerts(kind="breaker_open")
    assert (alert.message, alert.severity) == ("Circuit breaker OPEN for code", "critical")
    assert (await breaker(queue)).failures == 7


async def _started(queue: Queue, agent: str) -> Assignment:
    await queue.submit(type="code")
    return await take(queue, agent)


async def test_each_type_and_each_workspace_has_its_own(queue: Queue) -> None:
    await fail_some(queue, 4, "code")
    await fail_some(queue, 4, "docs")
    other = queue.in_workspace("other")
    await fail_some(other, 4, "code")
    assert [(found.type, found.failures) for found in await queue.breakers()] == [("code", 4), ("docs", 4)]
    await fail_some(queue, 1, "docs")
    assert [found.state for found in await queue.breakers()] == ["closed", "open"]
    assert (await breaker(other)).state == "closed"


async def test_failures_of_one_batch_all_count(queue: Queue) -> None:
    await queue.submit_many([{"type": "code"}] * 5)
    await queue.register_agent(id="many", max_concurrent_tasks=5)
    held = await queue.claim("many", 5, start=True)
    await queue.fail_many([Problem(assignment.token, "crash", retry=False) for assignment in held])
    assert (await breaker(queue)).state == "open"


# -- what counts -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reason", ["rate_limit", "cancelled", "invalid_input", "budget_exceeded"])
async def test_reasons_that_say_nothing_about_the_type_are_not_counted(queue: Queue, reason: str) -> None:
    await queue.set_setting("cooldown.others", 0)
    await fail_some(queue, 2, reason=reason)
    assert (await breaker(queue)).failures == 0


async def test_every_failed_attempt_counts_in_the_default_profile(queue: Queue, clock: MovedClock) -> None:
    await queue.submit(type="code", max_attempts=3)
    await queue.fail((await take(queue)).token, "crash")
    assert (await breaker(queue)).failures == 1
    await pass_time(queue, clock, 60)
    await queue.claim("worker", start=True)
    await pass_time(queue, clock, 3600)
    assert (await breaker(queue)).failures == 2


@pytest.mark.requirement("L-074")
async def test_only_a_dead_letter_counts_in_loki(loki: Queue, clock: MovedClock) -> None:
    await loki.submit(type="code", payload={"n": 1})
    for failures in (0, 0, 1):
        await loki.fail((await take(loki)).token, "crash")
        assert (await breaker(loki)).failures == failures
        await pass_time(loki, clock, 600)


@pytest.mark.requirement("L-068", "L-125")
async def test_a_success_clears_the_count(queue: Queue) -> None:
    await fail_some(queue, 4)
    await queue.submit(type="code")
    await queue.complete((await take(queue)).token)
    assert (await breaker(queue)).failures == 0
    await fail_some(queue, 4)
    assert (await breaker(queue)).state == "closed"


async def test_or_only_that_of_the_tested_task_does(queue: Queue) -> None:
    await queue.set_setting("circuit_breaker.reset_on_success", "half_open_only")
    await fail_some(queue, 4)
    await queue.submit(type="code")
    await queue.complete((await take(queue)).token)
    assert (await breaker(queue)).failures == 4


async def test_a_success_in_another_process_clears_the_count_too(
    queue: Queue, store_url: str, clock: MovedClock
) -> None:
    await queue.submit(type="code")
    held = await take(queue, "early")
    async with await Queue.open(store_url, clock=clock) as other:
        await fail_some(other, 3)
        await queue.complete(held.token)
        assert (await breaker(other)).failures == 0


@pytest.mark.parametrize("profile", ["factory", "redis", "aegis", "coscientist"])
async def test_documents_that_have_no_breaker_have_none(queue: Queue, profile: str) -> None:
    await queue.use_profile(profile)
    await queue.set_setting("idempotency.source", "none")
    await fail_some(queue, 6)
    found = await breaker(queue)
    assert (found.enabled, found.state, found.failures) == (False, "closed", 0)
    with pytest.raises(ConflictError):
        await queue.trip_breaker("code")


async def test_a_breaker_that_is_switched_off_lets_go_what_it_held(queue: Queue) -> None:
    await open_breaker(queue)
    await queue.submit(type="code")
    await queue.set_setting("circuit_breaker", None)
    assert len(await queue.claim("worker")) == 1


# -- half-open ---------------------------------------------------------------------------------------------------


@pytest.mark.requirement("L-113", "L-117", "L-121", "L-123", "L-110")
async def test_after_the_interval_exactly_one_task_is_let_through(queue: Queue, clock: MovedClock) -> None:
    await open_breaker(queue)
    await queue.submit_many([{"type": "code"}] * 3)
    clock.advance(HALF_OPEN_SEC - 1)
    assert await queue.claim("worker") == []
    clock.advance(1)
    await queue.register_agent(id="many", max_concurrent_tasks=10)
    (tested,) = await queue.claim("many", 10)
    found = await breaker(queue)
    assert (found.state, found.half_open_at, found.tested_task_id) == ("half-open", clock(), tested.id)
    assert await queue.claim("other") == []
    assert await events_named(queue, "breaker.half_open") == [None]


async def test_the_rest_of_a_claim_is_filled_with_other_work(queue: Queue, clock: MovedClock) -> None:
    await open_breaker(queue)
    await queue.submit_many([{"type": "code", "priority": 1}] * 3 + [{"type": "docs"}] * 3)
    clock.advance(HALF_OPEN_SEC)
    await queue.register_agent(id="many", max_concurrent_tasks=10)
    assert sorted(task.type for task in await queue.claim("many", 10)) == ["code", "docs", "docs", "docs"]


@pytest.mark.requirement("L-124", "L-111")
async def test_its_success_closes_the_breaker_and_work_flows(queue: Queue, clock: MovedClock) -> None:
    tested = await to_test(queue, clock)
    await queue.complete(tested.token)
    found = await breaker(queue)
    assert (found.state, found.failures, found.tested_task_id) == ("closed", 0, None)
    await queue.register_agent(id="many", max_concurrent_tasks=10)
    assert len(await queue.claim("many", 10)) == 2
    assert len(await events_named(queue, "breaker.closed")) == 1


@pytest.mark.requirement("L-128")
async def test_its_failure_opens_the_breaker_at_once(queue: Queue, clock: MovedClock) -> None:
    tested = await to_test(queue, clock)
    clock.advance(5)
    await queue.fail(tested.token, "crash")
    found = await breaker(queue)
    assert (found.state, found.opened_at, found.failures) == ("open", clock(), 6)
    clock.advance(HALF_OPEN_SEC - 1)
    assert await queue.claim("other") == []
    clock.advance(1)
    assert len(await queue.claim("other")) == 1
    assert len(await queue.alerts(kind="breaker_open")) == 2


async def test_a_tested_task_that_is_given_back_leaves_its_place_to_the_next(queue: Queue, clock: MovedClock) -> None:
    tested = await to_test(queue, clock)
    await queue.release(tested.token)
    found = await breaker(queue)
    assert (found.state, found.tested_task_id) == ("half-open", None)
    (second,) = await queue.claim("second")
    await queue.cancel(second.id)
    (third,) = await queue.claim("third")
    assert third.id != second.id
    assert await queue.claim("fourth") == []


async def test_a_tested_task_that_is_reclaimed_leaves_its_place_to_the_next(queue: Queue, clock: MovedClock) -> None:
    await queue.set_setting("on_stale", "reclaim")
    await to_test(queue, clock)
    await queue.runtime_gone("worker")
    assert (await breaker(queue)).tested_task_id is None
    assert len(await queue.claim("second")) == 1


async def test_a_tested_task_whose_agent_dies_is_a_failure(queue: Queue, clock: MovedClock) -> None:
    await to_test(queue, clock)
    await queue.runtime_gone("worker")
    found = await breaker(queue)
    assert (found.state, found.tested_task_id) == ("open", None)


async def test_a_silent_agent_s_tested_task_is_a_failure(queue: Queue, clock: MovedClock) -> None:
    await to_test(queue, clock)
    await pass_time(queue, clock, 100)
    found = await breaker(queue)
    assert (found.state, found.opened_at) == ("open", clock())


async def test_a_test_without_an_end_gives_its_place_away_after_its_time(queue: Queue, clock: MovedClock) -> None:
    """Held by an agent that beats for ever; only the task's own limit was lifted since."""
    await queue.set_setting("heartbeat_timeout_sec", None)
    tested = await to_test(queue, clock, timeout_sec=1000)
    until = (await breaker(queue)).closed_until
    assert until == clock() + 1060
    clock.advance(1060)
    (second,) = await queue.claim("second")
    assert (await breaker(queue)).tested_task_id == second.id != tested.id


async def test_work_claimed_before_the_opening_does_not_close_it(queue: Queue, clock: MovedClock) -> None:
    early = await _started(queue, "early")
    await open_breaker(queue)
    await queue.complete(early.token)
    assert (await breaker(queue)).state == "open"


async def test_the_duty_tells_of_a_breaker_once(queue: Queue, clock: MovedClock) -> None:
    await open_breaker(queue)
    assert (await pass_time(queue, clock, HALF_OPEN_SEC))["gates"] == {"opened": 1}
    assert (await pass_time(queue, clock, 1)).get("gates") is None
    assert (await breaker(queue)).state == "open"


# -- by hand, and across restarts --------------------------------------------------------------------------------


async def test_somebody_may_open_and_close_it(queue: Queue, clock: MovedClock) -> None:
    await queue.submit(type="code")
    tripped = await queue.as_caller("human:ada").trip_breaker("code")
    assert (tripped.state, tripped.opened_at) == ("open", clock())
    closed = await queue.reset_breaker("code")
    assert (closed.state, closed.failures) == ("closed", 0)
    assert len(await queue.claim("taker")) == 1
    assert (await queue.reset_breaker("never seen")).state == "closed"


@pytest.mark.requirement("L-131")
async def test_an_open_breaker_is_open_after_a_restart(store_url: str, clock: MovedClock) -> None:
    async with await Queue.open(store_url, clock=clock) as queue:
        await open_breaker(queue)
        before = await breaker(queue)
        await queue.submit(type="code")
    clock.advance(10)
    async with await Queue.open(store_url, clock=clock) as queue:
        assert await breaker(queue) == before
        assert await queue.claim("worker") == []


async def test_the_documents_configuration_becomes_settings(queue: Queue) -> None:
    await queue.set_setting("circuit_breaker.failure_threshold", 8, type="old")
    overrides = {"ops-security": {"failureThreshold": 3}}
    await queue.configure_breakers({"defaults": {"failureThreshold": 4, "cooldownSeconds": 7}, "overrides": overrides})
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
async def test_a_type_that_cannot_be_is_refused(queue: Queue, type_: str) -> None:
    before = await everything(queue)
    for verb in (queue.trip_breaker, queue.reset_breaker):
        with pytest.raises(InputError):
            await verb(type_)
    with pytest.raises(InputError):
        await queue.configure_breakers({"overrides": {type_: {"failureThreshold": 3}}})
    assert await everything(queue) == before


async def test_a_storm_of_failures_and_claims_has_one_test_at_a_time(queue: Queue, clock: MovedClock) -> None:
    await open_breaker(queue)
    await queue.submit_many([{"type": "code"}] * 30)
    for _ in range(5):
        clock.advance(HALF_OPEN_SEC)
        claims = await asyncio.gather(*(queue.claim(f"agent-{number}", start=True) for number in range(8)))
        (held,) = [assignment for found in claims for assignment in found]
        await queue.fail(held.token, "crash", retry=False)
