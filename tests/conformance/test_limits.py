"""Limits on concurrency and on usage per window, by provider, account, model or type, are never exceeded."""

import re
from importlib import resources
from typing import Any

import pytest

from shiftwork import Assignment, Queue
from shiftwork.limits.model import Closed, LimitInForce
from shiftwork.model.errors import InputError
from shiftwork.testing import MovedClock, pass_time
from tests.conformance.steps import everything, sql, take

SPEC = {"constraints": {"model_preferences": ["opus"], "fallback_models": ["haiku"]}}


async def many(queue: Queue, count: int, agent: str = "many", **options: Any) -> list[Assignment]:
    """Claim this many tasks for an agent."""
    await queue.agents.register(id=agent, max_concurrent_tasks=None, **options)
    return await queue.claim(agent, count, start=True)


async def only(queue: Queue) -> LimitInForce:
    (found,) = await queue.limits.list()
    return found


async def test_concurrency_limit_blocks_claims_until_one_ends(queue: Queue) -> None:
    await queue.limits.set("type:code", concurrency=2)
    await queue.submit_many([{"type": "code"}] * 5)
    held = await many(queue, 5)
    assert len(held) == 2
    found = await only(queue)
    assert (found.held, found.full, found.opens_at) == (2, True, None)
    answered = await queue.claims.request("other")
    assert (answered.assignments, answered.closed) == ([], (Closed("limit", "type:code"),))
    await queue.complete(held[0].token)
    assert len(await queue.claim("third")) == 1


async def test_full_limit_leaves_other_types_to_the_claim(queue: Queue) -> None:
    await queue.limits.set("type:code", concurrency=1)
    await queue.submit_many([{"type": "code", "priority": 1}] * 3 + [{"type": "docs"}] * 2)
    assert sorted(task.type for task in await many(queue, 9)) == ["code", "docs", "docs"]


@pytest.mark.parametrize("end", ["complete", "fail", "release", "cancel", "gone", "silent", "wait"])
async def test_every_end_of_a_claim_frees_its_limit_slot(queue: Queue, clock: MovedClock, end: str) -> None:
    await queue.limits.set("type:code", concurrency=1)
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
        await queue.runtimes.report_gone("worker")
    elif end == "silent":
        await pass_time(queue, clock, 100)
    else:
        await queue.spawn(held.token, [{"type": "child"}], wait=True)
    found = await only(queue)
    assert (found.held, found.full) == (0, False)
    assert (await everything(queue))["limit_claims"] == []


async def test_repeated_completion_frees_one_slot_only(queue: Queue) -> None:
    await queue.limits.set("type:code", concurrency=2)
    await queue.submit_many([{"type": "code"}] * 2)
    first, _ = await many(queue, 2)
    for _ in range(2):
        await queue.complete(first.token)
    assert (await only(queue)).held == 1


async def test_request_limit_holds_per_window(queue: Queue, clock: MovedClock) -> None:
    await queue.limits.set("type:code", requests=3, window_sec=60)
    await queue.submit_many([{"type": "code"}] * 9)
    taken = []
    for _ in range(12):
        taken.append(len(await many(queue, 9)))
        clock.advance(10)
    assert taken == [3, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0]  # a slot of a second late, never early


async def test_request_limit_reports_when_it_opens(queue: Queue, clock: MovedClock) -> None:
    await queue.limits.set("type:code", requests=1, window_sec=60)
    await queue.submit_many([{"type": "code"}] * 2)
    await many(queue, 1)
    at = (await only(queue)).opens_at
    assert at is not None
    assert clock() + 60 <= at <= clock() + 61
    assert (await queue.claims.request("other")).closed == (Closed("limit", "type:code", at),)
    clock.advance(at - clock())
    assert len(await queue.claim("other")) == 1


async def test_claim_never_started_does_not_count_as_request(queue: Queue) -> None:
    await queue.limits.set("type:code", requests=1, window_sec=60)
    await queue.submit(type="code")
    (claimed,) = await queue.claim("worker")
    await queue.release(claimed.token)
    (again,) = await queue.claim("worker", start=True)
    await queue.release(again.token)
    assert await queue.claim("worker") == []


async def test_reserved_tokens_are_returned_when_unused(queue: Queue) -> None:
    await queue.limits.set("type:code", tokens=1000, tokens_per_task=400, window_sec=60)
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


async def test_tokens_of_earlier_attempts_are_not_counted_again(queue: Queue, clock: MovedClock) -> None:
    await queue.limits.set("type:code", tokens=1000, tokens_per_task=400, window_sec=60)
    await queue.submit(type="code")
    await queue.fail((await take(queue)).token, "crash", usage={"tokens_in": 300})
    await pass_time(queue, clock, 120)
    await queue.complete((await take(queue)).token, usage={"tokens_in": 10})
    assert (await only(queue)).tokens_used == 10


async def test_lost_attempt_counts_its_whole_token_reservation(queue: Queue, clock: MovedClock) -> None:
    await queue.limits.set("type:code", tokens=1000, tokens_per_task=400, window_sec=3600)
    await queue.submit(type="code")
    held = await take(queue)
    await queue.heartbeat(held.token, usage={"tokens_in": 100})
    await pass_time(queue, clock, 100)
    assert (await only(queue)).tokens_used == 400


async def test_account_limit_is_shared_by_its_agents(queue: Queue) -> None:
    await queue.limits.set("account:a", concurrency=2)
    await queue.submit_many([{"type": f"type-{number}"} for number in range(8)])
    assert len(await many(queue, 1, "a1", account="a")) == 1
    assert len(await many(queue, 5, "a2", account="a")) == 1
    assert len(await many(queue, 5, "b1", account="b")) == 5


async def test_model_at_its_limit_is_replaced_by_fallback(queue: Queue) -> None:
    await queue.limits.set("model:opus", concurrency=1)
    await queue.submit_many([{"type": "code", "spec": SPEC}] * 3)
    models = [(await take(queue, f"agent-{number}")).model for number in range(3)]
    assert models == ["opus", "haiku", "haiku"]


async def test_every_matching_limit_must_have_room(queue: Queue) -> None:
    await queue.limits.set("type:code", concurrency=3)
    await queue.limits.set("account:a", concurrency=1)
    await queue.submit_many([{"type": "code"}] * 5)
    assert len(await many(queue, 5, "a1", account="a")) == 1
    assert len(await many(queue, 5, "b1", account="b")) == 2
    assert {found.key: found.held for found in await queue.limits.list()} == {"type:code": 3, "account:a": 1}


async def test_each_workspace_has_its_own_limits(queue: Queue) -> None:
    await queue.limits.set("type:code", concurrency=1)
    other = queue.in_workspace("other")
    await other.submit_many([{"type": "code"}] * 3)
    assert len(await many(other, 3)) == 3
    assert await other.limits.list() == []


async def test_limit_can_be_changed_while_tasks_run(queue: Queue) -> None:
    await queue.limits.set("type:code", concurrency=1)
    await queue.submit_many([{"type": "code"}] * 5)
    await many(queue, 5)
    raised = await queue.limits.set("type:code", concurrency=2)
    assert (raised.held, raised.full) == (1, False)
    assert len(await queue.claim("other")) == 1
    lowered = await queue.limits.set("type:code", concurrency=1)
    assert (lowered.held, lowered.full) == (2, True)
    assert await queue.claim("third") == []


async def test_removed_limit_blocks_no_claim(queue: Queue) -> None:
    await queue.limits.set("type:code", concurrency=1)
    await queue.submit_many([{"type": "code"}] * 2)
    (held,) = await many(queue, 2)
    assert await queue.limits.remove("type:code") is True
    assert len(await queue.claim("taker")) == 1
    assert await queue.limits.remove("type:code") is False
    await queue.complete(held.token)
    assert await queue.limits.list() == []


async def test_explain_names_a_reached_limit(queue: Queue) -> None:
    await queue.limits.set("type:code", concurrency=1)
    await queue.submit_many([{"type": "code"}] * 2)
    (held,) = await many(queue, 2)
    (waiting,) = [task for task in (await queue.tasks.list(status="ready")).tasks if task.id != held.id]
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
    ],
)
async def test_invalid_limit_is_refused_without_changes(queue: Queue, key: str, limit: dict[str, Any]) -> None:
    before = await everything(queue)
    with pytest.raises(InputError):
        await queue.limits.set(key, **limit)
    assert await everything(queue) == before


async def test_queue_without_limits_writes_no_limit_rows(queue: Queue) -> None:
    await queue.submit(type="code", spec={"prompt": "x"})
    await queue.complete((await take(queue)).token)
    for table in ("limits", "limit_claims", "claim_models", "breakers", "gates"):
        assert await sql(queue, f"select * from {table}") == []


class Listening:
    """A transaction that records the names of its statements."""

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


OF_EVERY_SUBMIT = {"read_quota"}
"""Whether the workspace has a quota."""


async def test_queue_without_limits_runs_no_limit_statements(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hot paths stay short: claim, heartbeat and complete use only what they read anyway."""
    statements = (resources.files("shiftwork.limits") / "queries.sql").read_text(encoding="utf-8")
    ours = set(re.findall(r"^-- name: (\w+)", statements, re.MULTILINE)) - OF_EVERY_SUBMIT
    heard: list[str] = []
    async with Queue.open(store_url) as queue:
        run = queue.engine.store.run
        monkeypatch.setattr(queue.engine.store, "run", lambda verb: run(lambda tx: verb(Listening(tx, heard))))
        await queue.submit(type="code")
        (held,) = await queue.claim("worker", start=True)
        await queue.heartbeat(held.token)
        await queue.complete(held.token)
        assert await queue.claim("worker") == []
    assert "lock_claimer" in heard
    for of_sqlite, alone in (("touch_runtime", "beat_plain"), ("complete_tasks", "complete_plain")):
        assert {of_sqlite, alone} & set(heard)
    assert ours & set(heard) == set()
