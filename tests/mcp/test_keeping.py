"""Claims are kept alive while agents think, and only while they are connected."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest

from shiftwork import AnyQueue, Queue
from shiftwork.engine.assignment import Assignment
from shiftwork.mcp import claimed_task
from shiftwork.mcp import mcp_server as mcp_server_module
from shiftwork.mcp.heartbeats import HeartbeatKeeper, Key
from shiftwork.mcp.mcp_server import McpServer, Options, open_context
from shiftwork.mcp.mcp_session import McpSession
from shiftwork.mcp.tool_results import ClaimedTask
from shiftwork.testing import MovedClock, pass_time
from tests.mcp.talking import talking
from tests.stores.stalling import given, stalled

LEASE_SEC = 90
KEEP_SEC = 900


@pytest.fixture
def desk(queue: Queue) -> McpServer:
    return McpServer(queue, Options(agent_id="crab", keep_sec=KEEP_SEC))


async def think(mcp_server: McpServer, queue: Queue, clock: MovedClock, seconds: float) -> None:
    """Let time pass without calls of the agent, while the server sends heartbeats and maintenance runs."""
    for _ in range(int(seconds // 30)):
        clock.advance(30)
        await mcp_server.keeper.beat()
        await pass_time(queue, clock, 0)


async def holds(queue: Queue, token: str) -> bool:
    task = await queue.get(token.rpartition(".")[0])
    return task.claim.assignment_id == token


async def test_idle_agent_keeps_its_claim(desk: McpServer, queue: Queue, clock: MovedClock) -> None:
    await queue.submit(type="code")
    async with talking(desk) as agent:
        token = (await agent.take())["token"]
        await think(desk, queue, clock, 5 * LEASE_SEC)
        assert (await agent("complete", token=token))["status"] == "completed"


async def test_without_the_mcp_server_the_claim_is_lost(desk: McpServer, queue: Queue, clock: MovedClock) -> None:
    """The previous test depends on the server."""
    await queue.submit(type="code")
    async with talking(desk) as agent:
        token = (await agent.take())["token"]
        await pass_time(queue, clock, LEASE_SEC + 1)
        assert not await holds(queue, token)


async def test_agent_that_never_uses_its_claim_loses_it(desk: McpServer, queue: Queue, clock: MovedClock) -> None:
    await queue.submit(type="code", timeout_sec=100_000)
    async with talking(desk) as agent:
        token = (await agent.take())["token"]
        await think(desk, queue, clock, KEEP_SEC)
        assert (await agent("heartbeat", token=token))["action"] == "continue"
        await think(desk, queue, clock, KEEP_SEC)
        assert await holds(queue, token)
        await think(desk, queue, clock, LEASE_SEC + 60)
        assert not await holds(queue, token)
        assert (await agent("heartbeat", token=token))["action"] == "lost"


async def test_claim_outlives_the_server_that_made_it(desk: McpServer, queue: Queue, clock: MovedClock) -> None:
    """After a restart the first call of the agent makes the new server keep its claim."""
    await queue.submit(type="code")
    async with talking(desk) as agent:
        token = (await agent.take())["token"]
    another = McpServer(queue, Options(agent_id="crab"))
    async with talking(another) as agent:
        await agent("checkpoint", token=token, name="plan", result=1)
        await think(another, queue, clock, 3 * LEASE_SEC)
        assert await holds(queue, token)


@pytest.mark.parametrize("ending", ["complete", "fail", "release", "wait", "ask_human", "spawn"])
async def test_ended_claim_is_not_kept(desk: McpServer, queue: Queue, ending: str) -> None:
    terms: dict[str, dict[str, Any]] = {
        "fail": {"error": "boom"},
        "wait": {"seconds": 60, "name": "nap"},
        "ask_human": {"question": "Why?", "name": "why"},
        "spawn": {"tasks": [{"type": "docs"}], "wait": True},
    }
    await queue.submit(type="code")
    async with talking(desk) as agent:
        token = (await agent.take())["token"]
        assert McpSession(desk, queue, "crab").holding == [token]
        await agent(ending, token=token, **terms.get(ending, {}))
        assert McpSession(desk, queue, "crab").holding == []


async def test_cancelled_claim_is_not_kept(desk: McpServer, queue: Queue, clock: MovedClock) -> None:
    made = await queue.submit(type="code")
    async with talking(desk) as agent:
        await agent.take()
        await queue.cancel(made.id)
        clock.advance(30)
        await desk.keeper.beat()
        assert McpSession(desk, queue, "crab").holding == []


async def test_claim_asked_to_yield_is_kept_until_released(desk: McpServer, queue: Queue, clock: MovedClock) -> None:
    await queue.settings.set("deadline.preempt_running", value=True)
    await queue.submit(type="code", priority=70)
    async with talking(desk) as agent:
        token = (await agent.take())["token"]
        urgent = await queue.submit(type="code", payload={"soon": True}, deadline=clock() + 60)
        await think(desk, queue, clock, 30)
        asked = await agent("heartbeat", token=token)
        assert (asked["action"], asked["reason"]) == ("yield", f"{urgent.id} is urgent")
        assert McpSession(desk, queue, "crab").holding == [token]
        await agent("release", token=token)
        assert (await agent.take())["task_id"] == urgent.id


async def test_ended_session_ends_its_claims(queue: Queue, clock: MovedClock) -> None:
    await queue.submit_many([{"type": "code"}, {"type": "code"}])
    keeper = HeartbeatKeeper(KEEP_SEC)
    tokens = []
    for agent in ("ada", "bob"):
        (claim,) = await queue.claim(agent, start=True)
        keeper.add(Key(claim.token), queue, agent, f"session of {agent}", 30)
        tokens.append(claim.token)
    keeper.end("session of ada")
    assert (keeper.held_by("ada", None), keeper.held_by("bob", None)) == ([], [tokens[1]])


async def test_another_token_cannot_end_the_heartbeats_of_a_claim(desk: McpServer, queue: Queue) -> None:
    """A token that may not write under a claim gets "lost"; this must not end the claim of its holder."""
    await queue.submit(type="code")
    owner = McpSession(desk, queue, "crab", owner="first")
    stranger = McpSession(desk, queue, "eel", owner="second")
    (claim,) = await queue.claim("crab", start=True)
    owner.start_heartbeats(claim.token, 30)
    stranger.stop_heartbeats(claim.token)
    assert owner.holding == [claim.token]
    assert stranger.holding == []


async def test_failed_heartbeat_is_sent_again(desk: McpServer, queue: Queue, clock: MovedClock) -> None:
    made = await queue.submit(type="code")
    async with talking(desk) as agent:
        await agent.take()
        clock.advance(30)
        async with stalled(queue, made.id):
            with given(queue.engine.store, 0.1):
                await desk.keeper.beat()
        await desk.keeper.beat()
        assert (await queue.get(made.id)).claim.heartbeat_at == clock()


async def test_waiting_claim_is_answered_after_its_timeout(queue: Queue) -> None:
    async with talking(McpServer(queue, Options())) as agent:
        assert "no work for you" in (await agent("claim", wait_sec=0.05))["next"]


async def test_waiting_claim_is_woken_by_new_work(queue: Queue) -> None:
    async with talking(McpServer(queue, Options())) as agent:
        waiting = asyncio.create_task(agent.take(wait_sec=20))
        await agent("list")
        made = await queue.submit(type="code")
        assert (await waiting)["task_id"] == made.id


async def test_call_over_its_time_limit_ends_with_a_hint(queue: Queue) -> None:
    made = await queue.submit(type="code")
    mcp_server = McpServer(queue, Options())
    async with talking(mcp_server) as agent:
        token = (await agent.take())["token"]
        mcp_server.options = Options(longest_call_sec=0.1)
        async with stalled(queue, made.id):
            refused = await agent.refusal("complete", token=token, data=1)
        assert refused["code"] == "operation_timeout"
        assert "0.1 s" in refused["what"]
        assert "call again with the same arguments" in refused["next"]
        mcp_server.options = Options()
        assert (await agent("complete", token=token, data=1))["status"] == "completed"
    assert [event.verb for event in (await queue.tasks.history(made.id)).events].count("completed") == 1


async def test_timed_out_claim_takes_no_task(queue: Queue) -> None:
    async with talking(McpServer(queue, Options(longest_call_sec=0.1))) as agent:
        assert (await agent.refusal("claim", wait_sec=20))["code"] == "operation_timeout"
        await queue.submit(type="code")
        assert len(await queue.claim("other")) == 1


async def test_claim_that_cannot_be_answered_is_released(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    made = await queue.submit(type="code")
    async with (
        open_context(queue, Options(longest_call_sec=1)) as mcp_server,
        talking(mcp_server) as agent,
        AsyncExitStack() as stall,
    ):

        async def never(_queue: AnyQueue, _assignment: Assignment) -> ClaimedTask:
            await stall.enter_async_context(stalled(queue, made.id))
            await asyncio.get_running_loop().create_future()
            raise AssertionError

        monkeypatch.setattr(claimed_task, "work_of", never)
        async with asyncio.timeout(10):
            assert (await agent.refusal("claim"))["code"] == "operation_timeout"
    assert (await queue.get(made.id)).status == "ready", "the desk has waited for it"


async def test_closing_does_not_wait_forever_for_a_release(
    desk: McpServer, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await queue.submit(type="code")
    (held,) = await queue.claim("crab")
    monkeypatch.setattr(mcp_server_module, "CLOSE_SEC", 0.05)
    async with stalled(queue, made.id), asyncio.timeout(20):
        desk.release(queue, held.token)
        await desk.close()


def test_longest_call_is_25_seconds() -> None:
    assert Options().longest_call_sec == 25
