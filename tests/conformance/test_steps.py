"""Steps: what an attempt has done stays done for the next one, and is paid for once."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from shiftwork import Queue
from shiftwork.core.errors import InputError, LeaseLost, NotFound, ShiftworkError, TooLarge
from shiftwork.testing import MovedClock, pass_time
from tests.conformance.steps import bury, everything, take

SPENT = {"cost_usd": 0.25, "tokens_in": 100, "tokens_out": 10}


async def begun(queue: Queue, **fields: Any) -> str:
    """The token of a task at work."""
    await queue.submit({"type": "code", "retry": {"strategy": "immediate"}, **fields})
    return (await take(queue)).token


async def again(queue: Queue, token: str, reason: str = "crash") -> str:
    """The token of the next attempt, after this one has failed."""
    await queue.fail(token, reason, "boom")
    return (await take(queue)).token


def task_of(token: str) -> str:
    return token.partition(".")[0]


async def results(queue: Queue, task_id: str) -> dict[str, Any]:
    return {step.name: step.result for step in await queue.steps(task_id) if step.status == "done"}


# -- storing -----------------------------------------------------------------------------------------------------


async def test_a_step_is_begun_done_and_read(queue: Queue, clock: MovedClock) -> None:
    token = await begun(queue)
    began = clock()
    first = await queue.begin_step(token, "plan")
    assert (first.status, first.result, first.place, first.done_at) == ("in_flight", None, 1, None)
    clock.advance(5)
    done = await queue.complete_step(token, "plan", {"parts": [1, 2]}, SPENT)
    assert (done.status, done.result, done.place) == ("done", {"parts": [1, 2]}, 1)
    assert (done.began_at, done.done_at) == (began, began + 5)
    assert (done.cost_usd, done.tokens_in, done.tokens_out) == (0.25, 100, 10)
    assert await queue.steps(task_of(token)) == [done]
    assert await queue.begin_step(token, "plan") == done


@pytest.mark.parametrize("result", [None, 0, "", [], {"a": None}, "ä\\u0000", 2**53])
async def test_any_json_is_a_result(queue: Queue, result: Any) -> None:
    token = await begun(queue)
    stored = await queue.complete_step(token, "s", result)
    assert (stored.status, stored.result) == ("done", result)
    assert (await queue.begin_step(token, "s")).result == result


async def test_the_first_result_stands(queue: Queue) -> None:
    token = await begun(queue)
    await queue.complete_step(token, "plan", 1)
    assert (await queue.complete_step(token, "plan", 2)).result == 1
    token = await again(queue, token)
    assert (await queue.complete_step(token, "plan", 3)).result == 1


async def test_a_step_repeated_changes_nothing(queue: Queue, clock: MovedClock) -> None:
    token = await begun(queue)
    await queue.begin_step(token, "next")
    await queue.complete_step(token, "plan", 1, SPENT)
    clock.advance(5)
    before = await everything(queue)
    await queue.begin_step(token, "next")
    await queue.begin_step(token, "plan")
    await queue.complete_step(token, "plan", 1, SPENT)
    assert await everything(queue) == before


async def test_a_step_is_a_sign_of_life(queue: Queue, clock: MovedClock) -> None:
    token = await begun(queue)
    await pass_time(queue, clock, 80)
    await queue.complete_step(token, "plan", 1)
    await pass_time(queue, clock, 80)
    assert (await queue.complete_step(token, "write", 2)).status == "done"


async def test_steps_are_told_without_their_results(queue: Queue) -> None:
    token = await begun(queue)
    await queue.begin_step(token, "plan")
    await queue.complete_step(token, "plan", "SECRET")
    told = [event for event in await queue.history(task_of(token)) if event.names == ["task.step"]]
    assert [event.data for event in told] == [
        {"name": "plan", "place": 1, "status": "in_flight"},
        {"name": "plan", "place": 1, "status": "done"},
    ]
    assert {event.actor for event in told} == {"agent:worker"}
    assert "SECRET" not in str(await queue.events())


async def test_steps_come_in_pages_and_in_their_order(queue: Queue) -> None:
    token = await begun(queue)
    for number in range(7):
        await queue.complete_step(token, f"turn {9 - number}", number)
    first = await queue.steps(task_of(token), limit=4)
    rest = await queue.steps(task_of(token), after=first[-1].place, limit=4)
    assert [step.result for step in [*first, *rest]] == list(range(7))
    with pytest.raises(InputError):
        await queue.steps(task_of(token), limit=0)


# -- surviving ---------------------------------------------------------------------------------------------------


@pytest.mark.requirement("C-097")
async def test_a_retry_finds_what_was_done(queue: Queue) -> None:
    token = await begun(queue)
    await queue.complete_step(token, "plan", {"n": 1})
    await queue.begin_step(token, "write")
    await queue.fail(token, "crash")
    assert [(step.name, step.status) for step in await queue.steps(task_of(token))] == [
        ("plan", "done"),
        ("write", "interrupted"),
    ]
    token = (await take(queue)).token
    assert (await queue.begin_step(token, "plan")).result == {"n": 1}
    write = await queue.begin_step(token, "write")
    assert (write.status, write.fence, write.place) == ("in_flight", 2, 2)


async def test_a_retry_as_a_new_task_takes_them_along(queue: Queue) -> None:
    token = await begun(queue, retry={"mode": "new_task", "strategy": "immediate"})
    await queue.complete_step(token, "plan", 1, SPENT)
    await queue.begin_step(token, "write")
    next_token = await again(queue, token)
    assert task_of(next_token) != task_of(token)
    assert await results(queue, task_of(next_token)) == await results(queue, task_of(token)) == {"plan": 1}
    (copied,) = await queue.steps(task_of(next_token))
    assert (copied.fence, copied.cost_usd) == (0, 0.25)
    assert (await queue.get(task_of(next_token))).cost_usd == 0  # it was spent by the first
    assert (await queue.begin_step(next_token, "write")).place == 2


@pytest.mark.requirement("L-138")
@pytest.mark.parametrize("counts_attempt", [False, True])
async def test_a_rate_limit_keeps_the_agent_s_checkpoint(
    queue: Queue, clock: MovedClock, *, counts_attempt: bool
) -> None:
    await queue.set_setting("rate_limit.counts_attempt", counts_attempt)
    token = await begun(queue)
    await queue.complete_step(token, "read", "120 files")
    await queue.fail(token, "rate_limit", "429: retry-after: 30")
    assert await results(queue, task_of(token)) == {"read": "120 files"}
    await pass_time(queue, clock, 60)
    assert (await queue.begin_step((await take(queue)).token, "read")).result == "120 files"


async def test_a_release_a_wait_and_a_lost_lease_keep_them(queue: Queue, clock: MovedClock) -> None:
    token = await begun(queue)
    await queue.complete_step(token, "plan", 1)
    await queue.release(token)
    token = (await take(queue)).token
    await queue.spawn(token, [{"type": "child"}], wait=True)
    await queue.complete((await take(queue)).token)
    token = (await take(queue)).token
    assert (await queue.begin_step(token, "plan")).result == 1
    await pass_time(queue, clock, 100)
    token = (await take(queue)).token
    assert (await queue.begin_step(token, "plan")).result == 1


async def test_a_dead_letter_that_is_retried_keeps_them(queue: Queue) -> None:
    token = await begun(queue)
    await queue.complete_step(token, "plan", 1)
    await queue.fail(token, "crash", retry=False)
    await queue.review(task_of(token), "retry")
    assert (await queue.begin_step((await take(queue)).token, "plan")).result == 1


async def test_a_rerun_starts_without_them(queue: Queue) -> None:
    token = await begun(queue)
    await queue.complete_step(token, "plan", 1)
    await queue.complete(token)
    fresh = await queue.rerun(task_of(token))
    assert await queue.steps(fresh.task_id) == []
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
async def test_a_review_that_changes_the_work_drops_them(queue: Queue, change: dict[str, Any], *, kept: bool) -> None:
    token = await begun(queue, payload={"n": 1}, spec={"prompt": "do it"})
    await queue.complete_step(token, "plan", 1)
    await queue.fail(token, "crash", retry=False)
    await queue.review(task_of(token), "modify_and_retry", change=change)
    assert await results(queue, task_of(token)) == ({"plan": 1} if kept else {})


async def test_they_go_with_a_task_that_is_purged_or_archived(queue: Queue, clock: MovedClock) -> None:
    await queue.set_setting("purge.mode", "delete")
    await queue.set_setting("archive_after_sec", 10)
    token = await begun(queue)
    await queue.complete_step(token, "plan", 1)
    await queue.complete(token)
    task_id = await bury(queue)
    await pass_time(queue, clock, 100)
    assert (await queue.get(task_of(token))).archived
    assert await queue.steps(task_of(token)) == []
    await queue.purge(status=["dead_lettered"])
    with pytest.raises(NotFound):
        await queue.steps(task_id)
    assert (await everything(queue))["steps"] == []


# -- money -------------------------------------------------------------------------------------------------------


async def test_what_a_step_cost_is_booked_once_with_it(queue: Queue) -> None:
    token = await begun(queue)
    for _ in range(3):
        await queue.complete_step(token, "plan", 1, SPENT)
    await queue.complete_step(token, "write", 2, {"cost_usd": 0.5})
    await queue.complete(token, usage={"cost_usd": 1})
    task = await queue.get(task_of(token))
    assert (task.cost_usd, task.tokens_used) == (1.75, {"input": 100, "output": 10})
    assert [attempt.cost_usd for attempt in await queue.attempts(task.id)] == [1.75]
    assert (await queue.agent("worker")).spent_usd == 1.75


async def test_the_cost_of_each_step_is_readable_after_retries(queue: Queue) -> None:
    token = await begun(queue)
    await queue.complete_step(token, "plan", 1, SPENT)
    token = await again(queue, token)
    await queue.complete_step(token, "write", 2, {"cost_usd": 0.5})
    await queue.complete(token)
    assert [(step.name, step.cost_usd) for step in await queue.steps(task_of(token))] == [
        ("plan", 0.25),
        ("write", 0.5),
    ]
    assert [attempt.cost_usd for attempt in await queue.attempts(task_of(token))] == [0.25, 0.5]


async def test_an_attempt_that_did_not_look_pays_for_its_own_work_once(queue: Queue) -> None:
    token = await begun(queue)
    await queue.complete_step(token, "plan", "first", SPENT)
    token = await again(queue, token)
    for _ in range(2):
        assert (await queue.complete_step(token, "plan", "second", SPENT)).result == "first"
    await queue.complete(token)
    (plan,) = await queue.steps(task_of(token))
    assert (plan.cost_usd, plan.tokens_in, plan.fence) == (0.5, 200, 2)
    assert [attempt.cost_usd for attempt in await queue.attempts(task_of(token))] == [0.25, 0.25]


async def test_a_step_that_overspends_is_kept_and_ends_its_attempt(queue: Queue) -> None:
    token = await begun(queue, spec={"prompt": "do it", "constraints": {"max_cost_usd": 0.1}})
    assert (await queue.complete_step(token, "plan", 1, SPENT)).status == "done"
    task = await queue.get(task_of(token))
    assert (task.failure_reason, task.cost_usd) == ("budget_exceeded", 0.25)
    assert await results(queue, task.id) == {"plan": 1}
    with pytest.raises(LeaseLost):
        await queue.complete_step(token, "write", 2)


async def test_a_lost_claim_stores_nothing_and_pays_its_bill(queue: Queue) -> None:
    token = await begun(queue)
    live = await again(queue, token)
    for call in (queue.complete_step(token, "plan", 1, SPENT), queue.begin_step(token, "plan")):
        with pytest.raises(LeaseLost):
            await call
    assert await queue.steps(task_of(token)) == []
    assert [attempt.cost_usd for attempt in await queue.attempts(task_of(token))] == [0.25]
    await queue.complete(live)
    assert (await queue.get(task_of(token))).cost_usd == 0.25


# -- refusing ----------------------------------------------------------------------------------------------------


async def test_limits_are_said_and_nothing_is_stored(queue: Queue) -> None:
    token = await begun(queue)
    await queue.set_setting("bounds.step_bytes", 100)
    await queue.set_setting("bounds.steps", 2)
    with pytest.raises(TooLarge, match="100"):
        await queue.complete_step(token, "plan", "x" * 99)
    await queue.complete_step(token, "one", 1)
    await queue.begin_step(token, "two")
    for call in (queue.begin_step(token, "three"), queue.complete_step(token, "three", 3, SPENT)):
        with pytest.raises(TooLarge, match=r"bounds\.steps"):
            await call
    assert (await queue.complete_step(token, "two", 2)).status == "done"
    assert await results(queue, task_of(token)) == {"one": 1, "two": 2}
    await queue.complete(token)
    assert (await queue.get(task_of(token))).cost_usd == 0


@pytest.fixture
async def shelved(store_url: str, clock: MovedClock, tmp_path: Path) -> AsyncIterator[Queue]:
    """A queue with a place for artifacts."""
    async with await Queue.open(store_url, clock=clock, artifacts=str(tmp_path / "shelf")) as opened:
        yield opened


async def test_a_large_result_lies_in_an_artifact(shelved: Queue) -> None:
    large = {"text": "x" * 100_000}
    token = await begun(shelved, retry={"mode": "new_task", "strategy": "immediate"})
    stored = await shelved.complete_step(token, "read", large)
    assert (stored.result, stored.artifact is not None) == (large, True)
    (listed,) = await shelved.steps(task_of(token))
    assert (listed.status, listed.result, listed.artifact) == ("done", None, stored.artifact)
    token = await again(shelved, token)
    assert (await shelved.begin_step(token, "read")).result == large
    attached = await shelved.artifacts(task_of(token))
    assert [(each.role, each.name, each.id) for each in attached] == [("step", "read", stored.artifact)]


async def test_without_a_place_for_it_a_large_result_is_refused(store_url: str, clock: MovedClock) -> None:
    async with await Queue.open(store_url, clock=clock) as queue:
        queue.engine.depot = None
        token = await begun(queue)
        with pytest.raises(TooLarge, match="at most 65536"):
            await queue.complete_step(token, "read", "x" * 65_535)
        assert (await queue.complete_step(token, "read", "x" * 65_534)).status == "done"


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
async def test_what_cannot_be_stored_is_refused(queue: Queue, name: str, result: Any, usage: Any) -> None:
    token = await begun(queue)
    before = await everything(queue)
    with pytest.raises(InputError):
        await queue.complete_step(token, name, result, usage)
    assert await everything(queue) == before


async def test_a_step_needs_a_live_claim(queue: Queue) -> None:
    token = await begun(queue)
    await queue.complete(token)
    with pytest.raises(LeaseLost):
        await queue.complete_step(token, "plan", 1)
    with pytest.raises(ShiftworkError):
        await queue.begin_step("nothing", "plan")
    with pytest.raises(NotFound):
        await queue.steps("task_01ARZ3NDEKTSV4RRFFQ69G5FAV")


async def test_workspaces_do_not_see_each_other_s_steps(queue: Queue) -> None:
    token = await begun(queue)
    await queue.complete_step(token, "plan", 1)
    other = queue.in_workspace("other")
    for call in (other.steps(task_of(token)), other.begin_step(token, "plan"), other.complete_step(token, "plan", 2)):
        with pytest.raises(NotFound):
            await call
