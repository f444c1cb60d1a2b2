"""A provider for each test that asks for one."""

from collections.abc import Iterator

import pytest

from shiftwork.testing import MovedClock
from tests.batches.fake_provider import FakeProvider


@pytest.fixture(autouse=True)
def _private_sinks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read when a queue is opened."""
    monkeypatch.setenv("SHIFTWORK_PRIVATE_SINKS", "1")


@pytest.fixture
def fake(clock: MovedClock, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeProvider]:
    """Both providers, in the environment of this process."""
    with FakeProvider(clock).running() as running:
        for name, value in running.environment().items():
            monkeypatch.setenv(name, value)
        yield running
