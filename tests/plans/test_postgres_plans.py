"""On a million ready tasks the hot statements read a handful of rows, each by its index."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import asyncpg
import pytest

from shiftwork import Queue
from shiftwork.engine.lane_merge import START
from shiftwork.engine.lanes import TARGETED
from shiftwork.store.postgres_statistics import tell_planner
from tests.plans import backlog
from tests.plans.asked import CLAIM, NOW, PLACE, Hot, explain, explain_prepared, prepare, read_of
from tests.plans.backlog import DEEP_LANE, LANES, WHOLE_DAG, uuid
from tests.services import Databases

CLAIMS = [(uuid("ready", n), "running", "a", "a", "h", NOW, NOW, NOW, NOW, NOW) for n in range(1, 501)]
LOOK = {"bound": TARGETED, "workspace": "default"}
TERMS = (DEEP_LANE, "type-7", "ready>claimed>running", 3600.0, "running", NOW, NOW, NOW, NOW, NOW)
PLAIN = {
    **LOOK, "announced": True, "types": None, "capabilities": "[]", "models": "[]", "ahead": 0, "runtime": "a",
    "holder": None, "terms": [TERMS], "others": [(n,) for n in range(1, LANES + 1)], "asked": "[]", "actor": "agent:a",
    "request_id": None, "always_seen": False, "seen_after": NOW, "now": NOW,
}  # fmt: skip
END = {
    "fence": 1, "result": "1", "now": NOW, "workspace": None, "holder": None, "verb": "completed",
    "path": "running>completed", "actor": None, "request_id": None, "data": None,
}  # fmt: skip
START_TERMS = {
    "fence": 1, "terms": [("type-1", 5.0, NOW, NOW, NOW)], "workspace": "default", "holder": None, "actor": None,
    "request_id": None, "path": "claimed>running", "now": NOW,
}  # fmt: skip
BEAT = {"workspace": "default", "holder": None, "heartbeat_at": None, "count": 10, "now": NOW}
HOT = [
    Hot("lock_claimer", {**LOOK, "agent": "a", "runtime": "a"}, "idx_tasks_claimable", DEEP_LANE + 1),
    Hot("lock_claimer", {**LOOK, "agent": "agent-7", "runtime": None}, "idx_tasks_holder", DEEP_LANE + 51),
    Hot("find_work", {**LOOK, "items": [("agent-7",), ("agent-8",)]}, "idx_tasks_holder", DEEP_LANE + 102),
    Hot("claim_plain", {**PLAIN, "agent": "a", "most": 100}, "idx_tasks_claimable", DEEP_LANE + 201),
    Hot("claim_plain", {**PLAIN, "agent": "agent-7", "most": 1}, "idx_tasks_holder", DEEP_LANE + 53),
    Hot("complete_plain", {"id": uuid("running", 1), **END}, "tasks_pkey", 2),
    Hot("beat_plain", {"items": [(uuid("running", n), 1) for n in range(1, 11)], **BEAT}, "tasks_pkey", 20),
    Hot("start_plain", {"id": uuid("running", 1), **START_TERMS}, "tasks_pkey", 2),
    Hot("take_from_lane", {"lane": 7, "count": 100, "now": NOW, **PLACE}, "idx_tasks_claimable", 100),
    Hot("take_from_lane", {"lane": DEEP_LANE, "count": 100, "now": NOW, **PLACE}, "idx_tasks_claimable", 100),
    Hot("lane_heads", {"lanes": [(n, *START) for n in range(1, 51)], "count": 8}, "idx_tasks_claimable", 400),
    Hot(
        "take_chosen",
        {"items": [(n, uuid("ready", n), 1 + n % LANES) for n in range(1, 401)], "count": 100, "now": NOW},
        "tasks_pkey",
        400,
    ),
    Hot("claim_tasks", {"items": [(uuid("ready", n),) for n in range(1, 501)], **CLAIM}, "tasks_pkey", 500),
    Hot("claim_tasks_of_many", {"items": CLAIMS, "now": NOW}, "tasks_pkey", 500),
    Hot("lock_ends", {"items": [(uuid("running", n),) for n in range(1, 501)]}, "tasks_pkey", 502),
    Hot("lock_claims", {"items": [(uuid("running", n),) for n in range(1, 501)]}, "tasks_pkey", 500),
    Hot(
        "complete_tasks",
        {
            "items": [(uuid("running", n), 1) for n in range(1, 501)],
            "now": NOW,
            "checked": False,
            "workspace": None,
            "holder": None,
        },
        "tasks_pkey",
        500,
    ),
    Hot("ties_of", {"items": [(uuid("ready", n), uuid("ready", n)) for n in range(1, 201)]}, "idx_edges_", 200),
    Hot("satisfy_edges", {"items": [(uuid("running", n),) for n in range(1, 201)]}, "idx_edges_", 400),
    Hot("ends_of", {"items": [(uuid("child", n),) for n in range(1, 201)]}, "tasks_pkey", 400),
    Hot("lock_lineages", {"items": [(uuid("child", n),) for n in range(1, 201)]}, "tasks_pkey", 400),
    Hot("ended_lineages", {"items": [(uuid("running", n),) for n in range(1, 501)]}, "tasks_pkey", 1000),
    Hot("ended_dags", {"items": [(uuid("running", n),) for n in range(1, 501)]}, "tasks_pkey", 500),
    Hot("runtimes_of_agent", {"agent": "agent-7", "workspace": "default"}, "idx_tasks_holder", 50),
    Hot("due_claims", {"now": NOW + 20, "count": 500, "skip": 0}, "idx_tasks_heartbeat", 20),
    Hot("due_retries", {"now": NOW + 20, "count": 500}, "idx_tasks_retry", 20),
    Hot("due_reranks", {"now": NOW, "count": 500}, "idx_tasks_rerank", 0),
    Hot("tasks_of_dag", {"dag": WHOLE_DAG}, "idx_tasks_dag", backlog.DAG),
    Hot("dag_motion", {"items": [(WHOLE_DAG,)]}, "idx_tasks_dag", 3 * backlog.DAG),
]
MAX_PAGES = 24
"""Pages per row wanted, at most: down the index, the row, and what a write does to the other indexes."""


@pytest.fixture
def large(postgres: Databases, migrated_template: str) -> Iterator[str]:
    name = postgres.create_database(migrated_template)
    yield postgres.dsn(name)
    postgres.drop_database(name)


@pytest.fixture
async def connection(large: str) -> AsyncIterator[asyncpg.Connection]:
    opened = await asyncpg.connect(large, command_timeout=280)
    await opened.execute("vacuum analyze")
    for number, hot in enumerate(HOT):
        await prepare(opened, hot, f"old_{number}")
        await explain_prepared(opened, hot, f"old_{number}")
    for statement in backlog.STATEMENTS:
        await opened.execute(statement)
    yield opened
    await opened.close()


@pytest.mark.requirement("F-243", "F-244")
@pytest.mark.timeout(300)  # the fill alone takes ten seconds, and a minute on a busy machine
async def test_hot_statements_use_their_index_on_postgres(connection: asyncpg.Connection, large: str) -> None:
    """Right after the load, with plans made on an empty queue, after ANALYZE, and with dead entries before a lane."""
    assert await complaints(connection, "never analysed") == []
    async with connection.transaction():
        await tell_planner(connection, dict.fromkeys(["tasks", "edges", "bodies"], 0))
    assert await complaints_of_the_old(connection) == []
    await claims_go_round_the_held(large)
    await connection.execute("analyze tasks, edges, bodies, lanes")
    assert await complaints(connection, "analysed") == []
    await connection.execute(backlog.SPENT)
    await complaints(connection, "first to see them")  # marks the dead entries as such, as any first reader does
    assert await complaints(connection, "with dead entries", spare_pages=3000) == []


async def claims_go_round_the_held(url: str) -> None:
    """Fifty thousand tasks of a DAG without budget precede all others, and cost a claim nothing."""
    async with Queue.open(url) as queue:
        await queue.agents.register(id="worker", max_concurrent_tasks=None)
        for types in (None, ["type-7"]):
            taken = await queue.claim("worker", 100, types=types)
            assert len(taken) == 100
            await queue.batch.release([assignment.token for assignment in taken])


async def complaints_of_the_old(connection: asyncpg.Connection) -> list[str]:
    """A connection keeps its plans, even those made for an empty queue, until it is notified."""
    found = []
    for number, hot in enumerate(HOT):
        plan = await explain_prepared(connection, hot, f"old_{number}")
        found += [f"planned when empty, {hot.name}: {wrong}" for wrong in judge(plan, hot, 0)]
    return found


async def complaints(connection: asyncpg.Connection, state: str, spare_pages: int = 0) -> list[str]:
    """Return the problems of custom plans for these values and of generic plans."""
    found = []
    for mode in ("force_custom_plan", "force_generic_plan"):
        for hot in HOT:
            plan = await explain(connection, hot, mode)
            found += [f"{state}, {mode}, {hot.name}: {wrong}" for wrong in judge(plan, hot, spare_pages)]
    return found


def judge(plan: dict[str, Any], hot: Hot, spare_pages: int) -> Iterator[str]:
    read = read_of(plan, {"tasks", "edges"})
    if not any(name.startswith(hot.path) for name in read.indexes):
        yield f"uses {sorted(read.indexes)}, not {hot.path}"
    if "Seq Scan" in read.scans:
        yield "reads a whole table"
    if read.rows > hot.rows:
        yield f"reads {read.rows} rows, not {hot.rows}"
    pages = plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
    if pages > MAX_PAGES * max(hot.rows, 20) + spare_pages:
        yield f"touches {pages} pages for {hot.rows} rows"
