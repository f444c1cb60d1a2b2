"""Concurrent claims for the last dollar and concurrent reports: nothing is overspent, and no grant leaks."""

import asyncio
import random

import pytest

from shiftwork import Queue
from shiftwork.budgets import operations as budgets
from shiftwork.budgets.backfill import SETTLED_SEC
from shiftwork.model.errors import LeaseLost
from shiftwork.testing import MovedClock
from tests.conformance.steps import sql, submit_dag, take
from tests.money import check_books, check_ceilings, granted
from tests.races.fleet import Stop, handles, hire, together, until_blocked


async def one_dag(queue: Queue, tasks: int, ceiling: float, price: float | None = 0.10, types: int = 1) -> str:
    named = [{"type": f"type-{n % types}"} for n in range(tasks)]
    made = await queue.submit_dag(
        {
            "tasks": [task if price is None else {**task, "estimated_cost_usd": price} for task in named],
            "budget_ceiling_usd": ceiling,
        }
    )
    return made[0].dag_id or ""


@pytest.mark.parametrize("types", [1, 4])
async def test_twenty_claimers_of_five_grants_get_five(store_url: str, types: int) -> None:
    async with handles(store_url, 4) as queues:
        await one_dag(queues[0], 20, 0.50, types=types)
        answers = await together(*(queues[i % 4].claim(f"agent-{i}", 5) for i in range(20)))
        while len(won := [task for answer in answers for task in answer]) < 5:  # met others at every budget they tried
            answers += await together(*(queues[i % 4].claim(f"late-{len(won)}-{i}", 5) for i in range(4)))
        assert len(won) == 5
        await check_books(queues[0])
        await check_ceilings(queues[0])


async def test_last_cents_of_the_daily_budget_go_to_one_claim(store_url: str) -> None:
    async with handles(store_url, 4) as queues:
        await queues[0].budgets.set("day", None, ceiling_usd=0.30)
        for queue in queues:
            queue.engine.settings_cache.forget("default")
        await queues[0].submit_many([{"type": "code"}] * 16)
        answers = await together(*(queues[i % 4].claim(f"agent-{i}") for i in range(16)))
        assert sum(len(answer) for answer in answers) == 2
        (day,) = await queues[0].budgets.list("day")
        assert (day.granted_usd, day.remaining_usd) == (0.30, 0)
        await check_books(queues[0])


async def test_concurrent_workers_spend_at_most_the_ceiling(store_url: str) -> None:
    """Each attempt uses half of its grant: the rest is granted again, until less than a grant is left."""
    async with handles(store_url, 4) as queues:
        await hire(queues[0], *(f"agent-{number}" for number in range(8)))
        await one_dag(queues[0], 60, 1.00)
        await together(*(work(queues[i % 4], f"agent-{i}") for i in range(8)))
        (dag,) = await queues[0].budgets.list("dag")
        assert (dag.spent_usd, dag.granted_usd) == pytest.approx((0.95, 0))
        await check_books(queues[0])


async def work(queue: Queue, agent: str) -> None:
    """Work until the budget is spent and no running attempt could release a grant."""
    while True:
        claims = await queue.claim(agent, 2, start=True)
        for claim in claims:
            await queue.heartbeat(claim.token, usage={"cost_usd": 0.02})
            await queue.complete(claim.token, usage={"cost_usd": 0.03})
            await check_ceilings(queue)
        if not claims and not await granted(queue):
            return
        await asyncio.sleep(0)


async def test_concurrent_reports_of_one_attempt_are_all_charged(store_url: str) -> None:
    """From the claim holder, from its steps, and late from one that lost its lease."""
    async with handles(store_url, 4) as queues:
        await one_dag(queues[0], 1, 10.00, price=5.00)
        (claim,) = await queues[0].claim("agent", start=True)
        reports = [queues[i % 4].heartbeat(claim.token, usage={"cost_usd": 0.01}) for i in range(40)]
        await together(*reports, queues[1].release(claim.token))
        (task,) = (await queues[0].tasks.list()).tasks
        assert task.cost_usd == pytest.approx(0.40)
        await check_books(queues[0])


async def test_ceiling_set_while_the_dag_runs_counts_everything(store_url: str) -> None:
    chance = random.Random(7)
    async with handles(store_url, 4) as queues:
        await hire(queues[0], *(f"agent-{number}" for number in range(6)))
        made = await queues[0].submit_dag({"tasks": [{"type": "code", "estimated_cost_usd": 0.10}] * 120})
        dag_id = made[0].dag_id or ""
        await together(
            *(work_on(queues[i % 4], f"agent-{i}", chance) for i in range(6)),
            queues[3].budgets.set("dag", dag_id, ceiling_usd=1000),
        )
        (dag,) = await queues[0].budgets.list("dag")
        assert (dag.spent_usd, dag.granted_usd) == pytest.approx((120 * 0.05, 0))
        await check_books(queues[0])


async def work_on(queue: Queue, agent: str, chance: random.Random) -> None:
    while claims := await queue.claim(agent, 3, start=True):
        for claim in claims:
            if chance.random() < 0.5:
                await queue.heartbeat(claim.token, usage={"cost_usd": 0.01})
                await queue.complete(claim.token, usage={"cost_usd": 0.04})
            else:
                await queue.complete(claim.token, usage={"cost_usd": 0.05})


async def test_attempt_stopped_while_completing_ends_once(store_url: str) -> None:
    async with handles(store_url, 2) as queues:
        for _ in range(10):
            task = await queues[0].submit(type="code", spec={"constraints": {"max_cost_usd": 0.10}})
            (claim,) = await queues[0].claim("agent", start=True)
            await asyncio.gather(
                queues[0].heartbeat(claim.token, usage={"cost_usd": 0.20}),
                queues[1].complete(claim.token, usage={"cost_usd": 0.01}),
                return_exceptions=True,
            )
            found = await queues[0].get(task.id)
            assert found.status in {"completed", "dead_lettered"}
            assert found.cost_usd == pytest.approx(0.21)
            with pytest.raises(LeaseLost):
                await queues[0].release(claim.token)
        await check_books(queues[0])


async def test_waiting_claim_gets_task_behind_an_exhausted_dag(store_url: str) -> None:
    async with Queue.open(store_url) as queue:
        await one_dag(queue, 4000, 0)
        behind = await queue.submit(type="type-0", priority=99)
        (claim,) = await queue.claim("agent", wait=25)
        assert claim.id == behind.id


async def maintain(queue: Queue) -> dict[str, int]:
    """Run only the maintenance job."""
    return await queue.engine.store.run(lambda tx: budgets.maintain(tx, queue.engine))


async def test_task_held_while_budget_opens_is_released_later(postgres_url: str) -> None:
    async with handles(postgres_url, 3) as (job, claimer, other):
        tasks = [{"type": name, "estimated_cost_usd": 0.90} for name in ("first", "second")]
        dag_id = (await other.submit_dag({"tasks": tasks, "budget_ceiling_usd": 1.00}))[0].dag_id or ""
        first = await take(other, "one", types=["first"])
        assert await other.claim("two", types=["second"]) == []
        await other.budgets.set("dag", dag_id, ceiling_usd=2.00)
        await other.budgets.set("dag", dag_id, ceiling_usd=1.00)  # closed still, and nothing is held

        stop = Stop(claimer, "hold_under")
        claiming = asyncio.create_task(claimer.claim("two", types=["second"]))
        await stop.wait()
        turn = asyncio.create_task(maintain(job))
        await until_blocked(other)
        stop.resume()
        assert await claiming == []
        assert await turn == {}, "it is not open: the claim has held a task back"

        await other.complete(first.token)
        await maintain(job)
        assert len(await other.claim("two", types=["second"])) == 1


async def test_retry_created_while_budget_is_counted_is_charged(postgres_url: str) -> None:
    async with handles(postgres_url, 2) as (worker, other):
        await worker.settings.set("retry.mode", "new_task")
        await worker.settings.set("retry.strategy", "immediate")
        made = await submit_dag(worker, {"a": [], "b": ["a"]})
        dag_id = (await worker.get(made["a"])).dag_id or ""
        first = await take(worker, "one")
        stop = Stop(worker, "copy_steps")
        failing = asyncio.create_task(worker.fail(first.token, "crash", usage={"cost_usd": 0.02}))
        await stop.wait()
        setting = asyncio.create_task(other.budgets.set("dag", dag_id, ceiling_usd=0.10))
        await until_blocked(other)
        stop.resume()
        await failing
        assert (await setting).spent_usd == 0.02
        assert await sql(other, "select count(*) as n from tasks where budget_id is null") == [{"n": 0}]
        again = await take(worker, "two")
        await worker.complete(again.token, usage={"cost_usd": 0.07})
        (dag,) = await other.budgets.list("dag")
        assert (dag.spent_usd, dag.remaining_usd) == pytest.approx((0.09, 0.01))
        await check_books(other)


async def test_claim_concurrent_with_a_new_budget_is_charged_to_it(postgres_url: str) -> None:
    async with handles(postgres_url, 2) as (worker, other):
        tasks = [{"type": "root", "tree_budget_usd": 5.00}, {"type": "other"}]
        dag_id = (await worker.submit_dag({"tasks": tasks}))[0].dag_id or ""
        stop = Stop(worker, "lock_budgets")
        claiming = asyncio.create_task(worker.claim("one", types=["root"]))
        await stop.wait()
        setting = asyncio.create_task(other.budgets.set("dag", dag_id, ceiling_usd=1.00))
        await until_blocked(other)  # the budget is there; now the DAG's tasks are counted in
        stop.resume()
        assert len(await claiming) == 1
        found = await setting
        assert (found.granted_usd, found.remaining_usd) == (0.25, 0.75)
        await check_books(other)


async def test_claims_before_a_daily_limit_is_seen_are_counted(store_url: str) -> None:
    """Settings are read once a second: until then, others claim and end tasks without charging them to the day."""
    clock = MovedClock()
    async with handles(store_url, 2, clock=clock) as (setter, other):
        await other.submit_many([{"type": "code"}] * 3)
        await take(other, "first")
        await setter.budgets.set("day", None, ceiling_usd=10.00)
        await other.complete((await take(other, "second")).token, usage={"cost_usd": 0.40})
        running = await take(other, "third")
        await other.heartbeat(running.token, usage={"cost_usd": 0.10})
        await maintain(setter)
        (day,) = await setter.budgets.list("day")
        assert day.granted_usd == pytest.approx(0.25 + 0.15)
        clock.advance(SETTLED_SEC)
        await maintain(setter)
        (day,) = await setter.budgets.list("day")
        assert (day.spent_usd, day.granted_usd) == pytest.approx((0.50, 0.25 + 0.15))
        await other.complete(running.token, usage={"cost_usd": 0.20})
        (day,) = await setter.budgets.list("day")
        assert (day.spent_usd, day.granted_usd) == pytest.approx((0.70, 0.25))
        await check_books(setter)


async def test_daily_limit_set_while_workers_run_counts_everything(store_url: str) -> None:
    chance, clock = random.Random(11), MovedClock()
    async with handles(store_url, 4, clock=clock) as queues:
        await hire(queues[0], *(f"agent-{number}" for number in range(6)))
        await queues[0].submit_many([{"type": "code", "estimated_cost_usd": 0.10}] * 120)
        await together(
            *(work_on(queues[i % 4], f"agent-{i}", chance) for i in range(6)),
            queues[3].budgets.set("day", None, ceiling_usd=1000),
        )
        clock.advance(SETTLED_SEC)
        await maintain(queues[0])
        (day,) = await queues[0].budgets.list("day")
        assert (day.spent_usd, day.granted_usd) == pytest.approx((120 * 0.05, 0))
        await check_books(queues[0])
