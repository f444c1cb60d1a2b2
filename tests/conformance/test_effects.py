"""Effects: an outside action happens once under its key; what nobody can know is asked of a person."""

from typing import Any

import pytest

from shiftwork import Queue
from shiftwork.core.errors import EffectInFlight, InputError, LeaseLost, NotFound, TooLarge, WrongState
from shiftwork.testing import MovedClock, pass_time
from tests.conformance.steps import everything, take

AT_ONCE = {"strategy": "immediate"}


async def begun(queue: Queue, agent: str = "worker", **fields: Any) -> str:
    """The token of a task at work."""
    await queue.submit({"type": "order", "retry": AT_ONCE, "target_agent_id": agent, **fields})
    return (await take(queue, agent)).token


async def again(queue: Queue, token: str, agent: str = "worker") -> str:
    """The token of the next attempt, after this one has failed."""
    await queue.fail(token, "crash", "boom")
    return (await take(queue, agent)).token


def task_of(token: str) -> str:
    return token.partition(".")[0]


async def die_of_it(queue: Queue, **fields: Any) -> tuple[str, str]:
    """A task whose second attempt finds an effect of which nobody knows; its id and the effect's key."""
    token = await begun(queue, **fields)
    effect = await queue.begin_effect(token, "charge")
    token = await again(queue, token)
    assert (await queue.begin_effect(token, "charge")).status == "unknown"
    await queue.fail(token, "effect_unknown", "nobody knows whether the charge was made")
    return task_of(token), effect.key


# -- once --------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("R-031")
async def test_an_effect_is_begun_done_and_read(queue: Queue, clock: MovedClock) -> None:
    token = await begun(queue)
    began = clock()
    new = await queue.begin_effect(token, "charge")
    assert (new.status, new.key, new.token) == ("new", f"{task_of(token)}/charge", token)
    assert [effect.status for effect in await queue.effects(task_of(token))] == ["in_flight"]
    clock.advance(5)
    done = await queue.finish_effect(token, new.key, {"receipt": 7})
    assert (done.status, done.result, done.began_at, done.done_at) == ("done", {"receipt": 7}, began, began + 5)
    assert await queue.effects(task_of(token)) == [done]
    assert await queue.begin_effect(token, "charge") == done


@pytest.mark.requirement("R-013", "R-032", "R-060")
async def test_a_second_execution_gets_the_result_of_the_first(queue: Queue) -> None:
    """Whether it is a retry or another task with the same idempotency key."""
    await queue.set_setting("idempotency.scope_states", ["ready", "running"])
    token = await begun(queue, idempotency_key="order/42")
    effect = await queue.begin_effect(token, "charge")
    assert effect.key == "order%2F42/charge"
    await queue.finish_effect(token, effect.key, "receipt 7")
    token = await again(queue, token)
    assert (await queue.begin_effect(token, "charge")).result == "receipt 7"
    await queue.complete(token)
    twin = await begun(queue, idempotency_key="order/42")
    assert task_of(twin) != task_of(token)
    known = await queue.begin_effect(twin, "charge")
    assert (known.status, known.result, known.task_id) == ("done", "receipt 7", task_of(token))


async def test_a_rerun_acts_anew_and_its_retries_do_not(queue: Queue) -> None:
    token = await begun(queue, idempotency_key="order-42", retry={"mode": "new_task", **AT_ONCE})
    keys = [(await queue.begin_effect(token, "charge")).key]
    await queue.finish_effect(token, keys[0], 1)
    await queue.complete(token)
    await queue.rerun(task_of(token))
    token = (await take(queue)).token
    effect = await queue.begin_effect(token, "charge")
    assert (effect.status, effect.key) == ("new", f"{task_of(token)}/charge")
    await queue.finish_effect(token, effect.key, 2)
    for _ in range(2):
        token = await again(queue, token)
        repeated = await queue.begin_effect(token, "charge")
        assert (repeated.status, repeated.result) == ("done", 2)


async def test_a_key_that_the_queue_made_of_the_payload_is_nobody_s_word(queue: Queue) -> None:
    await queue.set_setting("idempotency.source", "payload_hash")
    await queue.set_setting("idempotency.scope_states", ["ready", "running"])
    statuses = []
    for _ in range(2):
        token = await begun(queue, payload={"to": "ada"})
        effect = await queue.begin_effect(token, "mail")
        statuses.append(effect.status)
        await queue.finish_effect(token, effect.key)
        await queue.complete(token)
    assert statuses == ["new", "new"]


async def test_names_and_keys_are_told_apart(queue: Queue) -> None:
    token = await begun(queue, idempotency_key="a/b")
    other = await begun(queue, "other", idempotency_key="a")
    keys = {(await queue.begin_effect(token, "c")).key, (await queue.begin_effect(other, "b/c")).key}
    assert len(keys) == 2
    own = await queue.begin_effect(token, key="release 1.2")
    assert (own.key, own.status) == ("release 1.2", "new")
    for names in ({}, {"name": "a", "key": "b"}, {"name": ""}, {"key": ""}, {"key": "x" * 601}):
        with pytest.raises(InputError):
            await queue.begin_effect(token, **names)


# -- two at once -------------------------------------------------------------------------------------------------


@pytest.mark.requirement("R-032")
async def test_of_two_tasks_one_performs_it_and_the_other_gets_its_result(queue: Queue) -> None:
    first, second = await begun(queue, "one"), await begun(queue, "two")
    assert (await queue.begin_effect(first, key="deploy")).status == "new"
    waiting = await queue.begin_effect(second, key="deploy")
    assert (waiting.status, waiting.task_id) == ("in_flight", task_of(first))
    await queue.finish_effect(first, "deploy", "v1.2")
    assert (await queue.begin_effect(second, key="deploy")).result == "v1.2"


async def test_others_wait_for_an_owner_that_comes_back(queue: Queue) -> None:
    first, second = await begun(queue, "one"), await begun(queue, "two")
    await queue.begin_effect(first, key="deploy")
    await queue.fail(first, "crash")
    assert (await queue.begin_effect(second, key="deploy")).status == "in_flight"
    first = (await take(queue, "one")).token
    assert (await queue.begin_effect(first, key="deploy")).status == "unknown"
    assert (await queue.begin_effect(second, key="deploy")).status == "in_flight"


async def test_others_take_up_what_its_owner_never_will(queue: Queue) -> None:
    first, second = await begun(queue, "one"), await begun(queue, "two")
    await queue.begin_effect(first, key="deploy")
    await queue.cancel(task_of(first))
    taken = await queue.begin_effect(second, key="deploy")
    assert (taken.status, taken.token) == ("unknown", second)
    with pytest.raises(LeaseLost):
        await queue.finish_effect(first, "deploy", "too late: it is the other's to find out")
    assert (await queue.finish_effect(second, "deploy", "found out")).result == "found out"


async def test_an_effect_is_finished_by_the_claim_that_began_it(queue: Queue) -> None:
    first, second = await begun(queue, "one"), await begun(queue, "two")
    await queue.begin_effect(first, key="deploy")
    for token, key in ((second, "deploy"), (first, "other")):
        with pytest.raises(NotFound) as refused:
            await queue.finish_effect(token, key)
        assert refused.value.where == "key"


# -- what nobody knows -------------------------------------------------------------------------------------------


async def test_a_retry_is_told_that_nobody_knows(queue: Queue) -> None:
    token = await begun(queue)
    effect = await queue.begin_effect(token, "charge")
    assert (await queue.begin_effect(token, "charge")).status == "unknown"  # it was not finished, and asks again
    token = await again(queue, token)
    assert [known.status for known in await queue.effects(open_only=True)] == ["unknown"]
    unknown = await queue.begin_effect(token, "charge")
    assert (unknown.status, unknown.key, unknown.token) == ("unknown", effect.key, token)
    assert (await queue.finish_effect(token, effect.key, "it had happened")).status == "done"


async def test_a_retry_as_a_new_task_has_its_open_effects(queue: Queue) -> None:
    token = await begun(queue, retry={"mode": "new_task", **AT_ONCE})
    effect = await queue.begin_effect(token, "charge")
    other = await begun(queue, "other")
    token = await again(queue, token)
    assert (await queue.begin_effect(other, key=effect.key)).status == "in_flight"
    unknown = await queue.begin_effect(token, "charge")
    assert (unknown.status, unknown.key, unknown.task_id) == ("unknown", effect.key, task_of(token))


async def test_an_effect_that_did_not_happen_is_tried_again(queue: Queue) -> None:
    token = await begun(queue)
    effect = await queue.begin_effect(token, "charge")
    assert (await queue.finish_effect(token, effect.key, happened=False)).status == "withdrawn"
    assert await queue.effects(task_of(token)) == []
    assert (await queue.begin_effect(token, "charge")).status == "new"


async def test_how_it_ended_is_noted_also_when_the_claim_was_lost(queue: Queue, clock: MovedClock) -> None:
    token = await begun(queue)
    effect = await queue.begin_effect(token, "charge")
    await pass_time(queue, clock, 100)
    with pytest.raises(LeaseLost):
        await queue.finish_effect(token, effect.key, "receipt 7")
    known = await queue.begin_effect((await take(queue)).token, "charge")
    assert (known.status, known.result) == ("done", "receipt 7")


async def test_a_task_that_cannot_find_out_is_a_dead_letter_with_an_alert(queue: Queue) -> None:
    task_id, key = await die_of_it(queue)
    task = await queue.get(task_id)
    assert (task.status, task.failure_reason, task.attempts) == ("dead_lettered", "effect_unknown", 2)
    (alert,) = await queue.alerts(kind="effect_unknown")
    assert (alert.severity, alert.task_id, alert.data) == ("critical", task_id, {"key": key})
    assert alert.message == f"Task {task_id} began the effect {key}, and whether it happened is not known"


@pytest.mark.parametrize("happened", [True, False])
@pytest.mark.parametrize("on_exhausted", ["dead_letter", "stay_failed"])
async def test_a_person_resolves_it_and_the_task_goes_on(queue: Queue, on_exhausted: str, *, happened: bool) -> None:
    await queue.set_setting("on_exhausted", on_exhausted)
    task_id, key = await die_of_it(queue)
    operator = queue.as_caller("human:ada")
    resolved = await operator.resolve_effect(key, happened=happened, result={"receipt": 7}, note="looked at the bank")
    assert (resolved.status, resolved.result) == (("done", {"receipt": 7}) if happened else ("withdrawn", None))
    assert resolved.resolved_by == ("human:ada" if happened else None)
    assert (await queue.get(task_id)).status == "ready"
    assert [(review["decision"], review["note"]) for review in await queue.reviews(task_id)] == [
        ("retry", "looked at the bank")
    ]
    token = (await take(queue)).token
    assert (await queue.begin_effect(token, "charge")).status == ("done" if happened else "new")


async def test_only_what_nobody_performs_and_nobody_knows_is_resolved(queue: Queue) -> None:
    token = await begun(queue)
    effect = await queue.begin_effect(token, "charge")
    before = await everything(queue)
    with pytest.raises(EffectInFlight):
        await queue.resolve_effect(effect.key, happened=True)
    with pytest.raises(NotFound):
        await queue.resolve_effect("other", happened=True)
    assert await everything(queue) == before
    await queue.finish_effect(token, effect.key)
    with pytest.raises(WrongState):
        await queue.resolve_effect(effect.key, happened=False)


async def test_a_task_that_waits_for_another_reason_is_not_moved(queue: Queue) -> None:
    token = await begun(queue)
    effect = await queue.begin_effect(token, "charge")
    await queue.fail(token, "crash", retry=False)
    await queue.resolve_effect(effect.key, happened=True, result=1)
    assert (await queue.get(task_of(token))).status == "dead_lettered"


# -- keeping -----------------------------------------------------------------------------------------------------


async def test_effects_are_told_without_their_results(queue: Queue) -> None:
    token = await begun(queue)
    effect = await queue.begin_effect(token, "charge")
    await queue.finish_effect(token, effect.key, "SECRET")
    told = [event for event in await queue.history(task_of(token)) if event.names == ["task.effect"]]
    assert [event.data for event in told] == [{"key": effect.key, "status": word} for word in ("in_flight", "done")]
    assert "SECRET" not in str(await queue.events())


async def test_effects_outlive_the_archive_and_go_with_a_purge(queue: Queue, clock: MovedClock) -> None:
    await queue.set_setting("purge.mode", "delete")
    await queue.set_setting("archive_after_sec", 10)
    token = await begun(queue)
    await queue.begin_effect(token, key="deploy")
    await queue.finish_effect(token, "deploy", "v1")
    await queue.complete(token)
    await pass_time(queue, clock, 100)
    assert (await queue.get(task_of(token))).archived
    token = await begun(queue)
    assert (await queue.begin_effect(token, key="deploy")).result == "v1"
    await queue.begin_effect(token, key="announce")
    await queue.release(token)
    await queue.purge(type="order")
    assert [effect.key for effect in await queue.effects()] == ["deploy"]


async def test_effects_are_found_by_task_by_key_and_by_what_is_open(queue: Queue) -> None:
    one, two = await begun(queue, "one"), await begun(queue, "two")
    for token, key in ((one, "a"), (one, "b"), (two, "c"), (two, "d")):
        await queue.begin_effect(token, key=key)
    await queue.finish_effect(one, "a")
    await queue.finish_effect(two, "c")

    async def keys(*args: Any, **filters: Any) -> str:
        return "".join(effect.key for effect in await queue.effects(*args, **filters))

    assert await keys() == "abcd"
    assert await keys(after="a", limit=2) == "bc"
    assert await keys(task_of(one)) == "ab"
    assert await keys(task_of(one), open_only=True) == "b"
    assert await keys(open_only=True) == "bd"
    assert await keys(open_only=True, after="b") == "d"
    assert await keys(key="c") == await keys(task_of(two), key="c") == "c"
    assert await keys(key="c", open_only=True) == ""
    with pytest.raises(NotFound):
        await queue.effects("nobody")


async def test_each_workspace_has_effects_of_its_own(queue: Queue) -> None:
    other = queue.in_workspace("other")
    token, foreign = await begun(queue), await begun(other)
    await queue.begin_effect(token, key="deploy")
    assert (await other.begin_effect(foreign, key="deploy")).status == "new"
    assert [effect.task_id for effect in await other.effects(key="deploy")] == [task_of(foreign)]
    for call in (other.begin_effect(token, key="x"), other.finish_effect(token, "deploy")):
        with pytest.raises(NotFound):
            await call


async def test_a_lost_claim_begins_nothing(queue: Queue) -> None:
    token = await begun(queue)
    await again(queue, token)
    with pytest.raises(LeaseLost):
        await queue.begin_effect(token, "charge")
    assert await queue.effects() == []


async def test_a_result_too_large_is_refused(queue: Queue) -> None:
    token = await begun(queue)
    await queue.begin_effect(token, key="deploy")
    await queue.set_setting("bounds.step_inline_bytes", 10)
    with pytest.raises(TooLarge):
        await queue.finish_effect(token, "deploy", "x" * 10)
    assert [effect.status for effect in await queue.effects()] == ["in_flight"]
