"""A database as an application has it: its own `tasks`, `events` and `agents` in public, the queue in a schema."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from shiftwork import Queue
from shiftwork.store.open_store import open_store
from shiftwork.testing import MovedClock
from tests.conformance.conftest import *  # noqa: F403  # the same queue under each profile
from tests.services import Databases
from tests.services.postgres import execute

SCHEMA = "work_queue"
OWN_TABLES = """
create table tasks (id int primary key, note text);
create table events (id int primary key, note text);
create table agents (id int primary key, note text);
create table migrations (id int primary key, note text);
create view event_log as select note from events;
insert into tasks values (1, 'mine'); insert into events values (1, 'mine'); insert into agents values (1, 'mine')"""


@pytest.fixture(scope="session")
def application_template(postgres: Databases) -> Iterator[str]:
    name = postgres.create_database()
    execute(postgres.dsn(name), OWN_TABLES)
    asyncio.run(_migrate(f"{postgres.dsn(name)}?schema={SCHEMA}"))
    yield name
    postgres.drop_database(name)


async def _migrate(url: str) -> None:
    await (await open_store(url)).close()


@pytest.fixture
def application_dsn(postgres: Databases, application_template: str) -> Iterator[str]:
    """The address of the application's database."""
    name = postgres.create_database(application_template)
    yield postgres.dsn(name)
    postgres.drop_database(name)


@pytest.fixture
def schema_url(application_dsn: str) -> str:
    """The address of the queue in it."""
    return f"{application_dsn}?schema={SCHEMA}"


@pytest.fixture(autouse=True)
def _artifacts_in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHIFTWORK_ARTIFACTS", str(tmp_path / "artifacts"))


@pytest.fixture
async def queue(schema_url: str, clock: MovedClock) -> AsyncIterator[Queue]:
    """A queue in a schema, whose clock only the test moves."""
    async with Queue.open(schema_url, clock=clock, seed=7) as opened:
        yield opened
