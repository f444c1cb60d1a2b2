"""The command line on each store."""

from pathlib import Path

import pytest

from tests.cli.terminal import Terminal


@pytest.fixture
def terminal(tmp_path: Path) -> Terminal:
    """The command line on a SQLite file that does not exist yet."""
    return Terminal(f"sqlite:///{tmp_path}/queue.db", tmp_path)


@pytest.fixture
def each_terminal(store_url: str, tmp_path: Path) -> Terminal:
    """The command line on SQLite, and again on PostgreSQL."""
    return Terminal(store_url, tmp_path)
