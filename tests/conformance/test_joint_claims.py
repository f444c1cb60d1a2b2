"""Concurrent claims share one transaction; each keeps its own limits, errors and caller."""

import asyncio
import functools
from collections.abc import Sequence
from typing import Any

import pytest

from shiftwork import Assignment, Queue
from shiftwork.model.errors import AgentUnavailable, AgentUnregistered
from shiftwork.testing import MovedClock, pass_time
from tests.conformance.steps import take


@pytest.fixture
def transactions(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the agents' verbs, one name per transaction, without background work of the queue."""
    store, begun = queue.engine.store, list[str]()
    run = store.run

    async def counted(verb: Any) -> Any:
        if isinstance(verb, functools.partial) and verb.args and callable(verb.args[0]):
            begun.append(verb.args[0].__name__)
        return await run(verb)

    monkeypatch.setattr(store, "run", counted)
    return begun


async def claim_at_once(queue: Queue, agents: Sequence[str], **options: Any) -> list[list[Assignment]]:
    return list(await asyncio.gather(*(queue.claim(agent, start=True, **options) for agent in agents)))


async def learn(queue: Queue, agents: Sequence[str]) -> None:
    """Let the queue cache these agents, its settings and its lanes."""
    await queue.submit(type="code")
    await queue.complete((await take(queue, agents[0])).token)
    await claim_at_once(queue, agents)


AGENTS = [f"agent-{number:02}" for number in range(30)]


async def test_claims_of_many_agents_are_one_transaction(queue: Queue, transactions: list[str]) -> None:
    await learn(queue, AGENTS)
    made = await queue.submit_many([{"type": "code", "priority": n} for n in range(30)])
    transactions.clear()
    claimed = await claim_at_once(queue, AGENTS)
    assert transactions == ["claim_together"]
    assert [len(each) for each in claimed] == [1] * 30
    assert [each[0].id for each in claimed] == [task.id for task in made]
    held = await queue.batch.get([task.id for task in made])
    assert [task.claim.agent_id for task in held] == AGENTS
    assert {task.status for task in held} == {"running"}


async def test_joint_claim_registers_new_agents(queue: Queue) -> None:
    await queue.submit_many([{"type": "code"}] * 3)
    claimed = await claim_at_once(queue, AGENTS[:5], types=["code"], runtime_id="host")
    assert sorted(len(each) for each in claimed) == [0, 0, 1, 1, 1]
    assert {agent.id for agent in await queue.agents.list()} == set(AGENTS[:5])
    assert [runtime.id for runtime in await queue.runtimes.list()] == ["host"]


async def test_joint_claims_of_one_agent_share_its_slots(queue: Queue) -> None:
    await queue.agents.register(id="ada", max_concurrent_tasks=3)
    await queue.agents.register(id="bob", max_concurrent_tasks=1)
    await queue.submit_many([{"type": "code"}] * 10)
    claimed = await claim_at_once(queue, ["ada", "ada", "bob", "ada", "bob"], count=2)
    of_ada, of_bob = sum(len(claimed[place]) for place in (0, 1, 3)), sum(len(claimed[place]) for place in (2, 4))
    assert (of_ada, of_bob) == (3, 1)
    assert len({task.id for each in claimed for task in each}) == 4


async def test_joint_claims_deal_the_best_tasks_in_turn(queue: Queue) -> None:
    for agent in AGENTS[:3]:
        await queue.agents.register(id=agent, max_concurrent_tasks=2)
    made = await queue.submit_many([{"type": "code", "priority": n} for n in range(9)])
    places = {task.id: place for place, task in enumerate(made)}
    claimed = await claim_at_once(queue, AGENTS[:3], count=2)
    assert [[places[task.id] for task in each] for each in claimed] == [[0, 3], [1, 4], [2, 5]]


async def test_joint_claim_serves_agents_of_different_types(queue: Queue) -> None:
    await queue.settings.set("max_concurrent_tasks", 4)
    await queue.submit_many([{"type": kind} for kind in ("code", "review", "code", "docs")])
    coders, reviewers, all_types = (
        queue.claim("ada", 2, types=["code"]),
        queue.claim("bob", 2, types=["review"]),
        queue.claim("cyd", 4),
    )
    claimed = await asyncio.gather(coders, reviewers, all_types)
    kinds = [sorted(task.type for task in each) for each in claimed]
    assert sorted(kind for each in kinds for kind in each) == ["code", "code", "docs", "review"]
    assert set(kinds[0]) <= {"code"}
    assert set(kinds[1]) <= {"review"}
    assert "docs" in kinds[2]


async def test_retried_task_is_not_passed_over_by_joint_claims(queue: Queue, clock: MovedClock) -> None:
    await queue.settings.change({"retry.agent_preference": "different", "max_concurrent_tasks": 5})
    await learn(queue, AGENTS)
    urgent = await queue.submit(type="code", priority=0)
    await queue.fail((await take(queue, "agent-00")).token, "crash")
    await pass_time(queue, clock, 3600)
    await queue.submit_many([{"type": "code", "priority": 90}] * 100)
    claimed = await claim_at_once(queue, AGENTS[1:], count=3)
    assert urgent.id in {task.id for each in claimed for task in each}


async def test_refusal_of_one_agent_does_not_affect_the_other_claims(queue: Queue) -> None:
    await queue.settings.set("require_registration", True)
    for agent in ("ada", "bob"):
        await queue.agents.register(id=agent)
    await queue.agents.set_status("bob", "draining")
    await queue.submit_many([{"type": "code"}] * 3)
    claims = (queue.claim(agent) for agent in ("ada", "bob", "stranger"))
    claimed = await asyncio.gather(*claims, return_exceptions=True)
    assert not isinstance(claimed[0], BaseException)
    assert len(claimed[0]) == 1
    assert isinstance(claimed[1], AgentUnavailable)
    assert isinstance(claimed[2], AgentUnregistered)


@pytest.mark.parametrize("daily", [False, True])
async def test_joint_claims_grant_no_more_than_the_budget(queue: Queue, *, daily: bool) -> None:
    for agent in AGENTS[:6]:
        await queue.agents.register(id=agent, max_concurrent_tasks=5, budget_remaining_usd=None if daily else 1.0)
    if daily:
        await queue.settings.set("budget.daily_usd", 2.0)
    await queue.submit_many([{"type": "code", "estimated_cost_usd": 1.0}] * 20)
    claimed = await claim_at_once(queue, AGENTS[:6], count=2)
    assert sum(len(each) for each in claimed) == (2 if daily else 6)


async def test_joint_claims_respect_a_limit(queue: Queue) -> None:
    await queue.limits.set("type:code", concurrency=4)
    await queue.submit_many([{"type": "code"}] * 20)
    claimed = await claim_at_once(queue, AGENTS)
    assert sum(len(each) for each in claimed) == 4


async def test_joint_claims_hand_out_nothing_of_a_paused_queue(queue: Queue) -> None:
    await learn(queue, AGENTS)
    await queue.submit_many([{"type": "code"}] * 5)
    await queue.control.pause(reason="upgrade")
    answers = await asyncio.gather(*(queue.claims.request(agent) for agent in AGENTS[:5]))
    assert [answer.assignments for answer in answers] == [[]] * 5
    assert {answer.closed[0].gate for answer in answers} == {"paused"}


async def test_each_joint_claim_is_written_under_its_own_request(queue: Queue) -> None:
    await learn(queue, AGENTS[:3])
    await queue.submit_many([{"type": "code"}] * 3)
    callers = [queue.as_caller("system", f"request-{agent}") for agent in AGENTS[:3]]
    claims = [caller.claim(agent) for caller, agent in zip(callers, AGENTS, strict=False)]
    claimed = [task for (task,) in await asyncio.gather(*claims)]
    events = {event.task_id: event for event in (await queue.events(limit=1000)).events if event.verb == "claimed"}
    written = [(events[task.id].actor, events[task.id].request_id) for task in claimed]
    assert written == [(f"agent:{agent}", f"request-{agent}") for agent in AGENTS[:3]]


async def test_task_of_a_caller_that_cancelled_its_joint_claim_is_ready_again(queue: Queue) -> None:
    await learn(queue, AGENTS[:3])
    made = await queue.submit_many([{"type": "code"}] * 3)
    claims = [asyncio.ensure_future(queue.claim(agent)) for agent in AGENTS[:3]]
    await asyncio.sleep(0)
    claims[1].cancel()
    claimed = await asyncio.gather(*claims, return_exceptions=True)
    assert isinstance(claimed[1], asyncio.CancelledError)
    await queue.executor.shared.drain()
    tasks = await queue.batch.get([task.id for task in made])
    assert sorted(task.status for task in tasks) == ["claimed", "claimed", "ready"]


async def test_waiting_agents_take_a_burst(queue: Queue) -> None:
    waiting = [asyncio.ensure_future(queue.claim(agent, wait=20)) for agent in AGENTS]
    await until_parked(queue, len(AGENTS))
    await queue.submit_many([{"type": "code"}] * len(AGENTS))
    claimed = await asyncio.gather(*waiting)
    assert [len(each) for each in claimed] == [1] * len(AGENTS)


async def until_parked(queue: Queue, count: int) -> None:
    """Wait until this many claims have found nothing and wait."""
    waiters = queue.executor.shared.claim_waiters
    async with asyncio.timeout(20):
        while len(waiters._waiters) < count or any(w.looking for w in waiters._waiters.values()):  # noqa: ASYNC110  # a look of another task
            await asyncio.sleep(0)


async def test_blocked_claim_does_not_delay_the_next_batch(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    await learn(queue, AGENTS[:3])
    run, blocked = queue.engine.store.run, asyncio.Event()
    first = True

    async def stall_first(verb: Any) -> Any:
        nonlocal first
        if first:
            first = False
            await blocked.wait()
        return await run(verb)

    monkeypatch.setattr(queue.engine.store, "run", stall_first)
    await asyncio.sleep(0)
    stuck = asyncio.ensure_future(queue.claim(AGENTS[0]))
    await asyncio.sleep(0)
    async with asyncio.timeout(20):
        assert await claim_at_once(queue, AGENTS[1:3]) == [[], []]
    assert not stuck.done()
    blocked.set()
    assert await stuck == []


async def test_concurrent_heartbeats_and_starts_are_one_transaction(queue: Queue, transactions: list[str]) -> None:
    await learn(queue, AGENTS)
    await queue.submit_many([{"type": "code"}] * 30)
    claimed = [task for (task,) in await asyncio.gather(*(queue.claim(agent) for agent in AGENTS))]
    callers = [queue.as_caller("system", f"request-{task.id}") for task in claimed]
    transactions.clear()
    await asyncio.gather(*(caller.start(task.token) for caller, task in zip(callers, claimed, strict=True)))
    await asyncio.gather(
        *(
            caller.heartbeat(task.token, progress=n)
            for n, (caller, task) in enumerate(zip(callers, claimed, strict=True))
        )
    )
    assert transactions == ["start", "heartbeat"]
    events = (await queue.events(limit=1000)).events
    written = {
        (event.task_id, event.verb, event.request_id) for event in events if event.verb in {"started", "progress"}
    }
    assert written == {(task.id, verb, f"request-{task.id}") for task in claimed for verb in ("started", "progress")}


async def test_only_the_late_heartbeat_is_refused(queue: Queue) -> None:
    await learn(queue, AGENTS[:2])
    await queue.submit_many([{"type": "code"}] * 2)
    (kept,), (ended,) = await claim_at_once(queue, AGENTS[:2])
    await queue.complete(ended.token)
    replies = await asyncio.gather(queue.heartbeat(kept.token), queue.heartbeat(ended.token))
    assert [reply.action for reply in replies] == ["continue", "lost"]
