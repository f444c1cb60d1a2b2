"""Fast paths have the same result as slow ones: claims, batches, shared plans, inserts."""

import random
from typing import Any

import pytest

from shiftwork import Completion, Queue, Usage
from shiftwork.maintenance.loop import run_once
from tests.conformance.steps import sql

OPTIONS: dict[str, list[Any]] = {
    "type": ["code", "review"],
    "payload": [{}, {"n": 1}, {"deep": {"list": [1, None, "ä"]}}],
    "title": [None, "a title"],
    "priority": [50, 7, 99.5],
    "priority_boost_per_minute": [None, 1.0],
    "deadline": [None, 4_000_000_000.0],
    "tags": [[], ["a", "b"]],
    "created_by": [None, "me"],
    "max_attempts": [None, 7],
    "timeout_sec": [None, 30.0],
    "retry": [None, {"initial_delay_sec": 3}],
    "estimated_cost_usd": [None, 0.25],
    "issue_id": [None, "issue-1"],
    "serial_key": [None, "key-1"],
    "trigger_type": [None, "comment"],
    "trigger_summary": [None, "s" * 300],
    "session_id": [None, "session"],
    "work_dir": [None, "/work"],
    "force_fresh_session": [False, True],
    "spec": [None, {"prompt": "p", "constraints": {"max_duration_sec": 9, "model_preferences": ["m"]}}],
    "output": [None, {"type": "json", "validation": "json-schema", "validation_schema": {"type": "object"}}],
}


def some_tasks(seed: int, count: int) -> list[dict[str, Any]]:
    """Make tasks with various fields; every third one has only its type."""
    chance = random.Random(seed)
    tasks = []
    for number in range(count):
        named = chance.sample(sorted(OPTIONS), 0 if number % 3 == 0 else chance.randint(1, 6))
        fields = {name: chance.choice(OPTIONS[name]) for name in named}
        tasks.append({"type": "code", **{name: value for name, value in fields.items() if value is not None}})
    return tasks


async def stored(queue: Queue) -> list[dict[str, Any]]:
    """Return every row with its body and events, in order of submission, without ids and times."""
    rows = await sql(queue, "select t.*, b.body from tasks t join bodies b on b.task_id = t.id order by t.id")
    events = await sql(
        queue, "select verb, path, actor, reason, fence from single_events where verb = 'submitted' order by task_id"
    )
    own = {"id", "dag_id", "root_id", "created_at", "updated_at", "ordered_at", "rank"}
    kept = [{name: value for name, value in row.items() if name not in own} for row in rows]
    return [{**row, "event": event} for row, event in zip(kept, events, strict=True)]


@pytest.mark.parametrize("seed", range(5))
async def test_batch_submit_stores_the_same_rows_as_single_submits(queue: Queue, seed: int) -> None:
    tasks = some_tasks(seed, 24)
    await queue.submit_many(tasks)
    together = await stored(queue)
    alone = queue.in_workspace("other")
    for task in tasks:
        await alone.submit(task)
    both = await stored(queue)
    lanes = {row["id"]: row for row in await sql(queue, "select * from lanes")}
    shown = [
        {**row, "workspace": None, "lane": {**lanes[row["lane"]], "id": 0, "signature": "", "workspace": ""}}
        for row in both
    ]
    assert both[:24] == together
    assert shown[:24] == shown[24:]


@pytest.mark.parametrize("seed", range(5))
async def test_claim_returns_the_same_task_as_a_read(queue: Queue, seed: int) -> None:
    made = await queue.submit_many(some_tasks(seed, 24))
    await queue.agents.register(id="a", max_concurrent_tasks=None, budget_remaining_usd=100, models_available=["m"])
    held = await queue.claim("a", 24, start=seed % 2 == 0, runtime_id="r")
    assert {assignment.id for assignment in held} == {task.id for task in made}
    for assignment in held:
        assert assignment.task() == await queue.get(assignment.id)
        assert assignment.claim.text == assignment.token == assignment.task().claim.assignment_id


async def test_claim_after_a_failure_returns_the_same_task_as_a_read(queue: Queue) -> None:
    await queue.settings.set("circuit_breaker", None)
    await queue.settings.set("retry.initial_delay_sec", 0)
    made = await queue.submit_many([task for task in some_tasks(3, 12) if "retry" not in task])
    await queue.agents.register(id="a", max_concurrent_tasks=None, models_available=["m"])
    for assignment in await queue.claim("a", 12, start=True):
        await queue.fail(assignment.token, "crash", "once", usage={"cost_usd": 0.1, "tokens_in": 5})
    await run_once(queue.engine, force=True)
    again = await queue.claim("a", 12, start=True)
    assert len(again) == len(made)
    for assignment in again:
        assert assignment.task() == await queue.get(assignment.id)


async def test_batch_results_leave_the_same_rows_as_single_results(queue: Queue) -> None:
    await queue.agents.register(id="a", max_concurrent_tasks=None)
    for workspace in (queue, queue.in_workspace("other")):
        await workspace.agents.register(id="a", max_concurrent_tasks=None)
        await workspace.submit_dag({"tasks": [{"key": "p", "type": "x"}, {"type": "y", "dependencies": ["p"]}]})
        await workspace.submit_many([{"type": "x", "idempotency_key": f"k{n}"} for n in range(3)])
        held = await workspace.claim("a", 4, start=True)
        reports = [Completion({"n": 1}, usage=Usage(cost_usd=0.5), token=h.token) for h in held]
        if workspace is queue:
            await workspace.batch.complete(reports)
        else:
            for assignment in held:
                await workspace.complete(assignment.token, {"n": 1}, usage={"cost_usd": 0.5})

    async def rows(workspace: str, text: str) -> list[dict[str, Any]]:
        return await sql(queue, text.format(f"'{workspace}'"))

    for text in LEFT_BEHIND:
        assert await rows("default", text) == await rows("other", text)


LEFT_BEHIND = (
    "select status, version, fence, cost, agent_id, last_agent_id, waiting from tasks where workspace = {} order by id",
    """select verb, path, actor, fence, data from single_events where workspace = {} and fence > 0
    order by verb, task_id""",
    """select a.outcome, a.counted, a.agent_id, a.cost, a.result from attempts a join tasks t on t.id = a.task_id
    where t.workspace = {} order by a.task_id""",
    "select open, settled, status from dags where workspace = {}",
    "select spent, granted from agents where workspace = {}",
)
