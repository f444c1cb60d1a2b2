"""Agents: announced, free or busy, preferred or not for a retry, and paid for what they spend."""

import asyncio

import pytest

from shiftwork import Queue
from shiftwork.core.errors import AgentUnavailable, LeaseLost
from shiftwork.testing import MovedClock, pass_time
from tests.conformance.steps import finish, take


@pytest.mark.requirement("C-025", "C-026", "C-047", "C-051", "C-126", "C-136")
async def test_a_registered_worker_is_listed_and_gets_work(coscientist: Queue) -> None:
    agent = await coscientist.register_agent(id="worker", capabilities=["ranking"])
    assert (agent.idle, agent.capabilities, agent.heartbeat_interval_sec) == (True, ["ranking"], 30)
    assert await coscientist.claim("worker") == []
    task_id = (await coscientist.submit(type="Ranking")).id
    assert [assignment.id for assignment in await coscientist.claim("worker")] == [task_id]
    (agent,) = await coscientist.agents()
    assert (agent.idle, agent.current_tasks) == (False, 1)


@pytest.mark.requirement("C-027", "C-048", "F-147")
async def test_an_agents_last_sign_of_life_is_shown(coscientist: Queue, clock: MovedClock) -> None:
    await coscientist.register_agent(id="worker")
    clock.advance(20)
    await coscientist.agent_heartbeat("worker")
    (agent,) = await coscientist.agents()
    assert agent.last_heartbeat == clock()


@pytest.mark.requirement("C-029")
async def test_a_worker_has_one_task_at_a_time(coscientist: Queue) -> None:
    await coscientist.submit_many([{"type": "Ranking", "payload": {"n": n}} for n in range(2)])
    first = await take(coscientist)
    answer = await coscientist.claim_answer("worker")
    assert (answer.assignments, answer.at_capacity) == ([], True)
    await coscientist.complete(first.token)
    assert len(await coscientist.claim("worker")) == 1


@pytest.mark.requirement("C-030", "C-240")
async def test_of_a_hundred_workers_one_gets_the_task(coscientist: Queue, clock: MovedClock, store_url: str) -> None:
    await coscientist.submit(type="Ranking")
    async with await Queue.open(store_url, clock=clock) as second:
        handles = [coscientist, second] * 50
        answers = await asyncio.gather(*(queue.claim(f"w{n}") for n, queue in enumerate(handles)))
    assert sum(len(answer) for answer in answers) == 1


@pytest.mark.requirement("C-154", "C-004")
async def test_a_worker_may_leave_and_register_again(coscientist: Queue) -> None:
    await coscientist.register_agent(id="worker", capabilities=["a"])
    await coscientist.set_agent_status("worker", "offline")
    again = await coscientist.register_agent(id="worker", capabilities=["b"])
    assert (again.status, again.capabilities) == ("active", ["b"])
    assert len(await coscientist.agents()) == 1


@pytest.mark.requirement("F-146", "F-220")
@pytest.mark.parametrize("status", ["draining", "offline"])
async def test_an_agent_that_leaves_finishes_and_gets_nothing_new(queue: Queue, status: str) -> None:
    await queue.submit_many([{"type": "code"}] * 2)
    held = await take(queue)
    await queue.set_agent_status("worker", status)
    await queue.complete(held.token)
    with pytest.raises(AgentUnavailable):
        await queue.claim("worker")


@pytest.mark.requirement("C-062", "C-136")
async def test_the_status_counts_busy_idle_and_failed_workers(coscientist: Queue) -> None:
    for name in ("idle-1", "idle-2", "busy", "broken"):
        await coscientist.register_agent(id=name)
    await coscientist.submit(type="Ranking")
    await take(coscientist, "busy")
    await coscientist.set_agent_status("broken", "failed")
    agents = (await coscientist.status()).agents
    assert (agents["active"], agents["idle"], agents["failed"]) == (1, 2, 1)


# -- who gets a retry --------------------------------------------------------------------------------------------


@pytest.mark.requirement("C-172")
async def test_a_retry_prefers_another_worker_where_one_is_free(coscientist: Queue, clock: MovedClock) -> None:
    task_id = (await coscientist.submit(type="Ranking")).id
    await coscientist.fail((await take(coscientist, "first")).token, "network")
    await coscientist.register_agent(id="second")
    await pass_time(coscientist, clock, 8)
    assert await coscientist.claim("first") == []
    assert (await take(coscientist, "second")).id == task_id


@pytest.mark.requirement("C-172")
async def test_a_retry_does_not_wait_for_another_worker(coscientist: Queue, clock: MovedClock) -> None:
    task_id = (await coscientist.submit(type="Ranking")).id
    await coscientist.fail((await take(coscientist, "only")).token, "network")
    await pass_time(coscientist, clock, 8)
    assert (await take(coscientist, "only")).id == task_id


@pytest.mark.requirement("C-245")
async def test_a_retry_avoids_the_failed_workers_group(coscientist: Queue, clock: MovedClock) -> None:
    for name, group in (("a1", "rack-a"), ("a2", "rack-a"), ("b1", "rack-b")):
        await coscientist.register_agent(id=name, isolation_group=group)
    task_id = (await coscientist.submit(type="Ranking")).id
    await coscientist.fail((await take(coscientist, "a1")).token, "network")
    await pass_time(coscientist, clock, 8)
    assert await coscientist.claim("a2") == []
    assert (await take(coscientist, "b1")).id == task_id


@pytest.mark.requirement("C-245")
async def test_the_group_is_no_reason_to_wait_for_ever(coscientist: Queue, clock: MovedClock) -> None:
    for name in ("a1", "a2"):
        await coscientist.register_agent(id=name, isolation_group="rack-a")
    task_id = (await coscientist.submit(type="Ranking")).id
    await coscientist.fail((await take(coscientist, "a1")).token, "network")
    await pass_time(coscientist, clock, 8)
    assert (await take(coscientist, "a2")).id == task_id


# -- money -------------------------------------------------------------------------------------------------------


async def money(queue: Queue, name: str = "worker") -> tuple[float | None, float, float]:
    """What the agent may still spend, has spent, and has set aside."""
    (agent,) = [agent for agent in await queue.agents() if agent.id == name]
    return agent.budget_remaining_usd, agent.spent_usd, agent.granted_usd


@pytest.mark.requirement("F-263", "F-264", "F-266")
async def test_a_claim_sets_money_aside_and_the_end_gives_back_what_was_not_used(queue: Queue) -> None:
    await queue.register_agent(id="worker", budget_remaining_usd=1.0, max_concurrent_tasks=2)
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
    """A claim for which 0.60 of 1.00 dollars are set aside, lost by silence; its token."""
    await queue.register_agent(id="worker", budget_remaining_usd=1.0)
    await queue.submit(type="code", estimated_cost_usd=0.6)
    token = (await take(queue)).token
    await pass_time(queue, clock, 90)
    return token


async def test_a_lost_attempt_is_settled_at_all_that_was_set_aside(queue: Queue, clock: MovedClock) -> None:
    await lose(queue, clock)
    assert await money(queue) == (0.4, 0.6, 0)


@pytest.mark.parametrize("cost", [0.25, 0.75])
async def test_the_late_report_of_a_lost_attempt_corrects_it(queue: Queue, clock: MovedClock, cost: float) -> None:
    token = await lose(queue, clock)
    with pytest.raises(LeaseLost):
        await queue.complete(token, usage={"cost_usd": cost})
    assert await money(queue) == (1 - cost, cost, 0)
    (task,) = (await queue.tasks()).tasks
    assert (task.status, task.cost_usd, task.failure_history[0].cost_usd) == ("retrying", cost, cost)


async def test_a_late_beat_uses_up_what_was_set_aside_before_it_costs_more(queue: Queue, clock: MovedClock) -> None:
    token = await lose(queue, clock)
    await queue.heartbeat(token, usage={"cost_usd": 0.5})
    assert await money(queue) == (0.4, 0.6, 0)
    await queue.heartbeat(token, usage={"cost_usd": 0.25})
    assert await money(queue) == (0.25, 0.75, 0)


async def test_what_was_spent_under_an_old_fence_is_booked_to_its_own_attempt(queue: Queue, clock: MovedClock) -> None:
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


async def test_an_overrun_is_booked_and_closes_the_gate(queue: Queue) -> None:
    await queue.register_agent(id="worker", budget_remaining_usd=1.0)
    await queue.submit_many([{"type": "code", "estimated_cost_usd": 0.5}] * 2)
    await queue.complete((await take(queue)).token, usage={"cost_usd": 1.25})
    assert await money(queue) == (-0.25, 1.25, 0)
    assert await queue.claim("worker") == []
    await queue.set_agent_budget("worker", 0.5)
    await finish(queue)


async def test_runtime_that_fell_silent_reads_offline_in_every_profile(queue: Queue, clock: MovedClock) -> None:
    await queue.runtime_heartbeat("laptop")
    clock.advance(89)
    assert [each["status"] for each in await queue.runtimes()] == ["active"]
    clock.advance(1)
    assert [each["status"] for each in await queue.runtimes()] == ["offline"]
