"""Fair shares, serial keys and urgent tasks are found by index, however many tasks wait."""

import pytest

from shiftwork.engine.lane_merge import START
from shiftwork.engine.lanes import TARGETED
from shiftwork.engine.rank import URGENT_BELOW
from tests.plans.asked import AGENTS, NOW, Hot
from tests.plans.filled import Filled, complaints

SHARES = 64
FLOOD = 100_000
"""Ready tasks of one share; each of the others has one."""
URGENT, HELD, SERIAL = 5, 1_000, 50_000
ALL = FLOOD + SHARES + URGENT + HELD + SERIAL

_LANE = f"case when n <= {FLOOD} then 1 when n <= {FLOOD + SHARES} then n - {FLOOD} else 2 end"
_RANK = f"case when n > {FLOOD + SHARES} and n <= {FLOOD + SHARES + URGENT} then -1e9 else 50 end"
_RUNS = f"n > {FLOOD + SHARES + URGENT} and n <= {ALL - SERIAL}"
FILL = [
    AGENTS.replace("{yes}", "not {false}"),
    f"""insert into lanes (id, signature, workspace, type, capabilities, models, fallback, rate, mixed, share)
    select n, 'lane-' || n, 'default', 'code', '[]', '[]', '[]', 0.1, {{false}}, n - 1 from {{numbers}}
    where n <= {SHARES}""",
    f"""insert into tasks (id, workspace, type, status, hold, lane, rank, ordered_at, priority, boost, path_weight,
      dag_id, root_id, max_attempts, agent_id, runtime_id, claimed_at, started_at, fence, created_at, updated_at)
    select {{uuid}}, 'default', 'code', case when {_RUNS} then 'running' else 'ready' end,
      case when n > {ALL - SERIAL} then 'serial' end, {_LANE}, {_RANK}, {NOW} + n, 50, 0.1, 0, {{uuid}}, {{uuid}}, 3,
      case when {_RUNS} then 'agent-' || n % 100 end, case when {_RUNS} then 'agent-' || n % 100 end,
      case when {_RUNS} then {NOW} end, case when {_RUNS} then {NOW} end, 1, {NOW} + n, {NOW}
    from {{numbers}} where n <= {ALL}""",
    f"""insert into bodies (task_id, body) select id, '{{{{"serial_key": "a"}}}}' from tasks
    where ordered_at <= {NOW} + 1000""",
    """insert into serial_holds (task_id, workspace, key, lane, rank, ordered_at)
    select id, 'default', 'key:a', lane, rank, ordered_at from tasks where hold = 'serial'""",
]

HEADS = [(lane, *START) for lane in range(1, SHARES + 1)]
ASKED = [
    Hot(
        "lock_claimer",
        {"bound": TARGETED, "workspace": "default", "agent": "a", "runtime": "a"},
        "idx_tasks_claimable",
        SHARES + 1,
    ),
    Hot("lane_heads", {"lanes": HEADS, "count": 8}, "idx_tasks_claimable", 3 * SHARES),
    Hot("scan_lanes", {"lanes": HEADS, "count": 8}, "idx_tasks_claimable", 3 * SHARES),
    Hot("scan_lanes", {"lanes": HEADS[:1], "count": 256}, "idx_tasks_claimable", 2 * 256),
    Hot(
        "urgent_waiting",
        {"workspace": "default", "below": URGENT_BELOW, "count": 20},
        "idx_tasks_claimable",
        2 * URGENT,
    ),
    Hot("may_yield", {"items": [("agent-7",)], "workspace": "default", "count": 100}, "idx_tasks_holder", 20),
    Hot("serial_heads", {"lane": 1, "count": 100}, "idx_tasks_claimable", 100),
    Hot("serial_heirs", {"items": [("default", "key:a")]}, "idx_serial_holds_place", 10),
    Hot("ahead_in_lane", {"lane": 1, **dict(zip(("rank", "ordered_at", "id"), (51.0, NOW, START[2]), strict=True)),
                          "most": 1000}, "idx_tasks_claimable", 1000),
]  # fmt: skip
TABLES = {"tasks", "serial_holds"}
MAX_STEPS = 30_000
"""Of SQLite's machine; a walk over the flood takes more than half a million."""


@pytest.mark.timeout(180)  # the fill takes a few seconds, and more on a busy machine
async def test_fair_share_statements_do_not_read_the_backlog(store_url: str) -> None:
    assert await complaints(store_url, Filled(FILL, ALL, ASKED, TABLES, MAX_STEPS)) == []
