"""The command line on each store."""

import pytest

from tests.cli.terminal import Terminal


@pytest.fixture
def terminal(tmp_path: pytest.TempPathFactory) -> Terminal:
    """On a SQLite file that does not exist yet."""
    return Terminal(f"sqlite:///{tmp_path}/queue.db")


@pytest.fixture
def each_terminal(store_url: str) -> Terminal:
    """On SQLite, and again on PostgreSQL."""
    return Terminal(store_url)
