"""Cooldowns: a rate limit met by one agent delays all that share it, for the time the provider asked for."""

import logging
from typing import Any

import pytest

from shiftwork import Queue
from shiftwork.engine import lanes
from shiftwork.limits.model import Closed, Cooldown
from shiftwork.model.errors import InputError
from shiftwork.testing import MovedClock, pass_time
from tests.conformance.steps import events_named, everything, take

SPEC = {"constraints": {"model_preferences": ["opus", "sonnet"], "fallback_models": ["haiku"]}}


async def limited(queue: Queue, agent: str = "worker", error: str = "retry-after: 30", **report: Any) -> str:
    """A task whose attempt met a rate limit; its id."""
    task_id = (await queue.submit(type="code")).id
    await queue.fail((await take(queue, agent)).token, "rate_limit", error, **report)
    return task_id


async def only(queue: Queue) -> Cooldown:
    (found,) = await queue.cooldowns.list()
    return found


@pytest.mark.requirement("L-142")
async def test_default_profile_cooldown_blocks_all_agents_for_the_whole_time(queue: Queue, clock: MovedClock) -> None:
    await limited(queue)
    found = await only(queue)
    assert (found.key, found.type, found.agent_id, found.until) == ("type:code", "code", None, clock() + 30)
    await queue.submit(type="code")
    answered = await queue.claims.request("other")
    assert (answered.assignments, answered.closed) == ([], (Closed("cooldown", "type:code", clock() + 30),))
    await queue.submit(type="docs")
    assert (await take(queue, "other")).type == "docs"
    clock.advance(30)
    assert len(await queue.claim("third")) == 1
    assert await queue.cooldowns.list() == []


@pytest.mark.requirement("L-142")
async def test_loki_cooldown_blocks_reporter_whole_time_and_others_half(loki: Queue, clock: MovedClock) -> None:
    await limited(loki)
    await loki.submit_many([{"type": "code", "payload": {"n": number}} for number in range(3)])
    clock.advance(14)
    assert await loki.claim("other") == []
    clock.advance(1)
    assert len(await loki.claim("other")) == 1
    clock.advance(14)
    assert await loki.claim("worker") == []
    assert [found.agent_id for found in await loki.cooldowns.list()] == ["worker"]
    clock.advance(1)
    assert len(await loki.claim("worker")) == 1


@pytest.mark.parametrize("profile", ["factory", "coscientist"])
async def test_profiles_without_cooldowns_block_no_agent(queue: Queue, profile: str) -> None:
    await queue.settings.use_profile(profile)
    await queue.settings.set("idempotency.source", "none")
    await limited(queue)
    assert await queue.cooldowns.list() == []
    await queue.submit(type="code")
    assert len(await queue.claim("worker")) == 1
    assert len(await events_named(queue, "queue.slowdown")) == 1


@pytest.mark.parametrize(
    ("report", "key"),
    [
        ({"provider": "anthropic"}, "provider:anthropic"),
        ({"account": "team-a", "model": "opus"}, "account:team-a,model:opus"),
        ({}, "type:code"),
    ],
)
async def test_rate_limit_report_decides_the_cooldown_key(queue: Queue, report: dict[str, str], key: str) -> None:
    await limited(queue, **report)
    assert (await only(queue)).key == key


async def test_agent_registration_completes_the_cooldown_key(queue: Queue, clock: MovedClock) -> None:
    for agent, account in (("a1", "a"), ("a2", "a"), ("b1", "b")):
        await queue.agents.register(id=agent, provider="anthropic", account=account)
    await limited(queue, "a1", model="opus")
    assert (await only(queue)).key == "provider:anthropic,account:a,model:opus"
    await queue.cooldowns.lift("provider:anthropic,account:a,model:opus")
    await limited(queue, "a1")
    assert (await only(queue)).key == "provider:anthropic,account:a"
    await queue.submit_many([{"type": "code"}, {"type": "docs"}])
    assert await queue.claim("a2") == []
    assert len(await queue.claim("b1")) == 1
    clock.advance(30)
    assert len(await queue.claim("a2")) == 1


async def test_longest_reported_wait_is_kept(queue: Queue, clock: MovedClock) -> None:
    await queue.submit_many([{"type": "code"}] * 3)
    held = [await take(queue, f"agent-{number}") for number in range(3)]
    for assignment, seconds in zip(held, (30, 90, 10), strict=True):
        await queue.fail(assignment.token, "rate_limit", f"retry-after: {seconds}")
    assert (await only(queue)).until == clock() + 90


async def test_each_workspace_has_its_own_cooldowns(queue: Queue) -> None:
    await limited(queue)
    other = queue.in_workspace("other")
    await other.submit(type="code")
    assert await other.cooldowns.list() == []
    assert len(await other.claim("worker")) == 1


@pytest.mark.parametrize("data", [{"status": 429}, {"headers": {"Retry-After": "30"}, "status_code": 429}])
async def test_status_in_failure_data_counts_as_rate_limit(queue: Queue, data: dict[str, Any]) -> None:
    task_id = (await queue.submit(type="code")).id
    await queue.fail((await take(queue)).token, None, "it did not work", data=data)
    task = await queue.get(task_id)
    assert (task.failure_reason, task.attempts) == ("rate_limit", 0)


async def test_retry_after_in_failure_data_is_used(queue: Queue, clock: MovedClock) -> None:
    await limited(queue, error="slow down", data={"retry_after": 12})
    assert (await only(queue)).until == clock() + 12


async def test_final_rate_limit_failure_still_starts_a_cooldown(queue: Queue, clock: MovedClock) -> None:
    await limited(queue, error="429", retry=False)
    assert clock() + 60 <= ((await only(queue)).until or 0) <= clock() + 66


@pytest.mark.requirement("L-141")
async def test_slowdown_is_broadcast_and_returned_to_polling_agents(loki: Queue, clock: MovedClock) -> None:
    await loki.submit(type="docs", payload={"n": 0})
    other = await take(loki, "other")
    await limited(loki)
    (event,) = [event for event in (await loki.events(limit=100)).events if "queue.slowdown" in event.names]
    assert (event.data or {})["wait"] == 15
    assert (await loki.claims.request("third")).slow_down_sec == 15
    assert (await loki.heartbeat(other.token)).slow_down_sec == 15
    assert (await loki.runtimes.heartbeat("other")).slow_down_sec == 15
    clock.advance(10)
    assert (await loki.heartbeat(other.token)).slow_down_sec == 5
    clock.advance(5)
    assert (await loki.heartbeat(other.token)).slow_down_sec is None
    assert (await loki.claims.request("third")).slow_down_sec is None


@pytest.mark.requirement("L-140")
async def test_rate_limit_wait_is_logged_with_documented_message(loki: Queue, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "shiftwork")
    await limited(loki, "a1")
    assert "Rate limit hit for a1, waiting 30s" in caplog.messages


@pytest.mark.requirement("L-138")
async def test_session_and_checkpoint_survive_a_rate_limit(loki: Queue, clock: MovedClock) -> None:
    task_id = (await loki.submit(type="code", payload={"n": 1})).id
    held = await take(loki)
    await loki.claims.pin_session(held.token, "session-1", "work/1")
    await loki.claims.progress(held.token, {"step": 3})
    await loki.fail(held.token, "rate_limit", "retry-after: 30", data={"checkpoint": {"files": ["a.ts"]}})
    saved = await loki.get(task_id)
    assert saved.progress == {"step": 3}
    assert saved.result is not None
    assert saved.result.data == {"checkpoint": {"files": ["a.ts"]}}
    await pass_time(loki, clock, 30)
    again = (await take(loki)).task()
    assert (again.session_id, again.work_dir) == ("session-1", "work/1")
    assert again.result is not None
    assert again.result.data == {"checkpoint": {"files": ["a.ts"]}}


async def test_claim_assigns_the_first_model_without_cooldown(queue: Queue) -> None:
    await queue.submit_many([{"type": "code", "spec": SPEC}] * 4)
    models = []
    for agent, resting in (("a", "model:opus"), ("b", "model:sonnet"), ("c", "model:haiku"), ("d", None)):
        assignments = await queue.claim(agent)
        models.append([assignment.model for assignment in assignments])
        assert [assignment.task().claim.model for assignment in assignments] == models[-1]
        if resting:
            await queue.cooldowns.set(resting, 60)
    assert models == [["opus"], ["sonnet"], ["haiku"], []]
    answered = await queue.claims.request("e")
    assert {gate.scope for gate in answered.closed} == {"model:opus", "model:sonnet", "model:haiku"}


async def test_assigned_model_is_shown_on_the_task_until_the_claim_ends(queue: Queue) -> None:
    task_id = (await queue.submit(type="code", spec=SPEC)).id
    held = await take(queue)
    assert (await queue.get(task_id)).claim.model == "opus"
    await queue.fail(held.token, "rate_limit", "retry-after: 30")
    assert (await queue.get(task_id)).claim.model is None
    assert (await only(queue)).key == "model:opus"  # no one had to say so


async def test_fallback_only_agent_gets_task_while_preferred_models_cool_down(queue: Queue) -> None:
    await queue.agents.register(id="small", models_available=["haiku"])
    await queue.agents.register(id="large", models_available=["opus", "sonnet"])
    await queue.submit(type="code", spec=SPEC)
    assert await queue.claim("small") == []
    await queue.cooldowns.set("model:opus", 60)
    assert await queue.claim("small") == []
    await queue.cooldowns.set("model:sonnet", 60)
    (assignment,) = await queue.claim("small")
    assert assignment.model == "haiku"


@pytest.mark.requirement("F-169")
async def test_fallback_model_is_assigned_after_two_failures(queue: Queue, clock: MovedClock) -> None:
    await queue.submit(type="code", spec=SPEC)
    models = []
    for _ in range(3):
        held = await take(queue)
        models.append(held.model)
        await queue.fail(held.token, "crash", "boom")
        await pass_time(queue, clock, 600)
    assert models == ["opus", "opus", "haiku"]


async def test_task_without_models_is_assigned_without_model(queue: Queue) -> None:
    await queue.cooldowns.set("model:opus", 60)
    await queue.submit(type="code")
    assert (await take(queue)).model is None


async def test_task_in_mixed_lane_gets_its_model(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "SHARED_LIMIT", 0)
    await queue.submit_many([{"type": "code", "spec": SPEC}, {"type": "code"}])
    for model in ("opus", "sonnet", "haiku"):
        await queue.cooldowns.set(f"model:{model}", 60)
    assert [assignment.model for assignment in await queue.claim("a")] == [None]
    assert await queue.claim("b") == []
    await queue.cooldowns.lift("model:haiku")
    assert [assignment.model for assignment in await queue.claim("b")] == ["haiku"]


async def test_cooldown_can_be_started_and_lifted_by_an_operator(queue: Queue, clock: MovedClock) -> None:
    await queue.submit(type="code")
    begun = await queue.as_caller("human:ada").cooldowns.set("type:code", 60, "maintenance")
    assert (begun.until, begun.reason, begun.by) == (clock() + 60, "maintenance", "human:ada")
    assert await queue.cooldowns.list() == [begun]
    assert await queue.cooldowns.lift("type:code") is True
    assert len(await queue.claim("taker")) == 1
    assert await queue.cooldowns.lift("type:code") is False
    assert len(await events_named(queue, "cooldown.started")) == len(await events_named(queue, "cooldown.lifted")) == 1


async def test_operator_cooldown_replaces_an_earlier_one(queue: Queue, clock: MovedClock) -> None:
    await queue.cooldowns.set("provider:anthropic", 600)
    await queue.cooldowns.set("provider:anthropic", 60)
    assert (await only(queue)).until == clock() + 60


async def test_expired_cooldowns_are_deleted_by_maintenance(queue: Queue, clock: MovedClock) -> None:
    await limited(queue)
    assert (await pass_time(queue, clock, 15))["gates"] == {"opened": 1}  # the slowdown
    assert (await pass_time(queue, clock, 15))["gates"] == {"opened": 1}
    assert (await everything(queue))["gates"] == []


async def test_explain_names_cooldowns_that_block_every_agent(queue: Queue, clock: MovedClock) -> None:
    for agent, provider in (("a", "anthropic"), ("b", "openai")):
        await queue.agents.register(id=agent, provider=provider)
    task_id = (await queue.submit(type="code")).id
    await queue.cooldowns.set("provider:anthropic", 60, "bill unpaid")
    assert (await queue.explain(task_id)).holds == []
    await queue.cooldowns.set("provider:openai", 90)
    kinds = [(hold.kind, hold.until) for hold in (await queue.explain(task_id)).holds]
    assert kinds == [("cooldown", clock() + 60), ("cooldown", clock() + 90)]


@pytest.mark.parametrize(
    ("key", "seconds"),
    [("opus", 60), ("", 60), ("model:a\0", 60), ("model:x", 0), ("model:x", -1), ("model:x", 1e12), ("model:x", None)],
)
async def test_invalid_cooldown_is_refused_without_changes(queue: Queue, key: str, seconds: Any) -> None:
    before = await everything(queue)
    with pytest.raises(InputError):
        await queue.cooldowns.set(key, seconds)
    assert await everything(queue) == before


async def failed(
    queue: Queue, error: str, reason: str | None = None, *, model: str | None = "opus", **report: Any
) -> Any:
    """A task of an agent with a provider, an account and a model, after it has failed like this."""
    await queue.agents.register(id="a1", provider="anthropic", account="team", models_available=["opus"])
    spec = {"constraints": {"model_preferences": [model]}} if model else None
    task_id = (await queue.submit(type="code", spec=spec)).id
    await queue.fail((await take(queue, "a1")).token, reason, error, **report)
    return await queue.get(task_id)


async def resting(queue: Queue) -> list[str]:
    return [found.key for found in await queue.cooldowns.list()]


async def test_session_limit_cools_down_the_account_until_its_reset(queue: Queue, clock: MovedClock) -> None:
    reset = clock() + 5 * 3600
    task = await failed(queue, f"exit code 1\nClaude AI usage limit reached|{int(reset)}", "agent_error")
    assert (task.status, task.failure_reason, task.attempts) == ("retrying", "rate_limit", 0)
    assert task.available_at == pytest.approx(reset, abs=1)
    found = await only(queue)
    assert found.key == "provider:anthropic,account:team"
    assert found.until == pytest.approx(reset, abs=1)
    assert found.reason == "rate limit hit by a1"


async def test_weekly_limit_cools_down_until_its_reset(queue: Queue, clock: MovedClock) -> None:
    info = {"status": "rejected", "resetsAt": int(clock()) + 7 * 86_400, "rateLimitType": "seven_day"}
    task = await failed(queue, "exit code 1", "agent_error", data={"provider_error": {"rate_limit_info": info}})
    assert task.available_at == pytest.approx(clock() + 7 * 86_400, abs=1)
    assert (await only(queue)).reason == "seven_day rate limit hit by a1"
    clock.advance(6 * 86_400)
    await queue.submit(type="code")
    assert await queue.claim("a1") == []


async def test_rate_limit_cools_down_the_model_in_use(queue: Queue) -> None:
    await failed(queue, 'API Error: 429 {"type":"error","error":{"type":"rate_limit_error"}}')
    assert await resting(queue) == ["provider:anthropic,account:team,model:opus"]


async def test_overloaded_model_cools_down_for_every_account(queue: Queue) -> None:
    task = await failed(queue, "API Error: 529 Overloaded")
    assert (task.failure_reason, task.attempts) == ("rate_limit", 0)
    assert await resting(queue) == ["provider:anthropic,model:opus"]


async def test_overload_without_known_model_starts_no_cooldown(queue: Queue, clock: MovedClock) -> None:
    task = await failed(queue, "API Error: 529 Overloaded", model=None)
    assert (task.status, task.failure_reason, task.attempts) == ("retrying", "rate_limit", 0)
    assert 60 <= (task.available_at or 0) - clock() <= 66
    assert await resting(queue) == []


async def test_exhausted_quota_cools_down_for_an_hour(queue: Queue, clock: MovedClock) -> None:
    task = await failed(queue, "RateLimitError: Error code: 429 - {'error': {'code': 'insufficient_quota'}}")
    assert (task.failure_reason, task.attempts) == ("rate_limit", 0)
    found = await only(queue)
    assert found.key == "provider:anthropic,account:team"
    assert 3600 <= (found.until or 0) - clock() <= 3960
    assert found.reason == "used-up quota hit by a1"


@pytest.mark.parametrize("profile", ["factory", "redis"])
async def test_exhausted_quota_delays_retry_by_an_hour_where_it_costs_an_attempt(
    queue: Queue, clock: MovedClock, profile: str
) -> None:
    await queue.settings.use_profile(profile)
    task_id = (await queue.submit(type="code", idempotency_key="k")).id
    await queue.fail((await take(queue)).token, None, "Your credit balance is too low to access the Anthropic API.")
    task = await queue.get(task_id)
    assert (task.failure_reason, task.attempts) == ("rate_limit", 1)
    assert (task.available_at or 0) >= clock() + 3600


@pytest.mark.parametrize("error", ["Invalid API key · Please run /login", 'API Error: 401 {"type":"error"}'])
async def test_refused_credentials_pause_only_their_account_until_lifted(
    queue: Queue, clock: MovedClock, error: str
) -> None:
    task = await failed(queue, f"exit code 1\n{error}", "agent_error")
    assert (task.status, task.failure_reason, task.attempts) == ("ready", "auth_failure", 0)
    found = await only(queue)
    assert (found.key, found.until, found.agent_id) == ("provider:anthropic,account:team", None, None)
    assert found.reason == "refused credentials hit by a1"
    clock.advance(400 * 86_400)
    assert (await queue.claims.request("a1")).assignments == []
    (hold,) = [each for each in (await queue.explain(task.id)).holds if each.kind == "cooldown"]
    assert hold.lifts == "its key is renewed and the cooldown lifted"
    await queue.agents.register(id="other", provider="anthropic", account="spare", models_available=["opus"])
    (taken,) = (await queue.claims.request("other")).assignments
    assert taken.id == task.id
    await queue.release(taken.token)
    assert await queue.cooldowns.lift(found.key)
    assert len((await queue.claims.request("a1")).assignments) == 1


async def test_refused_credentials_of_an_unnamed_account_pause_their_agent(queue: Queue) -> None:
    for name in ("b1", "b2"):
        await queue.agents.register(id=name, types=["code"], provider="openai")
    task = (await queue.submit(type="code")).id
    (taken,) = (await queue.claims.request("b1")).assignments
    await queue.fail(taken.token, "auth_failure", "401 Unauthorized", data={"status": 401})
    assert (await only(queue)).agent_id == "b1"
    assert (await queue.claims.request("b1")).assignments == []
    assert [each.id for each in (await queue.claims.request("b2")).assignments] == [task]


async def test_refused_credentials_without_an_account_are_not_retried(queue: Queue) -> None:
    task = (await queue.submit(type="code")).id
    await queue.agents.register(id="nameless", types=["code"])
    (taken,) = (await queue.claims.request("nameless")).assignments
    await queue.fail(taken.token, None, "Invalid API key · Please run /login")
    assert (await queue.get(task)).status == "dead_lettered"
    assert (await queue.explain(task)).holds[0].what == "auth_failure is not retried"
    assert await resting(queue) == []


async def test_signal_carries_window_reset_account_and_model(queue: Queue, clock: MovedClock) -> None:
    info = {"status": "rejected", "resetsAt": clock() + 7200, "rateLimitType": "five_hour", "utilization": 1}
    await failed(queue, "limit", "agent_error", data={"provider_error": {"rate_limit_info": info, "model": "opus-9"}})
    (slowed,) = [event.data or {} for event in (await queue.events()).events if event.verb == "queue_slowdown"]
    known = {"provider": "anthropic", "account": "team", "model": "opus-9", "window": "five_hour", "utilization": 1.0}
    assert slowed["signal"] == {
        "kind": "rate_limit",
        "scope": "account",
        "resets_at": clock() + 7200,
        "wait_sec": 7200.0,
        **known,
    }


@pytest.mark.parametrize(
    "error",
    [
        'Traceback (most recent call last):\n  File "app/orders.py", line 429, in total\nKeyError: 7',
        "FAILED tests/test_pay.py::test_429_is_retried",
        "commit 9a4290b",
        "parsed 429 rows",
    ],
)
async def test_error_resembling_a_limit_costs_an_attempt_without_cooldown(queue: Queue, error: str) -> None:
    task = await failed(queue, f"exit code 1\n{error}", "agent_error")
    assert (task.failure_reason, task.attempts) == ("agent_error", 1)
    assert await resting(queue) == []


async def test_stated_crash_reason_is_not_reclassified_as_rate_limit(queue: Queue) -> None:
    task = await failed(queue, "HTTP 429", "crash")
    assert (task.failure_reason, task.attempts) == ("crash", 1)
    assert await resting(queue) == []


@pytest.mark.requirement("L-132", "L-134")
async def test_loki_rate_limit_indicator_counts_anywhere_in_the_error(loki: Queue) -> None:
    task_id = (await loki.submit(type="code", payload={"n": 1})).id
    await loki.fail((await take(loki)).token, "crash", "line 429")
    assert (await loki.get(task_id)).failure_reason == "rate_limit"


async def test_error_with_sixty_thousand_blanks_is_parsed_without_delay(queue: Queue) -> None:
    task = await failed(queue, "retry-after" + " " * 60_000, "agent_error")
    assert task.failure_reason == "agent_error"
