"""Money of agents: what a task may cost is granted at the claim and settled at the end."""

import pytest

from shiftwork import Queue
from shiftwork.testing import MovedClock, pass_time
from tests.conformance.steps import take


async def remaining(queue: Queue) -> float | None:
    (agent,) = await queue.agents()
    return agent.budget_remaining_usd


async def hire(queue: Queue, budget: float | None) -> None:
    await queue.register_agent(id="worker", max_concurrent_tasks=None, budget_remaining_usd=budget)


@pytest.mark.requirement("F-133", "F-134")
async def test_an_agent_gets_no_work_that_it_cannot_pay(queue: Queue) -> None:
    await hire(queue, 0.10)
    await queue.submit(type="code", estimated_cost_usd=0.50)
    answer = await queue.claim_answer("worker")
    assert (answer.assignments, answer.no_fit) == ([], 1)
    await queue.set_agent_budget("worker", 0.50)
    assert len(await queue.claim("worker")) == 1


@pytest.mark.requirement("F-015", "F-266")
async def test_the_tasks_own_ceiling_must_be_affordable_too(queue: Queue) -> None:
    await hire(queue, 0.40)
    spec = {"constraints": {"max_cost_usd": 0.50}}
    await queue.submit(type="code", spec=spec, estimated_cost_usd=0.10)
    affordable = await queue.submit(type="code", priority=90, estimated_cost_usd=0.40)
    assert (await take(queue)).id == affordable.id
    assert await queue.claim("worker") == []


async def test_an_agent_without_a_limit_takes_everything(queue: Queue) -> None:
    await queue.submit(type="code", estimated_cost_usd=1000)
    await hire(queue, None)
    assert len(await queue.claim("worker")) == 1


async def test_for_a_task_without_a_price_an_estimate_is_set_aside_or_what_is_left(queue: Queue) -> None:
    await queue.submit_many([{"type": "code"}] * 3)
    await hire(queue, 0.40)
    await queue.claim("worker")
    assert await remaining(queue) == pytest.approx(0.15)
    await queue.claim("worker")
    assert await remaining(queue) == 0
    assert await queue.claim("worker") == []


async def test_a_task_that_costs_nothing_needs_no_money(queue: Queue) -> None:
    await hire(queue, 0)
    await queue.submit(type="code", estimated_cost_usd=0)
    assert len(await queue.claim("worker")) == 1


@pytest.mark.requirement("F-145")
async def test_what_was_spent_is_gone_and_what_was_not_comes_back(queue: Queue) -> None:
    await hire(queue, 45.00)
    await queue.submit_many([{"type": "code", "estimated_cost_usd": 10}] * 2)
    first = await take(queue)
    assert await remaining(queue) == 35.00
    await queue.complete(first.token, usage={"cost_usd": 0.50})
    assert await remaining(queue) == 44.50
    second = await take(queue)
    await queue.heartbeat(second.token, usage={"cost_usd": 1.00})
    await queue.fail(second.token, "crash", usage={"cost_usd": 0.25})
    assert await remaining(queue) == 43.25


async def test_a_claim_of_many_reserves_for_each(queue: Queue) -> None:
    await hire(queue, 1.00)
    await queue.submit_many([{"type": "code", "estimated_cost_usd": 0.40}] * 5)
    assert len(await queue.claim("worker", 5)) == 2
    assert await remaining(queue) == pytest.approx(0.20)


@pytest.mark.parametrize("types", [1, 5])
async def test_dear_work_in_front_does_not_hide_what_is_affordable(queue: Queue, types: int) -> None:
    await hire(queue, 1.00)
    await queue.submit_many([{"type": f"type-{n % types}", "priority": 1, "estimated_cost_usd": 5} for n in range(50)])
    cheap = await queue.submit(type="type-0", priority=90, estimated_cost_usd=1)
    assert (await take(queue)).id == cheap.id


async def test_release_gives_the_money_back(queue: Queue) -> None:
    await hire(queue, 1.00)
    await queue.submit(type="code", estimated_cost_usd=0.75)
    token = (await take(queue)).token
    await queue.release(token)
    assert await remaining(queue) == 1.00


async def test_a_lost_attempt_costs_all_it_might_have_spent_until_it_reports(queue: Queue, clock: MovedClock) -> None:
    await hire(queue, 1.00)
    task_id = (await queue.submit(type="code", estimated_cost_usd=0.75)).id
    token = (await take(queue)).token
    await pass_time(queue, clock, 90)
    assert await remaining(queue) == 0.25
    assert (await queue.heartbeat(token, usage={"cost_usd": 0.40})).action == "lost"
    assert (await queue.get(task_id)).cost_usd == 0.40
    assert await remaining(queue) == 0.25


async def test_an_overrun_is_booked_and_closes_the_gate(queue: Queue) -> None:
    await hire(queue, 1.00)
    await queue.submit_many([{"type": "code", "estimated_cost_usd": 0.50}] * 2)
    await queue.complete((await take(queue)).token, usage={"cost_usd": 3.00})
    assert await remaining(queue) == -2.00
    assert await queue.claim("worker") == []


@pytest.mark.requirement("F-268")
async def test_a_dag_knows_what_it_has_spent(queue: Queue) -> None:
    made = await queue.submit_dag({"tasks": [{"type": "code"}] * 2, "budget_ceiling_usd": 5})
    await queue.complete((await take(queue)).token, usage={"cost_usd": 0.10})
    await queue.heartbeat((await take(queue)).token, usage={"cost_usd": 0.20})
    dag = await queue.dag(made[0].dag_id or "")
    assert (round(dag.spent_usd, 6), dag.budget_ceiling_usd) == (0.30, 5)
