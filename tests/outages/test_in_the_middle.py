"""PostgreSQL calls interrupted at rollback, commit or notification, or on a standby."""

import asyncio
from contextlib import suppress
from typing import Any

import asyncpg
import pytest

from shiftwork import Queue
from shiftwork.model.errors import OperationTimeout, StoreReadOnly, StoreUnavailable
from shiftwork.store import postgres_notify
from shiftwork.store.postgres import PostgresStore
from shiftwork.store.postgres_clock import DatabaseClock
from shiftwork.store.postgres_errors import translate
from shiftwork.store.postgres_sessions import Session
from shiftwork.store.store import Tx
from tests.outages.relay import relay_to
from tests.stores.stalling import given, impatient
from tests.worker.steps import until


@pytest.fixture
async def rolling_back(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """An event that is set when a slow rollback has begun."""
    begun = asyncio.Event()
    execute = Session.execute

    async def slow(self: Session, query: str, *values: Any, **options: Any) -> Any:
        if query == "rollback":
            begun.set()
            await asyncio.sleep(0.3)
        return await execute(self, query, *values, **options)

    monkeypatch.setattr(Session, "execute", slow)
    return begun


class Deadlocked:
    """A verb that meets a deadlock the first time."""

    def __init__(self) -> None:
        self.tries = 0

    async def __call__(self, tx: Tx) -> None:
        self.tries += 1
        await tx.run("add_job", name="mine", due_at=1.0)
        await tx.one("job_row", name="mine")
        if self.tries == 1:
            raise asyncpg.DeadlockDetectedError("deadlock")


async def count_jobs(url: str) -> int:
    connection = await asyncpg.connect(url)
    found: int = await connection.fetchval("select count(*) from duties where name = 'mine'")
    await connection.close()
    return found


async def test_call_cancelled_during_a_rollback_is_not_retried(postgres_url: str, rolling_back: asyncio.Event) -> None:
    async with Queue.open(postgres_url) as queue:
        verb = Deadlocked()
        call = asyncio.ensure_future(queue.engine.store.run(verb))
        await rolling_back.wait()
        call.cancel()
        assert isinstance((await asyncio.gather(call, return_exceptions=True))[0], asyncio.CancelledError)
        assert (verb.tries, await count_jobs(postgres_url)) == (1, 0)


async def test_call_timing_out_during_a_rollback_reports_it(postgres_url: str, rolling_back: asyncio.Event) -> None:
    async with Queue.open(postgres_url) as queue:
        with given(queue.engine.store, 0.2), pytest.raises(OperationTimeout):
            await queue.engine.store.run(Deadlocked())
        assert await count_jobs(postgres_url) == 0


async def test_cleanup_after_a_cancellation_can_be_retried(postgres_url: str, rolling_back: asyncio.Event) -> None:
    async with Queue.open(postgres_url) as queue:

        async def cancelled() -> None:
            try:
                await asyncio.sleep(60)
            finally:
                await queue.engine.store.run(Deadlocked())

        call = asyncio.create_task(cancelled())
        await asyncio.sleep(0)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        assert await count_jobs(postgres_url) == 1


async def test_caller_cancelled_at_its_commit_still_wakes_waiting_claims(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Queue.open(postgres_url) as queue:
        await queue.submit(type="code")
        (held,) = await queue.claim("first", start=True)
        waiting = asyncio.create_task(queue.claim("second", wait=25))
        await until(lambda: bool(queue.executor.shared.claim_waiters._waiters))
        commit = PostgresStore._commit

        async def go(self: PostgresStore, connection: Any, tx: Any, left: float) -> bool:
            outcome = await commit(self, connection, tx, left)
            if tx.wakes:
                releasing.cancel()
                await asyncio.sleep(0)
            return outcome

        monkeypatch.setattr(PostgresStore, "_commit", go)
        releasing = asyncio.create_task(queue.release(held.token))
        assert isinstance((await asyncio.gather(releasing, return_exceptions=True))[0], asyncio.CancelledError)
        assert [taken.id for taken in await asyncio.wait_for(waiting, 10)] == [held.id]


async def test_notification_meeting_a_lock_does_not_fail_the_commit(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Queue.open(postgres_url) as queue:
        await queue.submit(type="code", idempotency_key="a")
        execute = Session.execute

        async def locked(self: Session, query: str, *values: Any, **options: Any) -> Any:
            if query.startswith("commit;"):
                await execute(self, "commit")
                raise asyncpg.LockNotAvailableError("canceling statement due to lock timeout")
            return await execute(self, query, *values, **options)

        monkeypatch.setattr(Session, "execute", locked)
        await until(queue.engine.store._notices.is_quiet)  # type: ignore[attr-defined]  # of this store
        made = await queue.submit(type="code", idempotency_key="b")
        assert (await queue.get(made.id)).status == "ready"


async def test_refused_notification_does_not_refuse_the_submit(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A submit alone is one statement that includes its notification; if notifying fails, it is retried without."""
    async with Queue.open(postgres_url) as queue:
        await queue.submit(type="code")
        execute, refused = Session.execute, []

        async def full(self: Session, query: str, *values: Any, **options: Any) -> Any:
            if "pg_notify" in query:
                refused.append(query)
                raise asyncpg.ProgramLimitExceededError("too many notifications in the NOTIFY queue")
            return await execute(self, query, *values, **options)

        monkeypatch.setattr(Session, "execute", full)
        monkeypatch.setattr(postgres_notify, "IDLE_SEC", 0.0)
        await until(queue.engine.store._notices.is_quiet)  # type: ignore[attr-defined]  # of this store
        made = await queue.submit(type="code")
        assert len(refused) == 1
        assert (await queue.status()).counts == {"ready": 2}
        assert (await queue.get(made.id)).status == "ready"


async def test_session_on_a_standby_is_replaced_by_a_writable_one(postgres_url: str) -> None:
    """As when a name still resolves to the old primary."""
    admin = await asyncpg.connect(postgres_url)
    name = await admin.fetchval("select current_database()")
    async with Queue.open(postgres_url) as queue:
        await queue.submit(type="code")
        try:
            await admin.execute(f'alter database "{name}" set default_transaction_read_only = on')
            await admin.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity"
                " where pid <> pg_backend_pid() and datname = current_database()"
            )
            with impatient(), suppress(StoreUnavailable, StoreReadOnly):  # of the session that was ended, or the next
                await queue.submit(type="code")
            with impatient(), pytest.raises(StoreReadOnly):
                await queue.submit(type="code")
        finally:
            await admin.execute(f'alter database "{name}" reset default_transaction_read_only')
        assert (await queue.submit(type="code")).status == "ready"
        assert (await queue.submit(type="code", idempotency_key="k")).status == "ready"
    await admin.close()


async def test_cancelled_open_leaves_no_session(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    measuring = asyncio.Event()

    async def never(*_: Any) -> None:
        measuring.set()
        await asyncio.sleep(60)

    admin = await asyncpg.connect(postgres_url)
    monkeypatch.setattr(DatabaseClock, "measure", never)
    opening = asyncio.create_task(Queue.open(postgres_url).as_coroutine())
    await measuring.wait()
    opening.cancel()
    await asyncio.gather(opening, return_exceptions=True)
    sessions = (
        "select count(*) from pg_stat_activity where application_name = 'shiftwork' and datname = current_database()"
    )
    async with asyncio.timeout(10):
        while await admin.fetchval(sessions):  # noqa: ASYNC110  # the server notices in its own time
            await asyncio.sleep(0.05)
    await admin.close()


async def test_call_cancelled_during_its_commit_leaves_no_transaction(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection returns to the pool: the next verb would be in this transaction."""
    committing = asyncio.Event()
    execute = Session.execute

    async def noted(self: Session, query: str, *values: Any, **options: Any) -> Any:
        if query == "commit":
            asyncio.get_running_loop().call_soon(committing.set)  # it is on its way
        return await execute(self, query, *values, **options)

    async with relay_to(postgres_url) as (relay, url), await Queue.open(url, pool_size=1) as queue:
        monkeypatch.setattr(Session, "execute", noted)
        relay.delay_sec = 0.1
        call = asyncio.ensure_future(queue.engine.store.run(lambda tx: tx.all("list_jobs")))
        await committing.wait()
        call.cancel()
        await asyncio.sleep(0)
        call.cancel()  # as a loop that ends its tasks once more does
        await asyncio.gather(call, return_exceptions=True)
        assert await queue.engine.store.read(lambda tx: tx.all("list_jobs")) == []


@pytest.mark.parametrize("error", [TimeoutError(), ConnectionResetError(), asyncpg.InterfaceError(""), OSError()])
def test_error_without_a_message_gets_a_description(error: BaseException) -> None:
    assert "PostgreSQL: ." not in str(translate(error))
    assert translate(error).what.removeprefix("PostgreSQL: ").strip()
