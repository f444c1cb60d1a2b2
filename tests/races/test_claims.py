"""Concurrent claims: each task has one winner, limits hold, and no claim is empty while there is work."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import asyncpg
import pytest

from shiftwork import Queue
from shiftwork.engine.lanes import SHARED_LIMIT
from shiftwork.store.store import Row
from tests.races.fleet import Stop, handles, hire, together, until_blocked


@pytest.mark.parametrize("lanes", [1, 4])
@pytest.mark.requirement("F-127", "C-030", "C-240")
async def test_fifty_claimers_get_twenty_tasks_once_each(store_url: str, lanes: int) -> None:
    agents = [f"agent-{number}" for number in range(50)]
    async with handles(store_url, 5) as queues:
        await queues[0].submit_many([{"type": f"type-{n % lanes}"} for n in range(20)])
        answers = await together(*(queues[i % 5].claim(agent) for i, agent in enumerate(agents)))
        won = [assignment.id for answer in answers for assignment in answer]
        assert len(won) == 20
        assert len(set(won)) == 20
        assert (await queues[0].status()).counts == {"claimed": 20}


@pytest.mark.requirement("C-240")
async def test_a_hundred_workers_get_one_assignment_for_one_task(store_url: str) -> None:
    async with handles(store_url, 4) as queues:
        await queues[0].submit(type="code")
        answers = await together(*(queues[i % 4].claim(f"worker-{i}") for i in range(100)))
        assert sum(len(answer) for answer in answers) == 1


async def test_agent_with_two_slots_never_holds_three(store_url: str) -> None:
    async with handles(store_url, 4) as queues:
        await hire(queues[0], "worker", most=2)
        await queues[0].submit_many([{"type": "code"}] * 40)
        for _ in range(5):
            answers = await together(*(queues[i % 4].claim("worker") for i in range(16)))
            held = [assignment for answer in answers for assignment in answer]
            assert len(held) == 2
            await queues[0].batch.release([assignment.token for assignment in held])


async def test_new_agent_claiming_sixteen_times_at_once_gets_one_task(store_url: str) -> None:
    async with handles(store_url, 4) as queues:
        await queues[0].submit_many([{"type": "code"}] * 16)
        answers = await together(*(queues[i % 4].claim("newcomer") for i in range(16)))
        assert sum(len(answer) for answer in answers) == 1


@pytest.mark.parametrize("lanes", [1, 7])
async def test_no_claim_is_empty_while_there_is_work(store_url: str, lanes: int) -> None:
    """Sixteen claimers of one task at a time; together they want exactly what there is."""
    claims, each = 16, 20
    async with handles(store_url, 4, **({"pool_size": 4} if "postgres" in store_url else {})) as queues:
        await queues[0].submit_many([{"type": f"type-{i % lanes}"} for i in range(claims * each + 64)])
        await hire(queues[0], *(f"agent-{number}" for number in range(claims)))

        async def claim(number: int) -> list[int]:
            queue = queues[number % 4]
            return [len(await queue.claim(f"agent-{number}")) for _ in range(each)]

        answers = await together(*(claim(number) for number in range(claims)))
        assert answers == [[1] * each] * claims


@pytest.mark.requirement("F-137")
async def test_stalled_claim_blocks_no_other_claim(postgres_url: str) -> None:
    async with handles(postgres_url, 2) as (stalled, other):
        first, second = await other.submit_many([{"type": "code"}, {"type": "code"}])
        stop = Stop(stalled, "claim_tasks")
        waiting = asyncio.create_task(stalled.claim("slow"))
        await stop.wait()
        assert [a.id for a in await other.claim("quick")] == [second.id]
        stop.resume()
        assert [a.id for a in await waiting] == [first.id]


async def test_urgent_burst_in_one_of_fifty_lanes_goes_first(queue: Queue) -> None:
    ordinary = [{"type": f"type-{i % 50}", "priority": 50} for i in range(500)]
    urgent = [{"type": "type-7", "priority": 1} for _ in range(300)]
    await queue.submit_many([*ordinary, *urgent])
    await hire(queue, "worker")
    taken = await queue.claim("worker", 100)
    assert [assignment.task().priority for assignment in taken] == [1] * 100


async def test_task_moved_to_another_lane_before_locking_is_not_assigned(
    postgres_url: str,
) -> None:
    """The agent may only take plain work; the task gets requirements between selection and locking."""
    async with handles(postgres_url, 2) as (claimer, other):
        moved = await other.submit(type="code", priority=1)
        await other.submit_many([{"type": "code", "priority": 60}, {"type": "docs"}])
        plain = await other.submit(type="code", priority=2)
        special = {"type": "code", "target_agent_id": "somebody-else", "priority": 99}
        await other.submit(special)
        await hire(other, "worker")
        stop = Stop(claimer, "take_chosen")
        claiming = asyncio.create_task(claimer.claim("worker"))
        await stop.wait()

        async def move(tx: object) -> None:
            await tx._connection.execute(  # type: ignore[attr-defined]  # no verb moves a ready task yet
                "update tasks set lane = (select id from lanes where target_agent_id is not null)"
                " where rank = (select min(rank) from tasks)"
            )

        await other.engine.store.run(move)
        stop.resume()
        assert [a.id for a in await claiming] == [plain.id]
        assert (await other.get(moved.id)).status == "ready"


async def test_no_claim_begun_after_the_pause_gets_work(store_url: str) -> None:
    async with handles(store_url, 3) as queues:
        await queues[0].submit_many([{"type": "code"}] * 400)
        await hire(queues[0], *(f"agent-{number}" for number in range(8)))
        paused = False
        late: list[int] = []

        async def claim(number: int) -> None:
            for _ in range(40):
                begun_late = paused
                taken = await queues[number % 3].claim(f"agent-{number}")
                if begun_late:
                    late.append(len(taken))

        async def pause() -> None:
            nonlocal paused
            while (await queues[0].status()).counts.get("claimed", 0) < 20:
                pass
            await queues[0].control.pause()
            paused = True

        await together(pause(), *(claim(number) for number in range(8)))
        assert late
        assert set(late) == {0}
        await queues[0].control.resume()
        assert len(await queues[1].claim("agent-0")) == 1


async def lanes_of(queue: Queue) -> Sequence[Row]:
    return await queue.engine.store.read(lambda tx: tx.all("lanes_of_workspace", workspace="default"))


SHUT: dict[str, Callable[[Queue], Awaitable[object]]] = {
    "pause": lambda queue: queue.control.pause(),
    "breaker": lambda queue: queue.breakers.trip("code"),
    "limit": lambda queue: queue.limits.set("type:code", concurrency=1),
}


@pytest.mark.parametrize("how", SHUT)
@pytest.mark.parametrize("most", [None, 9])
async def test_claim_that_waited_for_its_agent_sees_what_was_closed_meanwhile(
    postgres_url: str, how: str, most: int | None
) -> None:
    async with handles(postgres_url, 3) as (first, second, third):
        await first.submit_many([{"type": "code"}] * 6)
        await hire(first, "worker", most=most)
        await first.claim("worker")
        stop = Stop(first, "claim_tasks")
        ahead = asyncio.create_task(first.claim("worker"))
        await stop.wait()
        behind = asyncio.create_task(second.claim("worker"))
        await until_blocked(third)
        await SHUT[how](third)
        stop.resume()
        assert len(await ahead) == 1
        assert len(await behind) == (how == "limit")  # one that is counted
        assert await third.claim("other") == []


async def test_lane_created_by_concurrent_submits_exists_once(store_url: str) -> None:
    async with handles(store_url, 6) as queues:
        for round_ in range(5):
            types = [f"type-{round_}-{number}" for number in range(4)]
            await together(*(queue.submit(type=type_) for queue in queues for type_ in types))
        lanes = await lanes_of(queues[0])
        assert sorted(lane["type"] for lane in lanes) == sorted({lane["type"] for lane in lanes})
        assert len({lane["id"] for lane in lanes}) == 20
        await hire(queues[0], "worker")
        assert len(await queues[0].claim("worker", 1000)) == 120


async def test_beyond_the_lane_limit_requirements_are_matched_per_task(queue: Queue) -> None:
    """The last tasks share one mixed lane; each still goes only to an able agent."""

    def needs(number: int) -> dict[str, object]:
        return {"type": "code", "spec": {"constraints": {"required_capabilities": [f"skill-{number}"]}}}

    beyond = SHARED_LIMIT + 5
    made = await queue.submit_many([needs(number) for number in range(beyond)])
    lanes = await lanes_of(queue)
    assert sum(1 for lane in lanes if lane["mixed"]) == 1
    assert len(lanes) == SHARED_LIMIT + 1
    for number in (0, SHARED_LIMIT, beyond - 1):
        taken = await queue.claim(f"agent-{number}", capabilities=[f"skill-{number}"])
        assert [assignment.id for assignment in taken] == [made[number].id]
    assert await queue.claim("agent-without", capabilities=["skill-unheard-of"]) == []


async def test_registration_concurrent_with_first_claim_is_kept(postgres_url: str) -> None:
    """The claim found no such agent and is about to create it; the registration wins."""
    async with handles(postgres_url, 2) as (claimer, other):
        stop = Stop(claimer, "add_agent")
        claiming = asyncio.create_task(claimer.claim("worker"))
        await stop.wait()
        await other.agents.register(id="worker", capabilities=["python"], max_concurrent_tasks=5)
        stop.resume()
        await claiming
        (agent,) = await other.agents.list()
        assert (agent.capabilities, agent.max_concurrent_tasks) == (["python"], 5)


@pytest.mark.parametrize("store_url", ["postgres"], indirect=True)
async def test_heartbeat_and_claim_of_one_name_never_deadlock(store_url: str) -> None:
    """An agent that is its own runtime: both verbs write both rows, once in opposite order."""
    async with handles(store_url, 2) as (claimer, beater):
        await hire(claimer, "both")
        await claimer.submit_many([{"type": "code"}] * 60)

        async def claim() -> None:
            for _ in range(60):
                held = await claimer.claim("both", start=True, runtime_id="both")
                await claimer.heartbeat(held[0].token)

        async def beat() -> None:
            for _ in range(120):
                await beater.runtimes.heartbeat("both")

        await together(claim(), beat())
        connection = await asyncpg.connect(store_url)
        await asyncio.sleep(1.2)  # the server's counts are a second late
        assert (
            await connection.fetchval("select deadlocks from pg_stat_database where datname = current_database()") == 0
        )
        await connection.close()
