"""Open waits are found by index, however many ended before."""

from typing import Any

import pytest

from shiftwork import Queue
from tests.plans.asked import NOW, Hot
from tests.plans.filled import Filled, complaints, uuid

PAST = 200_000
OPEN = 40
TABLES = {"waits", "signals", "approvals"}
LATER = {"now": NOW + OPEN, "count": 500}
ROOT = uuid(7)

# Nearly all of it is over. Each signal was sent a thousand times.
FILL = [
    f"""insert into waits (root_id, name, task_id, workspace, kind, status, signal, began_at, until, ended_at,
      signal_seq)
    select {{uuid}}, 'w', {{uuid}}, 'default', 'signal', case when n <= {OPEN} then 'open' else 'met' end,
      'signal-' || n % 200, {NOW}, {NOW} + n, case when n <= {OPEN} then null else {NOW} end, n from {{numbers}}""",
    f"""insert into signals (at, workspace, name, actor, told)
    select {NOW} + n, 'default', 'signal-' || n % 200, 'a', true from {{numbers}}""",
    f"""insert into approvals (task_id, revision, root_id, workspace, rule, status, requested_at, expires_at)
    select {{uuid}}, 'r', {{uuid}}, 'default', '{{{{}}}}', 'approved', {NOW}, {NOW} + n from {{numbers}}
    where n > {OPEN}""",
]

OURS: dict[str, Any] = {"workspace": "default"}
PAGE = {"kind": None, "type": None, "task": None, "after": None, "count": 100, **OURS}
ASKED = [
    Hot("due_waits", LATER, "idx_waits_due", OPEN),
    Hot("due_approvals", {"now": 1e11, "count": 500}, "idx_approvals_due", OPEN),
    Hot("unsent_signals", {"count": 1}, "idx_signals_untold", 0),
    Hot("delete_signals", {"before": NOW + 20, "count": 500}, "idx_signals_at", 3 * 20),
    Hot(
        "waits_for_signal",
        {"signal": "signal-7", "root": None, "now": NOW, "seq": 10**9, "count": 500, **OURS},
        "idx_waits_signal",
        2,
    ),
    Hot("signal_for", {"signal": "signal-7", "root": ROOT, **OURS}, "idx_signals_name", 1),
    Hot("granted_approval", {"root": ROOT, "revision": "r"}, "idx_approvals_granted", 1),
    Hot("list_asked", PAGE, "idx_approvals_open", OPEN + 1),
]
MAX_STEPS = 30_000
"""Of SQLite's machine; reading a table alone once takes more."""


async def ask_for(url: str) -> None:
    """A queue in which some tasks wait for a person."""
    async with Queue.open(url) as queue:
        await queue.settings.set("guards", [{"expire_after_sec": 60}])
        await queue.submit_many([{"type": "code"}] * OPEN)


@pytest.mark.timeout(180)  # the fill takes a few seconds, and more on a busy machine
async def test_wait_statements_read_only_open_waits(store_url: str) -> None:
    assert await complaints(store_url, Filled(FILL, PAST, ASKED, TABLES, MAX_STEPS, make=ask_for)) == []
