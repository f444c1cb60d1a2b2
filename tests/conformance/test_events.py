"""The event log: actors, state paths, and each event exactly once."""

import asyncio

import pytest

from shiftwork import Queue
from shiftwork.model.history import EventPage
from shiftwork.testing import MovedClock, pass_time
from tests.conformance.steps import dead_letter, events_named, finish, sql, states, submit_dag, take


async def story(queue: Queue, task_id: str) -> list[tuple[str, str]]:
    return [(event.verb, event.actor) for event in (await queue.tasks.history(task_id)).events]


@pytest.mark.requirement("C-264")
async def test_every_event_names_its_actor(queue: Queue, clock: MovedClock) -> None:
    task_id = (await queue.as_caller("human:ada", "request-1").submit(type="code")).id
    (assignment,) = await queue.claim("coder")
    token = assignment.token
    await queue.start(token)
    await queue.heartbeat(token, {"pct": 40})
    await queue.claims.message(token, "text", "reading the code")
    await queue.claims.pin_session(token, "S")
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
        ("promoted", "maintenance:promote"),
        ("claimed", "agent:coder"),
        ("released", "agent:coder"),
        ("claimed", "agent:coder"),
        ("waited", "agent:coder"),
        ("unblocked", "system"),
        ("claimed", "agent:coder"),
        ("cancelled", "human:bob"),
    ]
    assert (await queue.tasks.history(task_id)).events[0].request_id == "request-1"
    assert await story(queue, child.id) == [
        ("spawned", "agent:coder"),
        ("claimed", "agent:helper"),
        ("completed", "agent:helper"),
    ]


async def test_reclaim_by_maintenance_names_the_job_as_actor(queue: Queue, clock: MovedClock) -> None:
    task_id = (await queue.submit(type="code")).id
    await take(queue)
    await pass_time(queue, clock, 90)
    assert (await story(queue, task_id))[-1] == ("failed", "maintenance:reclaim")


@pytest.mark.requirement("C-252")
async def test_each_verb_emits_one_event_with_its_state_path(queue: Queue, clock: MovedClock) -> None:
    task_id = (await queue.submit(type="code")).id
    await queue.fail((await take(queue)).token, "crash")
    await pass_time(queue, clock, 15)
    await finish(queue)
    paths = [event.path for event in (await queue.tasks.history(task_id)).events]
    assert paths == [
        ["created", "pending", "ready"],
        ["ready", "claimed", "running"],
        ["running", "failed", "retrying"],
        ["retrying", "ready"],
        ["ready", "claimed", "running"],
        ["running", "validating", "completed"],
    ]
    assert (await queue.get(task_id)).status == (await states(queue, task_id))[-1]


async def test_event_is_listed_under_each_of_its_names(queue: Queue) -> None:
    task_id = (await queue.submit(type="code")).id
    await queue.fail((await take(queue)).token, retry=False)
    assert [event.names for event in (await queue.tasks.history(task_id)).events] == [
        ["task.created", "task.ready"],
        ["task.claimed", "task.started"],
        ["task.attempt_failed", "task.dead_lettered", "task.failed", "dag.failed", "alert.raised"],
    ]


@pytest.mark.requirement("R-012", "C-253")
async def test_repeated_result_emits_one_final_event(queue: Queue, clock: MovedClock) -> None:
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


async def test_event_cursor_returns_every_event_once(queue: Queue) -> None:
    await submit_dag(queue, {"a": [], "b": ["a"], "c": ["b"]})
    for _ in range(3):
        await finish(queue)
    news = await queue.events()
    whole, end = news.events, news.next
    seen, cursor = [], 0
    while True:
        news = await queue.events(cursor, limit=2)
        page, cursor = news.events, news.next
        if not page:
            break
        seen += page
    assert [event.seq for event in seen] == [event.seq for event in whole]
    assert cursor == end
    assert await queue.events(end) == EventPage([], end)


async def test_reader_can_start_now_and_wait_for_new_events(queue: Queue) -> None:
    await queue.submit(type="code")
    page = await queue.events("now")
    assert (page.events, page.next) == ([], (await queue.events()).next)
    waiting = asyncio.create_task(queue.events(page.next, wait=20))
    await asyncio.sleep(0.1)
    assert not waiting.done()
    made = await queue.submit(type="code")
    assert [event.task_id for event in (await waiting).events] == [made.id]
    assert (await queue.events((await waiting).next, wait=0.01)).events == []


async def test_follower_sees_every_event_once_during_concurrent_writes(
    queue: Queue, clock: MovedClock, store_url: str
) -> None:
    seen: list[str | None] = []

    async def follow() -> None:
        async for event in queue.follow(poll_sec=0.001):
            if "task.completed" in event.names:
                seen.append(event.task_id)
            if len(seen) == 200:
                return

    async with Queue.open(store_url, clock=clock) as second:
        follower = asyncio.create_task(follow())
        await asyncio.gather(*(_work(q, f"w{n}") for n, q in enumerate([queue, second] * 4)))
        await asyncio.wait_for(follower, 30)
    assert len(set(seen)) == 200


async def _work(queue: Queue, agent: str) -> None:
    await queue.agents.register(id=agent, types=[agent])
    for _ in range(25):
        await queue.submit(type=agent)
        await finish(queue, agent)


async def test_workspace_sees_only_its_own_events(queue: Queue) -> None:
    other = queue.in_workspace("other")
    await other.submit(type="code")
    task_id = (await queue.submit(type="code")).id
    found = (await queue.events()).events
    assert [event.task_id for event in found] == [task_id]


async def log(queue: Queue) -> list[str]:
    return [
        str(entry["event_type"]) for entry in await sql(queue, "select event_type from event_log order by id, part")
    ]


@pytest.mark.requirement("R-048", "R-049", "R-050")
async def test_successful_task_logs_created_claimed_and_succeeded(streams: Queue) -> None:
    task_id = (await streams.submit(type="tool", idempotency_key="k")).id
    await finish(streams, "consumer-1")
    assert await log(streams) == ["task.created", "task.claimed", "task.succeeded"]
    (claimed,) = await sql(streams, "select task_id, worker from event_log where event_type = 'task.claimed'")
    assert claimed["worker"] == "consumer-1"
    assert (await streams.get(str(claimed["task_id"]))).id == task_id
    assert (await streams.tasks.list(status=["claimed", "running", "validating"])).tasks == []


@pytest.mark.requirement("R-043", "R-051", "R-053", "R-058")
async def test_failure_is_logged_for_every_attempt_and_last_is_final(streams: Queue, clock: MovedClock) -> None:
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
async def test_reclaim_is_logged_only_when_it_happened(streams: Queue, clock: MovedClock) -> None:
    await streams.submit(type="tool", idempotency_key="k")
    await take(streams, "consumer-1")
    assert "task.reclaimed" not in await log(streams)
    await pass_time(streams, clock, 300)
    await take(streams, "consumer-2")
    assert await log(streams) == ["task.created", "task.claimed", "task.claimed", "task.reclaimed"]


@pytest.mark.requirement("R-017")
async def test_heartbeats_are_logged_at_intervals(streams: Queue, clock: MovedClock) -> None:
    await streams.submit(type="tool", idempotency_key="k")
    token = (await take(streams)).token
    for _ in range(9):
        clock.advance(10)
        await streams.heartbeat(token)
    assert (await log(streams)).count("task.heartbeat") == 3


async def test_dead_letter_event_is_logged_only_for_dead_letters(streams: Queue) -> None:
    await dead_letter(streams, idempotency_key="a")
    await streams.submit(type="code", idempotency_key="b")
    await finish(streams)
    assert (await log(streams)).count("task.dlq") == 1


async def test_joined_calls_keep_their_own_request_id(queue: Queue) -> None:
    callers = [queue.as_caller("human:ada", f"request-{n}") for n in range(20)]
    made = await asyncio.gather(*(caller.submit(type="code") for caller in callers))
    held = {each.id: each.token for n in range(20) for each in await queue.claim(f"coder-{n}", start=True)}
    await asyncio.gather(
        *(caller.complete(held[task.id]) for caller, task in zip(reversed(callers), reversed(made), strict=True))
    )
    for number, task in enumerate(made):
        outcome = {event.verb: event.request_id for event in (await queue.tasks.history(task.id)).events}
        assert outcome["submitted"] == outcome["completed"] == f"request-{number}"


async def test_unblocked_dependent_records_the_request_id(queue: Queue) -> None:
    first = await queue.submit(type="code")
    second = await queue.submit(type="code", dependencies=[first.id])
    await queue.as_caller("agent:coder", "r-1").complete((await take(queue)).token)
    assert (await queue.tasks.history(second.id)).events[-1].request_id == "r-1"
