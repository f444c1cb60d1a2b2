"""After a failed attempt: whether, when and with which models a task is retried."""

import pytest

from shiftwork import Queue
from shiftwork.testing import MovedClock, pass_time
from tests.conformance.steps import dead_letter, events_named, states, take

EXACT = {"jitter": False}


async def delays(queue: Queue, clock: MovedClock, task_id: str, failures: int) -> list[float]:
    """Fail the task this often, and note how long it then waits."""
    waits = []
    for _ in range(failures):
        await queue.fail((await take(queue)).token, "crash", "boom")
        waits.append(((await queue.get(task_id)).available_at or clock()) - clock())
        await pass_time(queue, clock, waits[-1])
    return waits


@pytest.mark.requirement("F-030", "F-167", "F-168", "F-199")
async def test_first_failure_is_retried_after_ten_seconds(factory: Queue, clock: MovedClock) -> None:
    task_id = (await factory.submit(type="code", retry=EXACT)).id
    assert (await factory.get(task_id)).attempts == 0
    outcome = await factory.fail((await take(factory, "coder")).token, "crash", "boom")
    task = await factory.get(task_id)
    assert outcome.status == task.status == "retrying"
    assert task.attempts == 1
    assert task.available_at == clock() + 10
    assert task.last_error == "boom"
    assert [failure.agent for failure in task.failure_history] == ["coder"]
    assert (await states(factory, task_id))[-3:] == ["running", "failed", "retrying"]


@pytest.mark.requirement("F-033", "F-034", "F-035", "F-036", "F-171", "F-172")
async def test_retry_delays_double_up_to_five_minutes(factory: Queue, clock: MovedClock) -> None:
    task_id = (await factory.submit(type="code", retry=EXACT, max_attempts=10)).id
    assert await delays(factory, clock, task_id, 7) == [10, 20, 40, 80, 160, 300, 300]


@pytest.mark.requirement("F-032", "F-174", "F-175")
@pytest.mark.parametrize(
    ("strategy", "expected"), [("fixed", [10, 10]), ("immediate", [0, 0]), ("exponential", [10, 20])]
)
async def test_retry_strategy_decides_delay_growth(
    factory: Queue, clock: MovedClock, strategy: str, expected: list[float]
) -> None:
    task_id = (await factory.submit(type="code", retry={**EXACT, "strategy": strategy})).id
    assert await delays(factory, clock, task_id, 2) == expected


@pytest.mark.requirement("F-173")
async def test_jitter_spreads_the_first_delay_over_five_to_fifteen_seconds(factory: Queue, clock: MovedClock) -> None:
    await factory.submit_many([{"type": "code"}] * 100)
    await factory.agents.register(id="worker", max_concurrent_tasks=100)
    for assignment in await factory.claim("worker", 100, start=True):
        await factory.fail(assignment.token, "crash", "boom")
    waits = {(task.available_at or 0) - clock() for task in (await factory.tasks.list(status="retrying")).tasks}
    assert len(waits) > 50
    assert 5 <= min(waits) < max(waits) <= 15


@pytest.mark.requirement("F-031", "F-166", "C-099", "C-127", "C-168")
@pytest.mark.parametrize("profile", ["factory", "coscientist"])
async def test_third_failure_dead_letters_the_task(queue: Queue, clock: MovedClock, profile: str) -> None:
    await queue.settings.use_profile(profile)
    task_id = (await queue.submit(type="code")).id
    assert (await queue.get(task_id)).max_attempts == 3
    for expected in ("retrying", "retrying", "dead_lettered"):
        assert (await queue.fail((await take(queue)).token, "crash")).status == expected
        await pass_time(queue, clock, 300)
    assert [letter.task_id for letter in await queue.dead_letters.list()] == [task_id]


@pytest.mark.requirement("F-170")
async def test_waiting_retry_survives_a_restart(queue: Queue, clock: MovedClock, store_url: str) -> None:
    task_id = (await queue.submit(type="code")).id
    await queue.fail((await take(queue)).token, "crash")
    before = await queue.get(task_id)
    await queue.close()
    async with Queue.open(store_url, clock=clock) as reopened:
        after = await reopened.get(task_id)
    assert (after.status, after.available_at) == ("retrying", before.available_at)


@pytest.mark.requirement("F-169")
async def test_second_failure_switches_to_fallback_models(factory: Queue, clock: MovedClock) -> None:
    models = {"model_preferences": ["large"], "fallback_models": ["small"]}
    task_id = (await factory.submit(type="code", spec={"constraints": models})).id
    preferences = []
    for _ in range(2):
        await factory.fail((await take(factory)).token, "crash")
        spec = (await factory.get(task_id)).spec or {}
        preferences.append(spec["constraints"]["model_preferences"])
        await pass_time(factory, clock, 300)
    assert preferences == [["large"], ["small"]]
    await factory.agents.register(id="new", models_available=["small"])
    assert not await factory.claim("old", models=["large"])
    assert len(await factory.claim("new", models=["small"])) == 1


@pytest.mark.requirement("F-176", "F-177", "F-178", "R-029", "C-017", "C-082", "C-084", "C-085")
async def test_retry_is_ready_when_its_delay_has_passed(queue: Queue, clock: MovedClock) -> None:
    task_id = (await queue.submit(type="code", retry=EXACT)).id
    await queue.fail((await take(queue)).token, "crash")
    await pass_time(queue, clock, 9)
    assert (await queue.get(task_id)).status == "retrying"
    assert not await queue.claim("other")
    await pass_time(queue, clock, 1)
    task = await queue.get(task_id)
    assert (task.status, task.blocked_by, task.attempts, task.claim.agent_id) == ("ready", [], 1, None)
    (promoter,) = [job for job in await queue.control.maintenance() if job.name == "promote"]
    assert promoter.last_run_at is not None
    assert promoter.due_at - promoter.last_run_at == 5


@pytest.mark.requirement("F-037", "F-042")
async def test_new_task_shows_which_reasons_are_retried(factory: Queue) -> None:
    retry = (await factory.get((await factory.submit(type="code")).id)).retry
    assert list(retry["retry_on"]) == ["timeout", "crash", "rate_limit", "invalid_output"]
    assert list(retry["no_retry_on"]) == ["auth_failure", "budget_exceeded", "cancelled"]


@pytest.mark.parametrize(
    ("profile", "reason", "status"),
    [
        pytest.param("factory", "timeout", "retrying", marks=pytest.mark.requirement("F-038")),
        pytest.param("factory", "crash", "retrying", marks=pytest.mark.requirement("F-039")),
        pytest.param("factory", "rate_limit", "retrying", marks=pytest.mark.requirement("F-040")),
        pytest.param("factory", "auth_failure", "dead_lettered", marks=pytest.mark.requirement("F-043")),
        pytest.param("factory", "budget_exceeded", "dead_lettered", marks=pytest.mark.requirement("F-044")),
        pytest.param("factory", "cancelled", "dead_lettered", marks=pytest.mark.requirement("F-045")),
        ("factory", "a word of the agent's own", "retrying"),
        pytest.param("coscientist", "heartbeat_timeout", "retrying", marks=pytest.mark.requirement("C-161")),
        pytest.param("coscientist", "resource_unavailable", "retrying", marks=pytest.mark.requirement("C-162")),
        pytest.param("coscientist", "network", "retrying", marks=pytest.mark.requirement("C-163")),
        pytest.param("coscientist", "transient_api", "retrying", marks=pytest.mark.requirement("C-164")),
        pytest.param("coscientist", "invalid_input", "dead_lettered", marks=pytest.mark.requirement("C-165")),
        pytest.param("coscientist", "safety_violation", "dead_lettered", marks=pytest.mark.requirement("C-166")),
        pytest.param("coscientist", "resource_permanent", "dead_lettered", marks=pytest.mark.requirement("C-167")),
        ("standard", "invalid_input", "dead_lettered"),
        ("standard", "agent_error", "retrying"),
        ("redis", "agent_error", "retrying"),
        pytest.param("redis", "invalid_input", "dead_lettered", marks=pytest.mark.requirement("R-035")),
    ],
)
async def test_failure_reason_decides_whether_first_failure_is_retried(
    queue: Queue, profile: str, reason: str, status: str
) -> None:
    await queue.settings.use_profile(profile)
    task_id = (await queue.submit(type="code", idempotency_key="k")).id
    assert (await queue.fail((await take(queue)).token, reason)).status == status
    assert (await queue.get(task_id)).failure_reason == reason


@pytest.mark.requirement("F-041", "F-227")
async def test_output_violating_its_schema_is_a_failed_attempt(factory: Queue) -> None:
    schema = {"type": "object", "required": ["summary"]}
    output = {"type": "json", "validation": "json-schema", "validation_schema": schema}
    task_id = (await factory.submit(type="code", output=output)).id
    outcome = await factory.complete((await take(factory)).token, {"other": 1})
    task = await factory.get(task_id)
    assert outcome.status == task.status == "retrying"
    assert (task.failure_reason, task.attempts) == ("invalid_output", 1)
    assert "summary" in (task.last_error or "")
    assert (await states(factory, task_id))[-4:] == ["running", "validating", "failed", "retrying"]


@pytest.mark.requirement("C-010", "C-015", "C-016", "C-098", "C-150", "C-158", "C-169", "C-170")
async def test_coscientist_delays_grow_and_priority_is_kept(coscientist: Queue, clock: MovedClock) -> None:
    await coscientist.settings.set("retry.jitter", False)
    task_id = (await coscientist.submit(type="Ranking", priority=20, max_attempts=4)).id
    assert await delays(coscientist, clock, task_id, 3) == [5, 30, 120]
    assert (await coscientist.get(task_id)).priority == 20
    assert (await states(coscientist, task_id))[:7] == [
        "created", "pending", "ready", "claimed", "running", "failed", "retrying",
    ]  # fmt: skip


@pytest.mark.requirement("C-044")
async def test_task_can_have_its_own_retry_policy(coscientist: Queue, clock: MovedClock) -> None:
    once = (await coscientist.submit(type="Ranking", max_attempts=1)).id
    assert (await coscientist.fail((await take(coscientist)).token, "network")).status == "dead_lettered"
    own = {"strategy": "exponential", "initial_delay_sec": 7, "jitter": False}
    twice = (await coscientist.submit(type="Ranking", retry=own, payload={"n": 2})).id
    assert await delays(coscientist, clock, twice, 2) == [7, 14]
    assert once != twice


@pytest.mark.requirement("C-128", "C-129")
async def test_coscientist_exponential_backoff_doubles_up_to_five_minutes(
    coscientist: Queue, clock: MovedClock
) -> None:
    for key, value in {"strategy": "exponential", "initial_delay_sec": 5, "jitter": False}.items():
        await coscientist.settings.set(f"retry.{key}", value)
    task_id = (await coscientist.submit(type="Ranking", max_attempts=20)).id
    assert await delays(coscientist, clock, task_id, 8) == [5, 10, 20, 40, 80, 160, 300, 300]


@pytest.mark.requirement("L-070", "L-071", "L-072", "L-076", "L-077", "L-078")
async def test_loki_backoff_starts_at_a_minute_and_doubles(loki: Queue, clock: MovedClock) -> None:
    task_id = (await loki.submit(type="eng-backend", max_attempts=4)).id
    assert await delays(loki, clock, task_id, 3) == [60, 120, 240]
    assert (await loki.get(task_id)).attempts == 3
    assert (await loki.get(task_id)).last_error == "boom"


@pytest.mark.requirement("L-079")
async def test_retried_task_has_no_agent_and_any_agent_can_claim_it(loki: Queue, clock: MovedClock) -> None:
    task_id = (await loki.submit(type="eng-backend")).id
    await loki.fail((await take(loki, "first")).token, "crash")
    await pass_time(loki, clock, 60)
    assert (await loki.get(task_id)).claim.agent_id is None
    assert (await take(loki, "second")).id == task_id


@pytest.mark.requirement("L-022", "L-073")
async def test_loki_third_failure_is_a_dead_letter(loki: Queue, clock: MovedClock) -> None:
    await loki.submit(type="eng-backend")
    ends = []
    for _ in range(3):
        ends.append((await loki.fail((await take(loki)).token, "crash")).status)
        await pass_time(loki, clock, 240)
    assert ends == ["retrying", "retrying", "dead_lettered"]


@pytest.mark.requirement("R-026", "R-027", "R-028", "R-034")
async def test_redis_profile_retries_three_times_before_dead_letter(streams: Queue, clock: MovedClock) -> None:
    task_id = (await streams.submit(type="tool", idempotency_key="k")).id
    waits, counts = [], []
    for agent in ("a", "b", "a", "b"):
        await streams.fail((await take(streams, agent)).token, "crash")
        task = await streams.get(task_id)
        counts.append(task.attempts)
        waits.append(task.available_at and task.available_at - clock())
        await pass_time(streams, clock, 900)
    assert counts == [1, 2, 3, 4]
    assert waits == [60, 300, 900, None]
    (letter,) = await streams.dead_letters.list()
    assert (letter.task_id, letter.retry_count) == (task_id, 4)


@pytest.mark.requirement("F-197", "F-198", "F-200", "F-201")
@pytest.mark.parametrize(("agents", "status"), [(["a", "b", "b"], "dead_lettered"), (["a", "a", "a"], "retrying")])
async def test_task_failing_with_several_agents_is_a_poison_pill(
    factory: Queue, clock: MovedClock, agents: list[str], status: str
) -> None:
    task_id = (await factory.submit(type="code", max_attempts=5)).id
    for agent in agents:
        await factory.fail((await take(factory, agent)).token, "crash")
        await pass_time(factory, clock, 300)
    poisoned = status == "dead_lettered"
    assert ((await factory.get(task_id)).status == "dead_lettered") is poisoned
    assert [letter.poison_pill for letter in await factory.dead_letters.list()] == [True] * poisoned
    assert {agent.status for agent in await factory.agents.list()} == {"active"}


@pytest.mark.parametrize("profile", ["loki", "redis", "coscientist"])
async def test_profiles_without_poison_pill_keep_retrying(queue: Queue, clock: MovedClock, profile: str) -> None:
    await queue.settings.use_profile(profile)
    task_id = (await queue.submit(type="code", max_attempts=5, idempotency_key="k")).id
    for agent in ("a", "b", "a"):
        await queue.fail((await take(queue, agent)).token, "crash")
        await pass_time(queue, clock, 900)
    assert (await queue.get(task_id)).status == "ready"


async def test_final_failure_is_not_retried(queue: Queue) -> None:
    await dead_letter(queue, error="the repository is gone")
    (letter,) = await queue.dead_letters.list()
    assert (letter.error, letter.retry_count) == ("the repository is gone", 1)


async def test_failure_reported_twice_counts_once(queue: Queue) -> None:
    task_id = (await queue.submit(type="code")).id
    token = (await take(queue)).token
    first, second = await queue.fail(token, "crash"), await queue.fail(token, "crash")
    assert (first.repeated, second.repeated) == (False, True)
    assert (await queue.get(task_id)).attempts == 1
    assert await events_named(queue, "task.attempt_failed") == [task_id]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        pytest.param("RATE LIMIT reached", "rate_limit", marks=pytest.mark.requirement("L-132", "L-133")),
        pytest.param("HTTP 429", "rate_limit", marks=pytest.mark.requirement("L-134")),
        pytest.param("Too Many Requests", "rate_limit", marks=pytest.mark.requirement("L-135")),
        pytest.param("Quota exceeded", "rate_limit", marks=pytest.mark.requirement("L-136")),
        pytest.param("Retry-After: 30", "rate_limit", marks=pytest.mark.requirement("L-137")),
        pytest.param("disk full", "agent_error", marks=pytest.mark.requirement("L-132")),
    ],
)
async def test_error_text_is_recognised_as_rate_limit(loki: Queue, error: str, reason: str) -> None:
    task_id = (await loki.submit(type="eng-backend")).id
    await loki.fail((await take(loki)).token, error=error)
    assert (await loki.get(task_id)).failure_reason == reason


@pytest.mark.parametrize(("profile", "attempts"), [("standard", 0), ("loki", 0), ("factory", 1), ("redis", 1)])
async def test_profile_decides_whether_rate_limit_costs_an_attempt(queue: Queue, profile: str, attempts: int) -> None:
    await queue.settings.use_profile(profile)
    task_id = (await queue.submit(type="code", idempotency_key="k")).id
    await queue.fail((await take(queue)).token, error="429")
    task = await queue.get(task_id)
    assert (task.status, task.attempts) == ("retrying", attempts)
    assert task.available_at is not None


@pytest.mark.requirement("L-139", "L-142")
async def test_rate_limited_task_waits_as_long_as_provider_asked(loki: Queue, clock: MovedClock) -> None:
    await loki.submit(type="eng-backend")
    await loki.fail((await take(loki)).token, error="429, retry-after: 30")
    await pass_time(loki, clock, 29)
    assert not await loki.claim("other")
    await pass_time(loki, clock, 1)
    await loki.fail((await take(loki, "other")).token, error="too many requests")
    (task,) = (await loki.tasks.list(status="retrying")).tasks
    assert 120 <= (task.available_at or 0) - clock() <= 132


async def test_waits_for_rate_limit_are_bounded(queue: Queue, clock: MovedClock) -> None:
    await queue.settings.set("rate_limit.max_waits", 2)
    task_id = (await queue.submit(type="code")).id
    attempts = []
    for _ in range(3):
        await queue.fail((await take(queue)).token, "rate_limit")
        attempts.append((await queue.get(task_id)).attempts)
        await pass_time(queue, clock, 3600)
    assert attempts == [0, 0, 1]


async def test_rate_limit_past_the_deadline_costs_an_attempt(queue: Queue, clock: MovedClock) -> None:
    task_id = (await queue.submit(type="code", deadline=clock() + 60)).id
    token = (await take(queue)).token
    clock.advance(60)
    await queue.fail(token, "rate_limit")
    assert (await queue.get(task_id)).attempts == 1
