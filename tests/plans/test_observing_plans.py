"""Repeated observer queries stay cheap on a long history: few rows, by index."""

from typing import Any

import pytest

from shiftwork.engine import rank
from tests.plans.asked import NOW, Hot
from tests.plans.filled import Filled, complaints, uuid

EVENTS = 300_000
ALERTS = 100_000
OPEN = 50
DAGS = 50_000
FAILED_DAGS = 20
TASKS = 20_000
"""The newest; planners take what is empty, or was when they last looked, for a short way to anything."""

WAITING = 40
"""Tasks that have not ended, a quarter each: pending, dead letters, running and ready, half of these held."""

TASK = uuid(7)
NEWEST = {"created_at": 1e308, "id": "ffffffff-ffff-ffff-ffff-ffffffffffff"}
TABLES = {"events", "alerts", "dags", "tasks"}

# Two workspaces; one event in a hundred is a failure; nearly all alerts are acknowledged and nearly all DAGs completed.
FILL = [
    f"""insert into events (at, workspace, task_id, verb, path, actor, fence, reason, data)
    select {NOW} + n, case n % 3 when 0 then 'other' else 'default' end, {{uuid}},
      case n % 100 when 7 then 'failed' when 8 then 'completed' else 'claimed' end, 'ready>claimed', 'a', 1, 'crash',
      '{{{{"type": "code", "agent": "a", "signature": "s"}}}}' from {{numbers}} where n <= {EVENTS}""",
    f"""insert into alerts (at, workspace, kind, severity, message, data, acknowledged_at)
    select {NOW} + n, 'default', 'dead_lettered', 'warning', 'x', '{{{{}}}}',
      case when n > {ALERTS - OPEN} then null else {NOW} + n end from {{numbers}} where n <= {ALERTS}""",
    f"""insert into dags (id, workspace, status, open, created_at) select {{uuid}}, 'default',
      case when n <= {FAILED_DAGS} then 'failed' else 'completed' end, 0, {NOW} + n
    from {{numbers}} where n <= {DAGS}""",
    f"""insert into tasks (id, workspace, type, status, lane, rank, ordered_at, priority, boost, path_weight, dag_id,
      root_id, max_attempts, fence, waiting, created_at, updated_at, finished_at)
    select {{uuid}}, 'default', 'code', 'completed', 1, 0, {NOW}, 50, 0.1, 0, {{uuid}},
      {{uuid}}, 3, 1, 0, {NOW}, {NOW}, {NOW}
    from {{numbers}} where n > {EVENTS - TASKS} and n <= {EVENTS}""",
    """insert into lanes (id, signature, workspace, type, capabilities, models, fallback, rate, mixed)
    values (1, 's', 'default', 'code', '[]', '[]', '[]', 0, {false})""",
    f"""insert into tasks (id, workspace, type, status, hold, lane, rank, ordered_at, priority, boost, path_weight,
      dag_id, root_id, max_attempts, fence, waiting, created_at, updated_at, agent_id, lease_check_at)
    select {{uuid}}, 'default', 'code', case n % 4 when 0 then 'pending' when 1 then 'dead_lettered'
      when 2 then 'running' else 'ready' end, case when n % 8 = 3 then 'budget' end, 1, 0, {NOW}, 50, 0.1, 0,
      {{uuid}}, {{uuid}}, 3, 1, 0, {NOW}, {NOW}, case when n % 4 = 2 then 'a' end, case when n % 4 = 2 then {NOW} end
    from {{numbers}} where n <= {WAITING}""",
]

OURS: dict[str, Any] = {"workspace": "default"}
END = {"after": ALERTS - 1000, "last": 2**62, "kind": None, "count": 100, **OURS}
ASKED = [
    Hot("last_event", {}, "events_pkey", 1),
    Hot("event_at", {"seq": EVENTS - 20_000}, "events_pkey", 1),
    Hot(
        "recent_flow",
        {"first": EVENTS - 599, "last": EVENTS, "since": NOW, "minute": NOW, **OURS},
        "events_pkey",
        1000,  # events, and the tasks of two in three
    ),
    Hot(
        "open_task_counts",
        {"strict": False, **rank.STRICT_BELOW, **OURS},
        "idx_tasks_claimable idx_tasks_heartbeat idx_tasks_waiting",
        WAITING + 10,
    ),
    Hot("open_ids", {"statuses": '["dead_lettered"]', "most": 2001, **OURS}, "idx_tasks_waiting", WAITING + 10),
    Hot("ended_counts", {"after": EVENTS - 600, "last": EVENTS, "last_row": EVENTS, **OURS}, "events_pkey", 2000),
    Hot("recent_failures", {"count": 10, **OURS}, "idx_events_failed", 10),
    Hot("failure_patterns", {"by": "type", "since": NOW + EVENTS - 1000, "count": 50, **OURS}, "idx_events_failed", 10),
    Hot("moves_of_task", {"id": TASK}, "idx_events_task", 1),
    Hot("alerts_after", END, "idx_alerts_workspace alerts_pkey", 100),
    Hot("open_alerts_after", {**END, "after": 0}, "idx_alerts_open", OPEN),
    Hot("delete_alerts", {"before": NOW + 20, "count": 500, **OURS}, "idx_alerts_acknowledged", 20 * 3),
    Hot("list_dags", {**NEWEST, "count": 100, **OURS}, "idx_dags_workspace", 100),
    Hot("list_dags_in", {**NEWEST, "status": "failed", "count": 100, **OURS}, "idx_dags_status", FAILED_DAGS),
]
MAX_STEPS = 30_000
"""Of SQLite's machine; reading the failures alone once takes more."""


@pytest.mark.timeout(180)  # the fill takes a few seconds, and more on a busy machine
async def test_observer_statements_read_only_the_rows_they_return(store_url: str) -> None:
    assert await complaints(store_url, Filled(FILL, EVENTS, ASKED, TABLES, MAX_STEPS)) == []
