"""Random operations on both stores: after each, every invariant holds and the model agrees."""

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from shiftwork import Queue
from shiftwork.testing import MovedClock
from tests.conftest import DEEP
from tests.machine.machine import Machine, Opener
from tests.services import Databases

SETTINGS = settings(
    max_examples=int(os.environ.get("SHIFTWORK_DEEP_EXAMPLES", "1000")) if DEEP else 25,
    stateful_step_count=60 if DEEP else 40,
    deadline=None,
    derandomize=not DEEP,
    database=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(params=["sqlite", "postgres"])
def opener(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opener]:
    """Return a function that opens an empty queue."""
    if request.param == "sqlite":
        numbers = itertools.count()

        async def on_sqlite(clock: MovedClock) -> Queue:
            return await Queue.open(f"sqlite:///{tmp_path}/{next(numbers)}.db", clock=clock, seed=7)

        yield on_sqlite
        return
    postgres: Databases = request.getfixturevalue("postgres")
    name = postgres.create_database(request.getfixturevalue("migrated_template"))
    dsn = postgres.dsn(name)

    async def on_postgres(clock: MovedClock) -> Queue:
        await _empty(dsn)
        return await Queue.open(dsn, clock=clock, seed=7)

    yield on_postgres
    postgres.drop_database(name)


async def _empty(dsn: str) -> None:
    """Cheaper than a new database for each example."""
    connection = await asyncpg.connect(dsn)
    try:
        tables = await connection.fetch(
            "select tablename from pg_tables where schemaname = 'public' and tablename <> 'migrations'"
        )
        await connection.execute(f"truncate {', '.join(t['tablename'] for t in tables)} restart identity")
    finally:
        await connection.close()


@pytest.mark.timeout(0 if DEEP else 300)
def test_invariants_hold_after_any_sequence_of_operations(opener: Opener) -> None:
    run_state_machine_as_test(lambda: Machine(opener), settings=SETTINGS)  # type: ignore[arg-type]  # a maker will do
