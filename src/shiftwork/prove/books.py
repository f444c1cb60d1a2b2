"""Reads tasks and costs at the end of a run in one snapshot, because workers may still report meanwhile."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from shiftwork.prove.ledger import TaskRow

TASKS = "select id, type, status, cost, parent_id from tasks where type <> 'probe'"
TWICE = """
select count(*) from (
  select 1 from single_events where verb = 'completed' group by task_id having count(*) > 1
) twice"""
COSTS = """
select count(*), coalesce(sum(a.cost), 0) from attempts a join tasks t on t.id = a.task_id where t.type <> 'probe'"""
BUDGETS = """
select coalesce(sum(abs(b.spent - coalesce(used.cost, 0))), 0) from budgets b left join (
  select c.budget_id, sum(
    case when a.task_id is null then coalesce(t.attempt_cost, 0) when c.granted > a.cost then c.granted else a.cost end
  ) as cost
  from charges c left join attempts a on a.task_id = c.task_id and a.fence = c.fence
  left join tasks t on t.id = c.task_id and t.fence = c.fence and t.agent_id is not null
  group by c.budget_id
) used on used.budget_id = b.id"""
"""The difference between budgets and the attempts that they paid for. A running attempt has spent what it has reported
so far. The whole grant of a lost attempt counts as spent until it reports, which it may do at any time."""

Snapshot = Callable[[Sequence[str]], Awaitable[list[list[tuple[Any, ...]]]]]
"""Reads the rows of several queries in one snapshot."""


class Books(NamedTuple):
    """Tasks, and the costs of tasks, attempts and budgets, in millionths of a dollar."""

    tasks: list[TaskRow]
    accepted_twice: int
    attempts: int
    tasks_cost: int
    attempts_cost: int
    budgets_misbooked: int


async def read_books(snapshot: Snapshot) -> Books:
    tasks, twice, costs, budgets = await snapshot([TASKS, TWICE, COSTS, BUDGETS])
    found = [TaskRow(str(row[0]), row[1], row[2], row[3], row[4] and str(row[4])) for row in tasks]
    (attempts, cost), ((differs,),) = costs[0], budgets
    return Books(found, twice[0][0], attempts, sum(task.cost for task in found), int(cost), int(differs))
