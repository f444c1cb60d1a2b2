"""The same statements on SQLite: the index is used, no table is scanned, nothing is sorted, and few steps are taken."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from shiftwork import Queue
from shiftwork.queue.lanes import TARGETED
from shiftwork.queue.merge import START
from shiftwork.store import statements
from shiftwork.store.sqlite import SqliteTx

LANES = 50
READY = 100_000
NOW = 1_765_800_000.0
PLACE = dict(zip(("rank", "ordered_at", "id"), START, strict=True))

FILL = f"""
insert into tasks (id, workspace, type, status, hold, lane, rank, ordered_at, priority, boost, path_weight, dag_id,
  root_id, max_attempts, fence, agent_id, runtime_id, claimed_at, lease_check_at, available_at, created_at, updated_at)
with recursive numbers(n) as (select 1 union all select n + 1 from numbers where n < {READY} + 30000)
select printf('00000000-0000-7000-8000-%012x', n), 'default', 'type-' || n % {LANES},
  iif(n <= {READY}, 'ready', iif(n <= {READY} + 10000, 'running', iif(n <= {READY} + 20000, 'retrying', 'ready'))),
  iif(n > {READY} + 20000, 'budget', null), 1 + n % {LANES}, iif(n > {READY} + 20000, 0, n / 1000.0), {NOW} + n,
  50, 0.1, 0, printf('00000000-0000-7000-8000-%012x', n), printf('00000000-0000-7000-8000-%012x', n), 3, 0,
  iif(n > {READY} and n <= {READY} + 10000, 'agent-' || n % 100, null),
  iif(n > {READY} and n <= {READY} + 10000, 'agent-' || n % 100, null), {NOW},
  iif(n > {READY} and n <= {READY} + 10000, {NOW} + n - {READY}, null),
  iif(n > {READY} + 10000 and n <= {READY} + 20000, {NOW} + n - {READY} - 10000, null), {NOW}, {NOW}
from numbers"""


def uuid(number: int) -> str:
    return f"00000000-0000-7000-8000-{number:012x}"


CLAIM = {
    "agent": "a", "runtime": "a", "status": "running", "started_at": NOW, "ack_by": None, "run_until": NOW,
    "lease_until": None, "lease_check_at": NOW, "reserved": 0, "charged": False, "now": NOW, "holder": None,
}  # fmt: skip
HOT: dict[str, tuple[dict[str, Any], str]] = {
    "open_lanes": ({"bound": TARGETED, "workspace": "default", "agent": "a"}, "idx_tasks_claimable"),
    "take_from_lane": ({"lane": 7, "count": 100, **PLACE}, "idx_tasks_claimable"),
    "lane_heads": ({"lanes": [(n, *START) for n in range(1, LANES + 1)], "count": 8}, "idx_tasks_claimable"),
    "take_chosen": (
        {"items": [(n, uuid(n), 1 + n % LANES) for n in range(1, 401)], "count": 100},
        "sqlite_autoindex_tasks_1",
    ),
    "claim_tasks": ({"items": [(uuid(n),) for n in range(1, 501)], **CLAIM}, "sqlite_autoindex_tasks_1"),
    "complete_tasks": (
        {
            "items": [(uuid(READY + n), 0) for n in range(1, 501)],
            "now": NOW,
            "checked": 0,
            "workspace": None,
            "holder": None,
        },
        "sqlite_autoindex_tasks_1",
    ),
    "tasks_of_dag": ({"dag": uuid(1)}, "idx_tasks_dag"),
    "dag_motion": ({"items": [(uuid(1),)]}, "idx_tasks_dag"),
    "lock_claims": ({"items": [(uuid(READY + n),) for n in range(1, 501)]}, "sqlite_autoindex_tasks_1"),
    "satisfy_edges": ({"items": [(uuid(n),) for n in range(1, 201)]}, "idx_edges_"),
    "held_by_agent": ({"agent": "agent-7", "workspace": "default"}, "idx_tasks_holder"),
    "due_claims": ({"now": NOW + 20, "count": 500}, "idx_tasks_heartbeat"),
    "due_retries": ({"now": NOW + 20, "count": 500}, "idx_tasks_retry"),
}
UNSORTED = {"open_lanes", "take_from_lane", "lane_heads", "due_claims", "due_retries"}
"""Whose order is the index's own. The others sort what they were given, not what they found."""

MOST_STEPS = 300_000
"""Of SQLite's machine; reading the ready tasks once takes more than a million."""


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("plans") / "queue.db"

    async def make() -> None:
        await (await Queue.open(f"sqlite:///{file}")).close()

    asyncio.run(make())
    filling = apsw.Connection(str(file))
    filling.execute(FILL)
    filling.execute("insert into bodies select id, '{}' from tasks")
    filling.close()
    return file


@pytest.fixture
def connection(filled: Path) -> Iterator[apsw.Connection]:
    opened = apsw.Connection(str(filled))
    yield opened
    opened.close()


@pytest.mark.parametrize("analysed", [False, True], ids=["never analysed", "analysed"])
def test_the_hot_statements_use_their_index(connection: apsw.Connection, analysed: bool) -> None:  # noqa: FBT001 -- a parameter of the test
    connection.execute("begin")
    if analysed:
        connection.execute("analyze").fetchall()
    found = {name: list(complaints(connection, name, *hot)) for name, hot in HOT.items()}
    connection.execute("rollback")
    assert found == {name: [] for name in HOT}


def complaints(connection: apsw.Connection, name: str, parameters: dict[str, Any], index: str) -> Iterator[str]:
    plan = plan_of(connection, name, parameters)
    if not any(f"INDEX {index}" in line for line in plan):
        yield f"{index} is not used: {plan}"
    yield from (f"scans: {line}" for line in plan if scans_a_table(line))
    if name in UNSORTED:
        yield from (f"sorts: {line}" for line in plan if "TEMP B-TREE" in line)
    if (taken := steps(connection, name, parameters)) > MOST_STEPS:
        yield f"takes {taken} steps"


def plan_of(connection: apsw.Connection, name: str, parameters: dict[str, Any]) -> list[str]:
    statement = statements.load("sqlite")[name]
    values = {key: "[]" if key in statement.tables else value for key, value in parameters.items()}
    return [str(row[3]) for row in connection.execute(f"explain query plan {statement.text}", values)]


def scans_a_table(line: str) -> bool:
    """A walk along an index with a bound is a SEARCH; `SCAN` of one of our tables reads all of it."""
    words = line.split()
    return words[0] == "SCAN" and words[1] in {"t", "x", "tasks", "e", "edges", "b", "bodies"}


def steps(connection: apsw.Connection, name: str, parameters: dict[str, Any]) -> int:
    taken = 0

    def count() -> bool:
        nonlocal taken
        taken += 100
        return False

    connection.set_progress_handler(count, 100)
    coroutine = SqliteTx(connection, NOW).all(name, **parameters)
    try:
        coroutine.send(None)
    except StopIteration:
        return taken
    finally:
        connection.set_progress_handler(None)
    raise AssertionError("a statement does not wait")
