"""Limits: so much at once and so much in a window of a provider, account, model or type, and never more."""

import re
from importlib import resources
from typing import Any

import pytest

from shiftwork import Assignment, Queue
from shiftwork.core.errors import InputError
from shiftwork.queue.protection.gates import Closed
from shiftwork.queue.protection.protect import LimitInForce
from shiftwork.testing import MovedClock, pass_time
from tests.conformance.steps import everything, sql, take

SPEC = {"constraints": {"model_preferences": ["opus"], "fallback_models": ["haiku"]}}


async def many(queue: Queue, count: int, agent: str = "many", **options: Any) -> list[Assignment]:
    """What an agent gets that asks for so many."""
    await queue.register_agent(id=agent, max_concurrent_tasks=None, **options)
    return await queue.claim(agent, count, start=True)


async def only(queue: Queue) -> LimitInForce:
    (found,) = await queue.limits()
    return found


# -- at once -----------------------------------------------------------------------------------------------------


async def test_so_many_at_once_and_the_next_when_one_ends(queue: Queue) -> None:
    await queue.set_limit("type:code", concurrency=2)
    await queue.submit_many([{"type": "code"}] * 5)
    held = await many(queue, 5)
    assert len(held) == 2
    found = await only(queue)
    assert (found.held, found.full, found.opens_at) == (2, True, None)
    answered = await queue.claim_answer("other")
    assert (answered.assignments, answered.closed) == ([], (Closed("limit", "type:code"),))
    await queue.complete(held[0].token)
    assert len(await queue.claim("third")) == 1


async def test_a_full_limit_leaves_other_work_to_the_claim(queue: Queue) -> None:
    await queue.set_limit("type:code", concurrency=1)
    await queue.submit_many([{"type": "code", "priority": 1}] * 3 + [{"type": "docs"}] * 2)
    assert sorted(task.type for task in await many(queue, 9)) == ["code", "docs", "docs"]


@pytest.mark.parametrize("end", ["complete", "fail", "release", "cancel", "gone", "silent", "wait"])
async def test_whatever_ends_a_claim_gives_its_place_back(queue: Queue, clock: MovedClock, end: str) -> None:
    await queue.set_limit("type:code", concurrency=1)
    await queue.submit(type="code")
    held = await take(queue)
    assert (await only(queue)).held == 1
    if end == "complete":
        await queue.complete(held.token)
    elif end == "fail":
        await queue.fail(held.token, "crash")
    elif end == "release":
        await queue.release(held.token)
    elif end == "cancel":
        await queue.cancel(held.id)
    elif end == "gone":
        await queue.runtime_gone("worker")
    elif end == "silent":
        await pass_time(queue, clock, 100)
    else:
        await queue.spawn(held.token, [{"type": "child"}], wait=True)
    found = await only(queue)
    assert (found.held, found.full) == (0, False)
    assert (await everything(queue))["limit_claims"] == []


async def test_an_end_that_is_told_twice_gives_back_once(queue: Queue) -> None:
    await queue.set_limit("type:code", concurrency=2)
    await queue.submit_many([{"type": "code"}] * 2)
    first, _ = await many(queue, 2)
    for _ in range(2):
        await queue.complete(first.token)
    assert (await only(queue)).held == 1


# -- in a window -------------------------------------------------------------------------------------------------


async def test_so_many_claims_in_a_window(queue: Queue, clock: MovedClock) -> None:
    await queue.set_limit("type:code", requests=3, window_sec=60)
    await queue.submit_many([{"type": "code"}] * 9)
    taken = []
    for _ in range(12):
        taken.append(len(await many(queue, 9)))
        clock.advance(10)
    assert taken == [3, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0]  # a slot of a second late, never early


async def test_a_window_says_when_there_is_room(queue: Queue, clock: MovedClock) -> None:
    await queue.set_limit("type:code", requests=1, window_sec=60)
    await queue.submit_many([{"type": "code"}] * 2)
    await many(queue, 1)
    at = (await only(queue)).opens_at
    assert at is not None
    assert clock() + 60 <= at <= clock() + 61
    assert (await queue.claim_answer("other")).closed == (Closed("limit", "type:code", at),)
    clock.advance(at - clock())
    assert len(await queue.claim("other")) == 1


async def test_a_claim_that_was_never_started_is_no_request(queue: Queue) -> None:
    await queue.set_limit("type:code", requests=1, window_sec=60)
    await queue.submit(type="code")
    (claimed,) = await queue.claim("worker")
    await queue.release(claimed.token)
    (again,) = await queue.claim("worker", start=True)
    await queue.release(again.token)
    assert await queue.claim("worker") == []


async def test_tokens_are_set_aside_and_what_was_not_used_goes_back(queue: Queue) -> None:
    await queue.set_limit("type:code", tokens=1000, tokens_per_task=400, window_sec=60)
    await queue.submit_many([{"type": "code"}] * 5)
    first, second = await many(queue, 5)
    assert (await only(queue)).tokens_used == 800
    await queue.heartbeat(first.token, usage={"tokens_in": 30})
    await queue.complete(first.token, usage={"tokens_in": 50, "tokens_out": 20})
    assert (await only(queue)).tokens_used == 500
    assert len(await many(queue, 5)) == 1
    await queue.fail(second.token, "crash", usage={"tokens_out": 900})
    found = await only(queue)
    assert (found.tokens_used, found.full) == (1400, True)


async def test_the_tokens_of_earlier_attempts_are_not_counted_again(queue: Queue, clock: MovedClock) -> None:
    await queue.set_limit("type:code", tokens=1000, tokens_per_task=400, window_sec=60)
    await queue.submit(type="code")
    await queue.fail((await take(queue)).token, "crash", usage={"tokens_in": 300})
    await pass_time(queue, clock, 120)
    await queue.complete((await take(queue)).token, usage={"tokens_in": 10})
    assert (await only(queue)).tokens_used == 10


async def test_work_that_was_lost_counts_as_all_it_set_aside(queue: Queue, clock: MovedClock) -> None:
    await queue.set_limit("type:code", tokens=1000, tokens_per_task=400, window_sec=3600)
    await queue.submit(type="code")
    held = await take(queue)
    await queue.heartbeat(held.token, usage={"tokens_in": 100})
    await pass_time(queue, clock, 100)
    assert (await only(queue)).tokens_used == 400


# -- keys --------------------------------------------------------------------------------------------------------


async def test_a_limit_of_an_account_is_shared_by_its_agents(queue: Queue) -> None:
    await queue.set_limit("account:a", concurrency=2)
    await queue.submit_many([{"type": f"type-{number}"} for number in range(8)])
    assert len(await many(queue, 1, "a1", account="a")) == 1
    assert len(await many(queue, 5, "a2", account="a")) == 1
    assert len(await many(queue, 5, "b1", account="b")) == 5


async def test_a_model_at_its_limit_gives_way_to_the_fallback(queue: Queue) -> None:
    await queue.set_limit("model:opus", concurrency=1)
    await queue.submit_many([{"type": "code", "spec": SPEC}] * 3)
    models = [(await take(queue, f"agent-{number}")).model for number in range(3)]
    assert models == ["opus", "haiku", "haiku"]


async def test_every_limit_that_a_task_falls_under_must_have_room(queue: Queue) -> None:
    await queue.set_limit("type:code", concurrency=3)
    await queue.set_limit("account:a", concurrency=1)
    await queue.submit_many([{"type": "code"}] * 5)
    assert len(await many(queue, 5, "a1", account="a")) == 1
    assert len(await many(queue, 5, "b1", account="b")) == 2
    assert {found.key: found.held for found in await queue.limits()} == {"type:code": 3, "account:a": 1}


async def test_each_workspace_has_limits_of_its_own(queue: Queue) -> None:
    await queue.set_limit("type:code", concurrency=1)
    other = queue.in_workspace("other")
    await other.submit_many([{"type": "code"}] * 3)
    assert len(await many(other, 3)) == 3
    assert await other.limits() == []


# -- by hand -----------------------------------------------------------------------------------------------------


async def test_a_limit_may_be_raised_while_work_runs(queue: Queue) -> None:
    await queue.set_limit("type:code", concurrency=1)
    await queue.submit_many([{"type": "code"}] * 5)
    await many(queue, 5)
    raised = await queue.set_limit("type:code", concurrency=2)
    assert (raised.held, raised.full) == (1, False)
    assert len(await queue.claim("other")) == 1
    lowered = await queue.set_limit("type:code", {"concurrency": 1})
    assert (lowered.held, lowered.full) == (2, True)
    assert await queue.claim("third") == []


async def test_a_limit_that_is_removed_holds_nobody_back(queue: Queue) -> None:
    await queue.set_limit("type:code", concurrency=1)
    await queue.submit_many([{"type": "code"}] * 2)
    (held,) = await many(queue, 2)
    assert await queue.remove_limit("type:code") is True
    assert len(await queue.claim("taker")) == 1
    assert await queue.remove_limit("type:code") is False
    await queue.complete(held.token)
    assert await queue.limits() == []


async def test_explain_names_a_limit_that_is_reached(queue: Queue) -> None:
    await queue.set_limit("type:code", concurrency=1)
    await queue.submit_many([{"type": "code"}] * 2)
    (held,) = await many(queue, 2)
    (waiting,) = [task for task in (await queue.tasks(status="ready")).tasks if task.id != held.id]
    (hold,) = (await queue.explain(waiting.id)).holds
    assert (hold.kind, hold.until) == ("limit", None)


@pytest.mark.parametrize(
    ("key", "limit"),
    [
        ("code", {"concurrency": 1}),
        ("type:code", {}),
        ("type:code", {"concurrency": 0}),
        ("type:code", {"requests": 5}),
        ("type:code", {"requests": 5, "window_sec": 0}),
        ("type:code", {"tokens": 5, "window_sec": 60}),
        ("type:code", {"tokens": 5, "tokens_per_task": 6, "window_sec": 60}),
        ("type:code", {"colour": "red"}),
    ],
)
async def test_what_makes_no_limit_is_refused(queue: Queue, key: str, limit: dict[str, Any]) -> None:
    before = await everything(queue)
    with pytest.raises(InputError):
        await queue.set_limit(key, limit)
    assert await everything(queue) == before


async def test_a_queue_without_limits_writes_nothing_about_them(queue: Queue) -> None:
    await queue.submit(type="code", spec={"prompt": "x"})
    await queue.complete((await take(queue)).token)
    for table in ("limits", "limit_claims", "claim_models", "breakers", "gates"):
        assert await sql(queue, f"select * from {table}") == []


class Listening:
    """A transaction that notes which statements it was asked for."""

    def __init__(self, tx: Any, heard: list[str]) -> None:
        self._tx = tx
        self._heard = heard
        self.now = tx.now
        self.wake = tx.wake

    def __getattr__(self, verb: str) -> Any:
        def ask(name: str, /, *rows: Any, **parameters: Any) -> Any:
            self._heard.append(name)
            return getattr(self._tx, verb)(name, *rows, **parameters)

        return ask


async def test_and_asks_no_statement_about_them(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The short ways of a task stay short: claim, beat and complete know from what they read anyway."""
    statements = (resources.files("shiftwork.store") / "sql" / "protection.sql").read_text(encoding="utf-8")
    ours = set(re.findall(r"^-- name: (\w+)", statements, re.MULTILINE))
    heard: list[str] = []
    async with await Queue.open(store_url) as queue:
        run = queue.engine.store.run
        monkeypatch.setattr(queue.engine.store, "run", lambda verb: run(lambda tx: verb(Listening(tx, heard))))
        await queue.submit(type="code")
        (held,) = await queue.claim("worker", start=True)
        await queue.heartbeat(held.token)
        await queue.complete(held.token)
        assert await queue.claim("worker") == []
    assert {"lock_claimer", "see_runtime", "complete_tasks"} <= set(heard)
    assert ours & set(heard) == set()
