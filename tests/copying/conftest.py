"""A second place for a queue, of each kind, beside the one that `store_url` names."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.services import Databases


@pytest.fixture(params=["sqlite", "postgres"])
def other_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Where there is nothing yet."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/other.db"
        return
    postgres: Databases = request.getfixturevalue("postgres")
    name = postgres.create_database()
    yield postgres.dsn(name)
    postgres.drop_database(name)
