"""One set of verbs: what `Queue` offers, `Client` and `SyncClient` offer with the same arguments and answers."""

import inspect
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from shiftwork import Assignment, Client, Queue, SyncClient
from shiftwork.client.claiming import HandedOut

FOR_DOORS = {"engine", "speaking_as", "find_token", "receive_hook"}
"""What a server needs of the queue it serves, and nobody behind it."""

OWN_WAY = {"open", "in_workspace", "as_caller", "url"}
"""These make or describe one of the three, and so differ in what they take or give."""


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


VERBS = sorted(public(Queue) - FOR_DOORS - OWN_WAY)


def parameters(verb: Callable[..., Any]) -> list[tuple[str, Any, Any, Any]]:
    """All but `self`: name, kind, default and type as it is written."""
    found = list(inspect.signature(verb).parameters.values())[1:]
    return [(each.name, each.kind, each.default, each.annotation) for each in found]


def test_a_client_offers_what_a_queue_offers() -> None:
    assert public(Queue) - FOR_DOORS - public(Client) - {"caller"} == set()
    assert public(Client) - public(SyncClient) == set()
    assert public(Client) - public(Queue) == set()


@pytest.mark.parametrize("name", VERBS)
def test_a_verb_is_called_and_answered_alike(name: str) -> None:
    queue, client, sync = (getattr(kind, name) for kind in (Queue, Client, SyncClient))
    assert parameters(client) == parameters(queue)
    assert parameters(sync) == parameters(queue)
    answer = inspect.signature(queue).return_annotation
    assert inspect.signature(client).return_annotation == answer
    assert inspect.signature(sync).return_annotation == answer.replace("AsyncIterator", "Iterator")
    assert inspect.iscoroutinefunction(client) == inspect.iscoroutinefunction(queue)
    assert not inspect.iscoroutinefunction(sync)


@pytest.mark.parametrize("name", VERBS)
def test_a_verb_is_described_alike(name: str) -> None:
    if name not in {"close", "now"}:
        assert getattr(Client, name).__doc__ == getattr(Queue, name).__doc__
        assert getattr(SyncClient, name).__doc__ == getattr(Queue, name).__doc__


def run(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)


def test_what_a_client_needs_is_loaded_when_one_is_opened() -> None:
    done = run("import sys, shiftwork.worker.command, shiftwork.client; sys.exit('aiohttp' in sys.modules)")
    assert done.returncode == 0, done.stderr


def test_without_it_the_error_says_what_to_install() -> None:
    done = run(
        "import sys, asyncio, shiftwork\n"
        "sys.modules['aiohttp'] = None\n"
        "asyncio.run(shiftwork.Client.open('http://127.0.0.1:8080'))"
    )
    assert "the HTTP client is not installed. pip install 'shiftwork[client]'" in done.stderr


def facts(assignment: Assignment) -> Iterator[tuple[str, Any]]:
    for name in sorted(public(Assignment)):
        value = getattr(assignment, name)
        yield name, value() if callable(value) else value


async def test_an_assignment_says_the_same_on_both_sides(shop: Client, store_url: str) -> None:
    """Two tasks that differ in nothing: one is claimed at the database, the other through the server."""
    fields = {"type": "code", "payload": {"n": 1}, "spec": {"prompt": "do it"}, "timeout_sec": 60}
    await shop.submit_many([fields, fields])
    async with await Queue.open(store_url) as queue:
        (here,) = await queue.claim("ada", start=True)
    (there,) = await shop.claim("bob", start=True)
    assert isinstance(there, HandedOut)
    for (name, one), (_, other) in zip(facts(here), facts(there), strict=True):
        assert type(one) is type(other) or {type(one), type(other)} == {int, float}, name
        if name in {"fence", "type", "payload", "spec", "heartbeat_interval_sec"}:
            assert one == other, name
    assert (there.claim.text, there.assignment_id) == (there.token, there.token)
    assert there.task().claim == (await shop.get(there.id)).claim
    assert there.ack_required_by is None
    assert there.execution_deadline == there.task().claim.execution_deadline
