"""Instructions reach the holder of a task with its heartbeat: in order, fenced, acknowledged, kept over retries."""

import asyncio

import pytest

from shiftwork import Assignment, Queue
from shiftwork.model.errors import InputError, LeaseLost, NotFound, WrongState
from shiftwork.model.reports import MAX_AT_ONCE, MAX_INSTRUCTION, Instruction
from shiftwork.steering import operations
from shiftwork.testing import MovedClock, pass_time
from tests.conformance.steps import events_named, sql, take


async def held(queue: Queue, agent: str = "worker") -> Assignment:
    await queue.submit(type="code")
    return await take(queue, agent)


def texts(found: list[Instruction]) -> list[str]:
    return [each.text for each in found]


async def statuses(queue: Queue, task: str) -> list[tuple[str, int | None]]:
    return [(each.status, each.fence) for each in await queue.tasks.instructions(task)]


async def test_instructions_come_with_the_heartbeat_in_order_until_acknowledged(queue: Queue) -> None:
    claim = await held(queue)
    assert (await queue.heartbeat(claim.token)).instructions == []
    for text in ("use the blue one", "and hurry"):
        await queue.as_caller("human:ada").tell(claim.id, text)
    assert await statuses(queue, claim.id) == [("waiting", None)] * 2
    for _ in range(2):  # an answer can be lost
        answer = await queue.heartbeat(claim.token)
        assert [(each.seq, each.text, each.sent_by, each.status) for each in answer.instructions] == [
            (1, "use the blue one", "human:ada", "delivered"),
            (2, "and hurry", "human:ada", "delivered"),
        ]
    assert await statuses(queue, claim.id) == [("delivered", 1)] * 2
    await queue.claims.acknowledge(claim.token, 1)
    assert texts((await queue.heartbeat(claim.token)).instructions) == ["and hurry"]
    assert await statuses(queue, claim.id) == [("acknowledged", 1), ("delivered", 1)]
    assert (await queue.claims.acknowledge(claim.token, 2)).repeated is False
    assert (await queue.claims.acknowledge(claim.token, 2)).repeated is True
    assert (await queue.heartbeat(claim.token)).instructions == []


async def test_each_claim_of_a_batch_or_runtime_gets_its_own_instructions(queue: Queue) -> None:
    await queue.agents.register(id="worker", max_concurrent_tasks=5)
    await queue.submit_many([{"type": "code", "payload": {"n": n}} for n in range(3)])
    claims = await queue.claim("worker", 3, start=True, runtime_id="here")
    for claim in claims[:2]:
        await queue.tell(claim.id, f"for {claim.id}")
    wanted = [[f"for {claim.id}"] for claim in claims[:2]] + [[]]
    answers = await queue.batch.heartbeat([{"token": claim.token} for claim in claims])
    assert [texts(answer.instructions) for answer in answers] == wanted
    answer = await queue.runtimes.heartbeat("here", [claim.token for claim in claims])
    assert {token: texts(found) for token, found in answer.instructions.items()} == {
        claim.token: expected for claim, expected in zip(claims, wanted, strict=True) if expected
    }


async def test_a_holder_that_lost_the_claim_gets_and_acknowledges_nothing(queue: Queue) -> None:
    await queue.settings.set("retry.strategy", "immediate")
    old = await held(queue)
    await queue.fail(old.token, "crash")
    new = await take(queue)
    await queue.tell(new.id, "go on")
    assert (await queue.heartbeat(old.token)).instructions == []
    assert (await queue.runtimes.heartbeat("there", [old.token])).instructions == {}
    for refused in (queue.claims.acknowledge(old.token, 1), queue.claims.inbox(old.token)):
        with pytest.raises(LeaseLost):
            await refused
    assert await statuses(queue, new.id) == [("waiting", None)]
    assert texts((await queue.heartbeat(new.token)).instructions) == ["go on"]


async def test_instructions_are_kept_over_retries(queue: Queue) -> None:
    """Heartbeats bring unacknowledged ones; the inbox of an attempt has all of them."""
    await queue.settings.set("retry.strategy", "immediate")
    first = await held(queue)
    await queue.tell(first.id, "one")
    await queue.claims.acknowledge(first.token, 1)
    await queue.tell(first.id, "two")
    await queue.heartbeat(first.token)
    await queue.fail(first.token, "crash")
    await queue.tell(first.id, "three")
    second = await take(queue)
    assert texts((await queue.heartbeat(second.token)).instructions) == ["two", "three"]
    found = await queue.claims.inbox(second.token)
    assert [(each.text, each.acknowledged_at is not None) for each in found] == [
        ("one", True),
        ("two", False),
        ("three", False),
    ]
    assert texts(await queue.claims.inbox(second.token, after=2)) == ["three"]


async def test_instructions_follow_a_task_that_is_retried_under_a_new_id(queue: Queue) -> None:
    await queue.settings.set("retry.mode", "new_task")
    await queue.settings.set("retry.strategy", "immediate")
    first = await held(queue)
    await queue.tell(first.id, "one")
    await queue.fail(first.token, "crash")
    second = await take(queue)
    assert second.id != first.id
    await queue.tell(first.id, "two")
    assert texts((await queue.heartbeat(second.token)).instructions) == ["one", "two"]
    assert texts(await queue.tasks.instructions(second.id)) == ["one", "two"]


async def test_instruction_before_the_claim_waits_for_it(queue: Queue) -> None:
    task = await queue.submit(type="code")
    sent = await task.tell("mind the step")
    assert (sent.seq, sent.status) == (1, "waiting")
    claim = await take(queue)
    assert texts(await queue.claims.inbox(claim.token)) == ["mind the step"]


async def test_ended_tasks_accept_no_instruction_and_heartbeats_query_none(queue: Queue, clock: MovedClock) -> None:
    claim = await held(queue)
    await queue.tell(claim.id, "too late")
    await queue.complete(claim.token)
    with pytest.raises(WrongState):
        await queue.tell(claim.id, "more")
    assert await statuses(queue, claim.id) == [("unread", None)]
    assert await sql(queue, "select seq from instructions where open") != []
    await pass_time(queue, clock, 120)
    assert await sql(queue, "select seq from instructions where open") == []


async def test_heartbeat_brings_a_bounded_number_of_instructions(queue: Queue) -> None:
    claim = await held(queue)
    for n in range(MAX_AT_ONCE + 3):
        await queue.tell(claim.id, str(n))
    first = (await queue.heartbeat(claim.token)).instructions
    assert len(first) == MAX_AT_ONCE
    await queue.claims.acknowledge(claim.token, first[-1].seq)
    assert texts((await queue.heartbeat(claim.token)).instructions) == [str(MAX_AT_ONCE + n) for n in range(3)]


async def test_numbers_of_concurrent_senders_have_no_gap(queue: Queue) -> None:
    claim = await held(queue)
    await asyncio.gather(*(queue.tell(claim.id, str(n)) for n in range(20)))
    assert [each.seq for each in await queue.tasks.instructions(claim.id)] == list(range(1, 21))


async def test_events_do_not_contain_the_text_of_instructions(queue: Queue) -> None:
    claim = await held(queue)
    await queue.tell(claim.id, "a secret")
    await queue.heartbeat(claim.token)
    await queue.heartbeat(claim.token)
    await queue.claims.acknowledge(claim.token, 1)
    for name in ("instruction.sent", "instruction.delivered", "instruction.acknowledged"):
        assert await events_named(queue, name) == [claim.id]
    assert not any("secret" in str(event.data) for event in (await queue.tasks.history(claim.id)).events)


async def test_progress_does_not_count_as_delivery(queue: Queue) -> None:
    claim = await held(queue)
    await queue.tell(claim.id, "hello")
    await queue.claims.progress(claim.token, {"pct": 5})
    assert await statuses(queue, claim.id) == [("waiting", None)]


async def test_bad_instructions_are_refused(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    task = await queue.submit(type="code")
    for text in ("", " \n", "x" * (MAX_INSTRUCTION + 1), "nul\0", "\ud800"):
        with pytest.raises(InputError):
            await queue.tell(task.id, text)
    with pytest.raises(NotFound):
        await queue.tell("nothing", "hello")
    monkeypatch.setattr(operations, "MAX_INSTRUCTIONS", 1)
    await queue.tell(task.id, "the only one")
    with pytest.raises(WrongState, match="instructions, the maximum"):
        await queue.tell(task.id, "one more")
    assert len(await queue.tasks.instructions(task.id)) == 1


async def test_purged_tasks_leave_no_instruction(queue: Queue) -> None:
    await queue.settings.set("purge.mode", "delete")
    claim = await held(queue)
    await queue.tell(claim.id, "hello")
    await queue.release(claim.token)
    assert await queue.control.purge(type="code") == 1
    assert await sql(queue, "select * from instructions") == []


async def test_instructions_are_not_visible_to_other_workspaces(queue: Queue) -> None:
    claim = await held(queue)
    await queue.tell(claim.id, "hello")
    other = queue.in_workspace("other")
    for refused in (other.tell(claim.id, "hi"), other.tasks.instructions(claim.id), other.claims.inbox(claim.token)):
        with pytest.raises(NotFound):
            await refused
