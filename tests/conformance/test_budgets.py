"""Agent budgets: the cost of a task is granted at the claim and settled at the end."""

import pytest

from shiftwork import Queue
from shiftwork.testing import MovedClock, pass_time
from tests.conformance.steps import take


async def remaining(queue: Queue) -> float | None:
    (agent,) = await queue.agents.list()
    return agent.budget_remaining_usd


async def hire(queue: Queue, budget: float | None) -> None:
    await queue.agents.register(id="worker", max_concurrent_tasks=None, budget_remaining_usd=budget)


@pytest.mark.requirement("F-133", "F-134")
async def test_agent_gets_no_task_above_its_remaining_budget(queue: Queue) -> None:
    await hire(queue, 0.10)
    await queue.submit(type="code", estimated_cost_usd=0.50)
    answer = await queue.claims.request("worker")
    assert (answer.assignments, answer.no_fit) == ([], 1)
    await queue.agents.set_budget("worker", 0.50)
    assert len(await queue.claim("worker")) == 1


@pytest.mark.requirement("F-015", "F-266")
async def test_cost_ceiling_of_task_must_fit_agent_budget(queue: Queue) -> None:
    await hire(queue, 0.40)
    spec = {"constraints": {"max_cost_usd": 0.50}}
    await queue.submit(type="code", spec=spec, estimated_cost_usd=0.10)
    affordable = await queue.submit(type="code", priority=90, estimated_cost_usd=0.40)
    assert (await take(queue)).id == affordable.id
    assert await queue.claim("worker") == []


async def test_agent_without_budget_limit_takes_every_task(queue: Queue) -> None:
    await queue.submit(type="code", estimated_cost_usd=1000)
    await hire(queue, None)
    assert len(await queue.claim("worker")) == 1


async def test_task_without_price_reserves_default_estimate_or_remainder(queue: Queue) -> None:
    await queue.submit_many([{"type": "code"}] * 3)
    await hire(queue, 0.40)
    await queue.claim("worker")
    assert await remaining(queue) == pytest.approx(0.15)
    await queue.claim("worker")
    assert await remaining(queue) == 0
    assert await queue.claim("worker") == []


async def test_task_with_zero_cost_needs_no_budget(queue: Queue) -> None:
    await hire(queue, 0)
    await queue.submit(type="code", estimated_cost_usd=0)
    assert len(await queue.claim("worker")) == 1


@pytest.mark.requirement("F-145")
async def test_spent_budget_is_charged_and_unused_reservation_returned(queue: Queue) -> None:
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


async def test_batch_claim_reserves_budget_for_each_task(queue: Queue) -> None:
    await hire(queue, 1.00)
    await queue.submit_many([{"type": "code", "estimated_cost_usd": 0.40}] * 5)
    assert len(await queue.claim("worker", 5)) == 2
    assert await remaining(queue) == pytest.approx(0.20)


@pytest.mark.parametrize("types", [1, 5])
async def test_expensive_tasks_in_front_do_not_hide_affordable_ones(queue: Queue, types: int) -> None:
    await hire(queue, 1.00)
    await queue.submit_many([{"type": f"type-{n % types}", "priority": 1, "estimated_cost_usd": 5} for n in range(50)])
    cheap = await queue.submit(type="type-0", priority=90, estimated_cost_usd=1)
    assert (await take(queue)).id == cheap.id


async def test_release_returns_the_reserved_budget(queue: Queue) -> None:
    await hire(queue, 1.00)
    await queue.submit(type="code", estimated_cost_usd=0.75)
    token = (await take(queue)).token
    await queue.release(token)
    assert await remaining(queue) == 1.00


async def test_lost_attempt_is_charged_its_reservation_until_it_reports(queue: Queue, clock: MovedClock) -> None:
    await hire(queue, 1.00)
    task_id = (await queue.submit(type="code", estimated_cost_usd=0.75)).id
    token = (await take(queue)).token
    await pass_time(queue, clock, 90)
    assert await remaining(queue) == 0.25
    assert (await queue.heartbeat(token, usage={"cost_usd": 0.40})).action == "lost"
    assert (await queue.get(task_id)).cost_usd == 0.40
    assert await remaining(queue) == 0.25


async def test_overrun_is_charged_and_blocks_the_next_claim(queue: Queue) -> None:
    await hire(queue, 1.00)
    await queue.submit_many([{"type": "code", "estimated_cost_usd": 0.50}] * 2)
    await queue.complete((await take(queue)).token, usage={"cost_usd": 3.00})
    assert await remaining(queue) == -2.00
    assert await queue.claim("worker") == []


@pytest.mark.requirement("F-268")
async def test_dag_reports_its_spent_budget(queue: Queue) -> None:
    made = await queue.submit_dag({"tasks": [{"type": "code"}] * 2, "budget_ceiling_usd": 5})
    await queue.complete((await take(queue)).token, usage={"cost_usd": 0.10})
    await queue.heartbeat((await take(queue)).token, usage={"cost_usd": 0.20})
    dag = await queue.dags.get(made[0].dag_id or "")
    assert (round(dag.spent_usd, 6), dag.budget_ceiling_usd) == (0.30, 5)


async def test_report_of_tokens_alone_costs_the_public_price_of_its_model(queue: Queue) -> None:
    await hire(queue, 10)
    task = await queue.submit(type="code")
    held = await take(queue)
    tokens = {"tokens_in": 1_000_000, "tokens_out": 100_000, "tokens_cached": 400_000, "model": "gpt-5"}
    await queue.heartbeat(held.token, usage=tokens)
    await queue.steps.complete(held.token, "draft", usage={**tokens, "tokens_cached": 0})
    await queue.complete(held.token, usage={**tokens, "cost_usd": 0})
    first, second = 0.6 * 1.25 + 0.4 * 0.125 + 0.1 * 10, 1.25 + 0.1 * 10
    assert (await queue.get(task.id)).cost_usd == pytest.approx(first + second)
    assert await remaining(queue) == pytest.approx(10 - first - second)


@pytest.mark.parametrize("model", [None, "a model of our own"])
async def test_tokens_of_unknown_model_cost_nothing(queue: Queue, model: str | None) -> None:
    task = await queue.submit(type="code")
    await queue.complete((await take(queue)).token, usage={"tokens_in": 1_000_000, "model": model})
    assert (await queue.get(task.id)).cost_usd == 0


async def test_attempt_that_reports_tokens_alone_is_stopped_at_its_cost_limit(queue: Queue) -> None:
    task = await queue.submit(type="code", spec={"constraints": {"max_cost_usd": 1}})
    held = await take(queue)
    await queue.heartbeat(held.token, usage={"tokens_in": 2_000_000, "model": "gpt-5"})
    assert (await queue.get(task.id)).failure_reason == "budget_exceeded"
