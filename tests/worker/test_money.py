"""Usage of handlers: charged with its model, and stopped when the budget is exhausted."""

from shiftwork import Queue
from shiftwork.worker import Context, Worker


async def test_handler_over_its_cost_limit_is_stopped(shop: Queue, store_url: str) -> None:
    worker = Worker()
    seen: list[bool] = []

    @worker.handler("dear")
    async def dear(ctx: Context) -> str:
        for _ in range(2):
            ctx.spent(cost_usd=0.30)
            await ctx.book_usage()
            seen.append(ctx.cancelled)
        return "too late"

    task = await shop.submit(type="dear", spec={"constraints": {"max_cost_usd": 0.50}})
    await worker.run(store_url, until_idle=True)
    assert seen == [False, True]
    found = await shop.get(task.id)
    assert (found.status, found.failure_reason, found.cost_usd) == ("dead_lettered", "budget_exceeded", 0.60)


async def test_costs_of_different_models_are_charged_separately(shop: Queue, store_url: str) -> None:
    worker = Worker()

    @worker.handler("mixed")
    async def mixed(ctx: Context) -> None:
        ctx.spent(cost_usd=0.10, model="large")
        await ctx.book_usage()
        ctx.spent(cost_usd=0.02, model="small")
        ctx.spent(cost_usd=0.03, model="small")

    await shop.submit(type="mixed")
    await worker.run(store_url, until_idle=True)
    assert {cost.value: cost.cost_usd for cost in (await shop.budgets.costs("model")).costs} == {
        "large": 0.10,
        "small": 0.05,
    }
