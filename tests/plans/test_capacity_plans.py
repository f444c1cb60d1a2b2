"""Capacity is computed from waiting tasks only, however many have ended or wait elsewhere."""

import pytest

from tests.plans.asked import NOW, Hot
from tests.plans.filled import Filled, complaints

ENDED = 200_000
ELSEWHERE = 100_000
WAITING = 3_000
HELD = 1_000
ALL = ENDED + ELSEWHERE + WAITING + HELD
LETTERS = 50_000

_STATE = f"""case when n <= {ENDED} then 'completed' when n <= {ALL - HELD} then 'ready' else 'running' end"""
_HELD = f"case when n > {ALL - HELD} then {{0}} end"
FILL = [
    f"""insert into tasks (id, workspace, type, status, lane, rank, ordered_at, priority, boost, path_weight, dag_id,
      root_id, max_attempts, tallied, agent_id, runtime_id, claimed_at, started_at, run_until, lease_check_at,
      finished_at, created_at, updated_at)
    select {{uuid}}, case when n > {ENDED} and n <= {ENDED + ELSEWHERE} then 'other' else 'default' end, 'code',
      {_STATE}, 1, 50, {NOW} + n, case n % 3 when 0 then 20 when 1 then 50 else 70 end, 0.1, 0, {{uuid}}, {{uuid}}, 3,
      {{true}}, {_HELD.format("'a'")}, {_HELD.format("'a'")}, {_HELD.format(NOW)}, {_HELD.format(NOW)},
      {_HELD.format(NOW + 3600)}, {_HELD.format(NOW)}, case when n <= {ENDED} then {NOW} end, {NOW} + n, {NOW}
    from {{numbers}} where n <= {ALL}""",
    f"""insert into dead_letters (task_id, round, workspace, type, reason, signature, attempts, poison_pill,
      dead_lettered_at)
    select {{uuid}}, 1, 'default', 'code', case when n % 1000 = 0 then 'displaced' else 'crash' end, 's', 1, {{false}},
      {NOW} + n from {{numbers}} where n <= {LETTERS}""",
]

OURS = {"workspace": "default"}
PLAIN = {"depends": False, "recent": False, "retried": False, "recent_from": NOW + ALL, "level": "low", "count": 5}
ASKED = [
    Hot("tally", OURS, "idx_tasks_tally", WAITING),
    Hot("tally_more_than", {"count": 100, **OURS}, "idx_tasks_tally", 100),
    Hot("displaceable", {**PLAIN, **OURS}, "idx_tasks_tally", 10),
    Hot("displaced_letters", {"level": "low", "count": 5, **OURS}, "idx_dead_letters_displaced", 2 * LETTERS // 1000),
    Hot("displaced_workspaces", {}, "idx_dead_letters_displaced", LETTERS // 1000),
    Hot("stuck_tasks", {"now": NOW, "share": 0.8, "count": 100, **OURS}, "idx_tasks_heartbeat", HELD),
]
TABLES = {"tasks", "dead_letters"}
MAX_STEPS = 60_000
"""Of SQLite's machine; a walk over what has ended takes more than a million."""


@pytest.mark.timeout(180)  # the fill takes a few seconds, and more on a busy machine
async def test_capacity_statements_read_only_waiting_tasks(store_url: str) -> None:
    assert await complaints(store_url, Filled(FILL, ALL, ASKED, TABLES, MAX_STEPS)) == []
