"""Large databases filled by a test, on either store, to check that statements read them by index and sparingly."""

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import asynccontextmanager, closing, contextmanager
from typing import Any, NamedTuple

import apsw
import asyncpg

from shiftwork import Queue
from shiftwork.store.postgres_statistics import tell_planner
from tests.plans.asked import Hot, explain, explain_prepared, plan_of, prepare, read_of, steps

MessageBuffer = dict[str, str]


async def _make_schema(url: str) -> None:
    await (await Queue.open(url)).close()


class Filled(NamedTuple):
    """A filled queue, the statements to check, and the most that each may take."""

    statements: Sequence[str]
    numbers: int
    """How far `{numbers}` goes."""
    asked: Sequence[Hot]
    tables: Collection[str]
    """Whose rows count."""
    most_steps: int
    """Of SQLite's machine, for any one question."""
    uuid_of: str = "n"
    """What `{uuid}` is made of."""
    make: Callable[[str], Awaitable[None]] = _make_schema


def uuid(number: int) -> str:
    """Return SQL for `{uuid}` in the row of that number."""
    return f"00000000-0000-7000-8000-{number:012x}"


def _sqlite_words(count: int, uuid_of: str) -> MessageBuffer:
    numbers = f"(with recursive r(n) as (select 1 union all select n + 1 from r where n < {count}) select n from r)"
    return {
        "uuid": f"printf('00000000-0000-7000-8000-%012x', {uuid_of})",
        "numbers": numbers,
        "uuid_type": "text",
        "true": "1",
        "false": "0",
    }


def _postgres_words(count: int, uuid_of: str) -> MessageBuffer:
    return {
        "uuid": f"('00000000-0000-7000-8000-' || lpad(to_hex({uuid_of}), 12, '0'))::uuid",
        "numbers": f"(select n from generate_series(1, {count}) n) numbers",
        "uuid_type": "uuid",
        "true": "true",
        "false": "false",
    }


async def complaints(url: str, filled: Filled) -> list[str]:
    """Fill it, and return the statements with bad plans, before and after the tables were analysed.

    On PostgreSQL also by plans that were made while it was empty and vacuumed, once the planner was notified of the
    load.
    """
    await filled.make(url)
    if url.startswith("sqlite"):
        with sqlite(url, filled.statements, filled.numbers, filled.uuid_of) as connection:
            found = _sqlite_complaints(connection, filled, "never analysed")
            connection.execute("analyze").fetchall()
            return found + _sqlite_complaints(connection, filled, "analysed")
    async with _postgres(url, filled) as server:
        found = await _postgres_complaints(server, filled, "never analysed")
        async with server.transaction():
            await tell_planner(server, dict.fromkeys(filled.tables, 0))
        found += await _complaints_of_the_old(server, filled)
        await server.execute(f"analyze {', '.join(filled.tables)}")
        return found + await _postgres_complaints(server, filled, "analysed")


@contextmanager
def sqlite(url: str, statements: Sequence[str], count: int, uuid_of: str = "n") -> Iterator[apsw.Connection]:
    """A connection to a queue's file, filled by these statements."""
    with closing(apsw.Connection(url.removeprefix("sqlite:///"))) as connection:
        connection.execute("pragma synchronous = off")
        for statement in statements:
            connection.execute(statement.format(**_sqlite_words(count, uuid_of)))
        yield connection


@contextmanager
def undone(connection: apsw.Connection) -> Iterator[None]:
    """Roll back the changes of a statement before the next one."""
    connection.execute("savepoint asked")
    yield
    connection.execute("rollback to asked")
    connection.execute("release asked")


def _sqlite_complaints(connection: apsw.Connection, filled: Filled, state: str) -> list[str]:
    found = []
    for each in filled.asked:
        with undone(connection):
            plan = plan_of(connection, each.name, each.parameters)
            taken = steps(connection, each.name, each.parameters)
        indexes = _on_sqlite(connection, each.path)
        if indexes and not any(f" INDEX {index} " in f"{line} " for line in plan for index in indexes):
            found.append(f"{state}, {each.name}: uses {plan}, not {each.path}")
        if taken >= filled.most_steps:
            found.append(f"{state}, {each.name}: takes {taken} steps, not {filled.most_steps}")
    return found


def _on_sqlite(connection: apsw.Connection, path: str) -> list[str]:
    """Return the expected indexes on SQLite; a primary key that is the table itself has none."""
    if named := [index for index in path.split() if not index.endswith("_pkey")]:
        return named
    kept = "select name from pragma_index_list(?) where origin = 'pk'"
    return [str(name) for (name,) in connection.execute(kept, (path.removesuffix("_pkey"),))]


@asynccontextmanager
async def _postgres(url: str, filled: Filled) -> AsyncIterator[asyncpg.Connection]:
    server = await asyncpg.connect(url, command_timeout=120)
    try:
        for table in filled.tables:
            await server.execute(f"alter table {table} set (autovacuum_enabled = false)")
        await server.execute("vacuum analyze")
        for number, each in enumerate(filled.asked):
            await prepare(server, each, f"old_{number}")
            await explain_prepared(server, each, f"old_{number}")
        for statement in filled.statements:
            await server.execute(statement.format(**_postgres_words(filled.numbers, filled.uuid_of)))
        yield server
    finally:
        await server.close()


async def _postgres_complaints(server: asyncpg.Connection, filled: Filled, state: str) -> list[str]:
    found = []
    for mode in ("force_custom_plan", "force_generic_plan"):
        for each in filled.asked:
            plan = await explain(server, each, mode)
            found += [f"{state}, {mode}, {each.name}: {wrong}" for wrong in _problem(plan, each, filled)]
    return found


async def _complaints_of_the_old(server: asyncpg.Connection, filled: Filled) -> list[str]:
    """A connection keeps its plans, even those made for an empty queue, until it is notified."""
    found = []
    for number, each in enumerate(filled.asked):
        plan = await explain_prepared(server, each, f"old_{number}")
        found += [f"planned when empty, {each.name}: {wrong}" for wrong in _problem(plan, each, filled)]
    return found


def _problem(plan: dict[str, Any], each: Hot, filled: Filled) -> Iterator[str]:
    read = read_of(plan, filled.tables)
    if read.indexes.isdisjoint(each.path.split()):
        yield f"uses {sorted(read.indexes)}, not {each.path}"
    if read.rows > each.rows:
        yield f"reads {read.rows} rows, not {each.rows}"
