"""A verdict, a cancellation and the end of the time for it may come at once: the attempt ends once."""

import asyncio

import pytest

from shiftwork import Queue
from shiftwork.duties.runner import run_once
from shiftwork.testing import MovedClock
from tests.conformance.steps import sql
from tests.races.fleet import Stop, errors, handles, together, until_blocked

JUDGED = {"validation": "llm-judge", "validation_schema": "Is it good?"}
TESTS = {"validation": "test-pass"}


async def handed_in(queue: Queue, output: dict[str, str]) -> str:
    """A task whose output waits for its verdict; its token. Each has a type of its own, which no breaker stops."""
    type_ = f"code-{len((await queue.tasks()).tasks)}"
    await queue.submit(type=type_, output=output, timeout_sec=60, target_agent_id="author")
    (held,) = await queue.claim("author", start=True)
    await queue.complete(held.token, "a patch")
    return held.token


async def ends(queue: Queue, task_id: str) -> list[str]:
    told = [event.verb for event in await queue.history(task_id)]
    return [verb for verb in told if verb in {"completed", "failed", "cancelled"}]


def task_of(token: str) -> str:
    return token.partition(".")[0]


@pytest.mark.parametrize("said", ["accept", "reject"])
async def test_a_judgement_and_a_cancellation_at_once_make_one_end(store_url: str, said: str) -> None:
    async with handles(store_url, 2) as (critic, person):
        for _ in range(15):
            token = await handed_in(person, JUDGED)
            asked = (await person.get(task_of(token))).judge_task_id or ""
            (held,) = await critic.claim("critic", start=True, capabilities=["judge"])
            late, refused = await together(
                errors(critic.complete(held.token, {"verdict": said})), errors(person.cancel(task_of(token)))
            )
            first = (await ends(person, task_of(token)))[0]
            assert first == ("cancelled" if late else "completed" if said == "accept" else "failed")
            assert refused == (["wrong_state"] if first == "completed" else [])
            assert late in ([], ["lease_lost"])
            assert (await person.get(asked)).status == ("cancelled" if late else "completed")
            assert await sql(person, "select * from outputs") == []


async def test_a_cancellation_that_waits_for_the_judge_meets_its_verdict(postgres_url: str) -> None:
    """The two lock the same pair of rows the other way round: one of them is run again, and nothing is left open."""
    async with handles(postgres_url, 2) as (critic, person):
        token = await handed_in(person, JUDGED)
        (held,) = await critic.claim("critic", start=True, capabilities=["judge"])
        stop = Stop(person, "drop_output")
        cancelling = asyncio.create_task(errors(person.cancel(task_of(token))))
        await stop.wait()
        judging = asyncio.create_task(errors(critic.complete(held.token, {"verdict": "accept"})))
        await until_blocked(critic)
        stop.go_on()
        refused, late = await cancelling, await judging
        task = await person.get(task_of(token))
        assert (task.status, refused, late) in [
            ("cancelled", [], ["lease_lost"]),
            ("completed", ["wrong_state"], []),
        ]
        assert await sql(person, "select * from outputs") == []


async def test_a_verdict_and_the_end_of_its_time_at_once_end_the_attempt_once(
    store_url: str, clock: MovedClock
) -> None:
    async with handles(store_url, 2, clock=clock) as (worker, reaper):
        for _ in range(10):
            token = await handed_in(worker, TESTS)
            clock.advance(61)
            refused, _ = await together(errors(worker.verdict(token, passed=True)), run_once(reaper.engine, force=True))
            assert refused in ([], ["lease_lost"])
            assert await ends(worker, task_of(token)) == (["failed"] if refused else ["completed"])
            assert len(await worker.attempts(task_of(token))) == 1
            await errors(worker.cancel(task_of(token)))


async def test_two_verdicts_at_once_are_one(store_url: str) -> None:
    async with handles(store_url, 2) as (one, other):
        for _ in range(10):
            token = await handed_in(one, TESTS)
            first, second = await together(one.verdict(token, passed=True), other.verdict(token, passed=False))
            assert sorted([first.repeated, second.repeated]) == [False, True]
            accepted = not first.repeated
            assert await ends(one, task_of(token)) == (["completed"] if accepted else ["failed"])
            await errors(one.cancel(task_of(token)))
