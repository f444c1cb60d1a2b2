"""Agents: registration, capacity, preference for retries, and budgets."""

import asyncio

import pytest

from shiftwork import Queue
from shiftwork.agents.model import AgentStatus
from shiftwork.model.errors import AgentUnavailable, LeaseLost
from shiftwork.testing import MovedClock, pass_time
from tests.conformance.steps import finish, take


@pytest.mark.requirement("C-025", "C-026", "C-047", "C-051", "C-126", "C-136")
async def test_registered_worker_is_listed_and_gets_work(coscientist: Queue) -> None:
    agent = await coscientist.agents.register(id="worker", capabilities=["ranking"])
    assert (agent.idle, agent.capabilities, agent.heartbeat_interval_sec) == (True, ["ranking"], 30)
    assert await coscientist.claim("worker") == []
    task_id = (await coscientist.submit(type="Ranking")).id
    assert [assignment.id for assignment in await coscientist.claim("worker")] == [task_id]
    (agent,) = await coscientist.agents.list()
    assert (agent.idle, agent.current_tasks) == (False, 1)


@pytest.mark.requirement("C-027", "C-048", "F-147")
async def test_agent_heartbeat_updates_last_heartbeat(coscientist: Queue, clock: MovedClock) -> None:
    await coscientist.agents.register(id="worker")
    clock.advance(20)
    await coscientist.agents.heartbeat("worker")
    (agent,) = await coscientist.agents.list()
    assert agent.last_heartbeat == clock()


@pytest.mark.requirement("C-029")
async def test_worker_at_capacity_gets_no_second_task(coscientist: Queue) -> None:
    await coscientist.submit_many([{"type": "Ranking", "payload": {"n": n}} for n in range(2)])
    first = await take(coscientist)
    answer = await coscientist.claims.request("worker")
    assert (answer.assignments, answer.at_capacity) == ([], True)
    await coscientist.complete(first.token)
    assert len(await coscientist.claim("worker")) == 1


@pytest.mark.requirement("C-030", "C-240")
async def test_only_one_of_a_hundred_workers_gets_the_task(
    coscientist: Queue, clock: MovedClock, store_url: str
) -> None:
    await coscientist.submit(type="Ranking")
    async with Queue.open(store_url, clock=clock) as second:
        handles = [coscientist, second] * 50
        answers = await asyncio.gather(*(queue.claim(f"w{n}") for n, queue in enumerate(handles)))
    assert sum(len(answer) for answer in answers) == 1


@pytest.mark.requirement("C-154", "C-004")
async def test_offline_worker_can_register_again(coscientist: Queue) -> None:
    await coscientist.agents.register(id="worker", capabilities=["a"])
    await coscientist.agents.set_status("worker", "offline")
    again = await coscientist.agents.register(id="worker", capabilities=["b"])
    assert (again.status, again.capabilities) == ("active", ["b"])
    assert len(await coscientist.agents.list()) == 1


@pytest.mark.requirement("F-146", "F-220")
@pytest.mark.parametrize("status", ["draining", "offline"])
async def test_leaving_agent_finishes_its_task_and_gets_nothing_new(queue: Queue, status: AgentStatus) -> None:
    await queue.submit_many([{"type": "code"}] * 2)
    held = await take(queue)
    await queue.agents.set_status("worker", status)
    await queue.complete(held.token)
    with pytest.raises(AgentUnavailable):
        await queue.claim("worker")


@pytest.mark.requirement("C-062", "C-136")
async def test_status_counts_busy_idle_and_failed_workers(coscientist: Queue) -> None:
    for name in ("idle-1", "idle-2", "busy", "broken"):
        await coscientist.agents.register(id=name)
    await coscientist.submit(type="Ranking")
    await take(coscientist, "busy")
    await coscientist.agents.set_status("broken", "failed")
    agents = (await coscientist.status()).agents
    assert (agents["active"], agents["idle"], agents["failed"]) == (1, 2, 1)


@pytest.mark.requirement("C-172")
async def test_retry_prefers_another_worker_when_one_is_idle(coscientist: Queue, clock: MovedClock) -> None:
    task_id = (await coscientist.submit(type="Ranking")).id
    await coscientist.fail((await take(coscientist, "first")).token, "network")
    await coscientist.agents.register(id="second")
    await pass_time(coscientist, clock, 8)
    assert await coscientist.claim("first") == []
    assert (await take(coscientist, "second")).id == task_id


@pytest.mark.requirement("C-172")
async def test_retry_goes_to_same_worker_when_it_is_the_only_one(coscientist: Queue, clock: MovedClock) -> None:
    task_id = (await coscientist.submit(type="Ranking")).id
    await coscientist.fail((await take(coscientist, "only")).token, "network")
    await pass_time(coscientist, clock, 8)
    assert (await take(coscientist, "only")).id == task_id


@pytest.mark.requirement("C-245")
async def test_retry_avoids_isolation_group_of_the_failed_worker(coscientist: Queue, clock: MovedClock) -> None:
    for name, group in (("a1", "rack-a"), ("a2", "rack-a"), ("b1", "rack-b")):
        await coscientist.agents.register(id=name, isolation_group=group)
    task_id = (await coscientist.submit(type="Ranking")).id
    await coscientist.fail((await take(coscientist, "a1")).token, "network")
    await pass_time(coscientist, clock, 8)
    assert await coscientist.claim("a2") == []
    assert (await take(coscientist, "b1")).id == task_id


@pytest.mark.requirement("C-245")
async def test_retry_goes_to_same_group_when_no_other_group_exists(coscientist: Queue, clock: MovedClock) -> None:
    for name in ("a1", "a2"):
        await coscientist.agents.register(id=name, isolation_group="rack-a")
    task_id = (await coscientist.submit(type="Ranking")).id
    await coscientist.fail((await take(coscientist, "a1")).token, "network")
    await pass_time(coscientist, clock, 8)
    assert (await take(coscientist, "a2")).id == task_id


async def money(queue: Queue, name: str = "worker") -> tuple[float | None, float, float]:
    """Return the agent's remaining, spent and granted money."""
    (agent,) = [agent for agent in await queue.agents.list() if agent.id == name]
    return agent.budget_remaining_usd, agent.spent_usd, agent.granted_usd


@pytest.mark.requirement("F-263", "F-264", "F-266")
async def test_claim_reserves_budget_and_completion_returns_the_unused_part(queue: Queue) -> None:
    await queue.agents.register(id="worker", budget_remaining_usd=1.0, max_concurrent_tasks=2)
    first = (await queue.submit(type="code", estimated_cost_usd=0.6)).id
    await queue.submit(type="code", spec={"constraints": {"max_cost_usd": 0.6}})
    (held,) = await queue.claim("worker", 2, start=True)
    assert await money(queue) == (0.4, 0, 0.6)
    await queue.heartbeat(held.token, usage={"cost_usd": 0.1})
    await queue.complete(held.token, usage={"cost_usd": 0.2, "tokens_in": 30, "tokens_out": 4})
    task = await queue.get(first)
    assert (task.cost_usd, task.tokens_used) == (0.3, {"input": 30, "output": 4})
    assert await money(queue) == (0.7, 0.3, 0)
    assert len(await queue.claim("worker")) == 1


async def lose(queue: Queue, clock: MovedClock) -> str:
    """Lose a claim with a grant of 0.60 of 1.00 dollars by silence; return its token."""
    await queue.agents.register(id="worker", budget_remaining_usd=1.0)
    await queue.submit(type="code", estimated_cost_usd=0.6)
    token = (await take(queue)).token
    await pass_time(queue, clock, 90)
    return token


async def test_lost_attempt_is_charged_its_whole_reservation(queue: Queue, clock: MovedClock) -> None:
    await lose(queue, clock)
    assert await money(queue) == (0.4, 0.6, 0)


@pytest.mark.parametrize("cost", [0.25, 0.75])
async def test_late_report_of_lost_attempt_corrects_its_cost(queue: Queue, clock: MovedClock, cost: float) -> None:
    token = await lose(queue, clock)
    with pytest.raises(LeaseLost):
        await queue.complete(token, usage={"cost_usd": cost})
    assert await money(queue) == (1 - cost, cost, 0)
    (task,) = (await queue.tasks.list()).tasks
    assert (task.status, task.cost_usd, task.failure_history[0].cost_usd) == ("retrying", cost, cost)


async def test_late_heartbeat_usage_is_taken_from_the_reservation_first(queue: Queue, clock: MovedClock) -> None:
    token = await lose(queue, clock)
    await queue.heartbeat(token, usage={"cost_usd": 0.5})
    assert await money(queue) == (0.4, 0.6, 0)
    await queue.heartbeat(token, usage={"cost_usd": 0.25})
    assert await money(queue) == (0.25, 0.75, 0)


async def test_usage_under_an_old_fence_is_charged_to_its_own_attempt(queue: Queue, clock: MovedClock) -> None:
    task_id = (await queue.submit(type="code")).id
    zombie = await take(queue, "zombie")
    await pass_time(queue, clock, 90)
    await pass_time(queue, clock, 15)
    fresh = await take(queue, "fresh")
    with pytest.raises(LeaseLost):
        await queue.fail(zombie.token, "crash", usage={"cost_usd": 0.5, "tokens_out": 7})
    await queue.complete(fresh.token, usage={"cost_usd": 0.25})
    task = await queue.get(task_id)
    assert (task.cost_usd, task.tokens_used["output"]) == (0.75, 7)
    assert [failure.cost_usd for failure in task.failure_history] == [0.5]
    assert await money(queue, "zombie") == (None, 0.5, 0)
    assert await money(queue, "fresh") == (None, 0.25, 0)


async def test_overrun_is_charged_and_blocks_the_next_claim(queue: Queue) -> None:
    await queue.agents.register(id="worker", budget_remaining_usd=1.0)
    await queue.submit_many([{"type": "code", "estimated_cost_usd": 0.5}] * 2)
    await queue.complete((await take(queue)).token, usage={"cost_usd": 1.25})
    assert await money(queue) == (-0.25, 1.25, 0)
    assert await queue.claim("worker") == []
    await queue.agents.set_budget("worker", 0.5)
    await finish(queue)


async def test_runtime_silent_for_90_seconds_is_offline_in_every_profile(queue: Queue, clock: MovedClock) -> None:
    await queue.runtimes.heartbeat("laptop")
    clock.advance(89)
    assert [each.status for each in await queue.runtimes.list()] == ["active"]
    clock.advance(1)
    assert [each.status for each in await queue.runtimes.list()] == ["offline"]
