"""The queue of each document: the same queue in that document's profile."""

import pytest

from shiftwork import Queue


@pytest.fixture
async def factory(queue: Queue) -> Queue:
    await queue.settings.use_profile("factory")
    return queue


@pytest.fixture
async def loki(queue: Queue) -> Queue:
    await queue.settings.use_profile("loki")
    return queue


@pytest.fixture
async def streams(queue: Queue) -> Queue:
    """The profile `redis`; that name is taken by the server's fixture."""
    await queue.settings.use_profile("redis")
    return queue


@pytest.fixture
async def aegis(queue: Queue) -> Queue:
    await queue.settings.use_profile("aegis")
    return queue


@pytest.fixture
async def coscientist(queue: Queue) -> Queue:
    await queue.settings.use_profile("coscientist")
    return queue
