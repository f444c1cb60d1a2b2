"""Fixtures for races: addresses of queues that are ready for many handles."""

from collections.abc import Iterator

import pytest

from tests.services import Databases


@pytest.fixture
def postgres_url(postgres: Databases, migrated_template: str) -> Iterator[str]:
    """An empty queue on PostgreSQL alone, for races that need row locks and several connections."""
    name = postgres.create_database(migrated_template)
    yield postgres.dsn(name)
    postgres.drop_database(name)
