"""Fixtures that hand the servers to the tests: one server for the run, a fresh database for each test."""

import os
from collections.abc import Iterator

import pytest

from tests.services import Databases, shared
from tests.services import redis as redis_server


@pytest.fixture(scope="session")
def postgres() -> Iterator[Databases]:
    """The shared PostgreSQL server; a test that stops or kills one starts its own (`Postgres.start()`)."""
    with shared.postgres() as server:
        yield server


@pytest.fixture
def postgres_dsn(postgres: Databases) -> Iterator[str]:
    """The address of a fresh, empty database."""
    name = postgres.create_database()
    yield postgres.dsn(name)
    postgres.drop_database(name)


@pytest.fixture(scope="session")
def pgbouncer(postgres: Databases) -> Iterator[shared.Pooler]:
    """The shared PgBouncer, which reaches every database of `postgres` in transaction mode."""
    with shared.pgbouncer(postgres) as server:
        yield server


@pytest.fixture(scope="session")
def _redis_of_this_process() -> Iterator[str]:
    """One numbered database for each test process, so that tests may empty it."""
    with shared.redis() as url:
        yield redis_server.database(url, int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]))


@pytest.fixture
def redis_url(_redis_of_this_process: str) -> str:
    """The address of an empty Redis database."""
    redis_server.empty(_redis_of_this_process)
    return _redis_of_this_process
