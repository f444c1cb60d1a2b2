"""A second store of each kind, next to the one of `store_url`."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.services import Databases


@pytest.fixture(params=["sqlite", "postgres"])
def other_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The address of an empty store."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/other.db"
        return
    postgres: Databases = request.getfixturevalue("postgres")
    name = postgres.create_database()
    yield postgres.dsn(name)
    postgres.drop_database(name)
