"""A request repeated under its key gets the first answer again, and changes nothing."""

import hashlib
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec
import pytest

from shiftwork import Completion, Failure, Heartbeat, Queue, Usage
from shiftwork.access.operations import find_token
from shiftwork.control import operations as control
from shiftwork.dead_letters import operations as dead_letters
from shiftwork.engine.engine import IdempotentRequest
from shiftwork.engine.idempotency import Repeated
from shiftwork.maintenance import jobs
from shiftwork.model.errors import ConflictError, IdempotencyKeyReused, ShiftworkError, StoreUnavailable, WrongState
from shiftwork.notifications import deliveries
from shiftwork.notifications.policy import DeliveryOutcome
from shiftwork.operation.declare import operations
from shiftwork.store.store import Verb
from shiftwork.testing import MovedClock
from tests.conformance.steps import dead_letter, everything, give_folder, pass_time_exactly, submit_dag

T = TypeVar("T")
DAY = 86_400.0


def keyed(queue: Queue, key: str = "key-1", fingerprint: str = "f") -> Queue:
    """Return a handle for one request; each repeat of the request needs its own."""
    return queue.for_caller(queue.caller._replace(idempotency=IdempotentRequest(key, fingerprint)))


async def nothing(_queue: Queue) -> str:
    return ""


CRON = {"kind": "cron", "at": "@daily"}


async def armed_trigger(queue: Queue) -> str:
    return (await queue.triggers.save("nightly", on=CRON, task={"type": "audit"})).trigger.name


async def disarmed(queue: Queue) -> str:
    return (await queue.triggers.pause(await armed_trigger(queue))).name


async def ready(queue: Queue) -> str:
    return (await queue.submit(type="code", issue_id="i-1")).id


async def claimed(queue: Queue) -> str:
    await ready(queue)
    return (await queue.claim("coder"))[0].token


async def running(queue: Queue) -> str:
    await ready(queue)
    return (await queue.claim("coder", start=True))[0].token


async def instructed(queue: Queue) -> str:
    held = await running(queue)
    await queue.tell(held.rpartition(".")[0], "hurry")
    return held


async def running_beside_another(queue: Queue) -> str:
    held = await running(queue)
    await queue.submit(type="code", id="another")
    return held


async def submitted_output(queue: Queue) -> str:
    await queue.submit(type="code", output={"validation": "test-pass"})
    (held,) = await queue.claim("coder", start=True)
    await queue.complete(held.token)
    return held.token


async def completed(queue: Queue) -> str:
    token = await running(queue)
    await queue.complete(token)
    return token.partition(".")[0]


async def dag(queue: Queue) -> str:
    made = await submit_dag(queue, {"a": [], "b": ["a"]})
    return (await queue.get(made["a"])).dag_id


async def signature(queue: Queue) -> str:
    for _ in range(3):
        await dead_letter(queue)
    return str((await queue.dead_letters.groups())[0].signature)


async def paused(queue: Queue) -> str:
    await queue.control.pause("code")
    return "code"


async def agent(queue: Queue) -> str:
    return (await queue.agents.register(id="coder")).id


async def overloaded(queue: Queue) -> str:
    await queue.submit_many([{"type": "code"}] * 3)
    await queue.agents.register(id="busy", max_concurrent_tasks=3)
    await queue.claim("busy", 3)
    await queue.agents.register(id="idle")
    return ""


async def set_up(queue: Queue) -> str:
    await queue.settings.set("max_attempts", 7)
    return "max_attempts"


async def token(queue: Queue) -> str:
    return (await queue.tokens.create("ci", ["read"])).id


async def tripped(queue: Queue) -> str:
    return (await queue.breakers.trip("code")).type


async def resting(queue: Queue) -> str:
    return (await queue.cooldowns.set("model:opus", 60)).key


async def typed(queue: Queue) -> str:
    return (await queue.types.save("code", payload_schema={"type": "object"})).name


WINDOW = {"name": "day", "unit": "usd", "capacity": 5}


USED = {"window": "day", "utilization": 0.5, "provider": "anthropic", "account": "a"}


async def windowed(queue: Queue) -> str:
    return (await queue.accounts.set("anthropic", "a", windows=[WINDOW])).account


async def refused_account(queue: Queue) -> str:
    return (await queue.cooldowns.set("provider:anthropic,account:a", 60)).key


async def limited(queue: Queue) -> str:
    return (await queue.limits.set("model:opus", concurrency=2)).key


async def alert(queue: Queue) -> str:
    await dead_letter(queue)
    return str((await queue.alerts.list())[0].seq)


async def waiting_for_an_event(queue: Queue) -> str:
    held = await running(queue)
    await queue.waits.wait(held, "go", signal="go")
    return held.partition(".")[0]


async def asking(queue: Queue) -> str:
    held = await running(queue)
    await queue.waits.wait(held, "sure", question="Are you sure?")
    return held.partition(".")[0]


async def guarded(queue: Queue) -> str:
    await queue.settings.set("guards", [{"type": "code"}])
    return await ready(queue)


async def acting(queue: Queue) -> str:
    held = await running(queue)
    await queue.effects.begin(held, key="deploy")
    return held


async def a_folder(queue: Queue) -> str:
    give_folder(queue)
    return ""


async def in_doubt(queue: Queue) -> str:
    await queue.fail(await acting(queue), "effect_unknown")
    return "deploy"


async def emitted(queue: Queue) -> str:
    return (await queue.sinks.add(name="ops", kind="webhook", address="https://example.com/in")).sink.name


async def not_told(queue: Queue) -> str:
    return (await queue.sinks.pause(await emitted(queue))).name


async def given_up(queue: Queue) -> str:
    """A notification that the receiver has permanently refused."""
    sent = await queue.sinks.test(await emitted(queue))
    store, engine = queue.engine.store, queue.engine
    (delivery,) = await store.run(lambda tx: deliveries.lease(tx, engine, {}, 1))
    assert (
        await store.run(lambda tx: deliveries.record(tx, engine, delivery, DeliveryOutcome("gone", gone=True)))
        == "dead"
    )
    return sent.id


ToolResult = Callable[[Queue], Awaitable[str]]
Call = Callable[[Queue, str], Awaitable[Any]]
CHILD = [{"type": "child"}]

MADE = f"artifact:sha256-{hashlib.sha256(b'made').hexdigest()}"
VERBS: dict[str, tuple[ToolResult, Call]] = {
    "submit": (nothing, lambda q, _: q.submit(type="code")),
    "submit_many": (nothing, lambda q, _: q.submit_many([{"type": "code"}, {"type": "docs"}])),
    "submit_dag": (nothing, lambda q, _: q.submit_dag({"tasks": [{"key": "a", "type": "code"}]})),
    "dags.add_tasks": (dag, lambda q, dag_id: q.dags.add_tasks(dag_id, CHILD)),
    "agents.register": (nothing, lambda q, _: q.agents.register(id="coder", types=["code"], budget_remaining_usd=5)),
    "agents.deregister": (agent, lambda q, agent_id: q.agents.deregister(agent_id)),
    "agents.heartbeat": (agent, lambda q, agent_id: q.agents.heartbeat(agent_id)),
    "runtimes.heartbeat": (running, lambda q, held: q.runtimes.heartbeat("coder", [held])),
    "runtimes.recover": (running, lambda q, _: q.runtimes.recover("coder")),
    "runtimes.report_gone": (running, lambda q, _: q.runtimes.report_gone("coder")),
    "start": (claimed, lambda q, held: q.start(held)),
    "batch.start": (claimed, lambda q, held: q.batch.start([held])),
    "heartbeat": (running, lambda q, held: q.heartbeat(held, {"pct": 5}, {"cost_usd": 0.5})),
    "batch.heartbeat": (running, lambda q, held: q.batch.heartbeat([Heartbeat(held, None, Usage(tokens_in=9))])),
    "accounts.report": (running, lambda q, held: q.accounts.report(held, windows=[USED])),
    "claims.progress": (running, lambda q, held: q.claims.progress(held, {"pct": 5})),
    "claims.message": (running, lambda q, held: q.claims.message(held, "text", "hello", {"n": 1})),
    "tell": (ready, lambda q, task_id: q.tell(task_id, "hurry")),
    "claims.inbox": (instructed, lambda q, held: q.claims.inbox(held)),
    "claims.acknowledge": (instructed, lambda q, held: q.claims.acknowledge(held, 1)),
    "claims.log": (running, lambda q, held: q.claims.log(held, [{"text": "hello"}])),
    "batch.log": (running, lambda q, held: q.batch.log([{"token": held, "lines": [{"text": "hello"}]}])),
    "claims.pin_session": (running, lambda q, held: q.claims.pin_session(held, "s-1", "folder")),
    "complete": (running, lambda q, held: q.complete(held, {"n": 1}, usage={"cost_usd": 0.5})),
    "batch.complete": (running, lambda q, held: q.batch.complete([Completion(1, token=held)])),
    "claims.verdict": (
        submitted_output,
        lambda q, held: q.claims.verdict(held, passed=False, evidence={"exit_code": 1}),
    ),
    "fail": (running, lambda q, held: q.fail(held, "crash", "boom")),
    "batch.fail": (running, lambda q, held: q.batch.fail([Failure("crash", "boom", token=held)])),
    "release": (running, lambda q, held: q.release(held, "stopping")),
    "batch.release": (running, lambda q, held: q.batch.release([held])),
    "spawn": (running, lambda q, held: q.spawn(held, CHILD, wait=True)),
    "waits.request, tasks": (running_beside_another, lambda q, held: q.waits.wait_for_tasks(held, ["another"])),
    "waits.request": (running, lambda q, held: q.waits.wait(held, "go", signal="go", timeout_sec=60)),
    "waits.signal": (waiting_for_an_event, lambda q, _: q.waits.signal("go", {"n": 1})),
    "approvals.answer": (asking, lambda q, task_id: q.approvals.answer(task_id, "yes")),
    "approvals.approve": (guarded, lambda q, task_id: q.approvals.approve(task_id, note="fine")),
    "approvals.reject": (guarded, lambda q, task_id: q.approvals.reject(task_id, note="no")),
    "steps.begin": (running, lambda q, held: q.steps.begin(held, "plan")),
    "steps.complete": (running, lambda q, held: q.steps.complete(held, "plan", {"n": 1}, {"cost_usd": 0.5})),
    "effects.begin": (running, lambda q, held: q.effects.begin(held, "charge")),
    "effects.finish": (acting, lambda q, held: q.effects.finish(held, "deploy", happened=False)),
    "effects.resolve": (in_doubt, lambda q, key: q.effects.resolve(key, happened=True, result={"n": 1})),
    "artifacts.attach": (running, lambda q, held: q.artifacts.put(b"made", name="made.txt", token=held)),
    "artifacts.add": (nothing, lambda q, _: q.artifacts.put(b"made")),
    "artifacts.put_known": (nothing, lambda q, _: q.artifacts.put(b"made", artifact_id=MADE)),
    "cancel": (ready, lambda q, task_id: q.cancel(task_id)),
    "batch.cancel": (ready, lambda q, task_id: q.batch.cancel([task_id])),
    "bulk.page": (ready, lambda q, _: q.bulk.page("cancel", {"type": "code"})),
    "dags.cancel": (dag, lambda q, dag_id: q.dags.cancel(dag_id)),
    "tasks.rerun": (completed, lambda q, task_id: q.tasks.rerun(task_id)),
    "tasks.rerun_issue": (completed, lambda q, _: q.tasks.rerun_issue("i-1")),
    "tasks.update": (
        ready,
        lambda q, task_id: q.tasks.update(task_id, {"priority": 5, "tags": ["web"], "note": "hurry"}),
    ),
    "dead_letters.review": (dead_letter, lambda q, task_id: q.dead_letters.review(task_id, "retry", note="again")),
    "dead_letters.redrive": (signature, lambda q, alike: q.dead_letters.redrive(alike)),
    "control.pause": (nothing, lambda q, _: q.control.pause("code", reason="upgrade")),
    "control.resume": (paused, lambda q, kind: q.control.resume(kind)),
    "control.purge": (ready, lambda q, _: q.control.purge(type="code")),
    "agents.rebalance": (overloaded, lambda q, _: q.agents.rebalance()),
    "agents.update": (agent, lambda q, agent_id: q.agents.set_status(agent_id, "draining")),
    "agents.update, budget": (agent, lambda q, agent_id: q.agents.set_budget(agent_id, 5)),
    "settings.apply, set": (nothing, lambda q, _: q.settings.set("retry.strategy", "fixed")),
    "settings.apply, unset": (set_up, lambda q, key: q.settings.unset(key)),
    "settings.apply": (nothing, lambda q, _: q.settings.change({"max_attempts": 7}, profile="loki")),
    "settings.apply, profile": (nothing, lambda q, _: q.settings.use_profile("loki")),
    "alerts.acknowledge": (alert, lambda q, seq: q.alerts.acknowledge(int(seq))),
    "budgets.set": (dag, lambda q, dag_id: q.budgets.set("dag", dag_id, ceiling_usd=5)),
    "dags.update": (dag, lambda q, dag_id: q.dags.update(dag_id, {"title": "Page"})),
    "breakers.reset": (tripped, lambda q, kind: q.breakers.reset(kind)),
    "breakers.trip": (nothing, lambda q, _: q.breakers.trip("code")),
    "breakers.configure": (nothing, lambda q, _: q.breakers.configure({"defaults": {"failureThreshold": 7}})),
    "cooldowns.set": (nothing, lambda q, _: q.cooldowns.set("model:opus", 60, "tired")),
    "cooldowns.lift": (resting, lambda q, key: q.cooldowns.lift(key)),
    "accounts.set": (nothing, lambda q, _: q.accounts.set("anthropic", "a", windows=[WINDOW])),
    "accounts.remove": (windowed, lambda q, _: q.accounts.remove("anthropic", "a")),
    "accounts.renew": (refused_account, lambda q, _: q.accounts.renew("anthropic", "a")),
    "limits.set": (nothing, lambda q, _: q.limits.set("model:opus", concurrency=2)),
    "limits.remove": (limited, lambda q, key: q.limits.remove(key)),
    "sinks.update": (emitted, lambda q, name: q.sinks.update(name, wants={"severity": "critical"})),
    "sinks.pause": (emitted, lambda q, name: q.sinks.pause(name, "holiday")),
    "sinks.resume": (not_told, lambda q, name: q.sinks.resume(name)),
    "sinks.remove": (emitted, lambda q, name: q.sinks.remove(name)),
    "sinks.test": (emitted, lambda q, name: q.sinks.test(name)),
    "deliveries.redeliver": (given_up, lambda q, delivery_id: q.deliveries.redeliver(delivery_id)),
    "deliveries.redeliver_dead": (given_up, lambda q, _: q.deliveries.redeliver_dead("ops")),
    "quotas.set": (nothing, lambda q, _: q.quotas.set("other", max_tasks=5)),
    "snapshots.take": (a_folder, lambda q, _: q.snapshots.take()),
    "triggers.pause": (armed_trigger, lambda q, name: q.triggers.pause(name)),
    "triggers.resume": (disarmed, lambda q, name: q.triggers.resume(name)),
    "triggers.remove": (armed_trigger, lambda q, name: q.triggers.remove(name)),
    "triggers.fire": (armed_trigger, lambda q, name: q.triggers.fire(name, reason="now")),
    "triggers.save": (nothing, lambda q, _: q.triggers.save("nightly", on=CRON, task={"type": "audit"})),
    "types.save": (nothing, lambda q, _: q.types.save("code", payload_schema={"type": "object"})),
    "types.remove": (typed, lambda q, name: q.types.remove(name)),
    "types.declare": (nothing, lambda q, _: q.types.declare("ada", [{"name": "code"}])),
    "tokens.revoke": (token, lambda q, token_id: q.tokens.revoke(token_id)),
}
APART = {
    "claims.request",  # made once; a repeat is answered by `claims.made_by_request`
    "tokens.create", "sinks.add",  # its secret is not kept
    "hooks.receive",  # a delivery has a key of its own
    "slack.press",  # what was decided is not decided again
}  # fmt: skip


def test_every_operation_that_changes_something_is_tried_here() -> None:
    declared = {operation.name for operation in operations() if operation.changes and operation.scope != "read"}
    assert declared | {"submit_many"} == {name.partition(",")[0] for name in VERBS} | APART


@pytest.mark.parametrize("verb", VERBS)
async def test_repeated_request_gets_same_answer_and_changes_nothing(
    verb: str, queue: Queue, clock: MovedClock
) -> None:
    given, call = VERBS[verb]
    subject = await given(queue)
    clock.advance(5)
    before = await everything(queue)
    first = await call(keyed(queue), subject)
    after = await everything(queue)
    assert {**after, "replies": []} != before
    clock.advance(5)
    assert await call(keyed(queue), subject) == first
    assert await everything(queue) == after


async def test_refused_batch_item_is_refused_again_on_repeat(queue: Queue) -> None:
    live = await running(queue)
    ended = f"{await completed(queue.in_workspace('other'))}.1"
    first, again = [
        await keyed(queue).batch.complete(
            [Completion(token=live, data=1), Completion(token=ended, data=1), Completion(token=live, data=1)]
        )
        for _ in range(2)
    ]
    assert [_plain(outcome.error) for outcome in again] == [_plain(outcome.error) for outcome in first]
    assert [type(outcome.error) for outcome in again] == [type(outcome.error) for outcome in first]
    assert [msgspec.structs.replace(outcome, error=None) for outcome in again] == [
        msgspec.structs.replace(outcome, error=None) for outcome in first
    ]
    assert [outcome.error is None for outcome in again] == [True, False, True]


def _plain(error: ShiftworkError | None) -> dict[str, Any] | None:
    return None if error is None else error.as_dict()


async def test_key_reused_for_another_request_is_refused(queue: Queue) -> None:
    await keyed(queue, fingerprint="one").submit(type="code")
    after = await everything(queue)
    with pytest.raises(IdempotencyKeyReused) as refused:
        await keyed(queue, fingerprint="two").submit(type="code", priority=1)
    assert refused.value.code == "idempotency_key_reused"
    assert await everything(queue) == after


async def test_repeat_of_an_answer_in_an_older_form_is_refused_and_changes_nothing(queue: Queue) -> None:
    held = await running(queue)
    await keyed(queue).claims.progress(held, {"pct": 5})
    store = queue.engine.store
    await store.run(lambda tx: tx.run("keep_reply", workspace="default", key="key-1", step=1, result='["old form"]'))
    after = await everything(queue)
    with pytest.raises(IdempotencyKeyReused, match="before an upgrade"):
        await keyed(queue).claims.progress(held, {"pct": 5})
    assert await everything(queue) == after


async def test_different_key_is_a_different_request(queue: Queue) -> None:
    assert (await keyed(queue, "one").submit(type="code")).id != (await keyed(queue, "two").submit(type="code")).id


async def test_each_workspace_has_its_own_request_keys(queue: Queue) -> None:
    mine = await keyed(queue).submit(type="code")
    theirs = await keyed(queue.in_workspace("other"), fingerprint="other").submit(type="code")
    assert mine.id != theirs.id


async def test_failed_request_leaves_no_key(queue: Queue) -> None:
    held = await running(queue)
    task_id = held.partition(".")[0]
    for _ in range(2):
        with pytest.raises(WrongState):
            await keyed(queue).tasks.rerun(task_id)
    assert (await everything(queue))["replies"] == []
    await queue.complete(held)
    again = await keyed(queue).tasks.rerun(task_id)
    assert again.status == "ready"
    assert await keyed(queue).tasks.rerun(task_id) == again


async def test_request_key_is_kept_for_a_day(queue: Queue, clock: MovedClock) -> None:
    first = await keyed(queue).submit(type="code")
    assert (await pass_time_exactly(queue, clock, DAY - 1)).get("retention") is None
    assert await keyed(queue).submit(type="code") == first
    assert (await pass_time_exactly(queue, clock, 1))["retention"] == {"replies": 1}
    assert (await everything(queue))["replies"] == []
    assert (await keyed(queue).submit(type="code")).id != first.id


async def test_old_request_keys_are_deleted_in_batches(
    queue: Queue, clock: MovedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "BATCH", 2)
    for number in range(5):
        await keyed(queue, f"key-{number}").control.pause()
        clock.advance(1)
    clock.advance(DAY - 2)  # the newest is a day old but for a second
    counts = [await queue.engine.store.run(lambda tx: jobs.retention(tx, queue.engine)) for _ in range(4)]
    assert counts == [{"replies": 2}, {"replies": 2}, {}, {}]
    assert "key-4" in str((await everything(queue))["replies"])


async def test_repeated_purge_removes_nothing_submitted_since(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "BATCH", 2)
    await queue.submit_many([{"type": "code"}] * 5)
    assert await keyed(queue).control.purge(type="code") == 5
    await queue.submit_many([{"type": "code"}] * 3)
    assert await keyed(queue).control.purge(type="code") == 5
    assert (await queue.status()).counts == {"cancelled": 5, "ready": 3}


async def test_repeated_page_of_a_bulk_change_returns_the_same_cursor(queue: Queue) -> None:
    made = await queue.submit_many([{"type": "code"}] * 5)
    first = await keyed(queue).bulk.page("cancel", {"type": "code"}, limit=2)
    assert (first.changed, first.next) == (2, made[1].id)
    await queue.submit_many([{"type": "code"}] * 3)
    assert await keyed(queue).bulk.page("cancel", {"type": "code"}, limit=2) == first
    assert (await queue.status()).counts == {"cancelled": 2, "ready": 6}


async def test_repeated_redrive_retries_nothing_failed_since(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_letters, "REDRIVE_BATCH", 2)
    alike = await signature(queue)
    first = await keyed(queue).dead_letters.redrive(alike)
    assert [outcome.status for outcome in first] == ["ready"] * 3
    for task in await queue.claim("worker", start=True):
        await queue.fail(task.token, "crash", "boom", retry=False)
    assert await keyed(queue).dead_letters.redrive(alike) == first
    assert (await queue.status()).counts == {"ready": 2, "dead_lettered": 1}


async def test_interrupted_purge_continues_when_repeated(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "BATCH", 2)
    await queue.submit_many([{"type": "code"}] * 5)
    _break_after(queue, 2, monkeypatch)
    with pytest.raises(StoreUnavailable):
        await keyed(queue).control.purge(type="code")
    assert (await queue.status()).counts == {"cancelled": 4, "ready": 1}
    assert await keyed(queue).control.purge(type="code") == 5
    assert (await queue.status()).counts == {"cancelled": 5}


def _break_after(queue: Queue, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Break the connection of one call after this many transactions."""
    store, run = queue.engine.store, queue.engine.store.run
    left = count

    async def run_or_break(verb: Verb[T], /) -> T:
        nonlocal left
        left -= 1
        if left == -1:
            raise StoreUnavailable("the line is down")
        return await run(verb)

    monkeypatch.setattr(store, "run", run_or_break)


async def test_claim_is_made_once_and_its_answer_is_not_stored(queue: Queue) -> None:
    await queue.submit_many([{"type": "code"}] * 2)
    await queue.agents.register(id="coder", max_concurrent_tasks=2)
    assert len(await keyed(queue).claim("coder")) == 1
    after = await everything(queue)
    for claim in (keyed(queue).claim("coder"), keyed(queue).claims.for_runtime("coder")):
        with pytest.raises(Repeated):
            await claim
    with pytest.raises(IdempotencyKeyReused):
        await keyed(queue, fingerprint="other").claim("coder")
    assert await everything(queue) == after


async def test_claim_without_work_can_be_repeated(queue: Queue) -> None:
    assert await keyed(queue).claim("coder") == []
    assert (await everything(queue))["replies"] == []
    await queue.submit(type="code")
    assert len(await keyed(queue).claim("coder")) == 1


async def test_runtime_claim_for_several_agents_is_one_request(queue: Queue) -> None:
    await queue.submit_many([{"type": "code", "target_agent_id": name} for name in ("ada", "bob", "ada")])
    request = keyed(queue.as_caller("system", "r-1"))
    assert len((await request.claims.for_runtime("r", 3)).assignments) == 2
    with pytest.raises(Repeated):
        await keyed(queue).claims.for_runtime("r", 3)
    assert len(await queue.claims.made_by_request("r", "r-1")) == 2


async def test_repeated_token_creation_is_refused_without_the_secret(queue: Queue) -> None:
    made = await keyed(queue).tokens.create("ci", ["read"])
    after = await everything(queue)
    with pytest.raises(ConflictError) as refused:
        await keyed(queue).tokens.create("ci", ["read"])
    assert refused.value.facts == {"token": made.id}
    assert await everything(queue) == after
    assert made.secret[-43:] not in str(after)
    assert await find_token(queue.engine, made.secret) is not None
