"""A scrape reads only the end of the log and what runs now, by index."""

import pytest

from tests.plans.asked import NOW, Hot
from tests.plans.filled import Filled, complaints

TASKS = 100_000
HELD = 40
DONE = TASKS - HELD
TABLES = {"events", "attempts", "tasks", "costs", "alerts", "meters"}

# Each task was submitted, claimed and completed, in that order; the last ones are held.
FILL = [
    f"""insert into tasks (id, workspace, type, status, lane, rank, ordered_at, priority, boost, path_weight,
      dag_id, root_id, max_attempts, fence, agent_id, claimed_at, created_at, updated_at, finished_at)
    select {{uuid}}, 'default', 'code', case when n > {DONE} then 'running' else 'completed' end, 1, n, {NOW} + n, 50,
      0.1, 0, {{uuid}}, {{uuid}}, 3, 1, case when n > {DONE} then 'ada' end, {NOW} + n, {NOW} + n, {NOW} + n,
      case when n > {DONE} then null else {NOW} + n end
    from {{numbers}} where n <= {TASKS}""",
    f"""insert into events (at, workspace, task_id, dag_id, verb, path, actor, fence)
    select {NOW} + n, 'default', {{uuid}}, {{uuid}},
      case v when 1 then 'submitted' when 2 then 'claimed' else 'completed' end,
      case v when 1 then 'created>ready' when 2 then 'ready>claimed>running' else 'running>completed' end, 'agent:ada',
      1
    from (select * from {{numbers}} cross join (select 1 as v union all select 2 union all select 3) as verbs) as told
    where n <= {TASKS} order by n, v""",
    f"""insert into attempts (task_id, fence, round, agent_id, claimed_at, ended_at, outcome, counted, cost)
    select {{uuid}}, 1, 1, 'ada', {NOW} + n, {NOW} + n, 'completed', {{false}}, 0
    from {{numbers}} where n <= {TASKS}""",
    f"""insert into costs (task_id, fence, model, workspace, type, dag_id, agent_id, claimed_at, cost,
      tokens_in, tokens_out)
    select {{uuid}}, 1, 'm', 'default', 'code', {{uuid}}, 'ada', {NOW} + n, 1, 1, 1
    from {{numbers}} where n <= {TASKS}""",
    f"""insert into alerts (at, workspace, kind, severity, message, acknowledged_at)
    select {NOW} + n, 'default', 'dead_lettered', 'warning', 'x', case when n > {DONE} then null else {NOW} end
    from {{numbers}} where n <= {TASKS}""",
    f"""insert into meters (workspace, name, labels, value, moved_at)
    select 'w' || (n % 500), 'm' || n, '[]', 1, {NOW} from {{numbers}} where n <= {TASKS}""",
]

END = 3 * TASKS
STRETCH = {"after": END - 300, "last": END, "workspace": None}
ASKED = [
    Hot("meter_counts", STRETCH, "events_pkey", 600),
    Hot("meter_waits", {**STRETCH, "since": 0.0}, "idx_events_task", 1100),
    Hot("meter_ends", {**STRETCH, "since": 0.0}, "attempts_pkey", 600),
    Hot("meter_costs", {"workspace": "default", "since": NOW + TASKS - 50, "until": 1e308}, "idx_costs_workspace", 60),
    Hot("held_spells", {"workspace": "default"}, "idx_tasks_holder", HELD),
    Hot("open_alert_counts", {"workspace": "default"}, "idx_alerts_open idx_alerts_open_kind", HELD),
    Hot("read_meters", {"workspace": "w7"}, "meters_pkey", TASKS // 500),
    Hot("meter_series", {"workspace": "w7", "name": "m7"}, "meters_pkey", 1),
]
MAX_STEPS = 60_000
"""Of SQLite's machine; reading one of the tables whole takes many times more."""


@pytest.mark.timeout(180)  # the fill takes a few seconds, and more on a busy machine
async def test_metric_statements_read_only_counted_rows(store_url: str) -> None:
    assert await complaints(store_url, Filled(FILL, TASKS, ASKED, TABLES, MAX_STEPS)) == []
