"""Steps: a completed step is kept for the next attempt and charged once."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from shiftwork import Queue
from shiftwork.model.errors import InputError, LeaseLost, NotFound, ShiftworkError, TooLarge
from shiftwork.testing import MovedClock, pass_time
from tests.conformance.steps import dead_letter, everything, take

SPENT = {"cost_usd": 0.25, "tokens_in": 100, "tokens_out": 10}


async def begun(queue: Queue, **fields: Any) -> str:
    """Start a task and return its token."""
    await queue.submit({"type": "code", "retry": {"strategy": "immediate"}, **fields})
    return (await take(queue)).token


async def again(queue: Queue, token: str, reason: str = "crash") -> str:
    """The token of the next attempt, after this one has failed."""
    await queue.fail(token, reason, "boom")
    return (await take(queue)).token


def task_of(token: str) -> str:
    return token.partition(".")[0]


async def results(queue: Queue, task_id: str) -> dict[str, Any]:
    return {step.name: step.result for step in await queue.steps.list(task_id) if step.status == "done"}


async def test_step_can_be_begun_completed_and_read(queue: Queue, clock: MovedClock) -> None:
    token = await begun(queue)
    began = clock()
    first = await queue.steps.begin(token, "plan")
    assert (first.status, first.result, first.place, first.done_at) == ("in_flight", None, 1, None)
    clock.advance(5)
    done = await queue.steps.complete(token, "plan", {"parts": [1, 2]}, SPENT)
    assert (done.status, done.result, done.place) == ("done", {"parts": [1, 2]}, 1)
    assert (done.began_at, done.done_at) == (began, began + 5)
    assert (done.cost_usd, done.tokens_in, done.tokens_out) == (0.25, 100, 10)
    assert await queue.steps.list(task_of(token)) == [done]
    assert await queue.steps.begin(token, "plan") == done


@pytest.mark.parametrize("result", [None, 0, "", [], {"a": None}, "ä\\u0000", 2**53])
async def test_any_json_value_is_a_step_result(queue: Queue, result: Any) -> None:
    token = await begun(queue)
    stored = await queue.steps.complete(token, "s", result)
    assert (stored.status, stored.result) == ("done", result)
    assert (await queue.steps.begin(token, "s")).result == result


async def test_first_result_of_a_step_is_kept(queue: Queue) -> None:
    token = await begun(queue)
    await queue.steps.complete(token, "plan", 1)
    assert (await queue.steps.complete(token, "plan", 2)).result == 1
    token = await again(queue, token)
    assert (await queue.steps.complete(token, "plan", 3)).result == 1


async def test_repeated_step_calls_change_nothing(queue: Queue, clock: MovedClock) -> None:
    token = await begun(queue)
    await queue.steps.begin(token, "next")
    await queue.steps.complete(token, "plan", 1, SPENT)
    clock.advance(5)
    before = await everything(queue)
    await queue.steps.begin(token, "next")
    await queue.steps.begin(token, "plan")
    await queue.steps.complete(token, "plan", 1, SPENT)
    assert await everything(queue) == before


async def test_completing_a_step_extends_the_lease(queue: Queue, clock: MovedClock) -> None:
    token = await begun(queue)
    await pass_time(queue, clock, 80)
    await queue.steps.complete(token, "plan", 1)
    await pass_time(queue, clock, 80)
    assert (await queue.steps.complete(token, "write", 2)).status == "done"


async def test_step_events_do_not_contain_results(queue: Queue) -> None:
    token = await begun(queue)
    await queue.steps.begin(token, "plan")
    await queue.steps.complete(token, "plan", "SECRET")
    outcome = [event for event in (await queue.tasks.history(task_of(token))).events if event.names == ["task.step"]]
    assert [event.data for event in outcome] == [
        {"name": "plan", "place": 1, "status": "in_flight"},
        {"name": "plan", "place": 1, "status": "done"},
    ]
    assert {event.actor for event in outcome} == {"agent:worker"}
    assert "SECRET" not in str(await queue.events())


async def test_steps_are_paged_in_order(queue: Queue) -> None:
    token = await begun(queue)
    for number in range(7):
        await queue.steps.complete(token, f"turn {9 - number}", number)
    first = await queue.steps.list(task_of(token), limit=4)
    rest = await queue.steps.list(task_of(token), after=first[-1].place, limit=4)
    assert [step.result for step in [*first, *rest]] == list(range(7))
    with pytest.raises(InputError):
        await queue.steps.list(task_of(token), limit=0)


@pytest.mark.requirement("C-097")
async def test_retry_finds_completed_steps(queue: Queue) -> None:
    token = await begun(queue)
    await queue.steps.complete(token, "plan", {"n": 1})
    await queue.steps.begin(token, "write")
    await queue.fail(token, "crash")
    assert [(step.name, step.status) for step in await queue.steps.list(task_of(token))] == [
        ("plan", "done"),
        ("write", "interrupted"),
    ]
    token = (await take(queue)).token
    assert (await queue.steps.begin(token, "plan")).result == {"n": 1}
    write = await queue.steps.begin(token, "write")
    assert (write.status, write.fence, write.place) == ("in_flight", 2, 2)


async def test_retry_as_new_task_copies_completed_steps(queue: Queue) -> None:
    token = await begun(queue, retry={"mode": "new_task", "strategy": "immediate"})
    await queue.steps.complete(token, "plan", 1, SPENT)
    await queue.steps.begin(token, "write")
    next_token = await again(queue, token)
    assert task_of(next_token) != task_of(token)
    assert await results(queue, task_of(next_token)) == await results(queue, task_of(token)) == {"plan": 1}
    (copied,) = await queue.steps.list(task_of(next_token))
    assert (copied.fence, copied.cost_usd) == (0, 0.25)
    assert (await queue.get(task_of(next_token))).cost_usd == 0  # it was spent by the first
    assert (await queue.steps.begin(next_token, "write")).place == 2


@pytest.mark.requirement("L-138")
@pytest.mark.parametrize("counts_attempt", [False, True])
async def test_steps_are_kept_after_a_rate_limit(queue: Queue, clock: MovedClock, *, counts_attempt: bool) -> None:
    await queue.settings.set("rate_limit.counts_attempt", counts_attempt)
    token = await begun(queue)
    await queue.steps.complete(token, "read", "120 files")
    await queue.fail(token, "rate_limit", "429: retry-after: 30")
    assert await results(queue, task_of(token)) == {"read": "120 files"}
    await pass_time(queue, clock, 60)
    assert (await queue.steps.begin((await take(queue)).token, "read")).result == "120 files"


async def test_steps_are_kept_after_release_wait_and_lost_lease(queue: Queue, clock: MovedClock) -> None:
    token = await begun(queue)
    await queue.steps.complete(token, "plan", 1)
    await queue.release(token)
    token = (await take(queue)).token
    await queue.spawn(token, [{"type": "child"}], wait=True)
    await queue.complete((await take(queue)).token)
    token = (await take(queue)).token
    assert (await queue.steps.begin(token, "plan")).result == 1
    await pass_time(queue, clock, 100)
    token = (await take(queue)).token
    assert (await queue.steps.begin(token, "plan")).result == 1


async def test_steps_are_kept_when_a_dead_letter_is_retried(queue: Queue) -> None:
    token = await begun(queue)
    await queue.steps.complete(token, "plan", 1)
    await queue.fail(token, "crash", retry=False)
    await queue.dead_letters.review(task_of(token), "retry")
    assert (await queue.steps.begin((await take(queue)).token, "plan")).result == 1


async def test_rerun_starts_without_steps(queue: Queue) -> None:
    token = await begun(queue)
    await queue.steps.complete(token, "plan", 1)
    await queue.complete(token)
    fresh = await queue.tasks.rerun(task_of(token))
    assert await queue.steps.list(fresh.task_id) == []
    assert await results(queue, task_of(token)) == {"plan": 1}


@pytest.mark.parametrize(
    ("change", "kept"),
    [
        ({"payload": {"n": 2}}, False),
        ({"spec": {"prompt": "otherwise"}}, False),
        ({"tool_name": "other"}, False),
        ({"priority": 5, "tags": ["late"], "max_attempts": 9}, True),
        ({"payload": {"n": 1}}, True),
        ({"spec": {"prompt": "do it", "constraints": {"max_cost_usd": 9}}}, True),
    ],
)
async def test_review_that_changes_the_work_drops_its_steps(
    queue: Queue, change: dict[str, Any], *, kept: bool
) -> None:
    token = await begun(queue, payload={"n": 1}, spec={"prompt": "do it"})
    await queue.steps.complete(token, "plan", 1)
    await queue.fail(token, "crash", retry=False)
    await queue.dead_letters.review(task_of(token), "modify_and_retry", change=change)
    assert await results(queue, task_of(token)) == ({"plan": 1} if kept else {})


async def test_steps_are_deleted_with_a_purged_or_archived_task(queue: Queue, clock: MovedClock) -> None:
    await queue.settings.set("purge.mode", "delete")
    await queue.settings.set("archive_after_sec", 10)
    token = await begun(queue)
    await queue.steps.complete(token, "plan", 1)
    await queue.complete(token)
    task_id = await dead_letter(queue)
    await pass_time(queue, clock, 100)
    assert (await queue.get(task_of(token))).archived
    assert await queue.steps.list(task_of(token)) == []
    await queue.control.purge(status=["dead_lettered"])
    with pytest.raises(NotFound):
        await queue.steps.list(task_id)
    assert (await everything(queue))["steps"] == []


async def test_cost_of_a_step_is_charged_once(queue: Queue) -> None:
    token = await begun(queue)
    for _ in range(3):
        await queue.steps.complete(token, "plan", 1, SPENT)
    await queue.steps.complete(token, "write", 2, {"cost_usd": 0.5})
    await queue.complete(token, usage={"cost_usd": 1})
    task = await queue.get(task_of(token))
    assert (task.cost_usd, task.tokens_used) == (1.75, {"input": 100, "output": 10})
    assert [attempt.cost_usd for attempt in await queue.tasks.attempts(task.id)] == [1.75]
    assert (await queue.agents.get("worker")).spent_usd == 1.75


async def test_cost_of_each_step_is_readable_after_retries(queue: Queue) -> None:
    token = await begun(queue)
    await queue.steps.complete(token, "plan", 1, SPENT)
    token = await again(queue, token)
    await queue.steps.complete(token, "write", 2, {"cost_usd": 0.5})
    await queue.complete(token)
    assert [(step.name, step.cost_usd) for step in await queue.steps.list(task_of(token))] == [
        ("plan", 0.25),
        ("write", 0.5),
    ]
    assert [attempt.cost_usd for attempt in await queue.tasks.attempts(task_of(token))] == [0.25, 0.5]


async def test_step_repeated_by_a_later_attempt_is_charged_once_per_attempt(queue: Queue) -> None:
    token = await begun(queue)
    await queue.steps.complete(token, "plan", "first", SPENT)
    token = await again(queue, token)
    for _ in range(2):
        assert (await queue.steps.complete(token, "plan", "second", SPENT)).result == "first"
    await queue.complete(token)
    (plan,) = await queue.steps.list(task_of(token))
    assert (plan.cost_usd, plan.tokens_in, plan.fence) == (0.5, 200, 2)
    assert [attempt.cost_usd for attempt in await queue.tasks.attempts(task_of(token))] == [0.25, 0.25]


async def test_overspending_step_is_kept_and_ends_its_attempt(queue: Queue) -> None:
    token = await begun(queue, spec={"prompt": "do it", "constraints": {"max_cost_usd": 0.1}})
    assert (await queue.steps.complete(token, "plan", 1, SPENT)).status == "done"
    task = await queue.get(task_of(token))
    assert (task.failure_reason, task.cost_usd) == ("budget_exceeded", 0.25)
    assert await results(queue, task.id) == {"plan": 1}
    with pytest.raises(LeaseLost):
        await queue.steps.complete(token, "write", 2)


async def test_step_under_lost_claim_is_not_stored_but_charged(queue: Queue) -> None:
    token = await begun(queue)
    live = await again(queue, token)
    for call in (queue.steps.complete(token, "plan", 1, SPENT), queue.steps.begin(token, "plan")):
        with pytest.raises(LeaseLost):
            await call
    assert await queue.steps.list(task_of(token)) == []
    assert [attempt.cost_usd for attempt in await queue.tasks.attempts(task_of(token))] == [0.25]
    await queue.complete(live)
    assert (await queue.get(task_of(token))).cost_usd == 0.25


async def test_step_over_its_bounds_is_refused_and_not_stored(queue: Queue) -> None:
    token = await begun(queue)
    await queue.settings.set("bounds.step_bytes", 100)
    await queue.settings.set("bounds.steps", 2)
    with pytest.raises(TooLarge, match="100"):
        await queue.steps.complete(token, "plan", "x" * 99)
    await queue.steps.complete(token, "one", 1)
    await queue.steps.begin(token, "two")
    for call in (queue.steps.begin(token, "three"), queue.steps.complete(token, "three", 3, SPENT)):
        with pytest.raises(TooLarge, match=r"bounds\.steps"):
            await call
    assert (await queue.steps.complete(token, "two", 2)).status == "done"
    assert await results(queue, task_of(token)) == {"one": 1, "two": 2}
    await queue.complete(token)
    assert (await queue.get(task_of(token))).cost_usd == 0


@pytest.fixture
async def shelved(store_url: str, clock: MovedClock, tmp_path: Path) -> AsyncIterator[Queue]:
    """A queue with an artifact store."""
    async with Queue.open(store_url, clock=clock, artifacts=str(tmp_path / "shelf")) as opened:
        yield opened


async def test_large_step_result_is_stored_as_artifact(shelved: Queue) -> None:
    large = {"text": "x" * 100_000}
    token = await begun(shelved, retry={"mode": "new_task", "strategy": "immediate"})
    stored = await shelved.steps.complete(token, "read", large)
    assert (stored.result, stored.artifact is not None) == (large, True)
    (listed,) = await shelved.steps.list(task_of(token))
    assert (listed.status, listed.result, listed.artifact) == ("done", None, stored.artifact)
    token = await again(shelved, token)
    assert (await shelved.steps.begin(token, "read")).result == large
    attached = await shelved.artifacts.list(task_of(token))
    assert [(each.role, each.name, each.id) for each in attached] == [("step", "read", stored.artifact)]


async def test_large_step_result_without_artifact_store_is_refused(store_url: str, clock: MovedClock) -> None:
    async with Queue.open(store_url, clock=clock) as queue:
        queue.engine.blob_store = None
        token = await begun(queue)
        with pytest.raises(TooLarge, match="at most 65536"):
            await queue.steps.complete(token, "read", "x" * 65_535)
        assert (await queue.steps.complete(token, "read", "x" * 65_534)).status == "done"


@pytest.mark.parametrize(
    ("name", "result", "usage"),
    [
        ("", 1, None),
        ("x" * 256, 1, None),
        ("nul\0", 1, None),
        ("plan", float("nan"), None),
        ("plan", "\ud800", None),
        ("plan", "nul\0", None),
        ("plan", 1, {"cost_usd": -1}),
        ("plan", 1, {"dollars": 1}),
    ],
)
async def test_invalid_step_is_refused_without_changes(queue: Queue, name: str, result: Any, usage: Any) -> None:
    token = await begun(queue)
    before = await everything(queue)
    with pytest.raises(InputError):
        await queue.steps.complete(token, name, result, usage)
    assert await everything(queue) == before


async def test_step_without_a_live_claim_is_refused(queue: Queue) -> None:
    token = await begun(queue)
    await queue.complete(token)
    with pytest.raises(LeaseLost):
        await queue.steps.complete(token, "plan", 1)
    with pytest.raises(ShiftworkError):
        await queue.steps.begin("nothing", "plan")
    with pytest.raises(NotFound):
        await queue.steps.list("task_01ARZ3NDEKTSV4RRFFQ69G5FAV")


async def test_steps_are_not_visible_to_other_workspaces(queue: Queue) -> None:
    token = await begun(queue)
    await queue.steps.complete(token, "plan", 1)
    other = queue.in_workspace("other")
    for call in (
        other.steps.list(task_of(token)),
        other.steps.begin(token, "plan"),
        other.steps.complete(token, "plan", 2),
    ):
        with pytest.raises(NotFound):
            await call
