"""A queue with all kinds of rows: every changing verb was called, in a separate workspace."""

from typing import Any

import pytest

from shiftwork import Queue
from shiftwork.model.errors import ReportRequired
from shiftwork.testing import MovedClock, pass_time
from tests.conformance.steps import REPORT, dead_letter, take
from tests.conformance.test_replies import VERBS, keyed

ELSEWHERE = {"take_snapshot"}
"""Verbs that write outside of the database."""

FILLED = {
    *("agents", "alerts", "approvals", "archive", "artifact_mark", "artifact_uses", "artifacts", "attempts", "bodies"),
    *("breakers", "budgets", "charges", "claim_models", "conditions", "costs", "dags", "dead_letters", "edges"),
    *("effects", "events", "gates", "keys", "lanes", "limit_claims", "limits", "missing_reports", "names", "outputs"),
    *("progress", "replies", "reviews", "runtimes", "sessions", "settings", "signals", "steps", "tags", "tasks"),
    *("tokens", "tombstones", "waits", "workspaces"),
}
"""The tables that hold rows afterwards, at the least."""


async def fill(queue: Queue, clock: MovedClock) -> None:
    for verb, (given, call) in VERBS.items():
        if verb not in ELSEWHERE:
            apart = queue.in_workspace(verb.replace("_", "-"))
            subject = await given(apart)
            await call(keyed(apart), subject)
    await _age(queue.in_workspace("old"), clock)
    await _odd_values(queue.in_workspace("odd"))
    await _protect(queue.in_workspace("protected"))


async def _age(queue: Queue, clock: MovedClock) -> None:
    """Archived, removed for good, and raised by maintenance jobs."""
    await queue.settings.change({"archive_after_sec": 60, "purge.mode": "delete", "min_agents": 9})
    await queue.submit(type="code", id="kept", tags=["web"], idempotency_key="once")
    await queue.complete((await take(queue)).token, {"n": 1})
    for _ in range(2):  # maintenance looks at 50 workspaces in a turn, and there are more
        await pass_time(queue, clock, 61)
    await queue.submit(type="gone")
    await queue.control.purge(type="gone")
    await dead_letter(queue)


async def _odd_values(queue: Queue) -> None:
    """Values that one of the databases might change."""
    text = "ключ \u2028 \U0001f600 'quoted' \\x00 \t\n"
    spec: dict[str, Any] = {
        "text": text,
        "numbers": [0.1, 1e300, -0.0, 2**53, 5e-324],
        "empty": {},
        "null": None,
        "1": {"0": []},
    }
    await queue.submit(type="code", title=text, payload=spec, priority=33.333333333333336, deadline=4102444800.125)
    for length in (0, 1, 70_000):
        await queue.submit(type="code", payload={"long": "é" * length})


async def _protect(queue: Queue) -> None:
    """Held under a limit, a model, budgets and a session, with a report that was missing once."""
    await queue.settings.change({"require_decision_report": True})
    await queue.limits.set("model:opus", concurrency=5)
    await queue.budgets.set("day", None, ceiling_usd=100)
    constraints = {"model_preferences": ["opus"], "max_cost_usd": 2}
    await queue.submit(type="code", spec={"constraints": constraints})
    await queue.agents.register(id="rich", models_available=["opus"])
    held = await take(queue, "rich")
    await queue.heartbeat(held.token, {"pct": 5}, {"cost_usd": 0.25, "model": "opus"})
    await queue.claims.pin_session(held.token, "s-1", "folder")
    with pytest.raises(ReportRequired):
        await queue.complete(held.token)
    await queue.submit(type="code", output={"validation": "test-pass"})
    await queue.complete((await take(queue)).token, "patch", decision_report=REPORT)
