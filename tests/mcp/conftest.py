"""The command line on a SQLite file that does not exist yet."""

from pathlib import Path

import pytest

from tests.cli.terminal import Terminal


@pytest.fixture
def terminal(tmp_path: Path) -> Terminal:
    return Terminal(f"sqlite:///{tmp_path}/queue.db", tmp_path)
