"""Invariants of all money, read from the tables."""

import contextlib
from collections import defaultdict
from typing import Any

import apsw
import asyncpg

from shiftwork import Queue

Token = tuple[Any, int]
Table = list[dict[str, Any]]

_LIVE = """select id as task_id, fence, agent_id, attempt_cost as used, granted, true as live
  from tasks where agent_id is not null"""
_ENDED = "select task_id, fence, agent_id, cost as used, granted, false as live from attempts"
_COSTS = "select task_id, fence, sum(cost) as cost from costs group by task_id, fence"
_MONEY = [
    f"{_LIVE} union all {_ENDED}",
    "select * from charges",
    "select * from budgets",
    "select * from agents",
    _COSTS,
]


async def check_books(queue: Queue) -> None:
    """Check that every budget and agent equals the usage and grants of its attempts, to a millionth of a dollar."""
    rows, charges, budgets, agents, costs = await _read(queue)
    attempts = {(row["task_id"], row["fence"]): row for row in rows}
    of_budgets: dict[Any, list[int]] = defaultdict(lambda: [0, 0])
    of_agents: dict[Any, list[int]] = defaultdict(lambda: [0, 0])
    for charge in charges:
        _add(of_budgets[charge["budget_id"]], attempts[charge["task_id"], charge["fence"]], charge["granted"])
    for attempt in rows:
        _add(of_agents[attempt["agent_id"]], attempt, attempt["granted"])
    for budget in budgets:
        assert [budget["spent"], budget["granted"]] == of_budgets[budget["id"]], (budget["kind"], budget["owner"])
    for agent in agents:
        assert [agent["spent"], agent["granted"]] == of_agents[agent["id"]], agent["id"]
    booked = {(row["task_id"], row["fence"]): int(row["cost"]) for row in costs}
    assert booked == {token: attempt["used"] for token, attempt in attempts.items() if attempt["used"]}


def _add(sums: list[int], attempt: dict[str, Any], granted: int) -> None:
    """Add an attempt: a running one may still use its grant; an ended one without a report counts as having used it."""
    rest = max(granted - attempt["used"], 0)
    sums[0] += attempt["used"] + (0 if attempt["live"] else rest)
    sums[1] += rest if attempt["live"] else 0


async def check_ceilings(queue: Queue) -> None:
    """Check that no ceiling is exceeded unless an attempt used more than its grant."""
    _, _, budgets, agents, _ = await _read(queue)
    for row in [*budgets, *agents]:
        ceiling = row["ceiling"] if "ceiling" in row else row["budget"]
        assert ceiling is None or row["spent"] + row["granted"] <= ceiling, row


async def granted(queue: Queue) -> int:
    """Return the granted and unspent money of all budgets and agents."""
    _, _, budgets, agents, _ = await _read(queue)
    return sum(row["granted"] for row in [*budgets, *agents])


async def _read(queue: Queue) -> list[Table]:
    if queue.url.startswith("sqlite"):
        connection = apsw.Connection(queue.url.removeprefix("sqlite:///"), flags=apsw.SQLITE_OPEN_READONLY)
        connection.set_row_trace(lambda cursor, row: dict(zip([c[0] for c in cursor.description], row, strict=True)))
        with contextlib.closing(connection), connection:
            return [list(connection.execute(query)) for query in _MONEY]
    server = await asyncpg.connect(queue.url)
    try:
        async with server.transaction(isolation="repeatable_read", readonly=True):
            return [[dict(row) for row in await server.fetch(query)] for query in _MONEY]
    finally:
        await server.close()
