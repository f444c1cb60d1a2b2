"""Claims are kept alive for agents that think, and only as long as somebody is there."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest

from shiftwork import AnyQueue, Queue
from shiftwork.mcp import desk as desks
from shiftwork.mcp import resuming
from shiftwork.mcp.desk import Desk, Options, Seat
from shiftwork.mcp.keeper import Keeper, Key
from shiftwork.mcp.serving import open_desk
from shiftwork.mcp.shapes import Work
from shiftwork.queue.claim import Assignment
from shiftwork.testing import MovedClock, pass_time
from tests.mcp.talking import talking
from tests.stores.stalling import given, stalled

LEASE_SEC = 90
KEEP_SEC = 900


@pytest.fixture
def desk(queue: Queue) -> Desk:
    return Desk(queue, Options(agent_id="crab", keep_sec=KEEP_SEC))


async def think(desk: Desk, queue: Queue, clock: MovedClock, seconds: float) -> None:
    """Time passes in which the agent says nothing, while the server beats and the duties run."""
    for _ in range(int(seconds // 30)):
        clock.advance(30)
        await desk.keeper.beat()
        await pass_time(queue, clock, 0)


async def holds(queue: Queue, token: str) -> bool:
    task = await queue.get(token.rpartition(".")[0])
    return task.claim.assignment_id == token


async def test_an_agent_that_thinks_keeps_its_claim(desk: Desk, queue: Queue, clock: MovedClock) -> None:
    await queue.submit(type="code")
    async with talking(desk) as agent:
        token = (await agent.take())["token"]
        await think(desk, queue, clock, 5 * LEASE_SEC)
        assert (await agent("complete", token=token))["status"] == "completed"


async def test_without_the_server_the_claim_would_be_lost(desk: Desk, queue: Queue, clock: MovedClock) -> None:
    """What the test before this one shows is the server's doing."""
    await queue.submit(type="code")
    async with talking(desk) as agent:
        token = (await agent.take())["token"]
        await pass_time(queue, clock, LEASE_SEC + 1)
        assert not await holds(queue, token)


async def test_an_agent_that_never_names_its_claim_loses_it(desk: Desk, queue: Queue, clock: MovedClock) -> None:
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


async def test_a_claim_outlives_the_server_that_made_it(desk: Desk, queue: Queue, clock: MovedClock) -> None:
    """After a restart the agent's first word about it has the new server keep it."""
    await queue.submit(type="code")
    async with talking(desk) as agent:
        token = (await agent.take())["token"]
    another = Desk(queue, Options(agent_id="crab"))
    async with talking(another) as agent:
        await agent("checkpoint", token=token, name="plan", result=1)
        await think(another, queue, clock, 3 * LEASE_SEC)
        assert await holds(queue, token)


@pytest.mark.parametrize("ending", ["complete", "fail", "release", "wait", "ask_human", "spawn"])
async def test_what_is_over_is_not_kept(desk: Desk, queue: Queue, ending: str) -> None:
    terms: dict[str, dict[str, Any]] = {
        "fail": {"error": "boom"},
        "wait": {"seconds": 60, "name": "nap"},
        "ask_human": {"question": "Why?", "name": "why"},
        "spawn": {"tasks": [{"type": "docs"}], "wait": True},
    }
    await queue.submit(type="code")
    async with talking(desk) as agent:
        token = (await agent.take())["token"]
        assert Seat(desk, queue, "crab").holding == [token]
        await agent(ending, token=token, **terms.get(ending, {}))
        assert Seat(desk, queue, "crab").holding == []


async def test_what_was_cancelled_is_not_kept(desk: Desk, queue: Queue, clock: MovedClock) -> None:
    made = await queue.submit(type="code")
    async with talking(desk) as agent:
        await agent.take()
        await queue.cancel(made.id)
        clock.advance(30)
        await desk.keeper.beat()
        assert Seat(desk, queue, "crab").holding == []


async def test_who_is_asked_to_make_way_keeps_its_claim_until_it_does(
    desk: Desk, queue: Queue, clock: MovedClock
) -> None:
    await queue.set_setting("deadline.preempt_running", value=True)
    await queue.submit(type="code", priority=70)
    async with talking(desk) as agent:
        token = (await agent.take())["token"]
        urgent = await queue.submit(type="code", payload={"soon": True}, deadline=clock() + 60)
        await think(desk, queue, clock, 30)
        asked = await agent("heartbeat", token=token)
        assert (asked["action"], asked["reason"]) == ("yield", f"{urgent.id} is urgent")
        assert Seat(desk, queue, "crab").holding == [token]
        await agent("release", token=token)
        assert (await agent.take())["task_id"] == urgent.id


async def test_the_end_of_a_session_ends_what_was_claimed_in_it(queue: Queue, clock: MovedClock) -> None:
    await queue.submit_many([{"type": "code"}, {"type": "code"}])
    keeper = Keeper(KEEP_SEC)
    tokens = []
    for agent in ("ada", "bob"):
        (claim,) = await queue.claim(agent, start=True)
        keeper.hold(Key(claim.token), queue, agent, f"session of {agent}", 30)
        tokens.append(claim.token)
    keeper.end("session of ada")
    assert (keeper.held_by("ada", None), keeper.held_by("bob", None)) == ([], [tokens[1]])


async def test_nobody_ends_the_heartbeats_of_another_token(desk: Desk, queue: Queue) -> None:
    """A token that may not write under a claim is told that it is lost; that must not be true of its holder."""
    await queue.submit(type="code")
    holder = Seat(desk, queue, "crab", holder="first")
    stranger = Seat(desk, queue, "eel", holder="second")
    (claim,) = await queue.claim("crab", start=True)
    holder.hold(claim.token, 30)
    stranger.let_go(claim.token)
    assert holder.holding == [claim.token]
    assert stranger.holding == []


async def test_a_beat_that_does_not_get_through_is_sent_again(desk: Desk, queue: Queue, clock: MovedClock) -> None:
    made = await queue.submit(type="code")
    async with talking(desk) as agent:
        await agent.take()
        clock.advance(30)
        async with stalled(queue, made.id):
            with given(queue.engine.store, 0.1):
                await desk.keeper.beat()
        await desk.keeper.beat()
        assert (await queue.get(made.id)).claim.heartbeat_at == clock()


# -- no call blocks ----------------------------------------------------------------------------------------------


async def test_a_claim_that_waits_is_answered_when_its_time_is_over(queue: Queue) -> None:
    async with talking(Desk(queue, Options())) as agent:
        assert "no work for you" in (await agent("claim", wait_sec=0.05))["next"]


async def test_a_claim_that_waits_is_woken_by_work(queue: Queue) -> None:
    async with talking(Desk(queue, Options())) as agent:
        waiting = asyncio.create_task(agent.take(wait_sec=20))
        await agent("list")
        made = await queue.submit(type="code")
        assert (await waiting)["task_id"] == made.id


async def test_a_call_that_takes_too_long_ends_with_what_to_do(queue: Queue) -> None:
    made = await queue.submit(type="code")
    desk = Desk(queue, Options())
    async with talking(desk) as agent:
        token = (await agent.take())["token"]
        desk.options = Options(longest_call_sec=0.1)
        async with stalled(queue, made.id):
            refused = await agent.refusal("complete", token=token, data=1)
        assert refused["code"] == "operation_timeout"
        assert "0.1 s" in refused["what"]
        assert "call again with the same arguments" in refused["next"]
        desk.options = Options()
        assert (await agent("complete", token=token, data=1))["status"] == "completed"
    assert [event.verb for event in await queue.history(made.id)].count("completed") == 1


async def test_a_claim_that_was_given_up_takes_nothing(queue: Queue) -> None:
    async with talking(Desk(queue, Options(longest_call_sec=0.1))) as agent:
        assert (await agent.refusal("claim", wait_sec=20))["code"] == "operation_timeout"
        await queue.submit(type="code")
        assert len(await queue.claim("other")) == 1


async def test_a_claim_that_nobody_could_be_told_of_is_given_back_beside_its_call(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await queue.submit(type="code")
    async with (
        open_desk(queue, Options(longest_call_sec=1)) as desk,
        talking(desk) as agent,
        AsyncExitStack() as stall,
    ):

        async def never(_queue: AnyQueue, _assignment: Assignment) -> Work:
            await stall.enter_async_context(stalled(queue, made.id))
            await asyncio.get_running_loop().create_future()
            raise AssertionError

        monkeypatch.setattr(resuming, "work_of", never)
        async with asyncio.timeout(10):
            assert (await agent.refusal("claim"))["code"] == "operation_timeout"
    assert (await queue.get(made.id)).status == "ready", "the desk has waited for it"


async def test_a_desk_does_not_wait_for_ever_for_what_is_given_back(
    desk: Desk, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await queue.submit(type="code")
    (held,) = await queue.claim("crab")
    monkeypatch.setattr(desks, "CLOSE_SEC", 0.05)
    async with stalled(queue, made.id), asyncio.timeout(20):
        desk.give_back(queue, held.token)
        await desk.close()


def test_the_limit_is_that_of_the_design() -> None:
    assert Options().longest_call_sec == 25
