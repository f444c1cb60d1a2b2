"""Accounts: windows fill by reports and by counting, and claims use the account with most left."""

from typing import Any

import pytest

from shiftwork import Queue
from shiftwork.accounts.model import Account, Window
from shiftwork.engine.claim_requests import Wanted, for_agent
from shiftwork.limits.model import Closed
from shiftwork.model.errors import InputError
from shiftwork.testing import MovedClock, pass_time
from tests.conformance.steps import take

HOUR = 3600.0
FIVE = 5 * HOUR
KEY = "provider:anthropic,account:a"
PATIENCE = 30.0


async def hire(queue: Queue, *accounts: str, agent: str = "worker", **more: Any) -> None:
    await queue.agents.register(
        id=agent, provider="anthropic", accounts=list(accounts), max_concurrent_tasks=None, **more
    )


async def size(queue: Queue, account: str, capacity: float = 1000, unit: str = "tokens", **more: Any) -> Account:
    window = {"name": "five_hour", "unit": unit, "capacity": capacity, **more}
    return await queue.accounts.set("anthropic", account, windows=[window])


async def work(queue: Queue, tokens: int, agent: str = "worker") -> str | None:
    """Run one task that uses this many tokens; return the account of its claim."""
    await queue.submit(type="code")
    held = await take(queue, agent)
    await queue.complete(held.token, usage={"tokens_in": tokens})
    return held.account


async def account(queue: Queue, name: str = "a") -> Account:
    return next(each for each in await queue.accounts.list() if each.account == name)


async def window(queue: Queue, name: str = "a") -> Window:
    (found,) = (await account(queue, name)).windows
    return found


async def report(queue: Queue, utilization: float, resets_in: float, name: str = "five_hour", **more: Any) -> None:
    """Report the provider's windows during a task."""
    await queue.submit(type="code")
    held = await take(queue)
    state = {"window": name, "utilization": utilization, "resets_at": queue.now() + resets_in, **more}
    await queue.accounts.report(held.token, windows=[state])
    await queue.complete(held.token)


async def test_reported_usage_is_counted_until_the_window_resets(queue: Queue, clock: MovedClock) -> None:
    await hire(queue, "a")
    await size(queue, "a")
    assert await window(queue) == Window("five_hour", None, "tokens", 1000.0, 0.0, 0.0, FIVE, None)
    began = clock()
    await work(queue, 300)
    clock.advance(HOUR)
    await work(queue, 100)
    found = await window(queue)
    assert (found.used, found.utilization, found.resets_at) == (400, 0.4, began + FIVE)
    clock.advance(4 * HOUR)
    found = await window(queue)
    assert (found.used, found.resets_at) == (0, None)


async def test_used_up_window_pauses_its_account_until_the_reset(queue: Queue, clock: MovedClock) -> None:
    await hire(queue, "a")
    await size(queue, "a")
    await work(queue, 1000)
    resets_at = clock() + FIVE
    task = await queue.submit(type="code")
    answer = await queue.claims.request("worker")
    assert (answer.assignments, Closed("account", KEY, resets_at) in answer.closed) == ([], True)
    explained = await queue.explain(task.id)
    assert [(hold.kind, hold.until) for hold in explained.holds] == [("account", resets_at)]
    assert "five_hour window is used up" in explained.summary
    found = await account(queue)
    assert (found.state, found.until, found.agents) == ("resting", resets_at, ["worker"])
    (event,) = [event for event in (await queue.events()).events if "account.used_up" in event.names]
    assert event.data == {"provider": "anthropic", "account": "a", "window": "five_hour", "resets_at": resets_at}
    await pass_time(queue, clock, FIVE)
    assert len(await queue.claim("worker")) == 1


async def test_claim_uses_the_account_with_most_left_before_its_nearest_reset(queue: Queue, clock: MovedClock) -> None:
    await hire(queue, "a", "b")
    await size(queue, "a")
    await size(queue, "b")
    assert await work(queue, 500) == "a"
    clock.advance(HOUR)
    assert await work(queue, 100) == "b"  # half of a is left for 4 hours, all of b for 5
    clock.advance(3.5 * HOUR)
    assert await work(queue, 1) == "a"  # half of a would lapse in half an hour


async def test_account_of_a_claim_is_shown_with_the_task(queue: Queue) -> None:
    await hire(queue, "a", "b")
    task = await queue.submit(type="code")
    held = await take(queue)
    assert held.account == held.task().claim.account == (await queue.get(task.id)).claim.account == "a"
    (agent,) = await queue.agents.list()
    assert (agent.account, agent.accounts) == (None, ["a", "b"])
    await queue.complete(held.token)
    assert (await queue.get(task.id)).claim.account is None


async def test_agent_continues_on_another_account_when_one_is_used_up(queue: Queue) -> None:
    await hire(queue, "a", "b")
    await size(queue, "a", 100)
    await size(queue, "b", 100)
    assert [await work(queue, 100), await work(queue, 100)] == ["a", "b"]
    await queue.submit(type="code")
    assert await queue.claim("worker") == []


async def test_running_work_reserves_what_tasks_usually_use(queue: Queue, clock: MovedClock) -> None:
    await hire(queue, "a")
    await size(queue, "a", 1000)
    await work(queue, 300)
    await queue.submit_many([{"type": "code", "payload": {"n": n}} for n in range(5)])
    answer = await queue.claims.request("worker", count=5, start=True)
    assert len(answer.assignments) == 2  # 700 are left, and each is expected to use 300
    blocked = await queue.claims.request("worker")
    assert blocked.closed == (Closed("account", KEY, clock() + FIVE),)
    assert (await account(queue)).running == 2
    last = (await queue.tasks.list(status="ready", limit=1)).tasks[0]
    assert "expected to use up the rest" in (await queue.explain(last.id)).summary
    await queue.complete(answer.assignments[0].token, usage={"tokens_out": 10})
    assert len(await queue.claim("worker")) == 1


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        (
            {"Anthropic-Ratelimit-Unified-5h-Utilization": "0.25", "anthropic-ratelimit-unified-5h-reset": "{reset}"},
            ("five_hour", 0.25, 600.0),
        ),
        (
            {
                "x-ratelimit-limit-tokens": "1000",
                "x-ratelimit-remaining-tokens": "900",
                "x-ratelimit-reset-tokens": "6s",
            },
            ("minute_tokens", 0.1, 6.0),
        ),
        (
            {
                "x-codex-primary-used-percent": "40",
                "x-codex-primary-window-minutes": "300",
                "x-codex-primary-reset-after-seconds": "900",
            },
            ("five_hour", 0.4, 900.0),
        ),
    ],
)
async def test_response_headers_report_the_usage_of_a_window(
    queue: Queue, headers: dict[str, str], expected: tuple[str, float, float]
) -> None:
    await hire(queue, "a")
    await queue.submit(type="code")
    held = await take(queue)
    sent = {name: value.format(reset=int(queue.now()) + 600) for name, value in headers.items()}
    await queue.accounts.report(held.token, headers=sent)
    found = await window(queue)
    assert (found.name, found.utilization) == expected[:2]
    assert found.resets_at == pytest.approx(queue.now() + expected[2], abs=1)


async def test_window_in_a_message_reaches_the_account_of_the_claim(queue: Queue, clock: MovedClock) -> None:
    await hire(queue, "a", "b")
    await queue.submit(type="code")
    held = await take(queue)
    state = {"window": "seven_day", "utilization": 0.5, "resets_at": clock() + HOUR}
    await queue.claims.message(held.token, "text", "half", data={"provider_window": state})
    found = await window(queue, str(held.account))
    assert (found.name, found.utilization, found.resets_at) == ("seven_day", 0.5, clock() + HOUR)
    await queue.claims.message(held.token, "text", "broken", data={"provider_window": {"window": 7}})


async def test_provider_report_overrides_our_count(queue: Queue, clock: MovedClock) -> None:
    await hire(queue, "a")
    await size(queue, "a", 100)
    await work(queue, 100)
    assert (await account(queue)).state == "resting"
    await queue.accounts.set("anthropic", "a", windows=[{"name": "five_hour", "unit": "tokens", "capacity": 200}])
    assert (await account(queue)).state == "available"
    await report(queue, 0.9, HOUR)
    found = await window(queue)
    assert (found.used, found.resets_at) == (180, clock() + HOUR)
    await report(queue, 0.1, HOUR)
    assert (await window(queue)).used == 20


async def test_refusal_fills_the_window_and_the_task_goes_to_another_account(queue: Queue, clock: MovedClock) -> None:
    await hire(queue, "a", "b")
    task = await queue.submit(type="code")
    held = await take(queue)
    info = {"status": "rejected", "resetsAt": clock() + HOUR, "rateLimitType": "five_hour", "utilization": 1}
    await queue.fail(held.token, None, "limit", data={"rate_limit_info": info})
    found = await account(queue, "a")
    assert (found.state, found.until) == ("resting", clock() + HOUR)
    (full,) = found.windows
    assert (full.name, full.utilization, full.resets_at) == ("five_hour", 1, clock() + HOUR)
    again = await take(queue)
    assert (again.id, again.account, (await queue.get(task.id)).attempts) == (task.id, "b", 0)


async def test_refusal_pauses_its_task_if_there_is_no_other_account(queue: Queue, clock: MovedClock) -> None:
    await hire(queue, "a")
    task = await queue.submit(type="code")
    await queue.fail((await take(queue)).token, "rate_limit", "try again in 3 hours 12 minutes")
    found = await queue.get(task.id)
    assert (found.status, found.available_at) == ("retrying", clock() + 3.2 * HOUR)
    full = await window(queue)
    assert (full.name, full.utilization, full.resets_at) == ("five_hour", 1, clock() + 3.2 * HOUR)


async def test_refused_credentials_pause_one_account_until_they_are_renewed(queue: Queue, clock: MovedClock) -> None:
    await hire(queue, "a", "b")
    await queue.submit(type="code")
    held = await take(queue)
    await queue.fail(held.token, None, "401 Unauthorized", data={"status": 401})
    found = await account(queue, str(held.account))
    assert (found.state, found.until) == ("refused", None)
    other = await take(queue)
    assert other.account == "b"
    await queue.complete(other.token)
    clock.advance(30 * 86_400)
    assert (await account(queue, "a")).state == "refused"
    assert await queue.accounts.renew("anthropic", "a")
    assert not await queue.accounts.renew("anthropic", "a")
    assert (await account(queue, "a")).state == "available"


async def test_use_before_reset_uses_only_quota_that_would_lapse(queue: Queue, clock: MovedClock) -> None:
    await queue.settings.set("use_before_reset", True, type="backlog")
    await hire(queue, "a")
    await size(queue, "a", 1000)
    await work(queue, 400)
    task = await queue.submit(type="backlog")
    clock.advance(HOUR)  # two fifths are used, one fifth of the time has passed
    assert await queue.claim("worker") == []
    (hold,) = (await queue.explain(task.id)).holds
    assert hold.kind == "use_before_reset"
    clock.advance(2 * HOUR)
    assert (await take(queue)).id == task.id


async def test_other_work_goes_first_whatever_would_lapse(queue: Queue, clock: MovedClock) -> None:
    await queue.settings.set("use_before_reset", True, type="backlog")
    await hire(queue, "a")
    await size(queue, "a", 1000)
    await queue.submit(type="backlog")
    await queue.submit(type="code", priority=90)
    assert (await take(queue)).type == "backlog"  # an account without any use in its window has nothing to lose
    assert (await take(queue)).type == "code"


@pytest.mark.parametrize(("order", "model"), [("listed", "claude-opus-4-1"), ("cheapest", "claude-3-5-haiku-latest")])
async def test_task_chooses_between_its_first_and_its_cheapest_model(queue: Queue, order: str, model: str) -> None:
    named = ["claude-opus-4-1", "claude-sonnet-4-5", "claude-3-5-haiku-latest"]
    await queue.submit(type="code", spec={"constraints": {"model_preferences": named, "model_order": order}})
    assert (await take(queue)).model == model


async def test_setting_chooses_the_cheapest_model_unless_the_task_does(queue: Queue) -> None:
    await queue.settings.set("model_order", "cheapest", type="code")
    named = ["claude-opus-4-1", "claude-3-5-haiku-latest"]
    await queue.submit(type="code", spec={"constraints": {"model_preferences": named}})
    cheapest = await take(queue)
    assert cheapest.model == "claude-3-5-haiku-latest"
    await queue.complete(cheapest.token)
    await queue.submit(type="code", spec={"constraints": {"model_preferences": named, "model_order": "listed"}})
    assert (await take(queue)).model == "claude-opus-4-1"


async def test_task_runs_if_only_a_fallback_or_any_other_model_is_available(queue: Queue) -> None:
    constraints = {"model_preferences": ["opus"], "fallback_models": ["sonnet"]}
    await queue.submit_many(
        [{"type": "code", "payload": {"n": n}, "spec": {"constraints": constraints}} for n in (1, 2)]
    )
    await hire(queue, "a", models_available=["sonnet"])
    assert (await take(queue)).model == "sonnet"
    await queue.cooldowns.set("model:sonnet", 60)
    await hire(queue, "a", models_available=["sonnet", "haiku"])
    assert (await take(queue)).model == "haiku"


async def test_window_of_a_model_pauses_only_that_model(queue: Queue, clock: MovedClock) -> None:
    await hire(queue, "a", models_available=["opus", "sonnet"])
    await report(queue, 1.0, HOUR, name="seven_day_opus", model="opus", status="rejected")
    assert (await account(queue)).state == "available"
    await queue.submit(type="code", spec={"constraints": {"model_preferences": ["opus", "sonnet"]}})
    assert (await take(queue)).model == "sonnet"


async def test_removed_account_is_used_without_windows(queue: Queue) -> None:
    await hire(queue, "a")
    await size(queue, "a", 1)
    await work(queue, 10)
    assert await queue.accounts.remove("anthropic", "a")
    assert not await queue.accounts.remove("anthropic", "a")
    assert (await account(queue)).windows == []
    await work(queue, 10)
    names = [name for event in (await queue.events()).events for name in event.names]
    named = [name for name in names if name.startswith("account.")]
    assert named == ["account.set", "account.used_up", "account.removed"]


@pytest.mark.parametrize(
    ("windows", "where"),
    [
        ([{"name": "fortnight", "unit": "tokens", "capacity": 1}], "windows[0].length_sec"),
        ([{"name": "day", "unit": "tokens", "capacity": 1}] * 2, "windows[1].name"),
    ],
)
async def test_invalid_window_is_refused(queue: Queue, windows: list[dict[str, Any]], where: str) -> None:
    with pytest.raises(InputError) as refused:
        await queue.accounts.set("anthropic", "a", windows=windows)
    assert refused.value.where == where


async def test_several_accounts_need_their_provider(queue: Queue) -> None:
    with pytest.raises(InputError) as refused:
        await queue.agents.register(id="worker", accounts=["a", "b"])
    assert refused.value.where == "agent.provider"


@pytest.mark.parametrize("status", ["allowed", "allowed_warning"])
async def test_full_window_blocks_no_one_while_the_provider_still_serves(queue: Queue, status: str) -> None:
    await hire(queue, "a")
    await report(queue, 1.0, HOUR, status=status)
    assert (await account(queue)).state == "available"
    await queue.submit(type="code")
    assert len(await queue.claim("worker")) == 1


async def test_minute_window_does_not_hide_a_nearly_used_five_hour_window(queue: Queue, clock: MovedClock) -> None:
    await hire(queue, "a", "b")
    sizes = [
        {"name": "minute", "unit": "tokens", "capacity": 900},
        {"name": "five_hour", "unit": "tokens", "capacity": 1000},
    ]
    await queue.accounts.set("anthropic", "a", windows=sizes)
    await size(queue, "b")
    assert await work(queue, 800) == "a"
    clock.advance(HOUR)
    assert await work(queue, 1) == "b"  # the minute of a is whole again, its five hours are not


async def test_minute_window_decides_between_accounts_without_others(queue: Queue) -> None:
    await hire(queue, "a", "b")
    for name in ("a", "b"):
        await queue.accounts.set("anthropic", name, windows=[{"name": "minute", "unit": "tokens", "capacity": 100}])
    assert [await work(queue, 50), await work(queue, 10)] == ["a", "b"]


async def two_agents(queue: Queue, used: int = 800, **more: Any) -> None:
    """Agent `low` has used much of its account, agent `high` nothing; both are claiming."""
    for agent, name in (("low", "a"), ("high", "b")):
        await hire(queue, name, agent=agent, **more)
        await size(queue, name)
    await work(queue, used, agent="low")
    for agent in ("low", "high"):
        assert await queue.claim(agent) == []


async def test_task_waits_briefly_for_an_agent_whose_account_has_more_left(queue: Queue, clock: MovedClock) -> None:
    await two_agents(queue)
    task = await queue.submit(type="code")
    answer = await for_agent(queue.executor, "low", None, Wanted(1))
    assert (answer.assignments, answer.look_again_sec) == ([], PATIENCE)
    (hold,) = (await queue.explain(task.id)).holds
    assert (hold.kind, hold.until) == ("preference", clock() + PATIENCE)
    assert hold.what == f"it is kept for high for some seconds, since their accounts have more left than {KEY}"
    assert (await take(queue, "high")).id == task.id


async def test_any_agent_takes_the_task_when_the_time_is_over(queue: Queue, clock: MovedClock) -> None:
    await two_agents(queue)
    task = await queue.submit(type="code")
    assert await queue.claim("low") == []
    clock.advance(PATIENCE)
    assert (await take(queue, "low")).id == task.id


async def test_urgent_task_takes_any_account(queue: Queue) -> None:
    await two_agents(queue)
    task = await queue.submit(type="code", priority=10)
    assert (await take(queue, "low")).id == task.id


async def test_task_does_not_wait_for_an_account_with_little_more_left(queue: Queue) -> None:
    await two_agents(queue, used=300)
    task = await queue.submit(type="code")
    assert (await take(queue, "low")).id == task.id


async def test_no_more_tasks_wait_than_the_other_agent_has_slots(queue: Queue) -> None:
    await two_agents(queue)
    await queue.agents.register(id="high", provider="anthropic", accounts=["b"], max_concurrent_tasks=1)
    assert await queue.claim("high") == []
    await queue.submit_many([{"type": "code", "payload": {"n": n}} for n in range(3)])
    taken = await take(queue, "low")
    assert taken.payload == {"n": 1}  # the first is kept for the other
    assert (await take(queue, "high")).payload == {"n": 0}
    await queue.complete(taken.token)
    assert (await take(queue, "low")).payload == {"n": 2}


@pytest.mark.parametrize("why", ["resting", "not asking", "other type"])
async def test_task_does_not_wait_for_an_agent_that_would_not_take_it(
    queue: Queue, clock: MovedClock, why: str
) -> None:
    await two_agents(queue)
    if why == "resting":
        await queue.cooldowns.set("provider:anthropic,account:b", HOUR)
    elif why == "not asking":
        clock.advance(120)
        assert await queue.claim("low") == []
    else:
        clock.advance(61)
        assert await queue.claim("high", types=["docs"]) == []
    task = await queue.submit(type="code")
    assert (await take(queue, "low")).id == task.id
