"""A receiver, and a queue that tells it."""

from collections.abc import AsyncIterator

import pytest

from tests.sinks.receivers import Receiver, receiving


@pytest.fixture(autouse=True)
def _private(monkeypatch: pytest.MonkeyPatch) -> None:
    """The receivers are on this machine, so anyone who sends to them must have been started to."""
    monkeypatch.setenv("SHIFTWORK_PRIVATE_SINKS", "1")


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as running:
        yield running
