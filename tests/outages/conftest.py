"""A PostgreSQL server of our own, durable as an installed one, which these tests may stop and kill."""

from collections.abc import Iterator

import pytest

from tests.services import Postgres


@pytest.fixture(scope="module")
def own_server() -> Iterator[Postgres]:
    with Postgres.start(durable=True) as server:
        yield server


@pytest.fixture
def server(own_server: Postgres) -> Iterator[Postgres]:
    """Yield the server, which runs at the beginning and at the end of each test."""
    yield own_server
    if not own_server.running:
        own_server.start_again()


@pytest.fixture
def url(server: Postgres) -> Iterator[str]:
    name = server.create_database()
    yield server.dsn(name)
    if not server.running:
        server.start_again()
    server.drop_database(name)
