"""Claims and completions of plain tasks are one statement on PostgreSQL; special tasks take the full path."""

from typing import Any

import asyncpg
import pytest

from shiftwork import Queue
from shiftwork.engine import lost_claim
from shiftwork.model.errors import StoreUnavailable
from shiftwork.store.postgres import UNKNOWN
from tests.conformance.steps import sql
from tests.races.fleet import handles

CLAIM, COMPLETE = "with recursive walk(lane)", "with held as materialized"


class Cut:
    """Drops the answer to the first statement that begins like this, after the server has executed it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, beginning: str) -> None:
        self.times = 0
        real = asyncpg.Connection.fetch

        async def fetch(connection: Any, text: str, *values: Any, **options: Any) -> Any:
            answer = await real(connection, text, *values, **options)
            if text.startswith(beginning) and not self.times:
                self.times += 1
                raise asyncpg.ConnectionDoesNotExistError("connection was closed in the middle of operation")
            return answer

        monkeypatch.setattr(asyncpg.Connection, "fetch", fetch)


class Sent:
    """The statements that write claims."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.claims: list[str] = []

        def heard(name: str) -> None:
            real = getattr(asyncpg.Connection, name)

            async def send(connection: Any, text: str, *values: Any, **options: Any) -> Any:
                if "fence = fence + 1" in text:
                    self.claims.append(text)
                return await real(connection, text, *values, **options)

            monkeypatch.setattr(asyncpg.Connection, name, send)

        for name in ("execute", "fetch"):
            heard(name)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read settings only once: rereading them each second would need a transaction and the full path."""
    monkeypatch.setattr("shiftwork.settings.cache.FRESH_SEC", 600.0)
    monkeypatch.setattr("shiftwork.budgets.allocator.FRESH_SEC", 600.0)
    monkeypatch.setattr("shiftwork.engine.engine.REST_SEC", 600.0)


async def work_off_one(queue: Queue, **task: Any) -> None:
    """Work off one task, so that the process has cached agent, settings and lane."""
    await queue.submit(type="code", **task)
    (held,) = await queue.claim("ada", start=True)
    await queue.complete(held.token)


async def test_completion_whose_answer_is_lost_is_reported_and_done_once(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Queue.open(postgres_url) as queue:
        await work_off_one(queue)
        task = await queue.submit(type="code")
        (held,) = await queue.claim("ada", start=True)
        with monkeypatch.context() as patched:
            cut = Cut(patched, COMPLETE)
            with pytest.raises(StoreUnavailable) as lost:
                await queue.complete(held.token, {"n": 1})
        assert lost.value.hint == UNKNOWN
        assert cut.times == 1
        assert (await queue.complete(held.token, {"n": 1})).repeated
        assert [event.verb for event in (await queue.tasks.history(task.id)).events].count("completed") == 1


async def test_claim_whose_answer_is_lost_is_undone_and_made_again(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Queue.open(postgres_url) as queue:
        await work_off_one(queue)
        first, second = await queue.submit_many([{"type": "code"}] * 2)
        with monkeypatch.context() as patched:
            cut = Cut(patched, CLAIM)
            (held,) = await queue.claim("ada", start=True)
        assert cut.times == 1
        assert held.id == first.id
        assert [(await queue.get(task.id)).status for task in (first, second)] == ["running", "ready"]
        events = [(event.verb, event.reason) for event in (await queue.tasks.history(first.id)).events]
        assert events == [("submitted", None), ("claimed", None), ("released", lost_claim.REASON), ("claimed", None)]


async def test_claim_that_cannot_be_made_again_reports_its_unknown_outcome(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Queue.open(postgres_url) as queue:
        await work_off_one(queue)
        task = await queue.submit(type="code")
        with monkeypatch.context() as patched:
            cut = Cut(patched, CLAIM)
            patched.setattr(lost_claim, "release", away)
            with pytest.raises(StoreUnavailable) as lost:
                await queue.claim("ada", start=True)
        assert lost.value.hint == UNKNOWN
        assert cut.times == 1
        assert (await queue.get(task.id)).status == "running"


async def away(*_: Any) -> None:
    raise StoreUnavailable("the server is away")


async def test_fast_path_writes_what_the_full_path_writes(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Queue.open(postgres_url) as queue:
        await work_off_one(queue)
        written = []
        for is_plain in (True, False):
            if not is_plain:
                monkeypatch.setattr(queue.engine.plain_claims, "is_likely", lambda _: False)
                monkeypatch.setattr(queue.engine.plain_ends, "is_likely", lambda _: False)
            task = await queue.submit(type="code", payload={"n": 1})
            (held,) = await queue.claim("ada", start=True, runtime_id="host")
            claimed = held.task()
            await queue.complete(held.token, {"n": 2})
            written.append((claimed, await queue.get(task.id), (await queue.tasks.history(task.id))))
    (claimed, done, history), (claimed_long, done_long, history_long) = written
    for plain, long in ((claimed, claimed_long), (done, done_long)):
        names = [name for name in plain.__struct_fields__ if _differs(getattr(plain, name), getattr(long, name))]
        assert names == []
    assert [_bare(event) for event in history.events] == [_bare(event) for event in history_long.events]


def _differs(one: Any, other: Any) -> bool:
    """Return whether two rows differ in more than ids and times."""
    return type(one) is not type(other) or (not isinstance(one, (float, str)) and _bare(one) != _bare(other))


def _bare(value: Any) -> Any:
    if hasattr(value, "__struct_fields__"):
        return {name: _bare(getattr(value, name)) for name in value.__struct_fields__ if name not in {"seq", "id"}}
    if isinstance(value, dict):
        return {key: _bare(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_bare(each) for each in value]
    if isinstance(value, float) or (isinstance(value, str) and value.startswith(("task_", "dag_"))):
        return type(value)
    return value


async def test_better_work_in_a_lane_unknown_to_this_process_is_taken_first(postgres_url: str) -> None:
    async with handles(postgres_url, 2) as (here, elsewhere):
        await work_off_one(here)
        await here.submit(type="code")
        urgent = await elsewhere.submit(type="urgent", priority=1)
        (held,) = await here.claim("ada")
        assert held.id == urgent.id


async def test_changes_by_another_process_apply_to_the_next_claim(postgres_url: str) -> None:
    async with handles(postgres_url, 2) as (here, elsewhere):
        await here.agents.register(id="ada", max_concurrent_tasks=3)
        await work_off_one(here)
        await here.submit_many([{"type": "code"}] * 3)
        await elsewhere.control.pause()
        assert await here.claim("ada") == []
        await elsewhere.control.resume()
        assert len(await here.claim("ada")) == 1
        await elsewhere.agents.register(id="ada", types=["docs"], max_concurrent_tasks=3)
        assert await here.claim("ada") == []
        await elsewhere.agents.register(id="ada", max_concurrent_tasks=1)
        assert await here.claim("ada") == []
        await elsewhere.agents.register(id="ada", max_concurrent_tasks=2)
        assert len(await here.claim("ada", 3)) == 1


async def test_work_for_one_agent_is_compared_with_work_for_all(postgres_url: str) -> None:
    async with handles(postgres_url, 2) as (here, elsewhere):
        await work_off_one(here)
        await here.submit(type="code")
        own = await elsewhere.submit(type="code", target_agent_id="ada", priority=1)
        (held,) = await here.claim("ada")
        assert held.id == own.id


async def test_task_with_a_time_limit_of_its_own_keeps_it(postgres_url: str) -> None:
    async with Queue.open(postgres_url) as queue:
        await work_off_one(queue)
        await queue.submit(type="code", timeout_sec=7)
        (held,) = await queue.claim("ada", start=True)
        claimed_at = held.task().claim.claimed_at
        assert claimed_at is not None
        assert held.execution_deadline == pytest.approx(claimed_at + 7)


async def test_special_work_soon_takes_the_full_path_at_once(postgres_url: str) -> None:
    async with Queue.open(postgres_url) as queue:
        await queue.agents.register(id="ada", max_concurrent_tasks=5)
        await work_off_one(queue)
        await queue.submit_many([{"type": "code", "timeout_sec": 7}] * 3)
        assert [len(await queue.claim("ada")) for _ in range(3)] == [1, 1, 1]
        assert not queue.engine.plain_claims.is_likely("default")


async def test_claim_of_many_tasks_takes_the_full_path(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Queue.open(postgres_url) as queue:
        await queue.agents.register(id="ada", max_concurrent_tasks=None)
        await work_off_one(queue)
        await queue.submit_many([{"type": "code"}] * 4)
        monkeypatch.setattr("shiftwork.engine.plain_claim.MAX_TASKS", 2)
        sent = Sent(monkeypatch)
        assert [len(await queue.claim("ada", count)) for count in (2, 3)] == [2, 2]
        assert [text.startswith(CLAIM) for text in sent.claims] == [True, False]


async def beat_of(queue: Queue, monkeypatch: pytest.MonkeyPatch, *, is_plain: bool) -> tuple[Any, list[dict[str, Any]]]:
    """Return the answer of a heartbeat, and which of its columns were just written."""
    monkeypatch.setattr(queue.engine.plain_beats, "is_likely", lambda _: is_plain)
    await queue.agents.register(id="ada", max_concurrent_tasks=9)
    await queue.submit(type="code")
    (held,) = await queue.claim("ada", start=True, runtime_id="host")
    await sql(queue, "update agents set last_heartbeat = 0, status = 'failed' where id = 'ada' returning id")
    await sql(
        queue, "update runtimes set seen_at = 0, heartbeat_at = 0, status = 'offline' where id = 'host' returning id"
    )
    await sql(queue, "update tasks set heartbeat_at = 0 where status = 'running' returning id")
    reply = await queue.heartbeat(held.token)
    written = await sql(
        queue,
        "select a.status, a.last_heartbeat > 0 as agent, r.status as runtime, r.seen_at > 0 as seen,"
        " r.heartbeat_at > 0 as covers_all, t.heartbeat_at > 0 as task, t.version"
        " from tasks t join agents a on a.id = t.agent_id join runtimes r on r.id = t.runtime_id"
        " where t.status = 'running'",
    )
    await queue.complete(held.token)
    return reply, written


@pytest.mark.parametrize("scope", ["task", "runtime"])
async def test_plain_heartbeat_writes_what_the_full_path_writes(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, scope: str
) -> None:
    async with Queue.open(postgres_url) as queue:
        await queue.settings.set("heartbeat.scope", scope)
        await work_off_one(queue)
        (plain, written), (long, written_long) = [
            await beat_of(queue, monkeypatch, is_plain=is_plain) for is_plain in (True, False)
        ]
    assert (plain.action, plain.slow_down_sec) == (long.action, long.slow_down_sec) == ("continue", None)
    assert written == written_long
    assert written[0]["covers_all"] == (scope == "runtime")


async def test_heartbeats_are_answered_separately_if_one_claim_is_lost(postgres_url: str) -> None:
    async with Queue.open(postgres_url) as queue:
        await queue.agents.register(id="ada", max_concurrent_tasks=3)
        await queue.submit_many([{"type": "code"}] * 3)
        first, second, third = await queue.claim("ada", 3, start=True)
        both = await queue.batch.heartbeat([{"token": first.token}, {"token": second.token}, {"token": first.token}])
        assert [reply.action for reply in both] == ["continue"] * 3
        assert queue.engine.plain_beats._misses == {}
        await queue.release(second.token)
        some = await queue.batch.heartbeat([{"token": each.token} for each in (first, second, third)])
        assert [reply.action for reply in some] == ["continue", "lost", "continue"]
        assert queue.engine.plain_beats._misses == {"default": 1}


async def test_heartbeat_returns_the_slowdown_and_waiting_instructions(postgres_url: str) -> None:
    async with Queue.open(postgres_url) as queue:
        await queue.agents.register(id="ada", provider="anthropic", max_concurrent_tasks=3)
        await queue.submit_many([{"type": "code"}] * 2)
        first, second = await queue.claim("ada", 2, start=True)
        assert (await queue.heartbeat(first.token)).slow_down_sec is None
        await queue.fail(second.token, "rate_limit", data={"retry_after": 60})
        slow = (await queue.heartbeat(first.token)).slow_down_sec
        assert slow is not None
        assert 0 < slow <= 30
        assert queue.engine.plain_beats._misses == {}
        await queue.tell(first.id, "look again")
        (waiting,) = (await queue.heartbeat(first.token)).instructions
        assert waiting.text == "look again"
