"""A running server on each store."""

from collections.abc import AsyncIterator

import pytest

from tests.conformance.steps import give_folder
from tests.server.running import Running, running


@pytest.fixture
async def api(store_url: str) -> AsyncIterator[Running]:
    """A server open to this machine, with a clock that the test moves."""
    async with running(store_url) as server:
        yield server


@pytest.fixture
async def guarded(store_url: str) -> AsyncIterator[Running]:
    """The same, but every call needs a token; `guarded.state.queue.tokens.create` makes one."""
    async with running(store_url, tokens=True) as server:
        give_folder(server.state.queue)
        yield server
