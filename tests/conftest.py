"""Fixtures for servers and queues: one server for the run, an empty database for each test."""

import asyncio
import logging
import os
import shutil
import sys
import weakref
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from shiftwork import Queue
from shiftwork.store.open_store import open_store
from shiftwork.testing import MovedClock
from tests.services import Databases, Migrated, shared
from tests.services import redis as redis_server

TESTS = Path(__file__).parent

# Without compiled files every process that a test starts, hundreds of them, compiles the package anew, and every run
# compiles all tests.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

DEEP = os.environ.get("SHIFTWORK_DEEP") == "1"
"""Also what takes long and seldom shows more."""
ABOVE_THE_QUEUE = {
    *("a2a", "acceptance", "bridges", "cli", "client", "integrations", "mcp", "server", "sinks", "worker"),
}
"""Folders whose subject uses the queue; tests/conformance shows that the queue is the same on both stores."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests that may take long come first, so that no process is left alone with one at the end."""
    items.sort(key=lambda item: item.get_closest_marker("timeout") is None)
    if not DEEP:
        repeated = set(_repeated_on_postgres(items))
        items[:] = [item for item in items if item not in repeated]
        config.hook.pytest_deselected(items=list(repeated))


def _repeated_on_postgres(items: list[pytest.Item]) -> Iterator[pytest.Item]:
    """Tests above the queue run with all their parameters on SQLite, but only with the first on PostgreSQL."""
    seen: set[tuple[Path, str]] = set()
    for item in items:
        given = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
        if given.get("store_url") == "postgres" and item.path.relative_to(TESTS).parts[0] in ABOVE_THE_QUEUE:
            test = item.path, item.name.partition("[")[0]
            if test in seen:
                yield item
            seen.add(test)


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


@pytest.fixture(scope="session")
def migrated_template(postgres: Databases) -> Iterator[str]:
    """A database with the schema, to be copied."""
    name = postgres.create_database()
    asyncio.run(_migrate(postgres.dsn(name)))
    yield name
    postgres.drop_database(name)


@pytest.fixture(scope="session")
def migrated(postgres: Databases, migrated_template: str) -> Iterator[Migrated]:
    """Databases with the schema, emptied after each test and used again."""
    databases = Migrated(postgres, migrated_template)
    yield databases
    databases.close()


@pytest.fixture(scope="session")
def migrated_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite file with the schema, to be copied: creating it takes longer than most tests."""
    file = tmp_path_factory.mktemp("migrated") / "queue.db"
    asyncio.run(_migrate(f"sqlite:///{file}"))
    return file


async def _migrate(url: str) -> None:
    await (await open_store(url)).close()


@pytest.fixture(autouse=True)
def _loggers_as_they_were() -> Iterator[None]:
    """Restore loggers, since a command that sets up logging in this process would affect later tests."""
    loggers = [logging.getLogger(), logging.getLogger("shiftwork")]
    levels = [logger.level for logger in loggers]
    yield
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)


OPENED: weakref.WeakKeyDictionary[asyncpg.Connection, asyncio.AbstractEventLoop] = weakref.WeakKeyDictionary()
"""Every connection to PostgreSQL that this process has opened, as long as something holds it, and its loop."""


def pytest_configure() -> None:
    begin = asyncpg.Connection.__init__

    def remember(connection: asyncpg.Connection, *given: Any, **named: Any) -> None:
        begin(connection, *given, **named)
        OPENED[connection] = asyncio.get_running_loop()

    asyncpg.Connection.__init__ = remember  # type: ignore[assignment,method-assign]  # all connect here


@pytest.fixture(autouse=True)
def _no_connection_left_open() -> Iterator[None]:
    """A connection that a test leaves open would fail whichever test runs when it is collected."""
    yield
    left = [each for each, loop in OPENED.items() if loop.is_closed() and not each.is_closed()]
    for each in left:
        del OPENED[each]
    assert not left, f"this test left {len(left)} connections to PostgreSQL open: close them in its fixture"


@pytest.fixture
def clock() -> MovedClock:
    return MovedClock()


@pytest.fixture
def sqlite_url(migrated_file: Path, tmp_path: Path) -> str:
    """An empty queue on SQLite alone."""
    shutil.copy(migrated_file, tmp_path / "queue.db")
    return f"sqlite:///{tmp_path}/queue.db"


@pytest.fixture
def postgres_url(postgres: Databases, migrated: Migrated) -> Iterator[str]:
    """An empty queue on PostgreSQL alone."""
    name = migrated.lend()
    yield postgres.dsn(name)
    migrated.take_back(name)


@pytest.fixture(params=["sqlite", "postgres"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty queue on each store, with a folder for artifacts."""
    if request.param == "postgres":
        monkeypatch.setenv("SHIFTWORK_ARTIFACTS", str(tmp_path / "artifacts"))
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


@pytest.fixture
async def queue(store_url: str, clock: MovedClock) -> AsyncIterator[Queue]:
    """A queue on each store, whose clock only the test moves."""
    async with Queue.open(store_url, clock=clock, seed=7) as opened:
        yield opened
