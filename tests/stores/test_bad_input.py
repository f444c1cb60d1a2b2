"""Invalid calls are refused with a code and a path, and nothing changes."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from shiftwork import Queue
from shiftwork.agents.model import AgentStatus
from shiftwork.model.errors import ShiftworkError, StoreError
from shiftwork.model.reports import Completion
from shiftwork.model.task import NewTask
from tests.services.postgres import Databases

Call = Callable[[Queue], Awaitable[Any]]
UNKNOWN = "task_01KCGY3EG0E06B0T9A01BJFZ9H"
WRONG: Any = "perhaps"
SURROGATE = "half \ud800 a character"


def nested(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(levels):
        value = {"in": value}
    return value


SUBMITS: list[tuple[dict[str, Any], str, str | None]] = [
    ({}, "invalid_input", "task"),
    ({"type": "code", "colour": "red"}, "invalid_input", "task"),
    ({"type": ""}, "invalid_input", "task.type"),
    ({"type": 7}, "invalid_input", "task.type"),
    ({"type": "x" * 256}, "invalid_input", "task.type"),
    ({"type": "code", "priority": 101}, "invalid_input", "task.priority"),
    ({"type": "code", "priority": -1}, "invalid_input", "task.priority"),
    ({"type": "code", "priority": "high"}, "invalid_input", "task.priority"),
    ({"type": "code", "max_attempts": 0}, "invalid_input", "task.max_attempts"),
    ({"type": "code", "timeout_sec": 0}, "invalid_input", "task.timeout_sec"),
    ({"type": "code", "estimated_cost_usd": -1}, "invalid_input", "task.estimated_cost_usd"),
    ({"type": "code", "delivery": "sometimes"}, "invalid_input", "task.delivery"),
    ({"type": "code", "payload": [1]}, "invalid_input", "task.payload"),
    ({"type": "code", "dependencies": "one"}, "invalid_input", "task.dependencies"),
    ({"type": "code", "dependencies": [""]}, "invalid_input", "task.dependencies[0]"),
    ({"type": "code", "spec": {"prompt": 7}}, "invalid_input", "task.spec.prompt"),
    ({"type": "code", "spec": {"colour": 7}}, "invalid_input", "task.spec"),
    ({"type": "code", "priority_boost_per_minute": 10.5}, "invalid_input", "task.priority_boost_per_minute"),
    ({"type": "code", "settings": {"no_such": 1}}, "unknown_setting", "no_such"),
    ({"type": "code", "settings": {"max_attempts": "many"}}, "invalid_input", "max_attempts"),
    ({"type": "code", "retry": {"strategy": "hope"}}, "invalid_input", "retry.strategy"),
    ({"type": "co\0de"}, "bad_text", "task"),
    ({"type": SURROGATE}, "bad_text", "task"),
    ({"type": "code", "title": "a\0b"}, "bad_text", "task"),
    ({"type": "code", "title": SURROGATE}, "bad_text", "task"),
    ({"type": "code", "payload": {"deep": ["a\0b"]}}, "bad_text", "task"),
    ({"type": "code", "payload": {"a\0b": 1}}, "bad_text", "task"),
    ({"type": "code", "payload": {SURROGATE: 1}}, "bad_text", "task"),
    ({"type": "code", "idempotency_key": "a\0b"}, "bad_text", "task"),
    ({"type": "code", "id": SURROGATE}, "bad_text", "task"),
    ({"type": "code", "dependencies": ["a\0b"]}, "bad_text", "task"),
    ({"type": "code", "tags": [SURROGATE]}, "bad_text", "task"),
    ({"type": "code", "trigger_type": "a\0b"}, "bad_text", "task"),
    ({"type": "code", "spec": {"constraints": {"required_capabilities": [SURROGATE]}}}, "bad_text", "task"),
    ({"type": "code", "payload": {"n": float("nan")}}, "invalid_input", "task"),
    ({"type": "code", "payload": {"n": [float("-inf")]}}, "invalid_input", "task"),
    ({"type": "code", "deadline": float("nan")}, "invalid_input", "task"),
    ({"type": "code", "timeout_sec": float("inf")}, "invalid_input", "task"),
    ({"type": "code", "payload": {"f": object()}}, "invalid_input", "task"),
    ({"type": "code", "payload": nested(100)}, "too_large", "task"),
    ({"type": "code", "payload": {"text": "x" * 1_100_000}}, "too_large", "task"),
    ({"type": "code", "title": "x" * 70_000}, "invalid_input", "task.title"),
    ({"type": "code", "dependencies": [f"t{i}" for i in range(1001)]}, "too_large", "task.dependencies"),
    ({"type": "code", "id": "taken"}, "id_in_use", "id"),
    ({"type": "code", "id": "me", "dependencies": ["me"]}, "circular_dependency", "dependencies"),
]


async def refusal(call: Awaitable[Any]) -> tuple[str, str | None]:
    """The code and the place of the error; "taken" where there was none."""
    try:
        await asyncio.wait_for(call, 20)
    except ShiftworkError as error:
        return error.code, error.where
    return "taken", None


async def test_invalid_tasks_are_refused_with_code_and_path(queue: Queue) -> None:
    await queue.submit(type="code", id="taken")
    answers = [(fields, *await refusal(queue.submit(fields))) for fields, _, _ in SUBMITS]
    assert answers == SUBMITS
    assert (await queue.status()).counts == {"ready": 1}


async def test_very_deep_payload_is_refused(queue: Queue) -> None:
    with pytest.raises(ShiftworkError) as refused:
        await queue.submit(type="code", payload=nested(100_000))
    assert (refused.value.code, refused.value.where) == ("too_large", "task")


CALLS: dict[str, tuple[Call, str, str | None]] = {
    "claim without a name": (lambda q: q.claim(""), "invalid_input", "agent_id"),
    "claim as a surrogate": (lambda q: q.claim(SURROGATE), "bad_text", "agent_id"),
    "claim none": (lambda q: q.claim("w", 0), "invalid_input", "count"),
    "claim too many": (lambda q: q.claim("w", 1001), "invalid_input", "count"),
    "claim yes": (lambda q: q.claim("w", True), "invalid_input", "count"),
    "claim for too long": (lambda q: q.claim("w", wait=26), "invalid_input", "wait"),
    "claim forever": (lambda q: q.claim("w", wait=float("inf")), "invalid_input", "wait"),
    "claim odd types": (lambda q: q.claim("w", types=[SURROGATE]), "bad_text", "types"),
    "claim odd skills": (lambda q: q.claim("w", capabilities=["a\0b"]), "bad_text", "capabilities"),
    "claim odd models": (lambda q: q.claim("w", models=[SURROGATE]), "bad_text", "models"),
    "start nothing": (lambda q: q.start("nonsense"), "fence_required", "token"),
    "start without fence": (lambda q: q.start(UNKNOWN), "fence_required", "token"),
    "start an unknown task": (lambda q: q.start(f"{UNKNOWN}.1"), "not_found", None),
    "start an unknown name": (lambda q: q.start("nobody.1"), "not_found", None),
    "complete an unknown task": (lambda q: q.complete(f"{UNKNOWN}.1"), "not_found", None),
    "complete without fence": (lambda q: q.complete(UNKNOWN), "fence_required", "token"),
    "complete a number": (lambda q: q.complete(7), "invalid_input", "token"),  # type: ignore[arg-type]  # on purpose
    "complete too high a fence": (lambda q: q.complete(f"{UNKNOWN}.{10**30}"), "fence_required", "token"),
    "fail too high a fence": (lambda q: q.fail(f"{UNKNOWN}.{10**30}"), "fence_required", "token"),
    "complete with a set": (lambda q: q.complete("taken.1", {object()}), "invalid_input", "result"),
    "complete with NaN": (lambda q: q.complete("taken.1", float("nan")), "invalid_input", "result"),
    "complete with NUL": (lambda q: q.complete("taken.1", "\0"), "bad_text", "result"),
    "complete with a surrogate": (lambda q: q.complete("taken.1", SURROGATE), "bad_text", "result"),
    "complete too deep": (lambda q: q.complete("taken.1", nested(99)), "too_large", "result"),
    "complete too large": (lambda q: q.complete("taken.1", "x" * 9_000_000), "too_large", "result"),
    "complete for money": (
        lambda q: q.complete("taken.1", usage={"cost_usd": -1}), "invalid_input", "usage.cost_usd"),
    "complete with odd usage": (
        lambda q: q.complete("taken.1", usage={"euros": 1}), "invalid_input", "usage"),
    "use too many tokens": (
        lambda q: q.complete("taken.1", usage={"tokens_in": 1 << 70}), "invalid_input", "usage.tokens_in"),
    "fail with NUL": (lambda q: q.fail("taken.1", "crash", "a\0b"), "bad_text", "error"),
    "fail without a reason's text": (lambda q: q.fail("taken.1", 7), "invalid_input", "reason"),  # type: ignore[arg-type]  # on purpose
    "release with a surrogate": (lambda q: q.release("taken.1", SURROGATE), "bad_text", "reason"),
    "progress with NaN": (lambda q: q.claims.progress("taken.1", float("inf")), "invalid_input", "progress"),
    "message of no kind": (lambda q: q.claims.message("taken.1", cast(Any, "shout"), "hey"), "invalid_input", "kind"),
    "message with NUL": (lambda q: q.claims.message("taken.1", "text", "a\0b"), "bad_text", "text"),
    "pin a surrogate": (lambda q: q.claims.pin_session("taken.1", SURROGATE), "bad_text", "session_id"),
    "spawn nothing": (lambda q: q.spawn("taken.1", []), "invalid_input", "tasks"),
    "spawn what is no task": (lambda q: q.spawn("taken.1", [{"type": 1}]), "invalid_input", "tasks[0].type"),
    "get an unknown id": (lambda q: q.get(UNKNOWN), "not_found", None),
    "get an unknown name": (lambda q: q.get("nobody"), "not_found", None),
    "get a surrogate": (lambda q: q.get(SURROGATE), "bad_text", "task_id"),
    "get NUL": (lambda q: q.get("a\0b"), "bad_text", "task_id"),
    "cancel an unknown id": (lambda q: q.cancel(UNKNOWN), "not_found", None),
    "cancel a surrogate": (lambda q: q.cancel(SURROGATE), "bad_text", "task_id"),
    "cancel for no text": (lambda q: q.cancel("taken", 7), "invalid_input", "reason"),  # type: ignore[arg-type]  # on purpose
    "rerun what has not ended": (lambda q: q.tasks.rerun("taken"), "wrong_state", None),
    "update with an unknown field": (lambda q: q.tasks.update("taken", {"colour": 1}), "invalid_input", "changes"),
    "update to NaN": (lambda q: q.tasks.update("taken", {"deadline": float("nan")}), "invalid_input", "changes"),
    "update tags with NUL": (lambda q: q.tasks.update("taken", {"tags": ["a\0b"]}), "bad_text", "changes"),
    "update dependencies with a surrogate": (
        lambda q: q.tasks.update("taken", {"dependencies": [SURROGATE]}), "bad_text", "changes"),
    "update an old version": (lambda q: q.tasks.update("taken", {"priority": 1}, version=7), "version_conflict", None),
    "review what is no dead letter": (lambda q: q.dead_letters.review("taken", "retry"), "wrong_state", None),
    "review by chance": (lambda q: q.dead_letters.review("taken", WRONG), "invalid_input", "decision"),
    "retry later without a time": (lambda q: q.dead_letters.review("taken", "retry_later"), "invalid_input", "at"),
    "retry at no time": (
        lambda q: q.dead_letters.review("taken", "retry_later", at=float("nan")), "invalid_input", "at"),
    "update to no attempts": (
        lambda q: q.tasks.update("taken", {"max_attempts": 0}), "invalid_input", "changes.max_attempts"),
    "update to no time": (
        lambda q: q.tasks.update("taken", {"timeout_sec": -1}), "invalid_input", "changes.timeout_sec"),
    "a task object of the wrong kind": (
        lambda q: q.submit(NewTask(type="code", priority=500)), "invalid_input", "task.priority"),
    "a DAG with a bad title": (
        lambda q: q.submit_dag({"title": "a\0b", "tasks": [{"type": "code"}]}), "bad_text", "dag.title"),
    "a budget of no amount": (
        lambda q: q.agents.set_budget("w", float("nan")), "invalid_input", "budget_remaining_usd"),
    "an actor without a name": (lambda q: asyncio.to_thread(q.as_caller, ""), "invalid_input", "actor"),
    "an actor of half a name": (lambda q: asyncio.to_thread(q.as_caller, SURROGATE), "bad_text", "actor"),
    "get a number": (lambda q: q.get(7), "invalid_input", "task_id"),  # type: ignore[arg-type]  # on purpose
    "modify nothing": (lambda q: q.dead_letters.review("taken", "modify_and_retry"), "invalid_input", "change"),
    "purge everything": (lambda q: q.control.purge(), "invalid_input", "purge"),
    "purge no status": (lambda q: q.control.purge(status=["tired"]), "invalid_input", "status"),
    "list no status": (lambda q: q.tasks.list(status="tired"), "invalid_input", "status"),
    "list too many": (lambda q: q.tasks.list(limit=1001), "invalid_input", "limit"),
    "list a surrogate": (lambda q: q.tasks.list(tag=SURROGATE), "bad_text", "tag"),
    "a DAG that is none": (lambda q: q.dags.get("my-dag"), "not_found", None),
    "a DAG of nothing known": (lambda q: q.dags.get("dag_01KCGY3EG0E06B0T9A01BJFZ9H"), "not_found", None),
    "add to no DAG": (
        lambda q: q.dags.add_tasks("dag_01KCGY3EG0E06B0T9A01BJFZ9H", [{"type": "a"}]), "not_found", "dag_id"),
    "a setting nobody knows": (lambda q: q.settings.set("colour", 1), "unknown_setting", "colour"),
    "a setting of the wrong kind": (lambda q: q.settings.set("max_attempts", "x"), "invalid_input", "max_attempts"),
    "a profile nobody knows": (lambda q: q.settings.use_profile("colourful"), "invalid_input", "profile"),
    "an agent without a name": (lambda q: q.agents.register(id=""), "invalid_input", "agent.id"),
    "an agent of odd skills": (
        lambda q: q.agents.register(id="w", capabilities=[SURROGATE]), "bad_text", "agent"),
    "an agent of no slots": (
        lambda q: q.agents.register(id="w", max_concurrent_tasks=0), "invalid_input", "agent.max_concurrent_tasks"),
    "drain nobody": (lambda q: q.agents.set_status("nobody", "draining"), "not_found", "agent"),
    "a tired agent": (lambda q: q.agents.set_status("nobody", cast(Any, "tired")), "invalid_input", "status"),
    "pause a surrogate": (lambda q: q.control.pause(SURROGATE), "bad_text", "type"),
    "a workspace without a name": (
        lambda q: asyncio.to_thread(q.in_workspace, ""), "invalid_input", "workspace"),
    "a batch with one bad task": (
        lambda q: q.submit_many([{"type": "a"}, {"type": ""}]), "invalid_input", "tasks[1].type"),
    "a batch with a key twice": (
        lambda q: q.submit_many([{"type": "a", "key": "x"}] * 2), "invalid_input", "tasks[1].key"),
    "a batch with an id twice": (
        lambda q: q.submit_many([{"type": "a", "id": "x"}, {"type": "a", "id": "x"}]), "id_in_use", "tasks[1].id"),
    "a batch with a ring": (
        lambda q: q.submit_many(
            [{"type": "a", "key": "x", "dependencies": ["y"]}, {"type": "a", "key": "y", "dependencies": ["x"]}]
        ), "circular_dependency", "dependencies"),
    "a batch of too many": (lambda q: q.submit_many([{"type": "a"}] * 10_001), "too_large", "tasks"),
}  # fmt: skip


async def test_invalid_calls_are_refused_with_code_and_path(queue: Queue) -> None:
    task = await queue.submit(type="code", id="taken")
    before = await queue.events()
    answers = {name: await refusal(call(queue)) for name, (call, _, _) in CALLS.items()}
    assert answers == {name: (code, where) for name, (_, code, where) in CALLS.items()}
    assert await queue.events() == before
    assert (await queue.get(task.id)).status == "ready"
    assert queue.engine.store.stall_detector.stalls == []  # bad input is not an outage


async def test_missing_dependency_is_refused_by_setting(queue: Queue) -> None:
    await queue.settings.set("missing_dependency", "reject")
    with pytest.raises(ShiftworkError) as refused:
        await queue.submit(type="code", dependencies=[UNKNOWN])
    assert (refused.value.code, refused.value.where) == ("unknown_dependency", "dependencies")
    assert (await queue.status()).counts == {}


async def test_dependency_awaited_in_another_workspace_is_refused(queue: Queue) -> None:
    uuid = "019b21e1-ba00-7000-8000-000000000001"
    await queue.submit(type="code", dependencies=[uuid])
    with pytest.raises(ShiftworkError) as refused:
        await queue.in_workspace("other").submit(type="code", dependencies=[uuid])
    assert (refused.value.code, refused.value.where) == ("unknown_dependency", "dependencies")


async def test_stale_fence_changes_nothing(queue: Queue) -> None:
    task = await queue.submit(type="code")
    (first,) = await queue.claim("one", start=True)
    await queue.release(first.token)
    (second,) = await queue.claim("two", start=True)
    writes: list[Awaitable[Any]] = [
        queue.start(first.token),
        queue.complete(first.token, {"late": True}),
        queue.fail(first.token, "crash"),
        queue.release(first.token),
        queue.claims.progress(first.token, 0.5),
        queue.claims.pin_session(first.token, "s"),
        queue.claims.message(first.token, "text", "hello"),
        queue.spawn(first.token, [{"type": "code"}]),
        queue.waits.wait_for_tasks(first.token, [task.id]),
    ]
    before = await queue.events()
    for write in writes:
        with pytest.raises(ShiftworkError) as refused:
            await write
        assert refused.value.code == "lease_lost"
    assert (await queue.heartbeat(first.token)).action == "lost"
    assert await queue.events() == before
    assert (await queue.get(task.id)).claim.assignment_id == second.token


async def test_unregistered_agent_is_refused_by_setting(queue: Queue) -> None:
    await queue.settings.set("require_registration", True)
    task = await queue.submit(type="code")
    with pytest.raises(ShiftworkError) as refused:
        await queue.claim("stranger")
    assert refused.value.code == "agent_unregistered"
    await queue.agents.register(id="stranger")
    assert [taken.id for taken in await queue.claim("stranger")] == [task.id]


@pytest.mark.parametrize("status", ["draining", "offline"])
async def test_draining_agent_is_refused_new_tasks(queue: Queue, status: AgentStatus) -> None:
    await queue.agents.register(id="worker", max_concurrent_tasks=2)
    await queue.submit_many([{"type": "code"}, {"type": "code"}])
    (held,) = await queue.claim("worker", start=True)
    await queue.agents.set_status("worker", status)
    with pytest.raises(ShiftworkError) as refused:
        await queue.claim("worker")
    assert refused.value.code == "agent_unavailable"
    await queue.complete(held.token)
    await queue.agents.set_status("worker", "active")
    assert len(await queue.claim("worker")) == 1


async def test_invalid_task_among_concurrent_submits_fails_alone(queue: Queue) -> None:
    """All join one batch; only the database finds the error in one of them."""
    await queue.submit(type="code", id="taken")
    tasks: list[dict[str, Any]] = [{"type": "code", "payload": {"n": n}} for n in range(20)]
    tasks[7] = {"type": "code", "id": "taken"}
    tasks[13] = {"type": "code", "title": "a\0b"}
    answers = await asyncio.gather(*(queue.submit(task) for task in tasks), return_exceptions=True)
    codes = [getattr(answer, "code", "ok") for answer in answers]
    assert codes == ["ok"] * 7 + ["id_in_use"] + ["ok"] * 5 + ["bad_text"] + ["ok"] * 6
    assert (await queue.status()).counts == {"ready": 19}


async def test_invalid_result_among_concurrent_completions_fails_alone(queue: Queue) -> None:
    await queue.agents.register(id="worker", max_concurrent_tasks=None)
    await queue.submit_many([{"type": "code"}] * 10)
    taken = await queue.claim("worker", 10, start=True)
    results: list[Any] = [{"n": n} for n in range(10)]
    results[3] = {"text": "a\0b"}
    calls = [queue.complete(a.token, result) for a, result in zip(taken, results, strict=True)]
    calls.append(queue.complete(f"{UNKNOWN}.1", {}))
    answers = await asyncio.gather(*calls, return_exceptions=True)
    codes = [getattr(answer, "code", "ok") for answer in answers]
    assert codes == ["ok"] * 3 + ["bad_text"] + ["ok"] * 6 + ["not_found"]
    assert (await queue.status()).counts == {"completed": 9, "running": 1}


async def test_each_report_of_a_batch_has_its_own_outcome(queue: Queue) -> None:
    await queue.submit(type="code")
    (taken,) = await queue.claim("worker", start=True)
    outcomes = await queue.batch.complete(
        [Completion(token=f"{UNKNOWN}.1"), Completion(token=taken.token), Completion(token=taken.token)]
    )
    assert [outcome.error and outcome.error.code for outcome in outcomes] == ["not_found", None, None]
    assert [outcome.repeated for outcome in outcomes] == [False, False, True]


async def test_wrong_driver_call_is_not_retried_as_an_outage(postgres: Databases) -> None:
    """It is reported at once, and not retried as if the server were away."""
    name = postgres.create_database()
    tries = 0

    async def too_many_values(tx: Any) -> None:
        nonlocal tries
        tries += 1
        await tx.one("read_workspace", name="a")
        await tx._connection.execute("select $1::int", 1, 2)

    async with Queue.open(postgres.dsn(name)) as queue:
        with pytest.raises(StoreError, match="expects 1 argument") as raised:
            await queue.engine.store.run(too_many_values)
    postgres.drop_database(name)
    assert (tries, raised.value.code) == (1, "store_error")
