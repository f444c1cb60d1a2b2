"""The same statements on SQLite: by index, without table scans or sorting, in few steps."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw

from shiftwork import Queue
from shiftwork.engine.lane_merge import START
from shiftwork.engine.lanes import TARGETED
from tests.plans.asked import AGENTS, CLAIM, NOW, PLACE, plan_of, steps
from tests.plans.filled import sqlite, undone, uuid

LANES = 50
READY = 100_000
ALL = READY + 30_000

_RUNS = f"n > {READY} and n <= {READY} + 10000"
_RETRIES = f"n > {READY} + 10000 and n <= {READY} + 20000"
_HELD = f"n > {READY} + 20000"
FILL = [
    AGENTS.replace("{yes}", "1"),
    f"""insert into tasks (id, workspace, type, status, hold, lane, rank, ordered_at, priority, boost, path_weight,
      dag_id, root_id, max_attempts, fence, agent_id, runtime_id, claimed_at, lease_check_at, available_at, created_at,
      updated_at)
    select {{uuid}}, 'default', 'type-' || n % {LANES}, iif({_RUNS}, 'running', iif({_RETRIES}, 'retrying', 'ready')),
      iif({_HELD}, 'budget', null), 1 + n % {LANES}, iif({_HELD}, 0, n / 1000.0), {NOW} + n, 50, 0.1, 0, {{uuid}},
      {{uuid}}, 3, 0, iif({_RUNS}, 'agent-' || n % 100, null), iif({_RUNS}, 'agent-' || n % 100, null), {NOW},
      iif({_RUNS}, {NOW} + n - {READY}, null), iif({_RETRIES}, {NOW} + n - {READY} - 10000, null), {NOW}, {NOW}
    from {{numbers}}""",
    "insert into bodies select id, '{{}}' from tasks",
]
HOT: dict[str, tuple[dict[str, Any], str]] = {
    "lock_claimer": (
        {"bound": TARGETED, "workspace": "default", "agent": "agent-7", "runtime": "agent-7"},
        "idx_tasks_claimable",
    ),
    "find_work": (
        {"bound": TARGETED, "workspace": "default", "items": [("agent-7",), ("agent-8",)]},
        "idx_tasks_holder",
    ),
    "claim_tasks_of_many": (
        {
            "items": [(uuid(n), "running", "a", "a", None, NOW, None, None, None, NOW) for n in range(1, 501)],
            "now": NOW,
        },
        "sqlite_autoindex_tasks_1",
    ),
    "ties_of": ({"items": [(uuid(n), uuid(n)) for n in range(1, 201)]}, "idx_edges_"),
    "take_from_lane": ({"lane": 7, "count": 100, "now": NOW, **PLACE}, "idx_tasks_claimable"),
    "lane_heads": ({"lanes": [(n, *START) for n in range(1, LANES + 1)], "count": 8}, "idx_tasks_claimable"),
    "take_chosen": (
        {"items": [(n, uuid(n), 1 + n % LANES) for n in range(1, 401)], "count": 100, "now": NOW},
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
    "ends_of": ({"items": [(uuid(n),) for n in range(1, 201)]}, "sqlite_autoindex_tasks_1"),
    "ended_lineages": ({"items": [(uuid(n),) for n in range(1, 501)]}, "sqlite_autoindex_tasks_1"),
    "ended_dags": ({"items": [(uuid(n),) for n in range(1, 501)]}, "sqlite_autoindex_tasks_1"),
    "runtimes_of_agent": ({"agent": "agent-7", "workspace": "default"}, "idx_tasks_holder"),
    "due_claims": ({"now": NOW + 20, "count": 500, "skip": 0}, "idx_tasks_heartbeat"),
    "look": ({"serial_idle": 5.0}, "idx_tasks_heartbeat"),
    "due_retries": ({"now": NOW + 20, "count": 500}, "idx_tasks_retry"),
}
UNSORTED = {"lock_claimer", "take_from_lane", "lane_heads", "due_claims", "due_retries"}
"""Whose order is the index's own. The others sort what they were given, not what they found."""

MAX_STEPS = 300_000
"""Of SQLite's machine; reading the ready tasks once takes more than a million."""


async def test_hot_statements_use_their_index_on_sqlite(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/queue.db"
    await (await Queue.open(url)).close()
    with sqlite(url, FILL, ALL) as connection:
        assert found(connection) == {name: [] for name in HOT}, "never analysed"
        connection.execute("analyze").fetchall()
        assert found(connection) == {name: [] for name in HOT}, "analysed"


def found(connection: apsw.Connection) -> dict[str, list[str]]:
    with undone(connection):
        return {name: list(complaints(connection, name, *hot)) for name, hot in HOT.items()}


def complaints(connection: apsw.Connection, name: str, parameters: dict[str, Any], index: str) -> Iterator[str]:
    plan = plan_of(connection, name, parameters)
    if not any(f"INDEX {index}" in line for line in plan):
        yield f"{index} is not used: {plan}"
    yield from (f"scans: {line}" for line in plan if scans_a_table(line))
    if name in UNSORTED:
        yield from (f"sorts: {line}" for line in plan if "TEMP B-TREE" in line)
    if (taken := steps(connection, name, parameters)) > MAX_STEPS:
        yield f"takes {taken} steps"


def scans_a_table(line: str) -> bool:
    """A bounded walk along an index is a SEARCH; a `SCAN` of one of our tables reads all of it."""
    words = line.split()
    return words[0] == "SCAN" and words[1] in {"t", "x", "tasks", "e", "edges", "b", "bodies"}
