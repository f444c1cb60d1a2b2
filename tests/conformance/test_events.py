"""The log of what happened: who did it, which states were passed, and nothing seen twice."""

import asyncio

import pytest

from shiftwork import Queue
from shiftwork.testing import MovedClock, pass_time
from tests.conformance.steps import bury, events_named, finish, sql, states, submit_dag, take


async def story(queue: Queue, task_id: str) -> list[tuple[str, str]]:
    return [(event.verb, event.actor) for event in await queue.history(task_id)]


@pytest.mark.requirement("C-264")
async def test_every_event_names_who_did_it(queue: Queue, clock: MovedClock) -> None:
    task_id = (await queue.as_caller("human:ada", "request-1").submit(type="code")).id
    (assignment,) = await queue.claim("coder")
    token = assignment.token
    await queue.start(token)
    await queue.heartbeat(token, {"pct": 40})
    await queue.message(token, "text", "reading the code")
    await queue.pin_session(token, "S")
    await queue.fail(token, "crash")
    await pass_time(queue, clock, 15)
    await queue.release((await take(queue, "coder")).token)
    parent = await take(queue, "coder")
    (child,) = await queue.spawn(parent.token, [{"type": "child"}], wait=True)
    await finish(queue, "helper")
    await take(queue, "coder")
    await queue.as_caller("human:bob").cancel(task_id)
    assert await story(queue, task_id) == [
        ("submitted", "human:ada"),
        ("claimed", "agent:coder"),
        ("started", "agent:coder"),
        ("progress", "agent:coder"),
        ("message", "agent:coder"),
        ("session", "agent:coder"),
        ("failed", "agent:coder"),
        ("promoted", "duty:promote"),
        ("claimed", "agent:coder"),
        ("released", "agent:coder"),
        ("claimed", "agent:coder"),
        ("waited", "agent:coder"),
        ("unblocked", "system"),
        ("claimed", "agent:coder"),
        ("cancelled", "human:bob"),
    ]
    assert (await queue.history(task_id))[0].request_id == "request-1"
    assert await story(queue, child.id) == [
        ("spawned", "agent:coder"),
        ("claimed", "agent:helper"),
        ("completed", "agent:helper"),
    ]


async def test_what_a_duty_takes_away_names_the_duty(queue: Queue, clock: MovedClock) -> None:
    task_id = (await queue.submit(type="code")).id
    await take(queue)
    await pass_time(queue, clock, 90)
    assert (await story(queue, task_id))[-1] == ("failed", "duty:reclaim")


@pytest.mark.requirement("C-252")
async def test_one_event_per_verb_holds_the_path_and_the_last_one_ends_in_the_present_state(
    queue: Queue, clock: MovedClock
) -> None:
    task_id = (await queue.submit(type="code")).id
    await queue.fail((await take(queue)).token, "crash")
    await pass_time(queue, clock, 15)
    await finish(queue)
    paths = [event.path for event in await queue.history(task_id)]
    assert paths == [
        ["created", "pending", "ready"],
        ["ready", "claimed", "running"],
        ["running", "failed", "retrying"],
        ["retrying", "ready"],
        ["ready", "claimed", "running"],
        ["running", "validating", "completed"],
    ]
    assert (await queue.get(task_id)).status == (await states(queue, task_id))[-1]


async def test_an_event_stands_under_each_name_it_has(queue: Queue) -> None:
    task_id = (await queue.submit(type="code")).id
    await queue.fail((await take(queue)).token, retry=False)
    assert [event.names for event in await queue.history(task_id)] == [
        ["task.created", "task.ready"],
        ["task.claimed", "task.started"],
        ["task.attempt_failed", "task.dead_lettered", "task.failed", "dag.failed", "alert.raised"],
    ]


@pytest.mark.requirement("R-012", "C-253")
async def test_a_result_told_twice_is_one_final_event(queue: Queue, clock: MovedClock) -> None:
    task_id = (await queue.submit(type="code")).id
    lost = await take(queue, "lost")
    await pass_time(queue, clock, 90)
    await pass_time(queue, clock, 15)
    fresh = await take(queue, "fresh")
    answers = [await queue.complete(fresh.token, n) for n in range(3)]
    assert [answer.repeated for answer in answers] == [False, True, True]
    with pytest.raises(Exception, match="lease_lost"):
        await queue.complete(lost.token, "late")
    assert await events_named(queue, "task.completed") == [task_id]
    assert await events_named(queue, "task.failed") == []
    assert (await queue.result(task_id)).data == 0


async def test_a_cursor_sees_every_event_once(queue: Queue) -> None:
    await submit_dag(queue, {"a": [], "b": ["a"], "c": ["b"]})
    for _ in range(3):
        await finish(queue)
    whole, end = await queue.events()
    seen, cursor = [], 0
    while True:
        page, cursor = await queue.events(cursor, limit=2)
        if not page:
            break
        seen += page
    assert [event.seq for event in seen] == [event.seq for event in whole]
    assert cursor == end
    assert await queue.events(end) == ([], end)


async def test_a_follower_sees_every_event_once_while_many_write(
    queue: Queue, clock: MovedClock, store_url: str
) -> None:
    seen: list[str | None] = []

    async def follow() -> None:
        async for event in queue.follow(poll_sec=0.001):
            if "task.completed" in event.names:
                seen.append(event.task_id)
            if len(seen) == 200:
                return

    async with await Queue.open(store_url, clock=clock) as second:
        follower = asyncio.create_task(follow())
        await asyncio.gather(*(_work(q, f"w{n}") for n, q in enumerate([queue, second] * 4)))
        await asyncio.wait_for(follower, 30)
    assert len(set(seen)) == 200


async def _work(queue: Queue, agent: str) -> None:
    await queue.register_agent(id=agent, types=[agent])
    for _ in range(25):
        await queue.submit(type=agent)
        await finish(queue, agent)


async def test_a_workspace_sees_its_own_events_only(queue: Queue) -> None:
    other = queue.in_workspace("other")
    await other.submit(type="code")
    task_id = (await queue.submit(type="code")).id
    found, _ = await queue.events()
    assert [event.task_id for event in found] == [task_id]


# -- the log in the words of the Redis protocol ------------------------------------------------------------------


async def log(queue: Queue) -> list[str]:
    return [
        str(entry["event_type"]) for entry in await sql(queue, "select event_type from event_log order by id, part")
    ]


@pytest.mark.requirement("R-048", "R-049", "R-050")
async def test_a_success_is_created_claimed_and_succeeded(streams: Queue) -> None:
    task_id = (await streams.submit(type="tool", idempotency_key="k")).id
    await finish(streams, "consumer-1")
    assert await log(streams) == ["task.created", "task.claimed", "task.succeeded"]
    (claimed,) = await sql(streams, "select task_id, worker from event_log where event_type = 'task.claimed'")
    assert claimed["worker"] == "consumer-1"
    assert (await streams.get(str(claimed["task_id"]))).id == task_id
    assert (await streams.tasks(status=["claimed", "running", "validating"])).tasks == []


@pytest.mark.requirement("R-043", "R-051", "R-053", "R-058")
async def test_a_failure_is_logged_for_every_attempt_and_the_last_is_final(streams: Queue, clock: MovedClock) -> None:
    await streams.submit(type="tool", idempotency_key="k")
    for _ in range(4):
        await streams.fail((await take(streams, "consumer-1")).token, "crash", "boom")
        await pass_time(streams, clock, 900)
    assert await log(streams) == [
        "task.created",
        *["task.claimed", "task.failed"] * 4,
        "task.dlq",
    ]  # fmt: skip
    failed = await sql(streams, "select final, worker from event_log where event_type = 'task.failed' order by id")
    assert [bool(entry["final"]) for entry in failed] == [False, False, False, True]
    assert {entry["worker"] for entry in failed} == {"consumer-1"}


@pytest.mark.requirement("R-052")
async def test_a_reclaim_is_logged_where_one_happened(streams: Queue, clock: MovedClock) -> None:
    await streams.submit(type="tool", idempotency_key="k")
    await take(streams, "consumer-1")
    assert "task.reclaimed" not in await log(streams)
    await pass_time(streams, clock, 300)
    await take(streams, "consumer-2")
    assert await log(streams) == ["task.created", "task.claimed", "task.claimed", "task.reclaimed"]


@pytest.mark.requirement("R-017")
async def test_beats_are_logged_now_and_then(streams: Queue, clock: MovedClock) -> None:
    await streams.submit(type="tool", idempotency_key="k")
    token = (await take(streams)).token
    for _ in range(9):
        clock.advance(10)
        await streams.heartbeat(token)
    assert (await log(streams)).count("task.heartbeat") == 3


async def test_nothing_is_logged_of_a_dead_letter_that_is_not_there(streams: Queue) -> None:
    await bury(streams, idempotency_key="a")
    await streams.submit(type="code", idempotency_key="b")
    await finish(streams)
    assert (await log(streams)).count("task.dlq") == 1


async def test_calls_that_are_joined_keep_their_own_request(queue: Queue) -> None:
    callers = [queue.as_caller("human:ada", f"request-{n}") for n in range(20)]
    made = await asyncio.gather(*(caller.submit(type="code") for caller in callers))
    held = {each.id: each.token for n in range(20) for each in await queue.claim(f"coder-{n}", start=True)}
    await asyncio.gather(
        *(caller.complete(held[task.id]) for caller, task in zip(reversed(callers), reversed(made), strict=True))
    )
    for number, task in enumerate(made):
        told = {event.verb: event.request_id for event in await queue.history(task.id)}
        assert told["submitted"] == told["completed"] == f"request-{number}"


async def test_what_a_lone_call_sets_free_names_its_request(queue: Queue) -> None:
    first = await queue.submit(type="code")
    second = await queue.submit(type="code", dependencies=[first.id])
    await queue.as_caller("agent:coder", "r-1").complete((await take(queue)).token)
    assert (await queue.history(second.id))[-1].request_id == "r-1"
