"""Features of a queue for agents: costs, capabilities, fallback models and poison pills."""

import pytest

from shiftwork import Queue
from shiftwork.testing import MovedClock, pass_time


@pytest.mark.requirement("F-249")
async def test_costs_capabilities_fallback_models_and_poison_pills_are_handled_by_queue(
    queue: Queue, clock: MovedClock
) -> None:
    constraints = {
        "max_cost_usd": 1.00,
        "required_capabilities": ["python"],
        "model_preferences": ["large"],
        "fallback_models": ["small"],
    }
    task = await queue.submit(type="code", spec={"constraints": constraints}, max_attempts=9)
    await queue.agents.register(id="unable", models_available=["large"])
    await queue.agents.register(
        id="poor", capabilities=["python"], models_available=["large"], budget_remaining_usd=0.5
    )
    await queue.agents.register(id="one", capabilities=["python"], models_available=["large"], budget_remaining_usd=9)
    await queue.agents.register(id="two", capabilities=["python"], models_available=["small"])
    assert [await queue.claim(agent) for agent in ("unable", "poor", "two")] == [[], [], []]
    for _ in range(2):
        (claim,) = await queue.claim("one", start=True)
        await queue.fail(claim.token, "crash", usage={"cost_usd": 0.25})
        await pass_time(queue, clock, 3600)
    assert (await queue.agents.get("one")).budget_remaining_usd == 8.50
    (claim,) = await queue.claim("two", start=True)
    await queue.fail(claim.token, "crash", usage={"cost_usd": 0.25})
    found = await queue.get(task.id)
    assert (found.status, found.poison_pill, found.cost_usd) == ("dead_lettered", True, 0.75)
