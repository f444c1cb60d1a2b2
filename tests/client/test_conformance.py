"""The conformance suite over HTTP: a client answers and refuses like the queue."""

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable
from importlib import import_module
from typing import Any

import pytest

from shiftwork import Client, Queue
from shiftwork.engine.engine import Engine
from shiftwork.server.serve import Server
from shiftwork.server.state import ServerState
from shiftwork.testing import MovedClock
from shiftwork.wire.listen_socket import listen
from tests.conformance.conftest import *  # noqa: F403  # the same queue under each profile

SUITES = [
    *["guards", "questions", "waits"],
    *["breakers", "cooldowns", "limits"],
    *["fan_in", "rewind"],
    *["fair_share", "preemption", "serial"],
    *["schedules", "triggers"],
    *["agents", "alerts", "artifacts", "cancelling", "control", "dags", "dead_letters", "effects", "failures"],
    *["idempotency", "inputs", "lifecycle", "observing", "settings_verb", "spawning", "steps", "submit", "validation"],
    *["dag_results", "event_filters", "results"],
]
APART = {
    "test_alert_is_rolled_back_with_its_cause",  # it looks into the engine
    "test_unknown_failure_grouping_is_refused",  # alike, but a server words it for all lists of words alike
    "test_dags_are_filtered_by_status",
    "test_wait_with_text_invalid_for_databases_is_refused",  # a client says that of the whole body
}


class Overheard(Client):
    """A client whose tests may also use the server's database and clock."""

    engine: Engine
    database: str

    @property
    def url(self) -> str:
        return self.database

    def now(self) -> float:
        return self.engine.store.now()


@pytest.fixture
async def queue(sqlite_url: str, clock: MovedClock) -> AsyncIterator[Client]:
    """A client of a server whose clock only the test moves."""
    async with Queue.open(sqlite_url, clock=clock, seed=7) as served:
        with listen("127.0.0.1", 0) as listening:
            server = Server(ServerState(served), listening)
            serving = asyncio.create_task(server.run_until_stopped())
            async with Overheard.open(server.url) as client:
                assert isinstance(client, Overheard)
                client.engine, client.database = served.engine, sqlite_url
                yield client
            server.stop()
            await serving


FIXTURES = {"queue", "clock", "factory", "loki", "streams", "aegis", "coscientist", "caplog"}
"""A test that wants more looks further than a client sees."""


def asked(test: Callable[..., Any]) -> set[str]:
    """The fixtures a test takes."""
    marks: list[pytest.Mark] = getattr(test, "pytestmark", [])
    given = [mark.args[0] for mark in marks if mark.name == "parametrize"]
    names = {name for each in given for name in (each.split(",") if isinstance(each, str) else each)}
    return set(inspect.signature(test).parameters) - names


def of_suite(name: str) -> dict[str, object]:
    tests = vars(import_module(f"tests.conformance.test_{name}"))
    return {
        key: tests[key]
        for key in tests
        if key.startswith("test_") and key not in APART and asked(tests[key]) <= FIXTURES
    }


for suite in SUITES:
    found = of_suite(suite)
    assert not found.keys() & globals().keys()
    globals().update(found)
