"""A queue in the document's profile, and a project with a `.loki` folder."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from shiftwork import Queue
from tests.bridges.loki.dot_loki import STARTED, DotLoki


@pytest.fixture
async def loki(queue: Queue) -> Queue:
    await queue.settings.use_profile("loki")
    return queue


@pytest.fixture
def folder(tmp_path: Path) -> DotLoki:
    project = tmp_path / "project"
    project.mkdir()
    return DotLoki(project)


@pytest.fixture(autouse=True)
async def _no_bridge_is_left() -> AsyncIterator[None]:
    """Stop bridges even if the test fails."""
    yield
    while STARTED:
        process = STARTED.pop()
        if process.returncode is None:
            process.kill()
            await process.wait()
