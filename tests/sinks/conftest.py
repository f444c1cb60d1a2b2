"""A receiver, and a queue that notifies it."""

from collections.abc import AsyncIterator

import pytest

from tests.sinks.receivers import Receiver, receiving


@pytest.fixture(autouse=True)
def _private(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allow private addresses, since the receivers are on this machine."""
    monkeypatch.setenv("SHIFTWORK_PRIVATE_SINKS", "1")


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as running:
        yield running
