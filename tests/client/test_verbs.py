"""What a client imports, and the assignments it returns."""

import inspect
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from shiftwork import Assignment, Client, Queue


def run(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)


def test_http_library_is_loaded_when_a_client_is_opened() -> None:
    done = run("import sys, shiftwork.worker.load_worker, shiftwork.client; sys.exit('aiohttp' in sys.modules)")
    assert done.returncode == 0, done.stderr


def test_client_loads_no_engine_and_no_store() -> None:
    done = run(
        "import sys, shiftwork.client\n"
        "ours = [name for name in sys.modules if name.startswith('shiftwork')]\n"
        "print(len(ours), *(name for name in ours if name.startswith(('shiftwork.store', 'shiftwork.queue'))))"
    )
    count, *loaded = done.stdout.split()
    assert loaded == []
    assert int(count) <= 40


def test_error_says_what_to_install_without_the_http_library() -> None:
    done = run(
        "import sys, asyncio, shiftwork\n"
        "sys.modules['aiohttp'] = None\n"
        "asyncio.run(shiftwork.Client.open('http://127.0.0.1:8080').as_coroutine())"
    )
    assert "the HTTP client is not installed. pip install 'shiftwork[client]'" in done.stderr


def is_constructor(name: str) -> bool:
    return isinstance(inspect.getattr_static(Assignment, name), classmethod)


def facts(assignment: Assignment) -> Iterator[tuple[str, Any]]:
    for name in sorted(name for name in dir(Assignment) if not name.startswith("_") and not is_constructor(name)):
        value = getattr(assignment, name)
        yield name, value() if callable(value) else value


async def test_assignment_is_the_same_from_a_database_and_from_a_server(shop: Client, store_url: str) -> None:
    """Two equal tasks: one is claimed on the database, the other through the server."""
    fields = {"type": "code", "payload": {"n": 1}, "spec": {"prompt": "do it"}, "timeout_sec": 60}
    await shop.submit_many([fields, fields])
    async with Queue.open(store_url) as queue:
        (here,) = await queue.claim("ada", start=True)
    (there,) = await shop.claim("bob", start=True)
    for (name, one), (_, other) in zip(facts(here), facts(there), strict=True):
        assert type(one) is type(other) or {type(one), type(other)} == {int, float}, name
        if name in {"fence", "type", "payload", "spec", "heartbeat_interval_sec"}:
            assert one == other, name
    assert (there.claim.text, there.assignment_id) == (there.token, there.token)
    assert there.task().claim == (await shop.get(there.id)).claim
    assert there.ack_required_by is None
    assert there.execution_deadline == there.task().claim.execution_deadline
