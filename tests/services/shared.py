"""The servers that all tests of a run share: taken over through the environment, or started on first use."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from tests.services.pgbouncer import PgBouncer
from tests.services.postgres import Databases, Postgres
from tests.services.redis import Redis

POSTGRES = "SHIFTWORK_TEST_POSTGRES_DSN"
PGBOUNCER = "SHIFTWORK_TEST_PGBOUNCER_DSN"
REDIS = "SHIFTWORK_TEST_REDIS_URL"


class Pooler(Protocol):
    """What a test asks of a PgBouncer."""

    def dsn(self, database: str = ...) -> str: ...


@contextmanager
def postgres() -> Iterator[Databases]:
    if given := os.environ.get(POSTGRES):
        yield Databases.at(given)
        return
    # No one kills the shared server, so it can do without the disk: a database costs 20 ms instead of 250.
    with Postgres.start(durable=False) as server:
        yield server


@contextmanager
def pgbouncer(behind: Databases) -> Iterator[Pooler]:
    if given := os.environ.get(PGBOUNCER):
        yield Databases.at(given)
        return
    with PgBouncer.start(behind) as server:
        yield server


@contextmanager
def redis() -> Iterator[str]:
    if given := os.environ.get(REDIS):
        yield given
        return
    with Redis.start() as server:
        yield server.url
