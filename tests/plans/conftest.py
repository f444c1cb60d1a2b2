"""Plans are measured in an unused database, since deleted rows would be read, too."""

from collections.abc import Iterator

import pytest

from tests.services import Databases


@pytest.fixture
def postgres_url(postgres: Databases, migrated_template: str) -> Iterator[str]:
    name = postgres.create_database(migrated_template)
    yield postgres.dsn(name)
    postgres.drop_database(name)
