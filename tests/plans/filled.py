"""Large databases that a test fills itself, on either store, and whether they are read by index and sparingly."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import apsw
import asyncpg

from shiftwork import Queue
from tests.plans.test_postgres_plans import Hot, explain, rows_of, walk
from tests.services import Databases

Words = dict[str, str]
_SQLITE_UUID = "printf('00000000-0000-7000-8000-%012x', {})"
_POSTGRES_UUID = "('00000000-0000-7000-8000-' || lpad(to_hex({}), 12, '0'))::uuid"


def sqlite_words(count: int, number: str = "n") -> Words:
    """What `{uuid}`, `{numbers}` and the like stand for in the statements that fill SQLite."""
    numbers = f"(with recursive r(n) as (select 1 union all select n + 1 from r where n < {count}) select n from r)"
    return {
        "uuid": _SQLITE_UUID.format(number),
        "numbers": numbers,
        "uuid_type": "text",
        "true": "1",
        "false": "0",
    }


def postgres_words(count: int, number: str = "n") -> Words:
    return {
        "uuid": _POSTGRES_UUID.format(number),
        "numbers": f"(select n from generate_series(1, {count}) n) numbers",
        "uuid_type": "uuid",
        "true": "true",
        "false": "false",
    }


async def _make_schema(url: str) -> None:
    await (await Queue.open(url)).close()


def fill_sqlite(
    folder: Path, statements: Sequence[str], words: Words, make: Callable[[str], Awaitable[None]] = _make_schema
) -> Path:
    """A queue's file, made by `make` and filled by these statements."""
    file = folder / "queue.db"

    async def made() -> None:
        await make(f"sqlite:///{file}")

    asyncio.run(made())
    connection = apsw.Connection(str(file))
    connection.execute("pragma synchronous = off")
    for statement in statements:
        connection.execute(statement.format(**words))
    connection.close()
    return file


@contextmanager
def undone(file: Path) -> Iterator[apsw.Connection]:
    """A connection whose changes, statistics included, are gone afterwards."""
    opened = apsw.Connection(str(file))
    opened.execute("begin")
    yield opened
    opened.execute("rollback")
    opened.close()


@asynccontextmanager
async def database(postgres: Databases, template: str) -> AsyncIterator[tuple[str, asyncpg.Connection]]:
    """A database of its own, and a connection to it."""
    name = postgres.create_database(template)
    opened = await asyncpg.connect(postgres.dsn(name), command_timeout=120)
    try:
        yield postgres.dsn(name), opened
    finally:
        await opened.close()
        postgres.drop_database(name)


async def fill_and_complain(
    server: asyncpg.Connection, statements: Sequence[str], words: Words, asked: Sequence[Hot], tables: Collection[str]
) -> list[str]:
    """Fill it, and say which questions are answered badly, before and after the tables were analysed."""
    for table in tables:
        await server.execute(f"alter table {table} set (autovacuum_enabled = false)")
    for statement in statements:
        await server.execute(statement.format(**words))
    found = await _complaints(server, asked, tables, "never analysed")
    await server.execute(f"analyze {', '.join(tables)}")
    return found + await _complaints(server, asked, tables, "analysed")


async def _complaints(
    server: asyncpg.Connection, asked: Sequence[Hot], tables: Collection[str], state: str
) -> list[str]:
    found = []
    for mode in ("force_custom_plan", "force_generic_plan"):
        for each in asked:
            nodes = list(walk(await explain(server, each, mode)))
            scans = [n for n in nodes if n.get("Relation Name") in tables and "Scan" in n["Node Type"]]
            indexes = {node["Index Name"] for node in nodes if "Index Name" in node}
            read = sum(rows_of(node) for node in scans)
            if indexes.isdisjoint(each.path.split()):
                found.append(f"{state}, {mode}, {each.name}: uses {sorted(indexes)}, not {each.path}")
            if read > each.rows:
                found.append(f"{state}, {mode}, {each.name}: reads {read} rows, not {each.rows}")
    return found
