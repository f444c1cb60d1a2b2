"""A verdict, a cancel and a timeout at once: the attempt ends once."""

import asyncio

import pytest

from shiftwork import Queue
from shiftwork.maintenance.loop import run_once
from shiftwork.testing import MovedClock
from tests.conformance.steps import sql
from tests.races.fleet import Stop, errors, handles, together, until_blocked

JUDGED = {"validation": "llm-judge", "validation_schema": "Is it good?"}
TESTS = {"validation": "test-pass"}


async def submitted_output(queue: Queue, output: dict[str, str]) -> str:
    """Submit an output that awaits its verdict; return its token. Each task has its own type, so no breaker opens."""
    type_ = f"code-{len((await queue.tasks.list()).tasks)}"
    await queue.submit(type=type_, output=output, timeout_sec=60, target_agent_id="author")
    (held,) = await queue.claim("author", start=True)
    await queue.complete(held.token, "a patch")
    return held.token


async def ends(queue: Queue, task_id: str) -> list[str]:
    events = [event.verb for event in (await queue.tasks.history(task_id)).events]
    return [verb for verb in events if verb in {"completed", "failed", "cancelled"}]


def task_of(token: str) -> str:
    return token.partition(".")[0]


@pytest.mark.parametrize("stated", ["accept", "reject"])
async def test_concurrent_judgement_and_cancel_have_one_outcome(store_url: str, stated: str) -> None:
    async with handles(store_url, 2) as (critic, person):
        for _ in range(15):
            token = await submitted_output(person, JUDGED)
            asked = (await person.get(task_of(token))).judge_task_id or ""
            (held,) = await critic.claim("critic", start=True, capabilities=["judge"])
            late, refused = await together(
                errors(critic.complete(held.token, {"verdict": stated})), errors(person.cancel(task_of(token)))
            )
            first = (await ends(person, task_of(token)))[0]
            assert first == ("cancelled" if late else "completed" if stated == "accept" else "failed")
            assert refused == (["wrong_state"] if first == "completed" else [])
            assert late in ([], ["lease_lost"])
            assert (await person.get(asked)).status == ("cancelled" if late else "completed")
            assert await sql(person, "select * from outputs") == []


async def test_cancel_waiting_for_the_judge_meets_its_verdict(postgres_url: str) -> None:
    """The two lock the same pair of rows in opposite order: one of them is repeated, and nothing stays open."""
    async with handles(postgres_url, 2) as (critic, person):
        token = await submitted_output(person, JUDGED)
        (held,) = await critic.claim("critic", start=True, capabilities=["judge"])
        stop = Stop(person, "drop_output")
        cancelling = asyncio.create_task(errors(person.cancel(task_of(token))))
        await stop.wait()
        judging = asyncio.create_task(errors(critic.complete(held.token, {"verdict": "accept"})))
        await until_blocked(critic)
        stop.resume()
        refused, late = await cancelling, await judging
        task = await person.get(task_of(token))
        assert (task.status, refused, late) in [
            ("cancelled", [], ["lease_lost"]),
            ("completed", ["wrong_state"], []),
        ]
        assert await sql(person, "select * from outputs") == []


async def test_concurrent_verdict_and_timeout_end_the_attempt_once(store_url: str, clock: MovedClock) -> None:
    async with handles(store_url, 2, clock=clock) as (worker, reaper):
        for _ in range(10):
            token = await submitted_output(worker, TESTS)
            clock.advance(61)
            refused, _ = await together(
                errors(worker.claims.verdict(token, passed=True)), run_once(reaper.engine, force=True)
            )
            assert refused in ([], ["lease_lost"])
            assert await ends(worker, task_of(token)) == (["failed"] if refused else ["completed"])
            assert len(await worker.tasks.attempts(task_of(token))) == 1
            await errors(worker.cancel(task_of(token)))


async def test_two_concurrent_verdicts_count_once(store_url: str) -> None:
    async with handles(store_url, 2) as (one, other):
        for _ in range(10):
            token = await submitted_output(one, TESTS)
            first, second = await together(
                one.claims.verdict(token, passed=True), other.claims.verdict(token, passed=False)
            )
            assert sorted([first.repeated, second.repeated]) == [False, True]
            accepted = not first.repeated
            assert await ends(one, task_of(token)) == (["completed"] if accepted else ["failed"])
            await errors(one.cancel(task_of(token)))
