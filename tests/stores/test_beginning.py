"""A transaction that begins together with its first statement, whatever that is and however it ends."""

from collections.abc import AsyncIterator, Awaitable, Callable

import asyncpg
import pytest

from shiftwork.store import postgres as store
from shiftwork.store.postgres_sessions import Session
from tests.services.postgres import Databases


@pytest.fixture
async def session(postgres: Databases) -> AsyncIterator[Session]:
    name = postgres.create_database()
    opened: Session = await asyncpg.connect(postgres.dsn(name), connection_class=Session)
    await opened.execute("create table notes (id int primary key)")
    yield opened
    await opened.close()
    postgres.drop_database(name)


async def copy(session: Session) -> object:
    return await session.copy_records_to_table("notes", records=[(1,)], columns=["id"])


FIRST: dict[str, Callable[[Session], Awaitable[object]]] = {
    "a write": lambda session: session.execute("insert into notes values ($1)", 1),
    "a plain message": lambda session: session.execute("insert into notes values (1)"),
    "a question": lambda session: session.fetch("insert into notes values ($1) returning id", 1),
    "a question for one row": lambda session: session.fetchrow("insert into notes values (1) returning id"),
    "a copy": copy,
}


@pytest.mark.parametrize("first", FIRST)
@pytest.mark.parametrize("end", ["commit", "rollback"])
async def test_first_statement_and_the_rest_are_one_transaction(session: Session, first: str, end: str) -> None:
    for kept in range(2):  # the second time the driver knows the statement
        session.begin_with_next(store.BEGIN)
        await FIRST[first](session)
        assert session.is_in_transaction()
        await session.execute("insert into notes values (2)")
        await session.execute(end)
        assert not session.is_in_transaction()
        assert await session.fetchval("select count(*) from notes") == (2 if end == "commit" else 0), kept
        await session.execute("delete from notes")


async def test_reading_transaction_is_repeatable_read_and_read_only(session: Session) -> None:
    session.begin_with_next(store.BEGIN_READING)
    assert await session.fetchval("show transaction_isolation") == "repeatable read"
    with pytest.raises(asyncpg.ReadOnlySQLTransactionError):
        await session.execute("insert into notes values (1)")
    await session.execute("rollback")


@pytest.mark.parametrize(
    ("text", "values"),
    [("select 1 / $1::int", (0,)), ("select $1::int", ("one",)), ("no such words", ()), ("select 1 / 0", ())],
)
async def test_failing_first_statement_leaves_the_session_usable(
    session: Session, text: str, values: tuple[object, ...]
) -> None:
    session.begin_with_next(store.BEGIN)
    with pytest.raises((asyncpg.PostgresError, asyncpg.DataError)):
        await session.fetch(text, *values)
    await session.execute("rollback")
    assert not session.is_in_transaction()
    assert await session.fetchval("select 7") == 7


async def test_empty_transaction_is_rolled_back(session: Session) -> None:
    session.begin_with_next(store.BEGIN)
    await session.execute("rollback")
    assert not session.is_in_transaction()
    assert await session.fetchval("select 7") == 7
