"""Why work waits, summed up: each task is counted once, under what must be lifted first."""

from typing import Any, cast

import pytest

from shiftwork import Queue
from shiftwork.observe.model import Cause
from shiftwork.testing import MovedClock, pass_time
from tests.conformance.steps import submit_dag, take


async def causes(queue: Queue) -> dict[str, Cause]:
    """Return the current causes by kind, without the cached counts of the last seconds."""
    await queue.status(fresh=True)
    found = (await queue.control.blocked()).causes
    assert len({cause.kind for cause in found}) == len(found), found
    return {cause.kind: cause for cause in found}


async def only(queue: Queue) -> Cause:
    (cause,) = (await causes(queue)).values()
    return cause


async def agent(queue: Queue, name: str = "ada", **fields: Any) -> None:
    await queue.agents.register(id=name, **fields)


async def submit(queue: Queue, count: int, **fields: Any) -> None:
    await queue.submit_many([{"type": "code", **fields}] * count)


async def test_empty_queue_has_no_causes(queue: Queue) -> None:
    found = await queue.control.blocked()
    assert (found.running, found.waiting, found.causes, found.is_idle) == (0, 0, [], False)


async def test_running_tasks_are_counted_separately(queue: Queue) -> None:
    await submit(queue, 3)
    await take(queue)
    await queue.status(fresh=True)
    found = await queue.control.blocked()
    assert (found.running, found.waiting, found.is_idle) == (1, 2, False)


async def test_paused_types_and_agents_at_capacity_are_distinguished(queue: Queue) -> None:
    await agent(queue, max_concurrent_tasks=1)
    await submit(queue, 3)
    await submit(queue, 2, type="deploy")
    await take(queue, "ada", types=["code"])
    await queue.as_caller("human:eve").control.pause("deploy", reason="freeze")
    found = await causes(queue)
    assert {kind: (cause.tasks, cause.types) for kind, cause in found.items()} == {
        "capacity": (2, ["code"]),
        "paused": (2, ["deploy"]),
    }
    assert found["paused"].what == "type deploy is paused by human:eve: freeze"
    assert found["paused"].lifts == "resume it"


async def test_cooldown_of_a_provider_names_when_it_ends(queue: Queue, clock: MovedClock) -> None:
    await agent(queue, provider="anthropic")
    await agent(queue, "bea", provider="anthropic")
    await submit(queue, 461)
    await queue.cooldowns.set("provider:anthropic", 600, "429")
    cause = await only(queue)
    assert (cause.kind, cause.tasks, cause.until) == ("cooldown", 461, clock() + 600)
    assert cause.what == "provider:anthropic cools down for everyone: 429"


async def test_cooldown_that_leaves_another_agent_is_no_cause(queue: Queue) -> None:
    await agent(queue, provider="anthropic")
    await agent(queue, "bea", provider="openai")
    await submit(queue, 2)
    await queue.cooldowns.set("provider:anthropic", 600)
    assert (await only(queue)).kind == "in_line"


async def test_open_breaker_is_named_with_its_type(queue: Queue, clock: MovedClock) -> None:
    await agent(queue)
    await submit(queue, 5, type="x")
    await queue.breakers.trip("x")
    cause = await only(queue)
    assert (cause.kind, cause.tasks, cause.types) == ("breaker_open", 5, ["x"])
    assert cause.until is not None
    assert cause.until > clock()


async def test_spent_day_opens_at_midnight(queue: Queue, clock: MovedClock) -> None:
    await agent(queue)
    await queue.settings.set("budget.daily_usd", 1.0)
    await submit(queue, 1, estimated_cost_usd=1.0)
    token = (await take(queue, "ada")).token
    await queue.complete(token, usage={"cost_usd": 1.0})
    await submit(queue, 20, estimated_cost_usd=0.5)
    cause = await only(queue)
    assert (cause.kind, cause.tasks) == ("budget", 20)
    assert cause.what == "the day's budget has too little left for them"
    assert cause.until is not None
    assert (cause.until % 86_400, 0 < cause.until - clock() <= 86_400) == (0, True)


async def test_reached_limit_is_named(queue: Queue) -> None:
    await agent(queue)
    await queue.limits.set("type:code", concurrency=1)
    await submit(queue, 3)
    await take(queue, "ada")
    assert await queue.claim("ada") == []
    cause = await only(queue)
    assert (cause.kind, cause.tasks, cause.what) == ("limit", 2, "the limit of type:code is reached")


async def test_work_without_an_agent_says_what_it_needs(queue: Queue) -> None:
    await agent(queue, types=["other"])
    await submit(queue, 12, type="y", spec={"constraints": {"required_capabilities": ["z"]}})
    cause = await only(queue)
    assert (cause.kind, cause.tasks) == ("no_agent", 12)
    assert cause.what == "no registered agent can take them: they need type y, capability z"


async def test_unavailable_and_silent_agents_are_distinguished(queue: Queue, clock: MovedClock) -> None:
    await agent(queue)
    await submit(queue, 2)
    assert (await only(queue)).kind == "in_line"
    clock.advance(600)
    assert (await only(queue)).kind == "agents_silent"
    await queue.agents.set_status("ada", "draining")
    cause = await only(queue)
    assert cause.kind == "agents_away"
    assert cause.what == "every agent that could take them is draining, offline or failed"


async def test_agent_without_money_is_a_cause(queue: Queue) -> None:
    await agent(queue, budget_remaining_usd=0.1)
    await submit(queue, 2, estimated_cost_usd=5)
    cause = await only(queue)
    assert (cause.kind, cause.what) == ("budget", "no able agent has 5.00 USD left")


async def test_dependencies_name_dead_letters_among_them(queue: Queue) -> None:
    await agent(queue)
    await submit_dag(queue, {"a": [], "b": ["a"], "c": ["a"], "d": ["b", "c"]})
    found = await causes(queue)
    assert (found["dependency"].tasks, found["dependency"].what) == (3, "they wait for other tasks")
    await queue.fail((await take(queue)).token, "crash", retry=False)
    cause = await only(queue)
    assert (cause.kind, cause.tasks) == ("dependency", 3)
    assert cause.what == "they wait for other tasks, 2 of them for dead letters"
    assert cause.lifts.endswith("review dead letters: shiftwork dlq")


async def test_approvals_questions_signals_and_times_are_distinguished(queue: Queue, clock: MovedClock) -> None:
    await queue.settings.set("guards", [{"type": "careful"}])
    await submit(queue, 2, type="careful")
    for terms in ({"question": "Where to?"}, {"signal": "go"}, {"until": clock() + 90}):
        await submit(queue, 1)
        await queue.waits.wait((await take(queue)).token, "first", **cast(dict[str, Any], terms))
    found = await causes(queue)
    assert {kind: cause.tasks for kind, cause in found.items()} == {"approval": 2, "person": 1, "signal": 1, "time": 1}
    assert found["time"].until == clock() + 90


async def test_retries_name_when_the_next_one_is_due(queue: Queue, clock: MovedClock) -> None:
    await queue.settings.change({"retry.strategy": "fixed", "retry.initial_delay_sec": 60, "retry.jitter": False})
    await submit(queue, 2)
    await queue.fail((await take(queue)).token, "crash")
    clock.advance(10)
    await queue.fail((await take(queue)).token, "crash")
    cause = await only(queue)
    assert (cause.kind, cause.tasks, cause.until) == ("retry", 2, clock() + 50)
    await pass_time(queue, clock, 60)
    assert (await only(queue)).kind == "in_line"


async def test_tasks_of_one_serial_key_wait_for_each_other(queue: Queue) -> None:
    await queue.settings.set("serialize_by", "key")
    await submit(queue, 3, serial_key="repo")
    await take(queue)
    assert await queue.claim("other") == []
    found = await causes(queue)
    assert sum(cause.tasks for cause in found.values()) == 2
    assert found["serial"].what == "tasks of the same serial key run before them"


async def test_work_of_other_workspaces_is_not_counted(queue: Queue) -> None:
    other = queue.in_workspace("other")
    await submit(other, 4)
    assert (await queue.control.blocked()).waiting == 0
    assert (await only(other)).tasks == 4


@pytest.mark.parametrize("status", ["completed", "cancelled"])
async def test_ended_tasks_wait_for_nothing(queue: Queue, status: str) -> None:
    await submit(queue, 1)
    held = await take(queue)
    await (queue.complete(held.token) if status == "completed" else queue.cancel(held.id))
    assert await causes(queue) == {}


async def test_sentence_about_a_single_task_is_not_plural(queue: Queue) -> None:
    await queue.settings.set("guards", [{"type": "deploy"}])
    await queue.submit(type="deploy")
    (cause,) = (await queue.control.blocked()).causes
    assert (cause.tasks, cause.what) == (1, "a person must approve it first")
