"""A server dies at every crash point of every changing route; the queue stays consistent."""

import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import shiftwork
from shiftwork import Queue
from shiftwork.maintenance.loop import JOBS
from tests.conftest import DEEP
from tests.crashes.fork_server import ForkServer
from tests.crashes.server_calls import hash_of_rows, maintained_workspace
from tests.crashes.test_kill import until_alone
from tests.machine import tables
from tests.server.endpoints import changing

SOURCE = Path(shiftwork.__file__).parent
BEFORE = ": before commit"
KILLED = -signal.SIGKILL
ASIDE = ("process heartbeat: ", "claim counts: ")
"""What a process writes by the clock, whatever it is asked for."""

PARTS = 6
"""So that several processes share them."""
NAMES = [door.name for door in changing() if door.name != "move_clock"]
"""But for the one that runs maintenance, whose jobs have names of their own."""


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    with ForkServer("tests.crashes.server_calls") as started:
        yield started


def chosen(points: list[str], url: str) -> list[tuple[int, str]]:
    """Every point on SQLite, the first and the last on PostgreSQL, where a server starts slower; all if DEEP."""
    numbered = list(enumerate(points))
    return numbered if DEEP or url.startswith("sqlite") else [numbered[0], numbered[-1]]


def points_of(server: ForkServer, url: str, folder: Path, names: list[str]) -> dict[str, list[str]]:
    """The points that a call of each of these routes passes, by route."""
    with server.start("call_all", url, str(folder), names) as child:
        passed = {name: json.loads(child.read_line()) for name in names}
        assert child.wait() == 0
    return {name: [p for p in points if not p.startswith(ASIDE)] for name, points in passed.items()}


def advance_sec(name: str, number: int) -> float:
    """Return how far to move the clock first: a snapshot can be taken once a minute."""
    return 61.0 * (number + 1) if name == "snapshots_take" else 0.0


@pytest.mark.timeout(600)
@pytest.mark.parametrize("part", range(PARTS))
async def test_death_at_any_point_of_a_call_leaves_all_or_nothing(
    server: ForkServer, store_url: str, tmp_path: Path, part: int
) -> None:
    found = points_of(server, store_url, tmp_path, NAMES[part::PARTS])
    for name, points in found.items():
        assert any(BEFORE in point for point in points), f"{name} commits without a named point: {points}"
        unnamed = [point for point in points if point.startswith("unnamed")]
        assert not unnamed, f"{name} makes something commit that no one has named"
        for number, point in chosen(points, store_url):
            workspace, moved = f"{name} {number}", advance_sec(name, number)
            with server.start("die_in_call", store_url, str(tmp_path), name, workspace, point, moved) as child:
                before = json.loads(child.read_line())
                assert child.wait() == KILLED, f"{name} did not die at {point}"
            await until_alone(store_url)
            async with Queue.open(store_url) as queue:
                if number == 0:
                    assert await hash_of_rows(queue) == before, f"{name} died at {point}, and something is changed"
                tables.check(await tables.look(queue.in_workspace(workspace)), None)


@pytest.mark.timeout(600)
async def test_death_at_any_point_of_maintenance_and_sending_leaves_a_whole_queue(
    server: ForkServer, store_url: str, tmp_path: Path
) -> None:
    with server.start("maintain", store_url, str(tmp_path), "no point") as child:  # a new queue gives jobs more to do
        child.read_line()
        assert child.wait() == 0
    with server.start("maintain", store_url, str(tmp_path), None) as child:
        points = [point for point in json.loads(child.read_line()) if not point.startswith((*ASIDE, "unnamed"))]
        assert child.wait() == 0
    assert {"notifications: before sending", "notifications: after sending"} <= set(points)
    jobs = {name for name in JOBS if any(point.startswith(f"maintenance {name}: ") for point in points)}
    assert jobs == JOBS.keys()
    for number, point in enumerate(points):
        if not DEEP and number % (4 if store_url.startswith("sqlite") else 12) and "sending" not in point:
            continue
        with server.start("maintain", store_url, str(tmp_path), point) as child:
            assert child.wait() == KILLED, f"it did not die at {point}"
        await until_alone(store_url)
        async with Queue.open(store_url) as queue:
            tables.check(await tables.look(queue.in_workspace(maintained_workspace(point))), None)


def test_failed_reader_of_a_call_leaves_nothing_for_the_next_call(
    server: ForkServer, sqlite_url: str, tmp_path: Path
) -> None:
    with pytest.raises(ZeroDivisionError), server.start("call_all", sqlite_url, str(tmp_path), NAMES[:2]):
        raise ZeroDivisionError
    with server.start("maintain", sqlite_url, str(tmp_path), None) as child:
        assert "notifications: after sending" in json.loads(child.read_line())
        assert child.wait() == 0


def test_every_crash_point_is_covered_here() -> None:
    """The tests above die at all points except those of a `.loki` folder."""
    written = {name for file in SOURCE.rglob("*.py") for name in re.findall(r"reach\(\"([^\"]+)\"", file.read_text())}
    assert written == {
        *("before commit", "after commit", "before announcing"),
        *("before sending", "after sending"),
        *("before storing bytes", "after storing bytes"),
        *("before placing a snapshot", "after placing a snapshot"),
        *("before placing a file", "after placing a file"),
        # tests/batches/test_kills.py dies at these
        *("before posting a batch", "after uploading a batch", "after posting a batch"),
        *("after reading a batch", "after cancelling a batch"),
    }


NAMED_BY_THEIR_CALLERS = {
    "artifacts/transfer.py": "the operation",
    "databases/move.py": "move",
    "engine/claim_requests.py": "the operation",
    "engine/lanes.py": "the operation",
    "engine/result_waiters.py": "the operation that waits",
    "observe/kept_counts.py": "the job",
    "operation/local.py": "the operation",
    **{
        f"{feature}/maintenance.py": "the job"
        for feature in ("artifacts", "batches", "notifications", "observe", "search", "snapshots", "triggers")
    },
}


def test_every_commit_outside_of_operations_and_jobs_has_a_name() -> None:
    """Whoever adds a commit names its points, or says here who does."""
    named = r'crash_points\.named\(\s*f?"[^"]+", [\w.]*store\.run\('
    unnamed = {
        f"{file.relative_to(SOURCE)}"
        for file in SOURCE.rglob("*.py")
        if re.search(r"\bstore\.run\(|_store\.run\(", re.sub(named, "", file.read_text()))
    }
    assert unnamed == NAMED_BY_THEIR_CALLERS.keys()
