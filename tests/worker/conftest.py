"""Fixtures for workers: a queue with the real clock on each store, and a separate outbox per test."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from shiftwork import Queue


@pytest.fixture(autouse=True)
def _own_state_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
async def shop(store_url: str) -> AsyncIterator[Queue]:
    """The queue of the producer and the operator, next to the workers."""
    async with Queue.open(store_url) as opened:
        yield opened
