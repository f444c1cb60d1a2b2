"""Effects: an outside action happens once per key; a person resolves unknown outcomes."""

from typing import Any

import pytest

from shiftwork import Queue
from shiftwork.model.errors import EffectInFlight, InputError, LeaseLost, NotFound, TooLarge, WrongState
from shiftwork.testing import MovedClock, pass_time
from tests.conformance.steps import everything, take

AT_ONCE = {"strategy": "immediate"}


async def begun(queue: Queue, agent: str = "worker", **fields: Any) -> str:
    """Start a task and return its token."""
    await queue.submit({"type": "order", "retry": AT_ONCE, "target_agent_id": agent, **fields})
    return (await take(queue, agent)).token


async def again(queue: Queue, token: str, agent: str = "worker") -> str:
    """The token of the next attempt, after this one has failed."""
    await queue.fail(token, "crash", "boom")
    return (await take(queue, agent)).token


def task_of(token: str) -> str:
    return token.partition(".")[0]


async def die_of_it(queue: Queue, **fields: Any) -> tuple[str, str]:
    """Dead-letter a task over an unknown effect; return its id and the effect's key."""
    token = await begun(queue, **fields)
    effect = await queue.effects.begin(token, "charge")
    token = await again(queue, token)
    assert (await queue.effects.begin(token, "charge")).status == "unknown"
    await queue.fail(token, "effect_unknown", "nobody knows whether the charge was made")
    return task_of(token), effect.key


@pytest.mark.requirement("R-031")
async def test_effect_can_be_begun_finished_and_read(queue: Queue, clock: MovedClock) -> None:
    token = await begun(queue)
    began = clock()
    new = await queue.effects.begin(token, "charge")
    assert (new.status, new.key, new.token) == ("new", f"{task_of(token)}/charge", token)
    assert [effect.status for effect in await queue.effects.list(task_of(token))] == ["in_flight"]
    clock.advance(5)
    done = await queue.effects.finish(token, new.key, {"receipt": 7})
    assert (done.status, done.result, done.began_at, done.done_at) == ("done", {"receipt": 7}, began, began + 5)
    assert await queue.effects.list(task_of(token)) == [done]
    assert await queue.effects.begin(token, "charge") == done


@pytest.mark.requirement("R-013", "R-032", "R-060")
async def test_second_execution_gets_result_of_the_first_effect(queue: Queue) -> None:
    """Whether it is a retry or another task with the same idempotency key."""
    await queue.settings.set("idempotency.scope_states", ["ready", "running"])
    token = await begun(queue, idempotency_key="order/42")
    effect = await queue.effects.begin(token, "charge")
    assert effect.key == "order%2F42/charge"
    await queue.effects.finish(token, effect.key, "receipt 7")
    token = await again(queue, token)
    assert (await queue.effects.begin(token, "charge")).result == "receipt 7"
    await queue.complete(token)
    twin = await begun(queue, idempotency_key="order/42")
    assert task_of(twin) != task_of(token)
    known = await queue.effects.begin(twin, "charge")
    assert (known.status, known.result, known.task_id) == ("done", "receipt 7", task_of(token))


async def test_rerun_performs_effects_anew_and_its_retries_do_not(queue: Queue) -> None:
    token = await begun(queue, idempotency_key="order-42", retry={"mode": "new_task", **AT_ONCE})
    keys = [(await queue.effects.begin(token, "charge")).key]
    await queue.effects.finish(token, keys[0], 1)
    await queue.complete(token)
    await queue.tasks.rerun(task_of(token))
    token = (await take(queue)).token
    effect = await queue.effects.begin(token, "charge")
    assert (effect.status, effect.key) == ("new", f"{task_of(token)}/charge")
    await queue.effects.finish(token, effect.key, 2)
    for _ in range(2):
        token = await again(queue, token)
        repeated = await queue.effects.begin(token, "charge")
        assert (repeated.status, repeated.result) == ("done", 2)


async def test_key_derived_from_payload_does_not_share_effects(queue: Queue) -> None:
    await queue.settings.set("idempotency.source", "payload_hash")
    await queue.settings.set("idempotency.scope_states", ["ready", "running"])
    statuses = []
    for _ in range(2):
        token = await begun(queue, payload={"to": "ada"})
        effect = await queue.effects.begin(token, "mail")
        statuses.append(effect.status)
        await queue.effects.finish(token, effect.key)
        await queue.complete(token)
    assert statuses == ["new", "new"]


async def test_effect_names_and_keys_do_not_collide(queue: Queue) -> None:
    token = await begun(queue, idempotency_key="a/b")
    other = await begun(queue, "other", idempotency_key="a")
    keys = {(await queue.effects.begin(token, "c")).key, (await queue.effects.begin(other, "b/c")).key}
    assert len(keys) == 2
    own = await queue.effects.begin(token, key="release 1.2")
    assert (own.key, own.status) == ("release 1.2", "new")
    for names in ({}, {"name": "a", "key": "b"}, {"name": ""}, {"key": ""}, {"key": "x" * 601}):
        with pytest.raises(InputError):
            await queue.effects.begin(token, **names)


@pytest.mark.requirement("R-032")
async def test_second_task_gets_result_of_effect_performed_by_first(queue: Queue) -> None:
    first, second = await begun(queue, "one"), await begun(queue, "two")
    assert (await queue.effects.begin(first, key="deploy")).status == "new"
    waiting = await queue.effects.begin(second, key="deploy")
    assert (waiting.status, waiting.task_id) == ("in_flight", task_of(first))
    await queue.effects.finish(first, "deploy", "v1.2")
    assert (await queue.effects.begin(second, key="deploy")).result == "v1.2"


async def test_other_tasks_wait_for_effect_of_an_owner_that_retries(queue: Queue) -> None:
    first, second = await begun(queue, "one"), await begun(queue, "two")
    await queue.effects.begin(first, key="deploy")
    await queue.fail(first, "crash")
    assert (await queue.effects.begin(second, key="deploy")).status == "in_flight"
    first = (await take(queue, "one")).token
    assert (await queue.effects.begin(first, key="deploy")).status == "unknown"
    assert (await queue.effects.begin(second, key="deploy")).status == "in_flight"


async def test_effect_of_a_cancelled_owner_passes_to_another_task(queue: Queue) -> None:
    first, second = await begun(queue, "one"), await begun(queue, "two")
    await queue.effects.begin(first, key="deploy")
    await queue.cancel(task_of(first))
    taken = await queue.effects.begin(second, key="deploy")
    assert (taken.status, taken.token) == ("unknown", second)
    with pytest.raises(LeaseLost):
        await queue.effects.finish(first, "deploy", "too late: it is the other's to find out")
    assert (await queue.effects.finish(second, "deploy", "found out")).result == "found out"


async def test_effect_is_finished_only_by_the_claim_that_began_it(queue: Queue) -> None:
    first, second = await begun(queue, "one"), await begun(queue, "two")
    await queue.effects.begin(first, key="deploy")
    for token, key in ((second, "deploy"), (first, "other")):
        with pytest.raises(NotFound) as refused:
            await queue.effects.finish(token, key)
        assert refused.value.where == "key"


async def test_retry_sees_an_unfinished_effect_as_unknown(queue: Queue) -> None:
    token = await begun(queue)
    effect = await queue.effects.begin(token, "charge")
    assert (await queue.effects.begin(token, "charge")).status == "unknown"  # it was not finished, and asks again
    token = await again(queue, token)
    assert [known.status for known in await queue.effects.list(open_only=True)] == ["unknown"]
    unknown = await queue.effects.begin(token, "charge")
    assert (unknown.status, unknown.key, unknown.token) == ("unknown", effect.key, token)
    assert (await queue.effects.finish(token, effect.key, "it had happened")).status == "done"


async def test_retry_as_new_task_inherits_open_effects(queue: Queue) -> None:
    token = await begun(queue, retry={"mode": "new_task", **AT_ONCE})
    effect = await queue.effects.begin(token, "charge")
    other = await begun(queue, "other")
    token = await again(queue, token)
    assert (await queue.effects.begin(other, key=effect.key)).status == "in_flight"
    unknown = await queue.effects.begin(token, "charge")
    assert (unknown.status, unknown.key, unknown.task_id) == ("unknown", effect.key, task_of(token))


async def test_withdrawn_effect_can_be_begun_again(queue: Queue) -> None:
    token = await begun(queue)
    effect = await queue.effects.begin(token, "charge")
    assert (await queue.effects.finish(token, effect.key, happened=False)).status == "withdrawn"
    assert await queue.effects.list(task_of(token)) == []
    assert (await queue.effects.begin(token, "charge")).status == "new"


async def test_effect_outcome_is_recorded_after_lost_claim(queue: Queue, clock: MovedClock) -> None:
    token = await begun(queue)
    effect = await queue.effects.begin(token, "charge")
    await pass_time(queue, clock, 100)
    with pytest.raises(LeaseLost):
        await queue.effects.finish(token, effect.key, "receipt 7")
    known = await queue.effects.begin((await take(queue)).token, "charge")
    assert (known.status, known.result) == ("done", "receipt 7")


async def test_unknown_effect_dead_letters_the_task_with_an_alert(queue: Queue) -> None:
    task_id, key = await die_of_it(queue)
    task = await queue.get(task_id)
    assert (task.status, task.failure_reason, task.attempts) == ("dead_lettered", "effect_unknown", 2)
    (alert,) = await queue.alerts.list(kind="effect_unknown")
    assert (alert.severity, alert.task_id, alert.data) == ("critical", task_id, {"key": key})
    assert alert.message == f"Task {task_id} began the effect {key}; whether it happened is unknown"


@pytest.mark.parametrize("happened", [True, False])
@pytest.mark.parametrize("on_exhausted", ["dead_letter", "stay_failed"])
async def test_resolving_an_unknown_effect_retries_the_task(queue: Queue, on_exhausted: str, *, happened: bool) -> None:
    await queue.settings.set("on_exhausted", on_exhausted)
    task_id, key = await die_of_it(queue)
    operator = queue.as_caller("human:ada")
    resolved = await operator.effects.resolve(key, happened=happened, result={"receipt": 7}, note="looked at the bank")
    assert (resolved.status, resolved.result) == (("done", {"receipt": 7}) if happened else ("withdrawn", None))
    assert resolved.resolved_by == ("human:ada" if happened else None)
    assert (await queue.get(task_id)).status == "ready"
    assert [(review.decision, review.note) for review in await queue.dead_letters.reviews(task_id)] == [
        ("retry", "looked at the bank")
    ]
    token = (await take(queue)).token
    assert (await queue.effects.begin(token, "charge")).status == ("done" if happened else "new")


async def test_only_unknown_effects_can_be_resolved(queue: Queue) -> None:
    token = await begun(queue)
    effect = await queue.effects.begin(token, "charge")
    before = await everything(queue)
    with pytest.raises(EffectInFlight):
        await queue.effects.resolve(effect.key, happened=True)
    with pytest.raises(NotFound):
        await queue.effects.resolve("other", happened=True)
    assert await everything(queue) == before
    await queue.effects.finish(token, effect.key)
    with pytest.raises(WrongState):
        await queue.effects.resolve(effect.key, happened=False)


async def test_resolving_an_effect_leaves_other_dead_letters_unchanged(queue: Queue) -> None:
    token = await begun(queue)
    effect = await queue.effects.begin(token, "charge")
    await queue.fail(token, "crash", retry=False)
    await queue.effects.resolve(effect.key, happened=True, result=1)
    assert (await queue.get(task_of(token))).status == "dead_lettered"


async def test_effect_events_do_not_contain_results(queue: Queue) -> None:
    token = await begun(queue)
    effect = await queue.effects.begin(token, "charge")
    await queue.effects.finish(token, effect.key, "SECRET")
    events = [event for event in (await queue.tasks.history(task_of(token))).events if event.names == ["task.effect"]]
    assert [event.data for event in events] == [{"key": effect.key, "status": word} for word in ("in_flight", "done")]
    assert "SECRET" not in str(await queue.events())


async def test_effects_survive_archiving_and_open_ones_are_purged(queue: Queue, clock: MovedClock) -> None:
    await queue.settings.set("purge.mode", "delete")
    await queue.settings.set("archive_after_sec", 10)
    token = await begun(queue)
    await queue.effects.begin(token, key="deploy")
    await queue.effects.finish(token, "deploy", "v1")
    await queue.complete(token)
    await pass_time(queue, clock, 100)
    assert (await queue.get(task_of(token))).archived
    token = await begun(queue)
    assert (await queue.effects.begin(token, key="deploy")).result == "v1"
    await queue.effects.begin(token, key="announce")
    await queue.release(token)
    await queue.control.purge(type="order")
    assert [effect.key for effect in await queue.effects.list()] == ["deploy"]


async def test_effects_are_filtered_by_task_key_and_open_state(queue: Queue) -> None:
    one, two = await begun(queue, "one"), await begun(queue, "two")
    for token, key in ((one, "a"), (one, "b"), (two, "c"), (two, "d")):
        await queue.effects.begin(token, key=key)
    await queue.effects.finish(one, "a")
    await queue.effects.finish(two, "c")

    async def keys(*args: Any, **filters: Any) -> str:
        return "".join(effect.key for effect in await queue.effects.list(*args, **filters))

    assert await keys() == "abcd"
    assert await keys(after="a", limit=2) == "bc"
    assert await keys(task_of(one)) == "ab"
    assert await keys(task_of(one), open_only=True) == "b"
    assert await keys(open_only=True) == "bd"
    assert await keys(open_only=True, after="b") == "d"
    assert await keys(key="c") == await keys(task_of(two), key="c") == "c"
    assert await keys(key="c", open_only=True) == ""
    with pytest.raises(NotFound):
        await queue.effects.list("nobody")


async def test_each_workspace_has_its_own_effects(queue: Queue) -> None:
    other = queue.in_workspace("other")
    token, foreign = await begun(queue), await begun(other)
    await queue.effects.begin(token, key="deploy")
    assert (await other.effects.begin(foreign, key="deploy")).status == "new"
    assert [effect.task_id for effect in await other.effects.list(key="deploy")] == [task_of(foreign)]
    for call in (other.effects.begin(token, key="x"), other.effects.finish(token, "deploy")):
        with pytest.raises(NotFound):
            await call


async def test_lost_claim_cannot_begin_an_effect(queue: Queue) -> None:
    token = await begun(queue)
    await again(queue, token)
    with pytest.raises(LeaseLost):
        await queue.effects.begin(token, "charge")
    assert await queue.effects.list() == []


async def test_effect_result_over_size_limit_is_refused(queue: Queue) -> None:
    token = await begun(queue)
    await queue.effects.begin(token, key="deploy")
    await queue.settings.set("bounds.step_inline_bytes", 10)
    with pytest.raises(TooLarge):
        await queue.effects.finish(token, "deploy", "x" * 10)
    assert [effect.status for effect in await queue.effects.list()] == ["in_flight"]
