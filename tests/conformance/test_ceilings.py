"""Budgets above the agent: per DAG, per task tree, and per day."""

import pytest

from shiftwork import Queue
from shiftwork.budgets import operations as budgets
from shiftwork.budgets.model import Budget, Kind
from shiftwork.model.errors import InputError, NotFound
from shiftwork.testing import MovedClock, pass_time
from tests.conformance.steps import events_named, sql, take
from tests.money import check_books

HALF = {"type": "code", "spec": {"constraints": {"max_cost_usd": 0.50}}}


async def make_dag(queue: Queue, ceiling: float | None, tasks: int = 3, price: float | None = 0.50) -> str:
    task = {"type": "code"} if price is None else {"type": "code", "estimated_cost_usd": price}
    made = await queue.submit_dag({"tasks": [task] * tasks, "budget_ceiling_usd": ceiling})
    return made[0].dag_id or ""


async def the_budget(queue: Queue, kind: Kind = "dag") -> Budget:
    (found,) = await queue.budgets.list(kind)
    return found


async def tasks_held(queue: Queue) -> int:
    page = await queue.tasks.list(limit=1000)
    return sum(1 for task in page.tasks if task.hold == "budget")


@pytest.mark.requirement("F-267")
async def test_task_over_the_dag_ceiling_is_not_assigned(queue: Queue) -> None:
    tasks = [{"type": "first", "estimated_cost_usd": 0.60}, HALF]
    await queue.submit_dag({"tasks": tasks, "budget_ceiling_usd": 1.00})
    await queue.complete((await take(queue, types=["first"])).token, usage={"cost_usd": 0.60})
    answer = await queue.claims.request("worker")
    assert (answer.assignments, answer.no_fit) == ([], 1)


@pytest.mark.requirement("F-269")
async def test_task_within_agent_and_dag_budget_is_assigned(queue: Queue) -> None:
    await queue.agents.register(id="worker", budget_remaining_usd=0.50)
    await queue.submit_dag({"tasks": [HALF], "budget_ceiling_usd": 0.50})
    assert len(await queue.claim("worker")) == 1


async def test_granted_cost_counts_against_ceiling_before_it_is_spent(queue: Queue) -> None:
    await make_dag(queue, 1.00)
    assert len(await queue.claim("one", 3)) == 1
    assert len(await queue.claim("two", 3)) == 1
    assert await queue.claim("three") == []
    found = await the_budget(queue)
    assert (found.granted_usd, found.spent_usd, found.remaining_usd) == (1.00, 0, 0)


async def test_unused_grant_of_an_attempt_is_available_to_the_next(queue: Queue) -> None:
    await make_dag(queue, 1.00)
    first, _ = await take(queue, "one"), await take(queue, "two")
    assert await queue.claim("three") == []
    assert await tasks_held(queue) == 1
    await queue.complete(first.token, usage={"cost_usd": 0.10})
    assert await queue.claim("three") == []
    second = await queue.claim("two")
    assert second == []
    found = await the_budget(queue)
    assert (found.spent_usd, found.granted_usd) == (0.10, 0.50)


async def test_returned_budget_releases_as_many_tasks_as_it_covers(queue: Queue) -> None:
    await make_dag(queue, 1.00, tasks=4)
    first, second = await take(queue, "one"), await take(queue, "two")
    assert await queue.claim("three") == []
    assert await tasks_held(queue) == 2
    await queue.complete(first.token, usage={"cost_usd": 0.01})
    assert await tasks_held(queue) == 2
    await queue.complete(second.token, usage={"cost_usd": 0.02})
    assert await tasks_held(queue) == 1
    assert len(await queue.claim("three")) == 1


@pytest.mark.requirement("F-265")
async def test_raised_ceiling_releases_held_tasks(queue: Queue) -> None:
    dag_id = await make_dag(queue, 0.40, tasks=700)
    assert await queue.claim("worker") == []
    assert await tasks_held(queue) > 0
    changed = await queue.dags.update(dag_id, {"budget_ceiling_usd": 1000})
    assert changed.budget_ceiling_usd == 1000
    assert await tasks_held(queue) == 0
    assert len(await queue.claim("worker")) == 1


async def test_removed_ceiling_holds_no_task(queue: Queue) -> None:
    dag_id = await make_dag(queue, 0.10)
    assert await queue.claim("worker") == []
    await queue.budgets.set("dag", dag_id, ceiling_usd=None)
    assert len(await queue.claim("worker")) == 1
    found = await the_budget(queue)
    assert (found.ceiling_usd, found.remaining_usd, found.granted_usd) == (None, None, 0.50)


async def test_ceiling_added_later_counts_spent_and_running_cost(queue: Queue, clock: MovedClock) -> None:
    dag_id = await make_dag(queue, None, tasks=4)
    await queue.complete((await take(queue)).token, usage={"cost_usd": 0.30})
    running = await take(queue)
    await queue.heartbeat(running.token, usage={"cost_usd": 0.10})
    lost = await take(queue, "silent")
    found = await queue.budgets.set("dag", dag_id, ceiling_usd=1.30)
    assert (found.spent_usd, found.granted_usd, found.remaining_usd) == (0.40, 0.90, 0)
    assert await queue.claim("third") == []
    await queue.complete(running.token, usage={"cost_usd": 0.15})
    assert (await the_budget(queue)).spent_usd == pytest.approx(0.55)
    await queue.fail(lost.token, "crash", usage={"cost_usd": 0.05})
    found = await the_budget(queue)
    assert (found.spent_usd, found.granted_usd) == pytest.approx((0.60, 0))


async def test_single_task_can_have_a_ceiling_as_a_dag_of_one(queue: Queue) -> None:
    made = await queue.submit(type="code", estimated_cost_usd=0.50)
    await queue.budgets.set("dag", made.dag_id or "", ceiling_usd=0.40)
    assert await queue.claim("worker") == []
    await queue.budgets.set("dag", made.dag_id or "", ceiling_usd=0.50)
    assert len(await queue.claim("worker")) == 1


async def test_tasks_added_to_a_dag_count_under_its_ceiling(queue: Queue) -> None:
    dag_id = await make_dag(queue, 0.50, tasks=1)
    await take(queue, "one")
    await queue.dags.add_tasks(dag_id, [{"type": "code", "estimated_cost_usd": 0.10}])
    assert await queue.claim("two") == []


async def test_exhausted_dag_does_not_block_other_tasks(queue: Queue) -> None:
    await make_dag(queue, 0, tasks=1200, price=0.01)
    other = await queue.submit(type="code", priority=99)
    answers = [await queue.claim("worker") for _ in range(3)]
    assert [task.id for answer in answers for task in answer] == [other.id]


async def test_maintenance_continues_holding_and_releasing_tasks_of_a_large_dag(
    queue: Queue, clock: MovedClock
) -> None:
    dag_id = await make_dag(queue, 0, tasks=2600, price=0.01)
    await queue.claim("worker")
    counts = await pass_time(queue, clock, 1)
    assert sum(counts["budgets"].values()) > 500
    (held,) = await sql(queue, "select count(*) as n from tasks where hold = 'budget'")
    assert held["n"] == 2600
    assert (await the_budget(queue)).holds_back
    await queue.budgets.set("dag", dag_id, ceiling_usd=None)
    await pass_time(queue, clock, 1)
    assert not (await the_budget(queue)).holds_back
    assert await events_named(queue, "budget.closed") == [dag_id]
    assert await events_named(queue, "budget.opened") == [dag_id]


async def test_maintenance_checks_one_page_of_budgets_per_run(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budgets, "LOOKED_AT", 2)
    dags = [await make_dag(queue, 0, tasks=1) for _ in range(5)]
    assert await queue.claim("worker") == []
    assert await tasks_held(queue) == 5
    for dag_id in dags:
        await queue.budgets.set("dag", dag_id, ceiling_usd=None)
    round_robin = [await queue.engine.store.run(lambda tx: budgets.maintain(tx, queue.engine)) for _ in range(4)]
    assert round_robin == [{"opened": 2}, {"opened": 2}, {"opened": 1}, {}]
    assert len(await events_named(queue, "budget.opened")) == 5
    await queue.budgets.set("dag", dags[0], ceiling_usd=0)
    assert len(await queue.claim("worker")) == 1
    assert await tasks_held(queue) == 1
    await queue.budgets.set("dag", dags[0], ceiling_usd=None)
    assert await queue.engine.store.run(lambda tx: budgets.maintain(tx, queue.engine)) == {"opened": 1}, (
        "from the first"
    )


JUDGED = {
    "type": "code",
    "estimated_cost_usd": 0.50,
    "output": {"type": "json", "validation": "llm-judge", "validation_schema": {"criteria": "good"}},
}


@pytest.mark.parametrize("kind", ["dag", "tree"])
async def test_judge_is_charged_to_the_budget_of_the_judged_task(queue: Queue, kind: Kind) -> None:
    if kind == "tree":
        await queue.submit({**JUDGED, "tree_budget_usd": 1.00})
    else:
        await queue.submit_dag({"tasks": [JUDGED, {"type": "other"}], "budget_ceiling_usd": 1.00})
    author = await take(queue, "author", types=["code"])
    await queue.complete(author.token, {"x": 1}, usage={"cost_usd": 0.10})
    judge = await take(queue, "judge", types=["judge"], capabilities=["judge"])
    answer = await queue.heartbeat(judge.token, usage={"cost_usd": 0.20})
    assert answer.action == "continue"
    await queue.complete(judge.token, {"verdict": "accept"}, usage={"cost_usd": 0.30})
    found = await the_budget(queue, kind)
    assert (found.spent_usd, found.granted_usd) == pytest.approx((0.60, 0))
    await check_books(queue)


async def test_tree_budget_covers_root_attempts_and_spawned_tasks(queue: Queue, clock: MovedClock) -> None:
    root = await queue.submit(type="plan", tree_budget_usd=1.00, estimated_cost_usd=0.30)
    first = await take(queue)
    await queue.spawn(first.token, [{"type": "code", "estimated_cost_usd": 0.40, "key": "a"}])
    await queue.fail(first.token, "crash", usage={"cost_usd": 0.30})
    child = await take(queue, types=["code"])
    await queue.spawn(child.token, [{"type": "code", "estimated_cost_usd": 0.40}])
    await pass_time(queue, clock, 60)
    await take(queue, "second", types=["plan"])
    assert await queue.claim("third", types=["code"]) == []
    found = await the_budget(queue, "tree")
    assert (found.id, found.spent_usd, found.granted_usd) == (root.id, 0.30, 0.70)
    assert (await queue.get(root.id)).tree_budget_usd == 1.00


async def test_every_budget_above_a_task_must_cover_it(queue: Queue) -> None:
    tasks = [{"type": "plan", "tree_budget_usd": 5.00, "estimated_cost_usd": 0.40}]
    await queue.submit_dag({"tasks": tasks, "budget_ceiling_usd": 0.90})
    root = await take(queue)
    inner = {"type": "plan", "tree_budget_usd": 0.45, "estimated_cost_usd": 0.10}
    await queue.spawn(root.token, [inner, {"type": "other", "estimated_cost_usd": 0.50}])
    child = await take(queue, "inner", types=["plan"])
    await queue.spawn(child.token, [{"type": "leaf", "estimated_cost_usd": 0.40}])
    assert await queue.claim("x", types=["leaf"]) == [], "its own tree has 0.35 left"
    assert await queue.claim("x", types=["other"]) == [], "the DAG has 0.40 left"
    await queue.budgets.set("tree", child.id, ceiling_usd=0.50)
    assert len(await queue.claim("x", types=["leaf"])) == 1
    assert {b.kind: b.granted_usd for b in await queue.budgets.list() if b.kind == "dag"} == {"dag": 0.90}


async def test_rerun_is_charged_to_the_same_tree(queue: Queue) -> None:
    root = await queue.submit(type="code", tree_budget_usd=0.50, estimated_cost_usd=0.40)
    await queue.complete((await take(queue)).token, usage={"cost_usd": 0.40})
    await queue.tasks.rerun(root.id)
    assert await queue.claim("worker") == []


async def test_tree_budget_cannot_be_added_to_a_task_later(queue: Queue) -> None:
    task = await queue.submit(type="code")
    with pytest.raises(NotFound, match="has no budget"):
        await queue.budgets.set("tree", task.id, ceiling_usd=1)


async def test_daily_budget_is_enforced_and_resets_the_next_day(queue: Queue, clock: MovedClock) -> None:
    await queue.budgets.set("day", None, ceiling_usd=1.00)
    await queue.submit_many([{"type": "code", "estimated_cost_usd": 0.60}] * 3)
    await queue.complete((await take(queue)).token, usage={"cost_usd": 0.50})
    answer = await queue.claims.request("worker")
    assert (answer.assignments, answer.no_fit) == ([], 2)
    clock.advance(86_400)
    assert len(await queue.claim("worker")) == 1
    today, yesterday = await queue.budgets.list("day")
    assert (today.granted_usd, yesterday.spent_usd) == (0.60, 0.50)


async def test_exhausted_daily_budget_closes_claims_until_midnight(queue: Queue, clock: MovedClock) -> None:
    await queue.budgets.set("day", None, ceiling_usd=0.25)
    await queue.submit_many([{"type": "code"}] * 2)
    token = (await take(queue)).token
    answer = await queue.claims.request("other")
    (closed,) = answer.closed
    assert (closed.gate, closed.scope, closed.until) == ("budget", "*", clock() - clock() % 86_400 + 86_400)
    await queue.complete(token, usage={"cost_usd": 0.05})
    assert len(await queue.claim("other")) == 1


async def test_cost_is_charged_to_the_day_of_the_claim(queue: Queue, clock: MovedClock) -> None:
    await queue.budgets.set("day", None, ceiling_usd=1.00)
    await queue.submit(type="code", estimated_cost_usd=1.00)
    token = (await take(queue)).token
    clock.advance(86_400)
    await queue.submit(type="code", estimated_cost_usd=1.00)
    await take(queue, "other")
    await queue.complete(token, usage={"cost_usd": 0.75})
    today, yesterday = await queue.budgets.list("day")
    assert (today.spent_usd, today.granted_usd) == (0, 1.00)
    assert (yesterday.spent_usd, yesterday.granted_usd) == (0.75, 0)
    assert (await queue.budgets.costs("day")).daily_spend_usd == 0


async def test_daily_limit_added_late_counts_earlier_cost(queue: Queue) -> None:
    await queue.submit_many([{"type": "code", "estimated_cost_usd": 0.60}] * 2)
    await queue.complete((await take(queue)).token, usage={"cost_usd": 0.50})
    await queue.settings.set("budget.daily_usd", 1.00)
    assert await queue.claim("worker") == []


async def test_daily_cost_is_counted_while_limit_is_removed(queue: Queue) -> None:
    await queue.submit_many([{"type": "code", "estimated_cost_usd": 1.00}] * 4)
    await queue.budgets.set("day", None, ceiling_usd=10)
    await queue.complete((await take(queue)).token, usage={"cost_usd": 1})
    assert (await queue.budgets.set("day", None, ceiling_usd=None)).remaining_usd is None
    await queue.complete((await take(queue)).token, usage={"cost_usd": 4})
    await queue.settings.set("budget.daily_usd", 10)
    await queue.settings.unset("budget.daily_usd")
    await queue.complete((await take(queue)).token, usage={"cost_usd": 5})
    found = await queue.budgets.set("day", None, ceiling_usd=10)
    assert (found.spent_usd, found.granted_usd, found.remaining_usd) == (10, 0, 0)
    assert await queue.claim("worker") == []
    await check_books(queue)


async def test_day_without_a_limit_reports_its_cost(queue: Queue) -> None:
    await queue.submit(type="code")
    await queue.complete((await take(queue)).token, usage={"cost_usd": 1})
    found = await queue.budgets.set("day", None, ceiling_usd=None)
    assert (found.spent_usd, found.remaining_usd, await queue.budgets.list("day")) == (1, None, [])


async def test_tasks_running_when_daily_limit_is_set_are_granted_and_stopped(queue: Queue) -> None:
    await queue.submit_many([{"type": "code"}, {"type": "code", "estimated_cost_usd": 0.50}])
    dag_id = await make_dag(queue, 5.00, tasks=1, price=0.30)
    first, second, third = [await take(queue, name) for name in ("one", "two", "three")]
    await queue.heartbeat(second.token, usage={"cost_usd": 0.10})
    found = await queue.budgets.set("day", None, ceiling_usd=1.50)
    assert (found.spent_usd, found.granted_usd) == pytest.approx((0.10, 0.25 + 0.40 + 0.30))
    await check_books(queue)
    assert (await queue.heartbeat(second.token, usage={"cost_usd": 0.40})).action == "continue"
    assert (await queue.heartbeat(first.token, usage={"cost_usd": 5.00})).reason == "budget_exceeded"
    await queue.complete(third.token, usage={"cost_usd": 0.20})
    await queue.complete(second.token)
    found = await the_budget(queue, "day")
    assert (found.spent_usd, found.granted_usd, found.remaining_usd) == pytest.approx((5.70, 0, -4.20))
    assert (await queue.dags.get(dag_id)).spent_usd == 0.20
    await check_books(queue)


async def test_daily_limit_from_setting_counts_running_tasks_through_maintenance(
    queue: Queue, clock: MovedClock
) -> None:
    await queue.submit_many([{"type": "code", "estimated_cost_usd": 0.50}] * 3)
    await queue.complete((await take(queue)).token, usage={"cost_usd": 0.30})
    running = await take(queue)
    await queue.heartbeat(running.token, usage={"cost_usd": 0.10})
    await queue.settings.set("budget.daily_usd", 0.25)
    assert await queue.claim("other") == []
    await pass_time(queue, clock, 1)
    found = await the_budget(queue, "day")
    assert (found.spent_usd, found.granted_usd) == pytest.approx((0.40, 0.40))
    assert (await queue.heartbeat(running.token, usage={"cost_usd": 0.50})).reason == "budget_exceeded"
    await check_books(queue)
    for _ in range(6):
        await pass_time(queue, clock, 1)
    assert await sql(queue, "select id from budgets where counted_to is not null") == [], "it looks no further"


async def test_task_claimed_yesterday_is_not_charged_to_todays_limit(queue: Queue, clock: MovedClock) -> None:
    await queue.submit(type="code")
    running = await take(queue)
    clock.advance(86_400)
    await queue.budgets.set("day", None, ceiling_usd=1.00)
    await queue.heartbeat(running.token, usage={"cost_usd": 5.00})
    found = await the_budget(queue, "day")
    assert (found.spent_usd, found.granted_usd) == (0, 0)


async def test_purged_tasks_count_in_the_daily_cost(queue: Queue) -> None:
    await queue.settings.set("purge.mode", "delete")
    await queue.submit_many([{"type": "code"}] * 2)
    for _ in range(2):
        await queue.complete((await take(queue)).token, usage={"cost_usd": 0.10})
        await queue.control.purge(status=["completed"])
    assert (await queue.budgets.set("day", None, ceiling_usd=1.00)).spent_usd == 0.20
    assert await sql(queue, "select * from charges") == []


@pytest.mark.requirement("F-044")
async def test_attempt_over_its_cost_limit_is_cancelled_and_not_retried(queue: Queue) -> None:
    task = await queue.submit(type="code", spec={"constraints": {"max_cost_usd": 0.50}}, max_attempts=5)
    token = (await take(queue)).token
    assert (await queue.heartbeat(token, usage={"cost_usd": 0.50})).action == "continue"
    answer = await queue.heartbeat(token, usage={"cost_usd": 0.01})
    assert (answer.action, answer.reason) == ("cancel", "budget_exceeded")
    found = await queue.get(task.id)
    assert (found.status, found.failure_reason, found.cost_usd) == ("dead_lettered", "budget_exceeded", 0.51)
    assert found.attempts == 1
    again = await queue.heartbeat(token, usage={"cost_usd": 0.02})
    assert (again.action, again.reason) == ("cancel", "budget_exceeded")
    assert (await queue.get(task.id)).cost_usd == 0.53


async def test_cost_estimate_is_not_a_limit(queue: Queue) -> None:
    await queue.submit(type="code", estimated_cost_usd=0.10)
    token = (await take(queue)).token
    assert (await queue.heartbeat(token, usage={"cost_usd": 9})).action == "continue"


async def test_overspending_task_of_exhausted_budget_is_stopped_alone(queue: Queue) -> None:
    await make_dag(queue, 1.00, tasks=2)
    greedy, modest = await take(queue, "one"), await take(queue, "two")
    assert (await queue.heartbeat(greedy.token, usage={"cost_usd": 0.60})).reason == "budget_exceeded"
    assert (await queue.heartbeat(modest.token, usage={"cost_usd": 0.45})).action == "continue"
    found = await the_budget(queue)
    assert (found.spent_usd, found.remaining_usd) == pytest.approx((1.05, -0.10))
    assert (await queue.get(greedy.id)).last_error == f"DAG {found.id} has spent its 1.00 USD"


async def test_overspending_task_continues_while_budget_remains(queue: Queue) -> None:
    await make_dag(queue, 1.00, tasks=1, price=None)
    token = (await take(queue)).token
    assert (await queue.heartbeat(token, usage={"cost_usd": 0.90})).action == "continue"
    assert (await queue.heartbeat(token, usage={"cost_usd": 0.20})).action == "cancel"


async def test_agent_over_its_budget_is_stopped(queue: Queue) -> None:
    await queue.agents.register(id="worker", budget_remaining_usd=0.50)
    await queue.submit(type="code", estimated_cost_usd=0.50)
    token = (await take(queue)).token
    answer = await queue.heartbeat(token, usage={"cost_usd": 0.60})
    assert (answer.action, answer.reason) == ("cancel", "budget_exceeded")


async def test_completed_result_is_accepted_regardless_of_cost(queue: Queue) -> None:
    await make_dag(queue, 0.50, tasks=2)
    done = await take(queue)
    assert (await queue.complete(done.token, usage={"cost_usd": 2.00})).status == "completed"
    assert (await the_budget(queue)).remaining_usd == -1.50
    assert await events_named(queue, "budget.overrun") == [done.id]


async def test_lost_attempt_counts_as_spent_until_it_reports(queue: Queue, clock: MovedClock) -> None:
    await make_dag(queue, 1.00, tasks=1)
    token = (await take(queue)).token
    await pass_time(queue, clock, 90)
    assert (await the_budget(queue)).spent_usd == 0.50
    await queue.heartbeat(token, usage={"cost_usd": 0.20})
    assert (await the_budget(queue)).spent_usd == 0.50
    with pytest.raises(Exception, match="no longer holds"):
        await queue.complete(token, usage={"cost_usd": 0.10})
    found = await the_budget(queue)
    assert (found.spent_usd, found.granted_usd) == pytest.approx((0.30, 0))


async def test_released_claim_is_charged_its_usage(queue: Queue) -> None:
    await make_dag(queue, 1.00, tasks=1)
    token = (await take(queue)).token
    await queue.heartbeat(token, usage={"cost_usd": 0.05})
    await queue.release(token)
    found = await the_budget(queue)
    assert (found.spent_usd, found.granted_usd) == (0.05, 0)


async def test_budget_warnings_at_80_95_and_100_percent_are_raised_once(queue: Queue) -> None:
    dag_id = await make_dag(queue, 1.00, tasks=1, price=1.00)
    token = (await take(queue)).token
    for cost in (0.79, 0.01, 0.01, 0.19, 0.0):
        await queue.heartbeat(token, usage={"cost_usd": cost})
    alerts = await queue.alerts.list(kind="budget")
    assert [alert.data["percent"] for alert in alerts if alert.data] == [80, 100]
    assert alerts[0].message == f"DAG {dag_id} has spent 80 % of its budget"
    assert await events_named(queue, "budget.warned") == [dag_id, dag_id]
    await queue.budgets.set("dag", dag_id, ceiling_usd=1.05)
    await queue.complete(token, usage={"cost_usd": 0.01})
    assert [alert.data["percent"] for alert in await queue.alerts.list(kind="budget") if alert.data] == [80, 100]


async def test_agent_budget_warning_raises_an_alert(queue: Queue) -> None:
    await queue.agents.register(id="worker", budget_remaining_usd=1.00)
    await queue.submit(type="code", estimated_cost_usd=0.50)
    await queue.complete((await take(queue)).token, usage={"cost_usd": 0.96})
    (alert,) = await queue.alerts.list(kind="budget")
    assert alert.message == "agent worker has spent 95 % of its budget"


async def test_explain_names_the_ceiling_and_the_missing_amount(queue: Queue) -> None:
    dag_id = await make_dag(queue, 0.80, tasks=2)
    await take(queue, "one")
    assert await queue.claim("two") == []
    waiting = next(task for task in (await queue.tasks.list(status="ready")).tasks)
    (hold,) = [hold for hold in (await queue.explain(waiting.id)).holds if hold.kind == "budget"]
    assert hold.what == f"DAG {dag_id} has 0.30 of 0.80 USD left, but the task can cost 0.50"
    assert hold.lifts == "raise its ceiling by 0.20 USD, or running attempts release unused grants"


@pytest.mark.requirement("F-263")
async def test_costs_are_reported_by_task_dag_type_agent_model_and_day(queue: Queue, clock: MovedClock) -> None:
    dag_id = await make_dag(queue, None, tasks=1)
    first = await take(queue, "coder")
    await queue.heartbeat(first.token, usage={"cost_usd": 0.10, "tokens_in": 5, "model": "large"})
    await queue.complete(first.token, usage={"cost_usd": 0.20, "tokens_out": 7, "model": "small"})
    assert (await queue.get(first.id)).cost_usd == pytest.approx(0.30)
    clock.advance(86_400)
    second = await queue.submit(type="review")
    await queue.fail((await take(queue, "judge")).token, "crash", usage={"cost_usd": 0.05})
    assert await costs(queue, "task") == {first.id: 0.30, second.id: 0.05}
    assert await costs(queue, "dag") == {dag_id: 0.30, second.dag_id: 0.05}
    assert await costs(queue, "type") == {"code": 0.30, "review": 0.05}
    assert await costs(queue, "agent") == {"coder": 0.30, "judge": 0.05}
    assert await costs(queue, "model") == {"small": 0.20, "large": 0.10, None: 0.05}
    assert list((await costs(queue, "day")).values()) == [0.30, 0.05]
    report = await queue.budgets.costs("agent", since=clock() - 3600)
    assert [(cost.value, cost.attempts) for cost in report.costs] == [("judge", 1)]
    assert (report.total_usd, report.daily_spend_usd) == (0.05, 0.05)
    (large,) = [cost for cost in (await queue.budgets.costs("model")).costs if cost.value == "large"]
    assert (large.tokens_in, large.tokens_out, large.attempts) == (5, 0, 1)


async def costs(queue: Queue, by: str) -> dict[str | None, float]:
    report = await queue.budgets.costs(by)  # type: ignore[arg-type]  # each of the allowed ones in turn
    return {cost.value: cost.cost_usd for cost in report.costs}


async def test_purged_tasks_still_count_in_costs_and_budgets(queue: Queue) -> None:
    await queue.settings.set("purge.mode", "delete")
    await make_dag(queue, 1.00, tasks=1)
    await queue.complete((await take(queue)).token, usage={"cost_usd": 0.10})
    await queue.control.purge(status=["completed"])
    assert (await queue.budgets.costs()).total_usd == 0.10
    assert (await the_budget(queue)).spent_usd == 0.10
    assert await sql(queue, "select * from charges") == []


async def test_budgets_and_costs_are_separate_per_workspace(queue: Queue) -> None:
    dag_id = await make_dag(queue, 1.00, tasks=1)
    await queue.complete((await take(queue)).token, usage={"cost_usd": 0.10})
    other = queue.in_workspace("other")
    assert (await other.budgets.list(), (await other.budgets.costs()).costs) == ([], [])
    with pytest.raises(NotFound):
        await other.budgets.set("dag", dag_id, ceiling_usd=5)
    assert (await the_budget(queue)).ceiling_usd == 1.00


@pytest.mark.parametrize(
    ("kind", "id_", "usd", "where"),
    [
        ("month", "x", 1, "kind"),
        ("day", "2026-01-01", 1, "id"),
        ("dag", None, 1, "id"),
        ("agent", "worker", -1, "ceiling_usd"),
        ("agent", "worker", float("nan"), "ceiling_usd"),
    ],
)
async def test_invalid_budget_is_refused(queue: Queue, kind: Kind, id_: str | None, usd: float, where: str) -> None:
    with pytest.raises(InputError) as refused:
        await queue.budgets.set(kind, id_, ceiling_usd=usd)
    assert refused.value.where == where
    assert await queue.budgets.list() == []


async def test_budget_of_unknown_owner_is_not_found(queue: Queue) -> None:
    for kind in ("agent", "dag", "tree"):
        with pytest.raises(NotFound):
            await queue.budgets.set(kind, "0199a000-0000-7000-8000-000000000000", ceiling_usd=1)


@pytest.mark.requirement("F-264")
async def test_agent_budget_can_be_set_and_read(queue: Queue) -> None:
    await queue.agents.register(id="worker")
    await queue.submit(type="code")
    await queue.complete((await take(queue)).token, usage={"cost_usd": 0.10})
    found = await queue.budgets.set("agent", "worker", ceiling_usd=1.00)
    assert (found.spent_usd, found.remaining_usd) == (0.10, 0.90)
    assert (await queue.agents.get("worker")).budget_remaining_usd == 0.90
    assert [budget.id for budget in await queue.budgets.list()] == ["worker"]
