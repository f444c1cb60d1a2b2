"""Maps of real databases: each test gets fresh ones, since a move changes their schema."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.services import Databases, Postgres

MakeMap = Callable[[int], str]


@pytest.fixture
def make_map(postgres: Databases, migrated_template: str, tmp_path: Path) -> Iterator[MakeMap]:
    """Create a map of this many databases a, b, c …; new workspaces are created in a."""
    made: list[str] = []

    def make(count: int) -> str:
        lines = ['default = "a"', "[databases]"]
        for name in "abcd"[:count]:
            made.append(postgres.create_database(migrated_template))
            lines.append(f'{name} = "{postgres.dsn(made[-1])}"')
        file = tmp_path / "map.toml"
        file.write_text("\n".join(lines))
        return f"shiftwork+map:{file}"

    yield make
    for name in made:
        postgres.drop_database(name)


@pytest.fixture
def map_url(make_map: MakeMap) -> str:
    """A map of two databases."""
    return make_map(2)


@pytest.fixture
def mortal(postgres: Databases, migrated_template: str, tmp_path: Path) -> Iterator[tuple[str, Postgres]]:
    """A map of two databases, and the server of the second one."""
    first = postgres.create_database(migrated_template)
    with Postgres.start() as server:
        file = tmp_path / "map.toml"
        addresses = f'a = "{postgres.dsn(first)}"\nb = "{server.dsn(server.create_database())}"'
        file.write_text(f'default = "a"\n[databases]\n{addresses}')
        yield f"shiftwork+map:{file}", server
    postgres.drop_database(first)
