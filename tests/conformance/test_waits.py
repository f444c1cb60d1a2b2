"""Waiting for a time or an event without holding a slot: named, durable, answered once."""

from typing import Any

import pytest

from shiftwork import Queue
from shiftwork.core.errors import InputError, LeaseLost, NotFound, WrongState
from shiftwork.duties import duties
from shiftwork.queue.waits import waits
from shiftwork.testing import MovedClock, pass_time
from tests.conformance.steps import bury, everything, finish, sql, states, take

HOUR = 3600.0
DAY = 86_400.0


async def start(queue: Queue, **fields: Any) -> str:
    """A task called `job`, running; its claim token."""
    await queue.submit({"type": "code", "id": "job", **fields})
    return (await take(queue)).token


async def again(queue: Queue) -> str:
    """The token under which `job` runs once more."""
    taken = await take(queue)
    assert taken.id == (await queue.get("job")).id
    return taken.token


# -- times -------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("F-083")
async def test_a_task_sleeps_without_a_slot_and_pays_no_attempt(queue: Queue, clock: MovedClock) -> None:
    token = await start(queue)
    wait = await queue.wait(token, "nap", until=clock() + HOUR)
    assert (wait.status, wait.until) == ("open", clock() + HOUR)
    task = await queue.get("job")
    assert (task.status, task.hold, task.attempts, task.waits) == ("pending", "time", 0, [wait])
    assert (await states(queue, "job"))[-2:] == ["running", "pending"]
    with pytest.raises(LeaseLost):
        await queue.complete(token)
    await pass_time(queue, clock, HOUR - 1)
    assert (await queue.get("job")).status == "pending"
    assert (await pass_time(queue, clock, 1))["waits"] == {"ended": 1}
    task = await queue.get("job")
    assert (task.status, task.hold, task.waits, task.attempts) == ("ready", None, [], 0)
    assert [attempt.outcome for attempt in await queue.attempts("job")] == ["waiting"]


async def test_a_wait_that_has_ended_is_answered_and_the_task_goes_on(queue: Queue, clock: MovedClock) -> None:
    await queue.wait(await start(queue), "nap", until=clock() + 60)
    await pass_time(queue, clock, 60)
    token = await again(queue)
    for _ in range(2):
        wait = await queue.wait(token, "nap", until=clock() + 60)
        assert (wait.status, wait.ended_at) == ("met", clock())
    assert (await queue.get("job")).status == "running"
    assert (await queue.wait(token, "second nap", until=clock() + 60)).status == "open"


async def test_a_time_that_has_passed_is_not_waited_for(queue: Queue, clock: MovedClock) -> None:
    token = await start(queue)
    assert (await queue.wait(token, "nap", until=clock())).status == "met"
    await queue.complete(token)


async def test_what_was_used_before_the_wait_is_on_the_bill(queue: Queue, clock: MovedClock) -> None:
    token = await start(queue)
    await queue.heartbeat(token, usage={"cost_usd": 0.5})
    await queue.wait(token, "nap", until=clock() + 60)
    assert (await queue.get("job")).cost_usd == 0.5


async def test_many_times_come_in_batches(queue: Queue, clock: MovedClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shiftwork.duties.waiting.BATCH", 2)
    monkeypatch.setattr(duties, "BATCH", 2)
    await queue.submit_many([{"type": "code"}] * 5)
    await queue.register_agent(id="sleeper", max_concurrent_tasks=5)
    for taken in await queue.claim("sleeper", 5, start=True):
        await queue.wait(taken.token, "nap", until=clock() + 60)
    assert (await pass_time(queue, clock, 60))["waits"] == {"ended": 5}
    assert (await queue.status()).counts == {"ready": 5}


# -- events ------------------------------------------------------------------------------------------------------


async def test_a_signal_frees_whoever_waits_for_it(queue: Queue) -> None:
    await queue.wait(await start(queue), "deployed?", signal="deployed")
    other = await queue.submit(type="code")
    await queue.wait((await take(queue)).token, "other", signal="tested")
    sent = await queue.as_caller("human:ada").signal("deployed", {"build": 7})
    assert (sent.name, sent.freed) == ("deployed", 1)
    wait = await queue.wait(await again(queue), "deployed?", signal="deployed")
    assert (wait.status, wait.value, wait.answered_by) == ("met", {"build": 7}, "human:ada")
    assert (await queue.get(other.id)).status == "pending"


async def test_a_signal_to_one_task_frees_no_other(queue: Queue) -> None:
    await queue.wait(await start(queue), "go", signal="go")
    other = await queue.submit(type="code")
    await queue.wait((await take(queue)).token, "go", signal="go")
    assert (await queue.signal("go", task="job")).freed == 1
    assert (await queue.get(other.id)).status == "pending"
    assert (await queue.signal("go")).freed == 1


async def test_a_signal_that_came_before_the_wait_is_not_lost(queue: Queue, clock: MovedClock) -> None:
    token = await start(queue)
    assert (await queue.signal("go", 1)).freed == 0
    clock.advance(HOUR)
    wait = await queue.wait(token, "go", signal="go")
    assert (wait.status, wait.value) == ("met", 1)
    assert (await queue.get("job")).status == "running"


async def test_each_signal_is_taken_once_by_a_task(queue: Queue) -> None:
    token = await start(queue)
    await queue.signal("go", 1)
    await queue.signal("go", 2)
    taken = [await queue.wait(token, name, signal="go") for name in ("first", "second", "first")]
    assert [wait.value for wait in taken] == [1, 2, 1]
    assert (await queue.wait(token, "third", signal="go")).status == "open"
    await queue.signal("go", 3)
    assert (await queue.wait(await again(queue), "third", signal="go")).value == 3


async def test_a_signal_older_than_the_task_is_not_its(queue: Queue, clock: MovedClock) -> None:
    await queue.signal("go")
    clock.advance(1)
    assert (await queue.wait(await start(queue), "go", signal="go")).status == "open"


async def test_a_signal_for_another_task_is_not_taken(queue: Queue) -> None:
    token = await start(queue)
    other = await queue.submit(type="code")
    await queue.signal("go", task=other.id)
    assert (await queue.wait(token, "go", signal="go")).status == "open"


async def test_signals_are_kept_for_a_day(queue: Queue, clock: MovedClock) -> None:
    await queue.signal("go")
    await pass_time(queue, clock, DAY)
    assert len((await everything(queue))["signals"]) == 1
    assert (await pass_time(queue, clock, 1))["retention"]["signals"] == 1
    assert (await everything(queue))["signals"] == []


async def test_an_event_that_does_not_come_in_time_is_waited_for_no_longer(queue: Queue, clock: MovedClock) -> None:
    await queue.wait(await start(queue), "go", signal="go", timeout_sec=60)
    clock.advance(60)
    assert (await queue.signal("go")).freed == 0  # too late, though no duty has looked yet
    await pass_time(queue, clock, 0)
    token = await again(queue)
    wait = await queue.wait(token, "go", signal="go", timeout_sec=60)
    assert (wait.status, wait.value) == ("expired", None)
    assert (await queue.wait(token, "go again", signal="go")).status == "met"


async def test_a_signal_for_more_than_one_page_reaches_all_of_them(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waits, "BATCH", 2)
    await five_waiting(queue)
    assert (await queue.signal("go", "now")).freed == 5
    assert (await queue.status()).counts == {"ready": 5}


async def five_waiting(queue: Queue) -> None:
    await queue.submit_many([{"type": "code"}] * 5)
    await queue.register_agent(id="waiter", max_concurrent_tasks=5)
    for taken in await queue.claim("waiter", 5, start=True):
        await queue.wait(taken.token, "go", signal="go")


async def test_a_signal_whose_sender_died_after_a_page_reaches_the_others(
    queue: Queue, clock: MovedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waits, "BATCH", 2)
    await five_waiting(queue)
    first = await queue.engine.store.run(
        lambda tx: waits.signal(tx, queue.engine, queue.caller, queue.workspace, "go", None, None)
    )
    assert (first.freed, first.done) == (2, False)
    # One of those freed waits anew before the rest is told: that is for the next signal.
    (taken,) = await queue.claim("waiter", start=True)
    assert (await queue.wait(taken.token, "once more", signal="go")).status == "open"
    for _ in range(3):
        await pass_time(queue, clock, 5)
    assert (await queue.status()).counts == {"ready": 4, "pending": 1}
    assert (await queue.get(taken.id)).waits[0].name == "once more"


# -- durable -----------------------------------------------------------------------------------------------------


async def test_answers_outlive_a_failed_attempt(queue: Queue, clock: MovedClock) -> None:
    token = await start(queue)
    await queue.signal("go", 1)
    assert (await queue.wait(token, "go", signal="go")).value == 1
    await queue.fail(token, "crash")
    await pass_time(queue, clock, HOUR)
    assert (await queue.wait(await again(queue), "go", signal="go")).value == 1


async def test_answers_outlive_a_retry_as_a_new_task(aegis: Queue, clock: MovedClock) -> None:
    token = await start(aegis)
    await aegis.signal("go", 1)
    assert (await aegis.wait(token, "go", signal="go")).value == 1
    await aegis.fail(token, "timeout")
    await pass_time(aegis, clock, HOUR)
    retry = await take(aegis)
    assert retry.id != (await aegis.get("job")).id
    assert (await aegis.wait(retry.token, "go", signal="go")).value == 1
    # The retry was created after the signal; its lineage was not.
    assert (await aegis.wait(retry.token, "nap", until=clock() + 1)).status == "open"
    assert (await aegis.get(retry.id)).waits[0].name == "nap"
    await pass_time(aegis, clock, 1)
    assert (await aegis.get(retry.id)).status == "ready"


async def test_a_rerun_waits_anew(queue: Queue, clock: MovedClock) -> None:
    token = await start(queue)
    await queue.signal("go", 1)
    await queue.wait(token, "go", signal="go")
    await queue.complete(token)
    clock.advance(1)
    await queue.rerun("job")
    token = (await take(queue)).token
    assert (await queue.wait(token, "go", signal="go")).status == "open"
    assert (await queue.signal("go", 2)).freed == 1


async def test_a_dead_letter_that_is_retried_keeps_its_answers(queue: Queue) -> None:
    token = await start(queue, max_attempts=1)
    await queue.signal("go", 1)
    await queue.wait(token, "go", signal="go")
    await queue.fail(token, "crash")
    await queue.review("job", "retry")
    assert (await queue.wait(await again(queue), "go", signal="go")).value == 1


async def test_a_dead_letter_that_is_retried_waits_anew_for_what_expired(queue: Queue, clock: MovedClock) -> None:
    await queue.wait(await start(queue), "go", signal="go", timeout_sec=60)
    await pass_time(queue, clock, 60)
    token = await again(queue)
    assert (await queue.wait(token, "go", signal="go", timeout_sec=60)).status == "expired"
    await queue.fail(token, "crash", retry=False)
    await queue.review("job", "retry")
    assert (await queue.wait(await again(queue), "go", signal="go", timeout_sec=60)).status == "open"


async def test_other_work_asks_its_own_questions(queue: Queue) -> None:
    token = await start(queue)
    await queue.wait(token, "sure", question="Sure?")
    await queue.answer("job", "yes")
    await queue.fail(await again(queue), "crash", retry=False)
    await queue.review("job", "modify_and_retry", change={"payload": {"other": True}})
    assert (await queue.wait(await again(queue), "sure", question="Sure?")).status == "open"


# -- beside dependencies -----------------------------------------------------------------------------------------


async def test_a_wait_and_a_dependency_must_both_be_over(queue: Queue) -> None:
    await queue.wait(await start(queue), "go", signal="go")
    other = await queue.submit(type="code")
    await queue.update("job", {"dependencies": [other.id]})
    await queue.signal("go")
    job = await queue.get("job")
    assert (job.status, job.blocked_by, job.waits) == ("pending", [other.id], [])
    await finish(queue)
    assert (await queue.get("job")).status == "ready"


async def test_new_dependencies_do_not_end_a_wait(queue: Queue) -> None:
    await queue.wait(await start(queue), "go", signal="go")
    await queue.update("job", {"dependencies": []})
    assert (await queue.get("job")).status == "pending"
    await queue.signal("go")
    assert (await queue.get("job")).status == "ready"


async def test_a_wait_is_no_wrong_count(queue: Queue, clock: MovedClock) -> None:
    await queue.wait(await start(queue), "go", signal="go")
    assert "stale" not in await pass_time(queue, clock, HOUR)
    assert (await queue.get("job")).status == "pending"


async def test_a_lost_wait_is_mended(queue: Queue, clock: MovedClock) -> None:
    await queue.wait(await start(queue), "go", signal="go")
    root = (await sql(queue, "select root_id from waits"))[0]["root_id"]
    await queue.engine.store.run(lambda tx: tx.run("drop_open_waits", items=[(str(root),)]))
    assert (await pass_time(queue, clock, 0))["stale"] == {"mended": 1}
    assert (await queue.get("job")).status == "ready"


async def test_a_dag_with_a_dead_letter_is_open_while_a_task_of_it_sleeps(queue: Queue, clock: MovedClock) -> None:
    token = await start(queue)
    (child,) = await queue.spawn(token, [{"type": "code", "max_attempts": 1}])
    await queue.wait(token, "nap", until=clock() + HOUR)
    await queue.fail((await take(queue)).token, "crash")
    assert (await queue.get(child.id)).status == "dead_lettered"
    assert (await queue.dag((await queue.get("job")).dag_id)).status == "running"
    await pass_time(queue, clock, HOUR)
    await queue.complete(await again(queue))
    assert (await queue.dag((await queue.get("job")).dag_id)).status == "failed"


# -- cleaning up -------------------------------------------------------------------------------------------------


async def test_cancelling_ends_the_wait(queue: Queue, clock: MovedClock) -> None:
    await queue.wait(await start(queue), "nap", until=clock() + 60)
    await queue.cancel("job")
    assert (await everything(queue))["waits"] == []
    assert "waits" not in await pass_time(queue, clock, 60)
    assert (await queue.get("job")).status == "cancelled"


async def test_a_purge_leaves_no_wait_behind(queue: Queue) -> None:
    await queue.set_setting("purge.mode", "delete")
    token = await start(queue)
    await queue.signal("go")
    await queue.wait(token, "had", signal="go")
    await queue.wait(token, "open", signal="go")
    assert await queue.purge(type="code") == 1
    assert (await everything(queue))["waits"] == []
    assert (await queue.signal("go")).freed == 0


async def test_an_archived_task_leaves_no_wait_behind(queue: Queue, clock: MovedClock) -> None:
    await queue.set_setting("archive_after_sec", 60)
    token = await start(queue)
    await queue.wait(token, "nap", until=clock())
    await queue.complete(token)
    await pass_time(queue, clock, 61)
    assert (await everything(queue))["waits"] == []
    assert (await queue.get("job")).archived


async def test_workspaces_hear_their_own_signals_only(queue: Queue) -> None:
    await queue.wait(await start(queue), "go", signal="go")
    assert (await queue.in_workspace("other").signal("go")).freed == 0
    with pytest.raises(NotFound):
        await queue.in_workspace("other").signal("go", task=(await queue.get("job")).id)
    assert (await queue.get("job")).status == "pending"


# -- explained ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wait", "kind", "said"),
    [
        ({"until": 1_765_900_000.0}, "time", "it waits for a time (w)"),
        ({"signal": "go"}, "signal", "it waits for the signal 'go' (w)"),
        ({"question": "Ship it?"}, "person", "it waits for an answer to 'Ship it?' (w)"),
    ],
)
async def test_explain_names_what_is_waited_for(queue: Queue, wait: dict[str, Any], kind: str, said: str) -> None:
    await queue.wait(await start(queue), "w", **wait)
    found = await queue.explain("job")
    assert [(hold.kind, hold.what, hold.until) for hold in found.holds] == [(kind, said, wait.get("until"))]
    assert found.summary == said


# -- refused -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({}, "until"),
        ({"until": 1.0, "signal": "go"}, "until"),
        ({"until": "soon"}, "until"),
        ({"until": 1.0, "timeout_sec": 5}, "timeout_sec"),
        ({"signal": ""}, "signal"),
        ({"signal": "go", "timeout_sec": 0}, "timeout_sec"),
        ({"question": ""}, "question"),
        ({"question": "Ship?", "schema": {"type": "nonsense"}}, "schema"),
        ({"question": "Ship?", "schema": {"$ref": "file:///etc/passwd"}}, "schema"),
    ],
)
async def test_a_wait_that_makes_no_sense_is_refused(queue: Queue, fields: dict[str, Any], where: str) -> None:
    token = await start(queue)
    before = await everything(queue)
    with pytest.raises(InputError) as refused:
        await queue.wait(token, "w", **fields)
    assert refused.value.where == where
    assert await everything(queue) == before


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({"until": float("inf")}, "until"),
        ({"signal": "go", "timeout_sec": float("nan")}, "timeout_sec"),
        ({"question": "a\0b"}, "question"),
    ],
)
async def test_a_wait_that_no_store_holds_is_refused(queue: Queue, fields: dict[str, Any], where: str) -> None:
    token = await start(queue)
    before = await everything(queue)
    with pytest.raises(InputError) as refused:
        await queue.wait(token, "w", **fields)
    assert refused.value.where == where
    assert await everything(queue) == before


async def test_a_name_stands_for_one_wait(queue: Queue, clock: MovedClock) -> None:
    token = await start(queue)
    await queue.signal("go")
    await queue.wait(token, "w", signal="go")
    for other in ({"signal": "stop"}, {"until": clock() + 60}, {"question": "Ship?"}):
        with pytest.raises(InputError) as refused:
            await queue.wait(token, "w", **other)
        assert refused.value.where == "name"
    assert (await queue.get("job")).status == "running"


async def test_only_who_works_on_a_task_can_make_it_wait(queue: Queue) -> None:
    await queue.submit(type="code", id="job")
    (claimed,) = await queue.claim("worker")
    with pytest.raises(WrongState):
        await queue.wait(claimed.token, "w", signal="go")
    await queue.release(claimed.token)
    with pytest.raises(LeaseLost):
        await queue.wait(claimed.token, "w", signal="go")
    assert (await everything(queue))["waits"] == []


async def test_a_task_that_has_ended_gets_no_signal(queue: Queue) -> None:
    await queue.complete(await start(queue))
    with pytest.raises(WrongState):
        await queue.signal("go", task="job")
    with pytest.raises(NotFound):
        await queue.signal("go", task="nobody")
    assert (await everything(queue))["signals"] == []
    assert (await queue.signal("go", task=await bury(queue))).freed == 0  # it may come back
