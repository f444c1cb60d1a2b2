"""Who an agent is: announced once and held to it, or as each claim says."""

from shiftwork import Queue


async def test_an_announced_agent_gets_no_type_it_did_not_announce(queue: Queue) -> None:
    await queue.submit(type="code")
    await queue.register_agent(id="writer", types=["prose"])
    assert await queue.claim("writer", types=["code"]) == []


async def test_a_claim_narrows_what_an_agent_announced(queue: Queue) -> None:
    await queue.submit_many([{"type": "code"}, {"type": "prose"}])
    await queue.register_agent(id="writer", types=["prose", "code"], max_concurrent_tasks=5)
    assert [task.type for task in await queue.claim("writer", 5, types=["prose"])] == ["prose"]


async def test_an_agent_that_announced_nothing_is_as_each_claim_says(queue: Queue) -> None:
    await queue.submit_many([{"type": "code"}, {"type": "prose"}])
    await queue.set_setting("max_concurrent_tasks", 5)
    assert [task.type for task in await queue.claim("anybody", 5, types=["code"])] == ["code"]
    assert [task.type for task in await queue.claim("anybody", 5, types=["prose"])] == ["prose"]
    (agent,) = await queue.agents()
    assert agent.types == ["prose"]
