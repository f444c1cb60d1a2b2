"""A request that is sent again under its key is answered as it was the first time, and changes nothing more."""

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest

from shiftwork import Problem, Queue, Report
from shiftwork.core.errors import ConflictError, IdempotencyKeyReused, ShiftworkError, StoreUnavailable, WrongState
from shiftwork.duties import duties
from shiftwork.policy.delivery import Outcome
from shiftwork.queue import control
from shiftwork.queue.engine import Once
from shiftwork.queue.face import operating
from shiftwork.queue.face.reading import Reading
from shiftwork.queue.notification import deliveries
from shiftwork.queue.replies import Repeated
from shiftwork.store.store import Verb
from shiftwork.testing import MovedClock, pass_time
from tests.conformance.steps import bury, everything, give_folder, submit_dag

T = TypeVar("T")
DAY = 86_400.0


def keyed(queue: Queue, key: str = "key-1", fingerprint: str = "f") -> Queue:
    """The queue as one request speaks to it: each sending is another handle."""
    return queue.speaking_as(queue.caller._replace(once=Once(key, fingerprint)))


# -- what each verb needs ----------------------------------------------------------------------------------------


async def nothing(_queue: Queue) -> str:
    return ""


CRON = {"kind": "cron", "at": "@daily"}


async def armed(queue: Queue) -> str:
    return (await queue.save_trigger("nightly", on=CRON, task={"type": "audit"})).trigger.name


async def disarmed(queue: Queue) -> str:
    return (await queue.pause_trigger(await armed(queue))).name


async def ready(queue: Queue) -> str:
    return (await queue.submit(type="code", issue_id="i-1")).id


async def claimed(queue: Queue) -> str:
    await ready(queue)
    return (await queue.claim("coder"))[0].token


async def running(queue: Queue) -> str:
    await ready(queue)
    return (await queue.claim("coder", start=True))[0].token


async def running_beside_another(queue: Queue) -> str:
    held = await running(queue)
    await queue.submit(type="code", id="another")
    return held


async def handed_in(queue: Queue) -> str:
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
        await bury(queue)
    return str((await queue.failure_groups())[0]["signature"])


async def paused(queue: Queue) -> str:
    await queue.pause("code")
    return "code"


async def agent(queue: Queue) -> str:
    return (await queue.register_agent(id="coder")).id


async def overloaded(queue: Queue) -> str:
    await queue.submit_many([{"type": "code"}] * 3)
    await queue.register_agent(id="busy", max_concurrent_tasks=3)
    await queue.claim("busy", 3)
    await queue.register_agent(id="idle")
    return ""


async def set_up(queue: Queue) -> str:
    await queue.set_setting("max_attempts", 7)
    return "max_attempts"


async def token(queue: Queue) -> str:
    return (await queue.create_token("ci", ["read"])).id


async def tripped(queue: Queue) -> str:
    return (await queue.trip_breaker("code")).type


async def resting(queue: Queue) -> str:
    return (await queue.cool_down("model:opus", 60)).key


async def limited(queue: Queue) -> str:
    return (await queue.set_limit("model:opus", concurrency=2)).key


async def alert(queue: Queue) -> str:
    await bury(queue)
    return str((await queue.alerts())[0].seq)


async def waiting_for_an_event(queue: Queue) -> str:
    held = await running(queue)
    await queue.wait(held, "go", signal="go")
    return held.partition(".")[0]


async def asking(queue: Queue) -> str:
    held = await running(queue)
    await queue.wait(held, "sure", question="Are you sure?")
    return held.partition(".")[0]


async def guarded(queue: Queue) -> str:
    await queue.set_setting("guards", [{"type": "code"}])
    return await ready(queue)


async def acting(queue: Queue) -> str:
    held = await running(queue)
    await queue.begin_effect(held, key="deploy")
    return held


async def a_folder(queue: Queue) -> str:
    give_folder(queue)
    return ""


async def in_doubt(queue: Queue) -> str:
    await queue.fail(await acting(queue), "effect_unknown")
    return "deploy"


async def told(queue: Queue) -> str:
    return (await queue.add_sink(name="ops", kind="webhook", address="https://example.com/in")).sink.name


async def not_told(queue: Queue) -> str:
    return (await queue.pause_sink(await told(queue))).name


async def given_up(queue: Queue) -> str:
    """A notification that a receiver wanted no more of."""
    sent = await queue.test_sink(await told(queue))
    store, engine = queue.engine.store, queue.engine
    (parcel,) = await store.run(lambda tx: deliveries.lease(tx, engine, {}, 1))
    assert await store.run(lambda tx: deliveries.record(tx, engine, parcel, Outcome("gone", gone=True))) == "dead"
    return sent.id


Given = Callable[[Queue], Awaitable[str]]
Call = Callable[[Queue, str], Awaitable[Any]]
CHILD = [{"type": "child"}]

VERBS: dict[str, tuple[Given, Call]] = {
    "submit": (nothing, lambda q, _: q.submit(type="code")),
    "submit_many": (nothing, lambda q, _: q.submit_many([{"type": "code"}, {"type": "docs"}])),
    "submit_dag": (nothing, lambda q, _: q.submit_dag({"tasks": [{"key": "a", "type": "code"}]})),
    "add_to_dag": (dag, lambda q, dag_id: q.add_to_dag(dag_id, CHILD)),
    "register_agent": (nothing, lambda q, _: q.register_agent(id="coder", types=["code"], budget_remaining_usd=5)),
    "deregister_agent": (agent, lambda q, agent_id: q.deregister_agent(agent_id)),
    "agent_heartbeat": (agent, lambda q, agent_id: q.agent_heartbeat(agent_id)),
    "runtime_heartbeat": (running, lambda q, held: q.runtime_heartbeat("coder", [held])),
    "orphans": (running, lambda q, _: q.orphans("coder")),
    "runtime_gone": (running, lambda q, _: q.runtime_gone("coder")),
    "start": (claimed, lambda q, held: q.start(held)),
    "start_many": (claimed, lambda q, held: q.start_many([held])),
    "heartbeat": (running, lambda q, held: q.heartbeat(held, {"pct": 5}, {"cost_usd": 0.5})),
    "heartbeat_many": (running, lambda q, held: q.heartbeat_many([(held, None, {"tokens_in": 9})])),
    "progress": (running, lambda q, held: q.progress(held, {"pct": 5})),
    "message": (running, lambda q, held: q.message(held, "text", "hello", {"n": 1})),
    "pin_session": (running, lambda q, held: q.pin_session(held, "s-1", "folder")),
    "complete": (running, lambda q, held: q.complete(held, {"n": 1}, usage={"cost_usd": 0.5})),
    "complete_many": (running, lambda q, held: q.complete_many([Report(held, 1)])),
    "verdict": (handed_in, lambda q, held: q.verdict(held, passed=False, evidence={"exit_code": 1})),
    "fail": (running, lambda q, held: q.fail(held, "crash", "boom")),
    "fail_many": (running, lambda q, held: q.fail_many([Problem(held, "crash", "boom")])),
    "release": (running, lambda q, held: q.release(held, "stopping")),
    "release_many": (running, lambda q, held: q.release_many([held])),
    "spawn": (running, lambda q, held: q.spawn(held, CHILD, wait=True)),
    "wait_for": (running_beside_another, lambda q, held: q.wait_for(held, ["another"])),
    "wait": (running, lambda q, held: q.wait(held, "go", signal="go", timeout_sec=60)),
    "signal": (waiting_for_an_event, lambda q, _: q.signal("go", {"n": 1})),
    "answer": (asking, lambda q, task_id: q.answer(task_id, "yes")),
    "approve": (guarded, lambda q, task_id: q.approve(task_id, note="fine")),
    "reject": (guarded, lambda q, task_id: q.reject(task_id, note="no")),
    "begin_step": (running, lambda q, held: q.begin_step(held, "plan")),
    "complete_step": (running, lambda q, held: q.complete_step(held, "plan", {"n": 1}, {"cost_usd": 0.5})),
    "begin_effect": (running, lambda q, held: q.begin_effect(held, "charge")),
    "finish_effect": (acting, lambda q, held: q.finish_effect(held, "deploy", happened=False)),
    "resolve_effect": (in_doubt, lambda q, key: q.resolve_effect(key, happened=True, result={"n": 1})),
    "put_artifact": (running, lambda q, held: q.put_artifact(b"made", name="made.txt", token=held)),
    "cancel": (ready, lambda q, task_id: q.cancel(task_id)),
    "cancel_many": (ready, lambda q, task_id: q.cancel_many([task_id])),
    "cancel_dag": (dag, lambda q, dag_id: q.cancel_dag(dag_id)),
    "rerun": (completed, lambda q, task_id: q.rerun(task_id)),
    "rerun_issue": (completed, lambda q, _: q.rerun_issue("i-1")),
    "update": (ready, lambda q, task_id: q.update(task_id, {"priority": 5, "tags": ["web"]}, note="hurry")),
    "review": (bury, lambda q, task_id: q.review(task_id, "retry", note="again")),
    "redrive": (signature, lambda q, alike: q.redrive(alike)),
    "pause": (nothing, lambda q, _: q.pause("code", reason="upgrade")),
    "resume": (paused, lambda q, kind: q.resume(kind)),
    "purge": (ready, lambda q, _: q.purge(type="code")),
    "rebalance": (overloaded, lambda q, _: q.rebalance()),
    "set_agent_status": (agent, lambda q, agent_id: q.set_agent_status(agent_id, "draining")),
    "set_agent_budget": (agent, lambda q, agent_id: q.set_agent_budget(agent_id, 5)),
    "set_setting": (nothing, lambda q, _: q.set_setting("retry.strategy", "fixed")),
    "unset_setting": (set_up, lambda q, key: q.unset_setting(key)),
    "change_settings": (nothing, lambda q, _: q.change_settings({"max_attempts": 7}, profile="loki")),
    "use_profile": (nothing, lambda q, _: q.use_profile("loki")),
    "acknowledge_alert": (alert, lambda q, seq: q.acknowledge_alert(int(seq))),
    "set_budget": (dag, lambda q, dag_id: q.set_budget("dag", dag_id, 5)),
    "update_dag": (dag, lambda q, dag_id: q.update_dag(dag_id, {"title": "Page"})),
    "reset_breaker": (tripped, lambda q, kind: q.reset_breaker(kind)),
    "trip_breaker": (nothing, lambda q, _: q.trip_breaker("code")),
    "configure_breakers": (nothing, lambda q, _: q.configure_breakers({"defaults": {"failureThreshold": 7}})),
    "cool_down": (nothing, lambda q, _: q.cool_down("model:opus", 60, "tired")),
    "lift_cooldown": (resting, lambda q, key: q.lift_cooldown(key)),
    "set_limit": (nothing, lambda q, _: q.set_limit("model:opus", concurrency=2)),
    "remove_limit": (limited, lambda q, key: q.remove_limit(key)),
    "update_sink": (told, lambda q, name: q.update_sink(name, wants={"severity": "critical"})),
    "pause_sink": (told, lambda q, name: q.pause_sink(name, "holiday")),
    "resume_sink": (not_told, lambda q, name: q.resume_sink(name)),
    "remove_sink": (told, lambda q, name: q.remove_sink(name)),
    "test_sink": (told, lambda q, name: q.test_sink(name)),
    "redeliver": (given_up, lambda q, delivery_id: q.redeliver(delivery_id)),
    "redeliver_dead": (given_up, lambda q, _: q.redeliver_dead("ops")),
    "set_quota": (nothing, lambda q, _: q.set_quota("other", max_tasks=5)),
    "take_snapshot": (a_folder, lambda q, _: q.take_snapshot()),
    "pause_trigger": (armed, lambda q, name: q.pause_trigger(name)),
    "resume_trigger": (disarmed, lambda q, name: q.resume_trigger(name)),
    "remove_trigger": (armed, lambda q, name: q.remove_trigger(name)),
    "fire_trigger": (armed, lambda q, name: q.fire_trigger(name, reason="now")),
    "save_trigger": (nothing, lambda q, _: q.save_trigger("nightly", on=CRON, task={"type": "audit"})),
    "revoke_token": (token, lambda q, token_id: q.revoke_token(token_id)),
}
APART = {
    "claim", "claim_answer", "claim_for_runtime",  # made once; a repeat is answered by `claims_made`
    "create_token", "add_sink",  # its secret is not kept
    "receive_hook",  # a delivery has a key of its own
}  # fmt: skip
LOOKS = {
    *("artifact", "artifacts", "inputs"),
    *("deliveries", "delivery", "sink", "sinks"),
    *("trigger", "triggers", "firings", "preview_trigger"),
    *("approvals", "breakers", "budgets", "cooldowns", "costs", "effects"),
    *("limits", "profile", "quota", "quotas", "settings", "snapshots", "steps", "tokens"),
}
"""Besides those of `Reading`."""


def test_every_verb_that_changes_something_is_tried_here() -> None:
    def verbs(kind: type) -> set[str]:
        return {name for name, _ in inspect.getmembers(kind, inspect.iscoroutinefunction) if not name.startswith("_")}

    assert "_run(" not in inspect.getsource(Reading)
    assert verbs(Queue) - verbs(Reading) - LOOKS - {"open", "close"} == VERBS.keys() | APART


@pytest.mark.parametrize("verb", VERBS)
async def test_a_repeat_is_answered_alike_and_changes_nothing(verb: str, queue: Queue, clock: MovedClock) -> None:
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


async def test_what_was_refused_in_a_batch_is_refused_alike(queue: Queue) -> None:
    live = await running(queue)
    ended = f"{await completed(queue.in_workspace('other'))}.1"
    first, again = [
        await keyed(queue).complete_many([Report(live, 1), Report(ended, 1), Report(live, 1)]) for _ in range(2)
    ]
    assert [_plain(outcome.error) for outcome in again] == [_plain(outcome.error) for outcome in first]
    assert [type(outcome.error) for outcome in again] == [type(outcome.error) for outcome in first]
    assert [outcome._replace(error=None) for outcome in again] == [outcome._replace(error=None) for outcome in first]
    assert [outcome.error is None for outcome in again] == [True, False, True]


def _plain(error: ShiftworkError | None) -> dict[str, Any] | None:
    return None if error is None else error.as_dict()


# -- keys --------------------------------------------------------------------------------------------------------


async def test_a_key_of_another_request_is_refused(queue: Queue) -> None:
    await keyed(queue, fingerprint="one").submit(type="code")
    after = await everything(queue)
    with pytest.raises(IdempotencyKeyReused) as refused:
        await keyed(queue, fingerprint="two").submit(type="code", priority=1)
    assert refused.value.code == "idempotency_key_reused"
    assert await everything(queue) == after


async def test_another_key_is_another_request(queue: Queue) -> None:
    assert (await keyed(queue, "one").submit(type="code")).id != (await keyed(queue, "two").submit(type="code")).id


async def test_each_workspace_has_keys_of_its_own(queue: Queue) -> None:
    mine = await keyed(queue).submit(type="code")
    theirs = await keyed(queue.in_workspace("other"), fingerprint="other").submit(type="code")
    assert mine.id != theirs.id


async def test_a_verb_that_raises_leaves_no_key(queue: Queue) -> None:
    held = await running(queue)
    task_id = held.partition(".")[0]
    for _ in range(2):
        with pytest.raises(WrongState):
            await keyed(queue).rerun(task_id)
    assert (await everything(queue))["replies"] == []
    await queue.complete(held)
    again = await keyed(queue).rerun(task_id)
    assert again.status == "ready"
    assert await keyed(queue).rerun(task_id) == again


async def test_a_request_is_known_for_a_day(queue: Queue, clock: MovedClock) -> None:
    first = await keyed(queue).submit(type="code")
    assert (await pass_time(queue, clock, DAY - 1)).get("retention") is None
    assert await keyed(queue).submit(type="code") == first
    assert (await pass_time(queue, clock, 1))["retention"] == {"replies": 1}
    assert (await everything(queue))["replies"] == []
    assert (await keyed(queue).submit(type="code")).id != first.id


async def test_old_requests_are_forgotten_in_batches(
    queue: Queue, clock: MovedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(duties, "BATCH", 2)
    for number in range(5):
        await keyed(queue, f"key-{number}").pause()
        clock.advance(1)
    clock.advance(DAY - 2)  # the newest is a day old but for a second
    counts = [await queue.engine.store.run(lambda tx: duties.retention(tx, queue.engine)) for _ in range(4)]
    assert counts == [{"replies": 2}, {"replies": 2}, {}, {}]
    assert "key-4" in str((await everything(queue))["replies"])


# -- verbs of several transactions -------------------------------------------------------------------------------


async def test_a_purge_that_is_sent_again_removes_nothing_that_came_since(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "BATCH", 2)
    await queue.submit_many([{"type": "code"}] * 5)
    assert await keyed(queue).purge(type="code") == 5
    await queue.submit_many([{"type": "code"}] * 3)
    assert await keyed(queue).purge(type="code") == 5
    assert (await queue.status()).counts == {"cancelled": 5, "ready": 3}


async def test_a_redrive_that_is_sent_again_brings_nothing_back_that_failed_since(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operating, "REDRIVE_BATCH", 2)
    alike = await signature(queue)
    first = await keyed(queue).redrive(alike)
    assert [outcome.status for outcome in first] == ["ready"] * 3
    for task in await queue.claim("worker", start=True):
        await queue.fail(task.token, "crash", "boom", retry=False)
    assert await keyed(queue).redrive(alike) == first
    assert (await queue.status()).counts == {"ready": 2, "dead_lettered": 1}


async def test_a_purge_that_broke_off_goes_on_when_it_is_sent_again(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "BATCH", 2)
    await queue.submit_many([{"type": "code"}] * 5)
    _break_after(queue, 2, monkeypatch)
    with pytest.raises(StoreUnavailable):
        await keyed(queue).purge(type="code")
    assert (await queue.status()).counts == {"cancelled": 4, "ready": 1}
    assert await keyed(queue).purge(type="code") == 5
    assert (await queue.status()).counts == {"cancelled": 5}


def _break_after(queue: Queue, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection is gone after so many transactions, for one call."""
    store, run = queue.engine.store, queue.engine.store.run
    left = count

    async def run_or_break(verb: Verb[T], /) -> T:
        nonlocal left
        left -= 1
        if left == -1:
            raise StoreUnavailable("the line is down")
        return await run(verb)

    monkeypatch.setattr(store, "run", run_or_break)


# -- what is not kept --------------------------------------------------------------------------------------------


async def test_a_claim_is_made_once_and_its_answer_is_not_kept(queue: Queue) -> None:
    await queue.submit_many([{"type": "code"}] * 2)
    await queue.register_agent(id="coder", max_concurrent_tasks=2)
    assert len(await keyed(queue).claim("coder")) == 1
    after = await everything(queue)
    for claim in (keyed(queue).claim("coder"), keyed(queue).claim_for_runtime("coder")):
        with pytest.raises(Repeated):
            await claim
    with pytest.raises(IdempotencyKeyReused):
        await keyed(queue, fingerprint="other").claim("coder")
    assert await everything(queue) == after


async def test_a_claim_that_found_nothing_is_made_again(queue: Queue) -> None:
    assert await keyed(queue).claim("coder") == []
    assert (await everything(queue))["replies"] == []
    await queue.submit(type="code")
    assert len(await keyed(queue).claim("coder")) == 1


async def test_a_runtime_s_claim_for_several_agents_is_one_request(queue: Queue) -> None:
    await queue.submit_many([{"type": "code", "target_agent_id": name} for name in ("ada", "bob", "ada")])
    request = keyed(queue.as_caller("system", "r-1"))
    assert len((await request.claim_for_runtime("r", 3)).assignments) == 2
    with pytest.raises(Repeated):
        await keyed(queue).claim_for_runtime("r", 3)
    assert len(await queue.claims_made("r", "r-1")) == 2


async def test_a_token_is_made_once_and_its_secret_is_not_kept_for_the_repeat(queue: Queue) -> None:
    made = await keyed(queue).create_token("ci", ["read"])
    after = await everything(queue)
    with pytest.raises(ConflictError) as refused:
        await keyed(queue).create_token("ci", ["read"])
    assert refused.value.facts == {"token": made.id}
    assert await everything(queue) == after
    assert made.secret[-43:] not in str(after)
    assert await queue.find_token(made.secret) is not None
