"""A receiver, and a queue that tells it."""

from collections.abc import AsyncIterator

import pytest

from tests.sinks.receivers import Receiver, receiving


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as running:
        yield running
