"""The queue in the protocol's profile, a Redis database of its own, and a bridge between the two."""

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from redis.asyncio import Redis

from shiftwork import Queue
from shiftwork.compat.bridges.redis.orchestrator import Orchestrator
from tests.bridges.redis.streams import Client, HandWorker, orchestrator
from tests.services.redis import Redis as Server


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator[Client]:
    """A plain client, as workers have it."""
    client = Redis.from_url(redis_url, decode_responses=True)
    yield client
    await client.aclose()


@pytest.fixture
async def streams(queue: Queue) -> Queue:
    await queue.settings.use_profile("redis")
    return queue


@pytest.fixture
async def make_bridge(streams: Queue, redis_url: str) -> AsyncIterator[Callable[..., Orchestrator]]:
    """Bridges of the queue, closed with the test."""
    made: list[Orchestrator] = []

    def make(url: str = redis_url, **options: Any) -> Orchestrator:
        made.append(orchestrator(streams, url, **options))
        return made[-1]

    yield make
    for each in made:
        await each.context.redis.aclose()


@pytest.fixture
def bridge(make_bridge: Callable[..., Orchestrator]) -> Orchestrator:
    return make_bridge()


@pytest.fixture
def worker(redis: Client) -> HandWorker:
    return HandWorker(redis, "worker-1")


@pytest.fixture
def own_server() -> Iterator[Server]:
    """A Redis of the test's own, to be stopped, killed and emptied."""
    with Server.start() as server:
        yield server
