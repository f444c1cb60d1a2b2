"""Alerts: each is written with its cause, raised once, and acknowledged by a person."""

import asyncio
import logging
from typing import cast

import pytest

from shiftwork import Failure, Queue
from shiftwork.dead_letters.model import Decision
from shiftwork.engine import finish
from shiftwork.engine.checked_reports import CheckedFailure
from shiftwork.model.errors import InputError, NotFound
from shiftwork.model.outcome import parse_token
from shiftwork.model.reports import TaskFailure
from shiftwork.observe.alert_kinds import KINDS
from shiftwork.observe.model import Alert
from shiftwork.store.store import Tx
from shiftwork.testing import MovedClock, pass_time
from tests.conformance.steps import dead_letter, events_named, pass_time_exactly, submit_dag, take


async def of_kind(queue: Queue, kind: str) -> list[Alert]:
    return await queue.alerts.list(kind=kind)


@pytest.mark.requirement("L-075")
async def test_dead_letter_raises_alert_with_documented_message(loki: Queue, clock: MovedClock) -> None:
    task_id = await dead_letter(loki)
    (alert,) = await loki.alerts.list()
    assert alert.message == f"Task {task_id} moved to dead letter queue"
    assert (alert.kind, alert.severity, alert.task_id) == ("dead_lettered", "warning", task_id)
    assert (alert.at, alert.workspace_id, alert.acknowledged_at) == (clock(), "default", None)
    assert alert.data == {"type": "code", "reason": "crash"}


async def test_failure_that_is_retried_raises_no_alert(queue: Queue) -> None:
    await queue.submit(type="code")
    await queue.fail((await take(queue)).token, "crash")
    assert await queue.alerts.list() == []


class Undone(Exception):
    """Rolls the transaction back."""


async def test_alert_is_rolled_back_with_its_cause(queue: Queue) -> None:
    await queue.submit(type="code")
    token = parse_token((await take(queue)).token)

    async def undone(tx: Tx) -> None:
        (outcome,) = await finish.fail(
            tx, queue.engine, queue.caller, [CheckedFailure(token, TaskFailure("crash", retry=False))]
        )
        assert outcome.status == "dead_lettered"
        raise Undone

    with pytest.raises(Undone):
        await queue.engine.store.run(undone)
    assert await queue.alerts.list() == []


async def test_bulk_dead_letters_raise_one_alert_each_and_no_more_events(queue: Queue) -> None:
    await queue.settings.set("circuit_breaker", None)
    await queue.agents.register(id="worker", max_concurrent_tasks=100)
    await queue.submit_many([{"type": "code", "max_attempts": 1}] * 20)
    held = await queue.claim("worker", 20, start=True)
    before = len((await queue.events()).events)
    await queue.batch.fail([Failure("crash", token=each.token) for each in held])
    alerts = await queue.alerts.list()
    assert sorted(alert.task_id or "" for alert in alerts) == sorted(each.id for each in held)
    assert len((await queue.events()).events) - before == 20
    assert sorted(await events_named(queue, "alert.raised")) == sorted(each.id for each in held)  # type: ignore[type-var]  # tasks all


async def test_poison_pill_raises_its_own_critical_alert(queue: Queue, clock: MovedClock) -> None:
    task_id = (await queue.submit(type="code", max_attempts=9)).id
    for agent in ("first", "second", "first"):
        await queue.fail((await take(queue, agent)).token, "crash")
        await pass_time_exactly(queue, clock, 3600)
    assert [alert.kind for alert in await queue.alerts.list()] == ["dead_lettered", "poison_pill"]
    (pill,) = await of_kind(queue, "poison_pill")
    assert (pill.task_id, pill.severity) == (task_id, "critical")


async def test_unknown_delivery_outcome_raises_its_own_alert(queue: Queue, clock: MovedClock) -> None:
    task_id = (await queue.submit(type="code", delivery="at_most_once")).id
    await take(queue)
    await pass_time(queue, clock, 3600)
    (alert,) = await of_kind(queue, "delivery_unknown")
    assert alert.message == f"Task {task_id} was started once, and its outcome is unknown"
    assert len(await of_kind(queue, "dead_lettered")) == 1


async def test_agent_marked_failed_raises_an_alert(queue: Queue) -> None:
    await queue.agents.register(id="mule")
    await queue.agents.set_status("mule", "offline")
    assert await queue.alerts.list() == []
    await queue.agents.set_status("mule", "failed")
    (alert,) = await queue.alerts.list()
    assert (alert.kind, alert.message, alert.data) == ("agent_failed", "Agent mule failed", {"agent": "mule"})


@pytest.mark.requirement("C-180")
async def test_silent_worker_with_several_tasks_raises_one_alert(coscientist: Queue, clock: MovedClock) -> None:
    await coscientist.agents.register(id="worker-7", max_concurrent_tasks=5)
    await coscientist.submit_many([{"type": "Ranking", "payload": {"n": n}} for n in range(3)])
    assert len(await coscientist.claim("worker-7", 3, start=True)) == 3
    await pass_time(coscientist, clock, 29)
    assert await coscientist.alerts.list() == []
    await pass_time(coscientist, clock, 3600)
    (alert,) = await of_kind(coscientist, "agent_silent")
    assert alert.message == "Agent worker-7 went silent with 3 tasks"


async def test_dead_runtime_with_work_raises_an_alert(queue: Queue) -> None:
    await queue.submit(type="code")
    await queue.claim("worker", runtime_id="host-1", start=True)
    await queue.runtimes.report_gone("host-2")
    assert await queue.alerts.list() == []
    await queue.runtimes.report_gone("host-1")
    assert {(alert.kind, alert.message) for alert in await queue.alerts.list()} == {
        ("runtime_gone", "Runtime host-1 is gone with 1 tasks"),
        ("agent_failed", "Agent worker failed"),
    }


async def test_missing_dependency_raises_one_alert_with_its_name(coscientist: Queue, clock: MovedClock) -> None:
    task_id = (await coscientist.submit(type="Ranking", dependencies=["tournament-7"])).id
    await pass_time(coscientist, clock, 300)
    (alert,) = await of_kind(coscientist, "missing_dependency")
    assert alert.message == f"Task {task_id} is blocked: tournament-7 does not exist"
    await pass_time(coscientist, clock, 300)
    assert len(await of_kind(coscientist, "missing_dependency")) == 1


async def test_dependency_wait_over_limit_raises_an_alert(coscientist: Queue, clock: MovedClock) -> None:
    await coscientist.settings.set("dependency_wait_applies_to", "all")
    first = (await coscientist.submit(type="Ranking")).id
    second = (await coscientist.submit(type="Ranking", dependencies=[first], payload={"n": 2})).id
    await pass_time(coscientist, clock, 300)
    (alert,) = await of_kind(coscientist, "dependency_wait")
    assert alert.task_id == second


async def test_failed_dependency_alerts_each_creator_of_dependents(queue: Queue) -> None:
    failed = (await queue.submit(type="code")).id
    for creator, count in (("ada", 2), ("bob", 1)):
        await queue.submit_many([{"type": "docs", "dependencies": [failed], "created_by": creator}] * count)
    await queue.fail((await take(queue)).token, "crash", retry=False)
    outcome = await of_kind(queue, "dependency_failed")
    assert [alert.message for alert in outcome] == [
        f"Task {failed} failed; 2 tasks of ada depend on it",
        f"Task {failed} failed; 1 tasks of bob depend on it",
    ]


async def test_submit_after_dependency_failed_alerts_its_creator(queue: Queue) -> None:
    failed = await dead_letter(queue)
    await queue.submit(type="docs", dependencies=[failed], created_by="eve")
    (alert,) = await of_kind(queue, "dependency_failed")
    assert (alert.task_id, alert.data) == (failed, {"creator": "eve", "count": 1})


@pytest.mark.requirement("L-087")
async def test_escalating_a_dead_letter_marks_it_and_raises_an_alert(loki: Queue) -> None:
    task_id = await dead_letter(loki)
    await loki.as_caller("human:ada").dead_letters.review(task_id, "escalate", note="needs a lawyer")
    (letter,) = await loki.dead_letters.list()
    assert letter.resolution == "escalate"
    (alert,) = await of_kind(loki, "escalated")
    assert (alert.message, alert.severity) == (f"Task {task_id} was escalated by human:ada", "critical")
    assert alert.data["note"] == "needs a lawyer"


async def test_alerts_can_be_paged_by_sequence_number(queue: Queue) -> None:
    await queue.settings.set("circuit_breaker", None)
    buried = [await dead_letter(queue) for _ in range(5)]
    seen: list[str | None] = []
    after = 0
    while page := await queue.alerts.list(after, limit=2):
        seen += [alert.task_id for alert in page]
        after = page[-1].seq
    assert seen == buried
    assert await queue.alerts.list(after) == []


async def test_first_acknowledgement_of_an_alert_is_kept(queue: Queue, clock: MovedClock) -> None:
    await dead_letter(queue)
    (alert,) = await queue.alerts.list(open_only=True)
    clock.advance(5)
    done = await queue.as_caller("human:ada").alerts.acknowledge(alert.seq)
    assert (done.acknowledged_by, done.acknowledged_at) == ("human:ada", clock())
    clock.advance(5)
    assert await queue.as_caller("human:bob").alerts.acknowledge(alert.seq) == done
    assert await queue.alerts.list(open_only=True) == []
    assert await queue.alerts.list() == [done]
    assert len(await events_named(queue, "alert.acknowledged")) == 1


async def test_alerts_of_other_workspaces_are_not_found(queue: Queue) -> None:
    await dead_letter(queue)
    (alert,) = await queue.alerts.list()
    other = queue.in_workspace("other")
    assert await other.alerts.list() == []
    for missing in (alert.seq, alert.seq + 1000):
        with pytest.raises(NotFound):
            await other.alerts.acknowledge(missing)
    assert await queue.alerts.list(open_only=True) == [alert]


async def test_unknown_alert_kind_is_refused_with_the_known_kinds(queue: Queue) -> None:
    with pytest.raises(InputError, match="dead_lettered, poison_pill"):
        await queue.alerts.list(kind="fire")


async def test_acknowledged_alerts_are_deleted_after_retention_and_open_ones_kept(
    queue: Queue, clock: MovedClock
) -> None:
    await queue.settings.set("archive_after_sec", 100)
    for _ in range(2):
        await dead_letter(queue)
    first, second = await queue.alerts.list()
    await queue.alerts.acknowledge(first.seq)
    await pass_time_exactly(queue, clock, 99)
    assert len(await queue.alerts.list()) == 2
    assert (await pass_time_exactly(queue, clock, 1))["retention"] == {"alerts": 1}
    assert await queue.alerts.list() == [second]


async def test_without_retention_alerts_are_kept(queue: Queue, clock: MovedClock) -> None:
    await queue.settings.set("archive_after_sec", None)
    await dead_letter(queue)
    (alert,) = await queue.alerts.list()
    await queue.alerts.acknowledge(alert.seq)
    await pass_time(queue, clock, 1e8)
    assert len(await queue.alerts.list()) == 1


async def test_event_names_the_alerts_it_raised(queue: Queue) -> None:
    await submit_dag(queue, {"a": [], "b": ["a"]})
    await queue.fail((await take(queue)).token, "crash", retry=False)
    outcome = [event for event in (await queue.events()).events if "alert.raised" in event.names]
    assert [(event.data or {})["alerts"] for event in outcome] == [["dead_lettered"], ["dependency_failed"]]


async def test_reader_sees_every_alert_once_during_concurrent_writes(queue: Queue) -> None:
    """Numbers are taken before the commit: a reader that continues behind its last one must not pass one over."""
    await queue.settings.set("circuit_breaker", None)
    await queue.agents.register(id="worker", max_concurrent_tasks=1000)
    await queue.submit_many([{"type": "code", "max_attempts": 1}] * 120)
    held = await queue.claim("worker", 120, start=True)
    failing = asyncio.gather(*(queue.fail(each.token, "crash") for each in held))
    seen: list[str | None] = []
    after = 0
    while True:
        ended = failing.done()
        page = await queue.alerts.list(after, limit=7)
        seen += [alert.task_id for alert in page]
        after = page[-1].seq if page else after
        if ended and not page:
            break
    await failing
    assert sorted(seen, key=str) == sorted(each.id for each in held)


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "shiftwork.engine")
    return caplog


@pytest.mark.requirement("L-080")
async def test_retry_is_logged_with_its_number_and_delay(
    loki: Queue, clock: MovedClock, lines: pytest.LogCaptureFixture
) -> None:
    task_id = (await loki.submit(type="code")).id
    for _ in range(2):
        await loki.fail((await take(loki)).token, "crash")
        await pass_time(loki, clock, 3600)
    outcome = [line for line in lines.messages if " retry " in line]
    assert outcome == [f"Task {task_id} retry 1, backoff 60s", f"Task {task_id} retry 2, backoff 120s"]


@pytest.mark.requirement("L-092")
async def test_duplicate_submit_is_logged_with_its_key(loki: Queue, lines: pytest.LogCaptureFixture) -> None:
    first = await loki.submit(type="code", payload={"file": "a.py"})
    again = await loki.submit(type="code", payload={"file": "a.py"})
    assert again.id == first.id
    key = (await loki.get(first.id)).idempotency_key
    assert key
    assert f"Duplicate task detected: {key}" in lines.messages


@pytest.mark.requirement("L-140")
async def test_rate_limit_is_logged_with_agent_and_wait(loki: Queue, lines: pytest.LogCaptureFixture) -> None:
    await loki.settings.set("rate_limit.jitter_range", [1.0, 1.0])
    await loki.submit(type="code")
    await loki.fail((await take(loki, "a1")).token, "rate_limit", "429 Too Many Requests, retry-after: 30")
    assert "Rate limit hit for a1, waiting 30s" in lines.messages


def test_every_alert_kind_has_meaning_text_and_severity() -> None:
    assert all(kind.meaning and kind.text for kind in KINDS.values())
    assert {kind.severity for kind in KINDS.values()} <= {"info", "warning", "critical"}


async def open_kinds(queue: Queue) -> list[str]:
    return [alert.kind for alert in await queue.alerts.list(open_only=True)]


@pytest.mark.parametrize("way", ["reset", "trial"])
async def test_breaker_alert_is_acknowledged_when_breaker_closes(queue: Queue, clock: MovedClock, way: str) -> None:
    await queue.settings.set("circuit_breaker.failure_threshold", 1)
    await queue.submit_many([{"type": "code", "max_attempts": 1}, {"type": "code"}])
    await queue.fail((await take(queue)).token, "crash")
    assert "breaker_open" in await open_kinds(queue)
    if way == "reset":
        await queue.breakers.reset("code")
    else:
        await pass_time(queue, clock, 3600)
        await queue.complete((await take(queue)).token)
    assert "breaker_open" not in await open_kinds(queue)
    (alert,) = await of_kind(queue, "breaker_open")
    assert alert.acknowledged_at == clock()


@pytest.mark.parametrize("way", ["retry", "abandon", "cancel", "rerun"])
async def test_dead_letter_alert_is_closed_by_a_review_decision(queue: Queue, way: str) -> None:
    task_id = await dead_letter(queue)
    other = await dead_letter(queue)
    assert await open_kinds(queue) == ["dead_lettered"] * 2
    if way == "rerun":
        await queue.tasks.rerun(task_id)
    elif way == "cancel":
        await queue.cancel(task_id)
    else:
        await queue.dead_letters.review(task_id, cast(Decision, way))
    assert [alert.task_id for alert in await queue.alerts.list(open_only=True)] == [other]


async def test_escalated_dead_letter_alert_stays_open(queue: Queue) -> None:
    await queue.dead_letters.review(await dead_letter(queue), "escalate")
    assert await open_kinds(queue) == ["dead_lettered", "escalated"]
