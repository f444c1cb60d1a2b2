"""Agent attributes: registered once and binding, or given with each claim."""

from shiftwork import Queue


async def test_registered_agent_gets_no_unregistered_type(queue: Queue) -> None:
    await queue.submit(type="code")
    await queue.agents.register(id="writer", types=["prose"])
    assert await queue.claim("writer", types=["code"]) == []


async def test_claim_types_narrow_the_registered_types(queue: Queue) -> None:
    await queue.submit_many([{"type": "code"}, {"type": "prose"}])
    await queue.agents.register(id="writer", types=["prose", "code"], max_concurrent_tasks=5)
    assert [task.type for task in await queue.claim("writer", 5, types=["prose"])] == ["prose"]


async def test_unregistered_agent_has_the_types_of_each_claim(queue: Queue) -> None:
    await queue.submit_many([{"type": "code"}, {"type": "prose"}])
    await queue.settings.set("max_concurrent_tasks", 5)
    assert [task.type for task in await queue.claim("anybody", 5, types=["code"])] == ["code"]
    assert [task.type for task in await queue.claim("anybody", 5, types=["prose"])] == ["prose"]
    (agent,) = await queue.agents.list()
    assert agent.types == ["prose"]
