"""Explanations of waiting work and the log of a task are read by index, however long the history is."""

from typing import Any

import pytest

from tests.plans.asked import NOW, Hot
from tests.plans.filled import Filled, complaints, uuid

EVENTS = 200_000
TASKS = 50_000
RETRYING = 40
OPEN = 40
DEAD = 20
LINES = 10
TABLES = {"events", "tasks", "waits", "dead_letters", "edges", "log_sizes"}
TASK = uuid(7)

# One task has most of the events, and few of them are messages. Nearly all tasks have ended, and nearly all dead
# letters are reviewed; each of the others has two dependents.
FILL = [
    f"""insert into events (at, workspace, task_id, verb, actor, data)
    select {NOW} + n, 'default', case when n % 2 = 0 then cast('{TASK}' as {{uuid_type}}) else {{uuid}} end,
      case when n % ({EVENTS} / {LINES}) = 0 then 'message' else 'progress' end, 'a', '{{{{}}}}' from {{numbers}}""",
    f"""insert into tasks (id, workspace, type, status, lane, rank, ordered_at, priority, boost, path_weight, dag_id,
      root_id, max_attempts, fence, waiting, created_at, updated_at, finished_at, available_at)
    select {{uuid}}, 'default', 'code', case when n <= {DEAD} then 'dead_lettered'
      when n <= {DEAD + RETRYING} then 'retrying' else 'completed' end,
      1, 0, {NOW}, 50, 0.1, 0, {{uuid}}, {{uuid}}, 3, 1, 0, {NOW}, {NOW},
      case when n <= {DEAD + RETRYING} then null else {NOW} end, case when n > {DEAD} then {NOW} + n end
    from {{numbers}} where n <= {TASKS}""",
    f"""insert into dead_letters (task_id, round, workspace, type, signature, attempts, poison_pill, dead_lettered_at,
      reviewed) select {{uuid}}, 1, 'default', 'code', 's', 3, {{false}}, {NOW} + n,
      case when n <= {DEAD} then {{false}} else {{true}} end from {{numbers}} where n <= {TASKS}""",
    f"""insert into edges (dependent, dependency, satisfied)
    select cast('00000000-0000-7000-9000-00000000000' || k as {{uuid_type}}), {{uuid}},
      case when n <= {DEAD} then {{false}} else {{true}} end
    from {{numbers}} cross join (select 1 as k union all select 2) as two where n <= {TASKS}""",
    f"""insert into waits (root_id, name, task_id, workspace, kind, status, began_at, until, ended_at)
    select {{uuid}}, 'w', {{uuid}}, 'default', 'time', case when n <= {OPEN} then 'open' else 'met' end, {NOW},
      {NOW} + n, case when n <= {OPEN} then null else {NOW} end from {{numbers}} where n <= {TASKS}""",
    f"insert into log_sizes (task_id, size) select {{uuid}}, 100 from {{numbers}} where n <= {TASKS}",
]

OURS: dict[str, Any] = {"workspace": "default"}
ASKED = [
    Hot("messages_after", {"id": TASK, "after": 0, "count": 1000}, "idx_events_messages", LINES),
    Hot("messages_after", {"id": TASK, "after": EVENTS - 1, "count": 1000}, "idx_events_messages", 1),
    Hot("status_of_task", {"id": TASK, **OURS}, "tasks_pkey", 1),
    Hot("log_sizes", {"items": [(TASK,)]}, "log_sizes_pkey", 1),
    Hot("next_retry", OURS, "idx_tasks_retry", RETRYING),
    Hot("next_wait", OURS, "idx_waits_due", OPEN),
    Hot("waiting_for_dead_letters", {"count": 200, **OURS}, "idx_dead_letters_open", 4 * DEAD),
]
MAX_STEPS = 30_000
"""Of SQLite's machine; reading a table alone once takes more."""


@pytest.mark.timeout(240)  # the fill takes a few seconds, and more on a busy machine
async def test_statements_about_waiting_work_and_logs_read_only_what_they_return(store_url: str) -> None:
    assert await complaints(store_url, Filled(FILL, EVENTS, ASKED, TABLES, MAX_STEPS)) == []
