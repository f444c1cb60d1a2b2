"""Repeated submits: what counts as a duplicate, for how long, and what the second one gets."""

import asyncio

import apsw
import asyncpg
import pytest

from shiftwork import Queue
from shiftwork.model.errors import DuplicateTask, IdempotencyKeyRequired
from shiftwork.testing import MovedClock, pass_time
from tests.conformance.steps import REPORT, dead_letter, finish, sql, take


@pytest.mark.requirement("F-006")
async def test_idempotency_key_names_one_task(queue: Queue) -> None:
    first = await queue.submit(type="code", idempotency_key="k")
    second = await queue.submit(type="other", idempotency_key="k", priority=3)
    assert (second.id, second.duplicate, first.duplicate) == (first.id, True, False)
    assert len((await queue.tasks.list()).tasks) == 1
    assert (await queue.get(first.id)).type == "code"


async def test_concurrent_submits_with_one_key_create_one_task(queue: Queue, clock: MovedClock, store_url: str) -> None:
    async with Queue.open(store_url, clock=clock) as second:
        handles = [queue, second] * 10
        made = await asyncio.gather(*(q.submit(type="code", idempotency_key="k") for q in handles))
    assert len({submitted.id for submitted in made}) == 1
    assert sum(not submitted.duplicate for submitted in made) == 1


@pytest.mark.requirement("L-003", "L-090", "L-093", "L-094")
async def test_loki_key_is_a_hash_of_the_payload(loki: Queue) -> None:
    first = await loki.submit(type="eng-backend", payload={"action": "test", "target": "a.py"})
    again = await loki.submit(type="eng-backend", payload={"target": "a.py", "action": "test"})
    other = await loki.submit(type="eng-backend", payload={"action": "test", "target": "b.py"})
    assert (again.id, again.duplicate) == (first.id, True)
    assert other.id != first.id
    keys = [(await loki.get(made.id)).idempotency_key for made in (first, other)]
    assert len({key for key in keys if key}) == 2
    assert len((await loki.tasks.list(status="ready")).tasks) == 2


@pytest.mark.requirement("L-095")
async def test_loki_key_covers_only_the_payload(loki: Queue) -> None:
    first = await loki.submit(type="eng-backend", priority=10, payload={"n": 1})
    again = await loki.submit(type="ops-devops", priority=90, payload={"n": 1}, idempotency_key="mine")
    assert again.id == first.id


@pytest.mark.requirement("L-091")
async def test_loki_detects_duplicates_only_in_three_of_five_queues(loki: Queue) -> None:
    async def again() -> str:
        return (await loki.submit(type="code", payload={"n": 1})).id

    task_id = await again()
    assert await again() == task_id, "while pending"
    token = (await take(loki)).token
    assert await again() == task_id, "while in progress"
    await loki.complete(token, decision_report=REPORT)
    assert await again() == task_id, "when completed"
    buried = await dead_letter(loki, payload={"n": 2})
    assert (await loki.submit(type="code", payload={"n": 2})).id != buried
    cancelled = (await loki.submit(type="code", payload={"n": 3})).id
    await loki.cancel(cancelled)
    assert (await loki.submit(type="code", payload={"n": 3})).id != cancelled


@pytest.mark.parametrize("profile", ["factory", "redis"])
async def test_key_holds_in_every_state_where_profile_says_so(queue: Queue, profile: str) -> None:
    await queue.settings.use_profile(profile)
    buried = await dead_letter(queue, idempotency_key="a")
    cancelled = (await queue.submit(type="code", idempotency_key="b")).id
    await queue.cancel(cancelled)
    assert (await queue.submit(type="code", idempotency_key="a")).id == buried
    assert (await queue.submit(type="code", idempotency_key="b")).id == cancelled


@pytest.mark.requirement("R-030")
async def test_redis_profile_refuses_task_without_key(streams: Queue) -> None:
    with pytest.raises(IdempotencyKeyRequired):
        await streams.submit(type="tool")
    assert (await streams.tasks.list()).tasks == []


@pytest.mark.requirement("R-033")
async def test_database_constraint_keeps_a_key_unique(streams: Queue) -> None:
    task_id = (await streams.submit(type="tool", idempotency_key="k")).id
    (row,) = await sql(streams, "select workspace, key, task_id from keys")
    with pytest.raises((apsw.ConstraintError, asyncpg.UniqueViolationError)):
        await _insert_key(streams, str(row["workspace"]), str(row["key"]), str(row["task_id"]))
    assert (await streams.submit(type="tool", idempotency_key="k")).id == task_id


async def _insert_key(queue: Queue, workspace: str, key: str, task_id: str) -> None:
    statement = f"insert into keys (workspace, key, task_id) values ('{workspace}', '{key}', '{task_id}')"
    if queue.url.startswith("sqlite"):
        connection = apsw.Connection(queue.url.removeprefix("sqlite:///"))
        try:
            connection.execute(statement)
        finally:
            connection.close()
        return
    server = await asyncpg.connect(queue.url)
    try:
        await server.execute(statement)
    finally:
        await server.close()


@pytest.mark.requirement("C-231")
async def test_coscientist_compares_type_and_payload(coscientist: Queue) -> None:
    first = await coscientist.submit(type="Ranking", payload={"pair": [1, 2]})
    assert (await coscientist.submit(type="Ranking", payload={"pair": [1, 2]})).id == first.id
    assert (await coscientist.submit(type="Ranking", payload={"pair": [2, 1]})).id != first.id
    assert (await coscientist.submit(type="Evolution", payload={"pair": [1, 2]})).id != first.id


@pytest.mark.requirement("C-232")
async def test_same_payload_after_the_window_is_a_new_task(coscientist: Queue, clock: MovedClock) -> None:
    first = await coscientist.submit(type="Ranking", payload={"n": 1})
    clock.advance(3599)
    assert (await coscientist.submit(type="Ranking", payload={"n": 1})).id == first.id
    clock.advance(1)
    assert (await coscientist.submit(type="Ranking", payload={"n": 1})).id != first.id


@pytest.mark.requirement("C-233")
async def test_duplicates_are_merged_or_refused_by_setting(coscientist: Queue) -> None:
    first = await coscientist.submit(type="Ranking", priority=70, tags=["a"])
    await coscientist.submit(type="Ranking", priority=20, tags=["b"])
    merged = await coscientist.get(first.id)
    assert (merged.priority, sorted(merged.tags)) == (20, ["a", "b"])
    await coscientist.settings.set("idempotency.on_duplicate", "reject")
    with pytest.raises(DuplicateTask) as refused:
        await coscientist.submit(type="Ranking")
    assert refused.value.facts["task_id"] == first.id


async def test_claimed_task_is_not_changed_by_a_duplicate(coscientist: Queue) -> None:
    first = await coscientist.submit(type="Ranking", priority=70)
    await take(coscientist)
    assert (await coscientist.submit(type="Ranking", priority=20)).id == first.id
    assert (await coscientist.get(first.id)).priority == 70


async def test_task_never_conflicts_with_its_own_key(queue: Queue, clock: MovedClock) -> None:
    task_id = (await queue.submit(type="code", idempotency_key="k")).id
    await queue.fail((await take(queue)).token, "crash")
    await pass_time(queue, clock, 15)
    await queue.fail((await take(queue)).token, retry=False)
    await queue.dead_letters.review(task_id, "retry")
    await finish(queue)
    rerun = await queue.tasks.rerun(task_id)
    assert rerun.task_id != task_id
    assert await finish(queue) == rerun.task_id


async def test_retried_dead_letter_takes_its_key_back(queue: Queue) -> None:
    task_id = await dead_letter(queue, idempotency_key="k")
    await queue.dead_letters.review(task_id, "retry")
    again = await queue.submit(type="code", idempotency_key="k")
    assert (again.id, again.duplicate) == (task_id, True)


async def test_retried_dead_letter_leaves_its_key_to_a_newer_task(queue: Queue) -> None:
    buried = await dead_letter(queue, idempotency_key="k")
    newer = (await queue.submit(type="code", idempotency_key="k")).id
    await queue.dead_letters.review(buried, "retry")
    assert (await queue.submit(type="code", idempotency_key="k")).id == newer


async def test_duplicates_in_one_batch_are_one_task(queue: Queue) -> None:
    first, second = await queue.submit_many([{"type": "code", "idempotency_key": "k"}] * 2)
    assert (second.id, second.duplicate) == (first.id, True)
    assert len((await queue.tasks.list()).tasks) == 1


@pytest.mark.parametrize(("others", "own"), [(["ready"], ["ready", "completed"]), (["ready", "completed"], ["ready"])])
async def test_task_setting_decides_how_long_its_key_holds(queue: Queue, others: list[str], own: list[str]) -> None:
    await queue.settings.set("idempotency.scope_states", others)
    task = {"type": "code", "idempotency_key": "k", "settings": {"idempotency": {"scope_states": own}}}
    first = await queue.submit(task)
    assert await finish(queue) == first.id
    assert (await queue.submit(task)).duplicate is ("completed" in own)
