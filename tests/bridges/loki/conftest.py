"""A queue in the document's profile, and a project with a `.loki` folder."""

from pathlib import Path

import pytest

from shiftwork import Queue
from tests.bridges.loki.dot_loki import DotLoki


@pytest.fixture
async def loki(queue: Queue) -> Queue:
    await queue.use_profile("loki")
    return queue


@pytest.fixture
def folder(tmp_path: Path) -> DotLoki:
    project = tmp_path / "project"
    project.mkdir()
    return DotLoki(project)
