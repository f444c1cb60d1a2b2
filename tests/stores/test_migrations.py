"""The schema of a new queue equals the sum of its migrations."""

import asyncio
from pathlib import Path

import apsw
import asyncpg
import pytest

from shiftwork import Queue
from shiftwork.store import migrate
from shiftwork.store.statements import Dialect

CATALOGUE = """
select 'column', table_schema || '.' || table_name, column_name,
  concat_ws(' ', ordinal_position, data_type, is_nullable, column_default, identity_generation)
from information_schema.columns where table_schema in ('public', 'factory')
union all
select 'index', tablename, indexname, indexdef from pg_indexes where schemaname = 'public'
union all
select 'constraint', conrelid::regclass::text, conname, pg_get_constraintdef(oid) from pg_constraint
where connamespace = 'public'::regnamespace
union all
select 'view', schemaname, viewname, definition from pg_views where schemaname in ('public', 'factory')
union all
select 'options', relname, '', coalesce(reloptions::text, '') from pg_class
where relnamespace = 'public'::regnamespace and relkind = 'r'
order by 1, 2, 3"""


async def test_new_sqlite_file_equals_the_sum_of_migrations(tmp_path: Path) -> None:
    await (await Queue.open(f"sqlite:///{tmp_path}/fresh.db")).close()
    fresh, made = apsw.Connection(f"{tmp_path}/fresh.db"), apsw.Connection(f"{tmp_path}/made.db")
    made.execute(migrate.LEDGER)
    for migration in migrate.migrations("sqlite"):
        for statement in migrate.statements_of(migration.text):
            made.execute(statement)
    schema = "select type, name, tbl_name, sql from sqlite_schema order by type, name"
    assert list(fresh.execute(schema)) == list(made.execute(schema))
    fresh.close()
    made.close()


async def test_new_postgres_database_equals_the_sum_of_migrations(postgres_dsn: str, migrated_template: str) -> None:
    made = await asyncpg.connect(postgres_dsn)
    await made.execute(migrate.LEDGER)
    for migration in migrate.migrations("postgres"):
        for statement in migrate.statements_of(migration.text):
            await made.execute(statement)
    base = postgres_dsn.rpartition("/")[0]
    fresh = await asyncpg.connect(f"{base}/{migrated_template}")
    assert await fresh.fetch(CATALOGUE) == await made.fetch(CATALOGUE)
    await fresh.close()
    await made.close()


async def test_migration_table_names_every_migration_with_its_checksum(store_url: str) -> None:
    async with Queue.open(store_url):
        dialect: Dialect = "sqlite" if store_url.startswith("sqlite") else "postgres"
        ledger = "select number, name, checksum from migrations order by number"
        if dialect == "sqlite":
            connection = apsw.Connection(store_url.removeprefix("sqlite:///"))
            done = list(connection.execute(ledger))
            connection.close()
        else:
            server = await asyncpg.connect(store_url)
            done = [tuple(row) for row in await server.fetch(ledger)]
            await server.close()
    assert done == [(m.number, m.name, m.checksum) for m in migrate.migrations(dialect)]
    assert done[0][:2] == (1, "queue")


@pytest.mark.parametrize("dialect", ["sqlite", "postgres"])
def test_migrations_are_numbered_in_order(dialect: Dialect) -> None:
    found = migrate.migrations(dialect)
    numbers = [m.number for m in found]
    assert numbers == sorted(set(numbers))
    assert {len(m.checksum) for m in found} == {16}


def test_both_databases_have_the_same_checksums() -> None:
    sums = [[m.checksum for m in migrate.migrations(dialect)] for dialect in ("sqlite", "postgres")]
    assert sums[0] == sums[1]


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_concurrent_opens_of_an_empty_store_create_one_queue(
    kind: str, tmp_path: Path, postgres_dsn: str
) -> None:
    url = f"sqlite:///{tmp_path}/queue.db" if kind == "sqlite" else postgres_dsn
    queues = await asyncio.gather(*(Queue.open(url) for _ in range(8)))
    for number, queue in enumerate(queues):
        await queue.submit(type="code", id=f"task-{number}")
    assert (await queues[0].status()).counts == {"ready": 8}
    for queue in queues:
        await queue.close()


def test_applied_migrations_are_not_missing() -> None:
    assert [m.number for m in migrate.missing("sqlite", [])] == [m.number for m in migrate.migrations("sqlite")]
    done = [(m.number, m.name, m.checksum) for m in migrate.migrations("sqlite")]
    assert migrate.missing("sqlite", done) == []
