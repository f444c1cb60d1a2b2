"""Pending deliveries are found by index beside a hundred thousand sent ones."""

import pytest

from tests.plans.asked import NOW, Hot
from tests.plans.filled import Filled, complaints

COUNT = 100_000
SINKS = 20
TABLES = {"deliveries", "sinks"}

# Every thousandth waits, every thousandth was given up.
FILL = [
    f"""insert into sinks (id, workspace, name, kind, address, wants, allow_private, created_at, created_by,
      events_after, alerts_after)
    select 'sink_' || n, 'default', 'ops-' || n, 'webhook', 'https://example.com', '{{{{}}}}', {{false}}, {NOW}, 'ada',
      0, 0
    from {{numbers}} where n <= {SINKS}""",
    f"""insert into deliveries (id, workspace, sink_id, source, seq, type, message, notification, status, attempts,
      created_at, next_at, ended_at)
    select 'msg_' || (1000000 + n), 'default', 'sink_' || (1 + n % {SINKS}), 'event', n, 'task.created', 'x',
      '{{{{}}}}', case n % 1000 when 0 then 'pending' when 1 then 'dead' else 'sent' end, 1, {NOW} + n, {NOW} + n,
      case n % 1000 when 0 then null else {NOW} + n end
    from {{numbers}} where n <= {COUNT}""",
]
LATE = NOW + 2 * COUNT
PAGE = {"workspace": "default", "sink": None, "after": None, "count": 50}
LEASE = {"sink": "sink_1", "now": LATE, "until": LATE, "give_up": LATE, "count": 4}
ASKED = [
    Hot("sinks_with_due", {"now": LATE}, "idx_deliveries_due", 2 * SINKS + 100),
    Hot("lease_deliveries", LEASE, "idx_deliveries_due", 20),
    Hot("sinks_to_read_for", {"most": 10_000}, "idx_deliveries_due", 2 * SINKS + COUNT // 1000),
    Hot("list_deliveries", {**PAGE, "status": None}, "idx_deliveries_workspace deliveries_pkey", 200),
    Hot(
        "list_unsent_deliveries",
        {**PAGE, "status": "dead"},
        "idx_deliveries_unsent idx_deliveries_dead",
        COUNT // 500 + 200,
    ),
    Hot("redeliver_dead", {"sink": "sink_2", "now": LATE, "before": LATE, "count": 5}, "idx_deliveries_dead", 20),
    Hot("delete_old_deliveries", {"before": NOW + 5, "count": 500}, "idx_deliveries_ended", 30),
]
MAX_STEPS = 40_000
"""Of SQLite's machine; reading the table whole takes many times more."""


@pytest.mark.timeout(180)  # the fill takes a few seconds, and more on a busy machine
async def test_notification_statements_use_their_index(store_url: str) -> None:
    assert await complaints(store_url, Filled(FILL, COUNT, ASKED, TABLES, MAX_STEPS)) == []
