"""The pytest plugin: a queue, a clock and a worker's run for the tests of users."""

import importlib.metadata
import re
import zipfile
from pathlib import Path

import pytest

from tests.services.programs import REPOSITORY

pytest_plugins = ["pytester"]

WORKER = """
import pytest
from shiftwork import Context, Fail, Queue, Worker
from shiftwork.testing import pass_time

worker = Worker()


@worker.handler("greet")
async def greet(ctx: Context) -> str:
    if ctx.task.attempts == 0:
        raise Fail("network", "connection refused")
    return f"Hello, {ctx.payload['name']}!"
"""

TESTS = """
async def test_worker_retries_without_waiting(queue, queue_clock, run_worker):
    began = queue_clock()
    task = await queue.submit(type="greet", payload={"name": "Ada"})
    summary = await run_worker(worker)
    assert (summary.failed, summary.completed) == (1, 1)
    assert (await queue.result(task.id)).data == "Hello, Ada!"
    assert queue_clock() > began


async def test_each_test_has_a_queue_of_its_own(queue, tmp_path):
    assert (await queue.status()).counts == {}
    assert queue.url == f"sqlite:///{tmp_path}/shiftwork.db"


async def test_lease_runs_out_when_the_clock_is_moved(queue, queue_clock):
    task = await queue.submit(type="greet")
    await queue.claim("ada", start=True)
    await pass_time(queue, queue_clock, 3600)
    assert (await queue.get(task.id)).status in ("ready", "retrying")


def test_run_that_uses_no_fixture_loads_no_queue():
    import sys
    assert "shiftwork.pytest_plugin" in sys.modules


class TestOwn:
    @pytest.fixture
    def queue(self):
        return "mine"

    def test_fixture_of_the_user_takes_precedence(self, queue):
        assert queue == "mine"
"""


def loaded() -> list[str]:
    """Nothing where this environment was installed with the entry point, as users do."""
    found = importlib.metadata.entry_points(group="pytest11")
    return [] if any(each.value == "shiftwork.pytest_plugin" for each in found) else ["-p", "shiftwork.pytest_plugin"]


@pytest.mark.parametrize("mode", ["auto", "strict"])
def test_fixtures_work_in_both_modes_of_pytest_asyncio(pytester: pytest.Pytester, mode: str) -> None:
    marked = "pytestmark = pytest.mark.asyncio\n" if mode == "strict" else ""
    pytester.makeini(f"[pytest]\nasyncio_mode = {mode}\nasyncio_default_fixture_loop_scope = function\n")
    pytester.makepyfile(WORKER + marked + TESTS)
    done = pytester.runpytest_subprocess(*loaded(), "-q", "-p", "no:cacheprovider")
    done.assert_outcomes(passed=5)


def test_example_of_the_page_passes(pytester: pytest.Pytester) -> None:
    page = (REPOSITORY / "docs" / "howto" / "test-your-handlers.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(import pytest\n.*?)```", page, re.DOTALL)
    pytester.makepyfile(example)
    pytester.runpytest_subprocess(*loaded(), "-q", "-p", "no:cacheprovider").assert_outcomes(passed=1)


def test_plugin_loads_nothing_of_the_queue_until_a_fixture_is_used(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import sys

        def test_light():
            heavy = [name for name in sys.modules if name in ("shiftwork.queue", "apsw", "shiftwork.worker")]
            assert heavy == []
    """)
    pytester.runpytest_subprocess(*loaded(), "-q", "-p", "no:cacheprovider").assert_outcomes(passed=1)


def test_fixtures_are_described(pytester: pytest.Pytester) -> None:
    printed = pytester.runpytest_subprocess(*loaded(), "--fixtures", "-q").stdout.str()
    assert "An empty queue in a temporary SQLite file" in printed
    assert "`await run_worker(worker)` runs a worker on `queue` until it is idle" in printed


def test_wheel_registers_the_plugin(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [each for each in archive.namelist() if each.endswith("entry_points.txt")]
        assert "[pytest11]\nshiftwork = shiftwork.pytest_plugin" in archive.read(name).decode()
