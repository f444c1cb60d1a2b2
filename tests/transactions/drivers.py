"""The kinds of connections that a caller may use: how a transaction begins, writes a row, and ends."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, NamedTuple

import asyncpg
import psycopg
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

INSERT = "insert into public.orders (note) values ('mine')"


class Begun(NamedTuple):
    """A transaction with one row of the caller in it; `connection` is what the queue is given."""

    connection: Any
    run: Callable[[str], Any]
    commit: Callable[[], Any]
    rollback: Callable[[], Any]


@asynccontextmanager
async def on_asyncpg(dsn: str) -> AsyncIterator[Begun]:
    connection = await asyncpg.connect(dsn)
    transaction = connection.transaction()
    await transaction.start()
    await connection.execute(INSERT)
    yield Begun(connection, connection.execute, transaction.commit, transaction.rollback)
    await connection.close()


@asynccontextmanager
async def on_asyncpg_pool(dsn: str) -> AsyncIterator[Begun]:
    """With custom codecs, as many applications have them."""
    async with asyncpg.create_pool(dsn, min_size=1, init=_own_codecs) as pool, pool.acquire() as connection:
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute(INSERT)
        yield Begun(connection, connection.execute, transaction.commit, transaction.rollback)


async def _own_codecs(connection: Any) -> None:
    import json  # noqa: PLC0415  # as the owner has it

    for name in ("json", "jsonb"):
        await connection.set_type_codec(name, encoder=json.dumps, decoder=json.loads, schema="pg_catalog")


@asynccontextmanager
async def on_psycopg(dsn: str) -> AsyncIterator[Begun]:
    connection = await psycopg.AsyncConnection.connect(dsn)
    await connection.execute(INSERT)
    yield Begun(connection, connection.execute, connection.commit, connection.rollback)
    await connection.close()


@asynccontextmanager
async def on_blocking_psycopg(dsn: str) -> AsyncIterator[Begun]:
    connection = psycopg.connect(dsn)
    connection.execute(INSERT)
    yield Begun(connection, connection.execute, connection.commit, connection.rollback)
    connection.close()


def on_sqlalchemy(driver: str, *, session: bool) -> Callable[[str], AbstractAsyncContextManager[Begun]]:
    @asynccontextmanager
    async def begun(dsn: str) -> AsyncIterator[Begun]:
        engine = create_async_engine(dsn.replace("postgresql://", f"postgresql+{driver}://"))
        opened = AsyncSession(engine) if session else engine.connect()
        async with opened as connection:

            async def run(text: str) -> None:
                await connection.execute(sqlalchemy.text(text))

            await run(INSERT)
            yield Begun(connection, run, connection.commit, connection.rollback)
        await engine.dispose()

    return begun


def on_blocking_sqlalchemy(*, session: bool) -> Callable[[str], AbstractAsyncContextManager[Begun]]:
    @asynccontextmanager
    async def begun(dsn: str) -> AsyncIterator[Begun]:
        engine = sqlalchemy.create_engine(dsn.replace("postgresql://", "postgresql+psycopg://"))
        with Session(engine) if session else engine.connect() as connection:

            def run(text: str) -> None:
                connection.execute(sqlalchemy.text(text))

            run(INSERT)
            yield Begun(connection, run, connection.commit, connection.rollback)
        engine.dispose()

    return begun


BLOCKING: dict[str, Callable[[str], AbstractAsyncContextManager[Begun]]] = {
    "psycopg": on_blocking_psycopg,
    "sqlalchemy": on_blocking_sqlalchemy(session=False),
    "sqlalchemy session": on_blocking_sqlalchemy(session=True),
}
DRIVERS: dict[str, Callable[[str], AbstractAsyncContextManager[Begun]]] = {
    "asyncpg": on_asyncpg,
    "asyncpg pool": on_asyncpg_pool,
    "async psycopg": on_psycopg,
    "async sqlalchemy on asyncpg": on_sqlalchemy("asyncpg", session=False),
    "async sqlalchemy on psycopg": on_sqlalchemy("psycopg", session=False),
    "async sqlalchemy session": on_sqlalchemy("asyncpg", session=True),
    **{f"blocking {name}": driver for name, driver in BLOCKING.items()},
}
