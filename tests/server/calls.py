"""A call to an endpoint, and the registry of calls that are prepared so that they succeed once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

from shiftwork import Assignment, Queue
from shiftwork.server.endpoint import Endpoint
from shiftwork.server.routes import ENDPOINTS

BY_NAME = {endpoint.name: endpoint for endpoint in ENDPOINTS}


class Call(NamedTuple):
    """What to send to an endpoint."""

    names: dict[str, str] = {}
    body: Any = None
    query: dict[str, str] = {}

    def path(self, endpoint: Endpoint, **more: str) -> str:
        path = endpoint.path.format(**{name: quote(value, safe="") for name, value in self.names.items()})
        asked = urlencode({**self.query, **more})
        return f"{path}?{asked}" if asked else path


Arrange = Callable[[Queue], Awaitable[Call]]


CALLS: dict[str, Arrange] = {}


def call(*names: str) -> Callable[[Arrange], Arrange]:
    """Register a coroutine that prepares a call of the endpoints with these names."""

    def keep(arrange: Arrange) -> Arrange:
        CALLS.update(dict.fromkeys(names, arrange))
        return arrange

    return keep


async def waiting(queue: Queue, **fields: Any) -> str:
    return (await queue.submit({"type": "noop", **fields})).id


async def held(queue: Queue, *, start: bool = True, **fields: Any) -> Assignment:
    """Claim a task for an otherwise idle agent."""
    await waiting(queue, target_agent_id="ada", **fields)
    (claim,) = await queue.claim("ada", start=start)
    return claim


def under(claim: Assignment, **fields: Any) -> Call:
    return Call({"task_id": claim.id}, {"token": claim.token, **fields})
