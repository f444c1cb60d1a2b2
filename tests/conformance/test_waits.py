"""Waiting for a time or a signal without occupying a slot: named, durable, answered once."""

from typing import Any

import pytest

from shiftwork import Queue
from shiftwork.model.errors import InputError, LeaseLost, NotFound, WrongState
from shiftwork.testing import MovedClock, pass_time
from shiftwork.waits import open_waits as waits
from tests.conformance.steps import dead_letter, everything, finish, pass_time_exactly, sql, states, take

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


@pytest.mark.requirement("F-083")
async def test_sleeping_task_occupies_no_slot_and_costs_no_attempt(queue: Queue, clock: MovedClock) -> None:
    token = await start(queue)
    wait = await queue.waits.wait(token, "nap", until=clock() + HOUR)
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
    assert [attempt.outcome for attempt in await queue.tasks.attempts("job")] == ["waiting"]


async def test_ended_wait_is_answered_and_the_task_continues(queue: Queue, clock: MovedClock) -> None:
    await queue.waits.wait(await start(queue), "nap", until=clock() + 60)
    await pass_time(queue, clock, 60)
    token = await again(queue)
    for _ in range(2):
        wait = await queue.waits.wait(token, "nap", until=clock() + 60)
        assert (wait.status, wait.ended_at) == ("met", clock())
    assert (await queue.get("job")).status == "running"
    assert (await queue.waits.wait(token, "second nap", until=clock() + 60)).status == "open"


async def test_time_in_the_past_is_not_waited_for(queue: Queue, clock: MovedClock) -> None:
    token = await start(queue)
    assert (await queue.waits.wait(token, "nap", until=clock())).status == "met"
    await queue.complete(token)


async def test_usage_before_the_wait_is_charged(queue: Queue, clock: MovedClock) -> None:
    token = await start(queue)
    await queue.heartbeat(token, usage={"cost_usd": 0.5})
    await queue.waits.wait(token, "nap", until=clock() + 60)
    assert (await queue.get("job")).cost_usd == 0.5


async def test_many_timed_waits_end_in_batches(
    queue: Queue, clock: MovedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shiftwork.waits.maintenance.BATCH", 2)
    monkeypatch.setattr("shiftwork.maintenance.loop.BATCH", 2)
    await queue.submit_many([{"type": "code"}] * 5)
    await queue.agents.register(id="sleeper", max_concurrent_tasks=5)
    for taken in await queue.claim("sleeper", 5, start=True):
        await queue.waits.wait(taken.token, "nap", until=clock() + 60)
    assert (await pass_time(queue, clock, 60))["waits"] == {"ended": 5}
    assert (await queue.status()).counts == {"ready": 5}


async def test_signal_releases_the_tasks_waiting_for_it(queue: Queue) -> None:
    await queue.waits.wait(await start(queue), "deployed?", signal="deployed")
    other = await queue.submit(type="code")
    await queue.waits.wait((await take(queue)).token, "other", signal="tested")
    sent = await queue.as_caller("human:ada").waits.signal("deployed", {"build": 7})
    assert (sent.name, sent.freed) == ("deployed", 1)
    wait = await queue.waits.wait(await again(queue), "deployed?", signal="deployed")
    assert (wait.status, wait.value, wait.answered_by) == ("met", {"build": 7}, "human:ada")
    assert (await queue.get(other.id)).status == "pending"


async def test_signal_to_one_task_releases_no_other(queue: Queue) -> None:
    await queue.waits.wait(await start(queue), "go", signal="go")
    other = await queue.submit(type="code")
    await queue.waits.wait((await take(queue)).token, "go", signal="go")
    assert (await queue.waits.signal("go", task="job")).freed == 1
    assert (await queue.get(other.id)).status == "pending"
    assert (await queue.waits.signal("go")).freed == 1


async def test_signal_sent_before_the_wait_is_not_lost(queue: Queue, clock: MovedClock) -> None:
    token = await start(queue)
    assert (await queue.waits.signal("go", 1)).freed == 0
    clock.advance(HOUR)
    wait = await queue.waits.wait(token, "go", signal="go")
    assert (wait.status, wait.value) == ("met", 1)
    assert (await queue.get("job")).status == "running"


async def test_each_signal_is_consumed_once_by_a_task(queue: Queue) -> None:
    token = await start(queue)
    await queue.waits.signal("go", 1)
    await queue.waits.signal("go", 2)
    taken = [await queue.waits.wait(token, name, signal="go") for name in ("first", "second", "first")]
    assert [wait.value for wait in taken] == [1, 2, 1]
    assert (await queue.waits.wait(token, "third", signal="go")).status == "open"
    await queue.waits.signal("go", 3)
    assert (await queue.waits.wait(await again(queue), "third", signal="go")).value == 3


async def test_signal_older_than_the_task_is_ignored(queue: Queue, clock: MovedClock) -> None:
    await queue.waits.signal("go")
    clock.advance(1)
    assert (await queue.waits.wait(await start(queue), "go", signal="go")).status == "open"


async def test_signal_for_another_task_is_ignored(queue: Queue) -> None:
    token = await start(queue)
    other = await queue.submit(type="code")
    await queue.waits.signal("go", task=other.id)
    assert (await queue.waits.wait(token, "go", signal="go")).status == "open"


async def test_signals_are_kept_for_a_day(queue: Queue, clock: MovedClock) -> None:
    await queue.waits.signal("go")
    await pass_time_exactly(queue, clock, DAY)
    assert len((await everything(queue))["signals"]) == 1
    assert (await pass_time_exactly(queue, clock, 1))["retention"]["signals"] == 1
    assert (await everything(queue))["signals"] == []


async def test_wait_for_a_signal_expires_after_its_timeout(queue: Queue, clock: MovedClock) -> None:
    await queue.waits.wait(await start(queue), "go", signal="go", timeout_sec=60)
    clock.advance(60)
    assert (await queue.waits.signal("go")).freed == 0  # too late, though no maintenance job has looked yet
    await pass_time(queue, clock, 0)
    token = await again(queue)
    wait = await queue.waits.wait(token, "go", signal="go", timeout_sec=60)
    assert (wait.status, wait.value) == ("expired", None)
    assert (await queue.waits.wait(token, "go again", signal="go")).status == "met"


async def test_signal_reaches_more_than_one_page_of_tasks(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waits, "BATCH", 2)
    await five_waiting(queue)
    assert (await queue.waits.signal("go", "now")).freed == 5
    assert (await queue.status()).counts == {"ready": 5}


async def five_waiting(queue: Queue) -> None:
    await queue.submit_many([{"type": "code"}] * 5)
    await queue.agents.register(id="waiter", max_concurrent_tasks=5)
    for taken in await queue.claim("waiter", 5, start=True):
        await queue.waits.wait(taken.token, "go", signal="go")


async def test_signal_continues_by_maintenance_after_its_sender_died(
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
    assert (await queue.waits.wait(taken.token, "once more", signal="go")).status == "open"
    for _ in range(3):
        await pass_time(queue, clock, 5)
    assert (await queue.status()).counts == {"ready": 4, "pending": 1}
    assert (await queue.get(taken.id)).waits[0].name == "once more"


async def test_wait_answers_survive_a_failed_attempt(queue: Queue, clock: MovedClock) -> None:
    token = await start(queue)
    await queue.waits.signal("go", 1)
    assert (await queue.waits.wait(token, "go", signal="go")).value == 1
    await queue.fail(token, "crash")
    await pass_time(queue, clock, HOUR)
    assert (await queue.waits.wait(await again(queue), "go", signal="go")).value == 1


async def test_wait_answers_survive_a_retry_as_new_task(aegis: Queue, clock: MovedClock) -> None:
    token = await start(aegis)
    await aegis.waits.signal("go", 1)
    assert (await aegis.waits.wait(token, "go", signal="go")).value == 1
    await aegis.fail(token, "timeout")
    await pass_time(aegis, clock, HOUR)
    retry = await take(aegis)
    assert retry.id != (await aegis.get("job")).id
    assert (await aegis.waits.wait(retry.token, "go", signal="go")).value == 1
    # The retry was created after the signal; its lineage was not.
    assert (await aegis.waits.wait(retry.token, "nap", until=clock() + 1)).status == "open"
    assert (await aegis.get(retry.id)).waits[0].name == "nap"
    await pass_time(aegis, clock, 1)
    assert (await aegis.get(retry.id)).status == "ready"


async def test_rerun_waits_for_signals_again(queue: Queue, clock: MovedClock) -> None:
    token = await start(queue)
    await queue.waits.signal("go", 1)
    await queue.waits.wait(token, "go", signal="go")
    await queue.complete(token)
    clock.advance(1)
    await queue.tasks.rerun("job")
    token = (await take(queue)).token
    assert (await queue.waits.wait(token, "go", signal="go")).status == "open"
    assert (await queue.waits.signal("go", 2)).freed == 1


async def test_retried_dead_letter_keeps_its_wait_answers(queue: Queue) -> None:
    token = await start(queue, max_attempts=1)
    await queue.waits.signal("go", 1)
    await queue.waits.wait(token, "go", signal="go")
    await queue.fail(token, "crash")
    await queue.dead_letters.review("job", "retry")
    assert (await queue.waits.wait(await again(queue), "go", signal="go")).value == 1


async def test_retried_dead_letter_repeats_its_expired_waits(queue: Queue, clock: MovedClock) -> None:
    await queue.waits.wait(await start(queue), "go", signal="go", timeout_sec=60)
    await pass_time(queue, clock, 60)
    token = await again(queue)
    assert (await queue.waits.wait(token, "go", signal="go", timeout_sec=60)).status == "expired"
    await queue.fail(token, "crash", retry=False)
    await queue.dead_letters.review("job", "retry")
    assert (await queue.waits.wait(await again(queue), "go", signal="go", timeout_sec=60)).status == "open"


async def test_task_modified_on_review_asks_its_questions_again(queue: Queue) -> None:
    token = await start(queue)
    await queue.waits.wait(token, "sure", question="Sure?")
    await queue.approvals.answer("job", "yes")
    await queue.fail(await again(queue), "crash", retry=False)
    await queue.dead_letters.review("job", "modify_and_retry", change={"payload": {"other": True}})
    assert (await queue.waits.wait(await again(queue), "sure", question="Sure?")).status == "open"


async def test_task_is_ready_only_after_wait_and_dependency_ended(queue: Queue) -> None:
    await queue.waits.wait(await start(queue), "go", signal="go")
    other = await queue.submit(type="code")
    await queue.tasks.update("job", {"dependencies": [other.id]})
    await queue.waits.signal("go")
    job = await queue.get("job")
    assert (job.status, job.blocked_by, job.waits) == ("pending", [other.id], [])
    await finish(queue)
    assert (await queue.get("job")).status == "ready"


async def test_new_dependencies_do_not_end_a_wait(queue: Queue) -> None:
    await queue.waits.wait(await start(queue), "go", signal="go")
    await queue.tasks.update("job", {"dependencies": []})
    assert (await queue.get("job")).status == "pending"
    await queue.waits.signal("go")
    assert (await queue.get("job")).status == "ready"


async def test_waiting_task_is_not_treated_as_stranded(queue: Queue, clock: MovedClock) -> None:
    await queue.waits.wait(await start(queue), "go", signal="go")
    assert "stale" not in await pass_time(queue, clock, HOUR)
    assert (await queue.get("job")).status == "pending"


async def test_lost_wait_is_repaired_by_maintenance(queue: Queue, clock: MovedClock) -> None:
    await queue.waits.wait(await start(queue), "go", signal="go")
    root = (await sql(queue, "select root_id from waits"))[0]["root_id"]
    await queue.engine.store.run(lambda tx: tx.run("drop_open_waits", items=[(str(root),)]))
    assert (await pass_time(queue, clock, 0))["stale"] == {"repaired": 1}
    assert (await queue.get("job")).status == "ready"


async def test_dag_with_a_dead_letter_stays_open_while_a_task_sleeps(queue: Queue, clock: MovedClock) -> None:
    token = await start(queue)
    (child,) = await queue.spawn(token, [{"type": "code", "max_attempts": 1}])
    await queue.waits.wait(token, "nap", until=clock() + HOUR)
    await queue.fail((await take(queue)).token, "crash")
    assert (await queue.get(child.id)).status == "dead_lettered"
    assert (await queue.dags.get((await queue.get("job")).dag_id)).status == "running"
    await pass_time(queue, clock, HOUR)
    await queue.complete(await again(queue))
    assert (await queue.dags.get((await queue.get("job")).dag_id)).status == "failed"


async def test_cancelling_a_task_ends_its_wait(queue: Queue, clock: MovedClock) -> None:
    await queue.waits.wait(await start(queue), "nap", until=clock() + 60)
    await queue.cancel("job")
    assert (await everything(queue))["waits"] == []
    assert "waits" not in await pass_time(queue, clock, 60)
    assert (await queue.get("job")).status == "cancelled"


async def test_purge_deletes_waits_of_its_tasks(queue: Queue) -> None:
    await queue.settings.set("purge.mode", "delete")
    token = await start(queue)
    await queue.waits.signal("go")
    await queue.waits.wait(token, "had", signal="go")
    await queue.waits.wait(token, "open", signal="go")
    assert await queue.control.purge(type="code") == 1
    assert (await everything(queue))["waits"] == []
    assert (await queue.waits.signal("go")).freed == 0


async def test_archived_task_leaves_no_wait_rows(queue: Queue, clock: MovedClock) -> None:
    await queue.settings.set("archive_after_sec", 60)
    token = await start(queue)
    await queue.waits.wait(token, "nap", until=clock())
    await queue.complete(token)
    await pass_time(queue, clock, 61)
    assert (await everything(queue))["waits"] == []
    assert (await queue.get("job")).archived


async def test_signals_do_not_reach_other_workspaces(queue: Queue) -> None:
    await queue.waits.wait(await start(queue), "go", signal="go")
    assert (await queue.in_workspace("other").waits.signal("go")).freed == 0
    with pytest.raises(NotFound):
        await queue.in_workspace("other").waits.signal("go", task=(await queue.get("job")).id)
    assert (await queue.get("job")).status == "pending"


@pytest.mark.parametrize(
    ("wait", "kind", "said"),
    [
        ({"until": 1_765_900_000.0}, "time", "it waits for a time (w)"),
        ({"signal": "go"}, "signal", "it waits for the signal 'go' (w)"),
        ({"question": "Ship it?"}, "person", "it waits for an answer to 'Ship it?' (w)"),
    ],
)
async def test_explain_names_the_wait_of_a_task(queue: Queue, wait: dict[str, Any], kind: str, said: str) -> None:
    await queue.waits.wait(await start(queue), "w", **wait)
    found = await queue.explain("job")
    assert [(hold.kind, hold.what, hold.until) for hold in found.holds] == [(kind, said, wait.get("until"))]
    assert found.summary == said


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
async def test_invalid_wait_is_refused_without_changes(queue: Queue, fields: dict[str, Any], where: str) -> None:
    token = await start(queue)
    before = await everything(queue)
    with pytest.raises(InputError) as refused:
        await queue.waits.wait(token, "w", **fields)
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
async def test_wait_with_text_invalid_for_databases_is_refused(
    queue: Queue, fields: dict[str, Any], where: str
) -> None:
    token = await start(queue)
    before = await everything(queue)
    with pytest.raises(InputError) as refused:
        await queue.waits.wait(token, "w", **fields)
    assert refused.value.where == where
    assert await everything(queue) == before


async def test_wait_name_cannot_be_reused_for_another_wait(queue: Queue, clock: MovedClock) -> None:
    token = await start(queue)
    await queue.waits.signal("go")
    await queue.waits.wait(token, "w", signal="go")
    for other in ({"signal": "stop"}, {"until": clock() + 60}, {"question": "Ship?"}):
        with pytest.raises(InputError) as refused:
            await queue.waits.wait(token, "w", **other)
        assert refused.value.where == "name"
    assert (await queue.get("job")).status == "running"


async def test_wait_without_a_running_claim_is_refused(queue: Queue) -> None:
    await queue.submit(type="code", id="job")
    (claimed,) = await queue.claim("worker")
    with pytest.raises(WrongState):
        await queue.waits.wait(claimed.token, "w", signal="go")
    await queue.release(claimed.token)
    with pytest.raises(LeaseLost):
        await queue.waits.wait(claimed.token, "w", signal="go")
    assert (await everything(queue))["waits"] == []


async def test_signal_to_an_ended_task_is_refused(queue: Queue) -> None:
    await queue.complete(await start(queue))
    with pytest.raises(WrongState):
        await queue.waits.signal("go", task="job")
    with pytest.raises(NotFound):
        await queue.waits.signal("go", task="nobody")
    assert (await everything(queue))["signals"] == []
    assert (await queue.waits.signal("go", task=await dead_letter(queue))).freed == 0  # it may come back
