"""The queue as a client sees it: through a server on a real socket."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from shiftwork import Client
from tests.client.serving import served


@pytest.fixture(autouse=True)
def _own_state_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("SHIFTWORK_TOKEN", raising=False)


@pytest.fixture
def server_url(store_url: str) -> Iterator[str]:
    """A server on each store."""
    with served(store_url) as server:
        yield server.url


@pytest.fixture
async def shop(server_url: str) -> AsyncIterator[Client]:
    """The queue of the producer and the operator, next to the workers."""
    async with Client.open(server_url) as opened:
        yield opened
