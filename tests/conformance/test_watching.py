"""Alert conditions: each is reported once when it begins and once when it ends."""

import asyncpg
import pytest

from shiftwork import Queue
from shiftwork.maintenance.loop import run_once
from shiftwork.observe.model import Alert
from shiftwork.testing import MovedClock, pass_time
from tests.conformance.steps import events_named, finish, pass_time_exactly, take

HIGH, MEDIUM, LOW = 20, 50, 70


async def open_alerts(queue: Queue, *kinds: str) -> list[Alert]:
    return [alert for alert in await queue.alerts.list(open_only=True, limit=1000) if alert.kind in kinds]


async def emitted(queue: Queue, *names: str) -> list[str]:
    """Events of these names, in order."""
    events = (await queue.events(limit=10_000)).events
    return [name for event in events for name in event.names if name in names]


CAPACITY = ("capacity.warning", "capacity.critical", "capacity.normal")


async def submit(queue: Queue, count: int, priority: float = MEDIUM) -> None:
    await queue.submit_many([{"type": "code", "priority": priority}] * count)


async def work_off(queue: Queue, count: int) -> None:
    for _ in range(count):
        await finish(queue)


@pytest.mark.requirement("C-034", "C-066", "C-135", "C-189", "C-190")
async def test_filling_queue_warns_once_at_each_threshold(queue: Queue, clock: MovedClock) -> None:
    await queue.settings.set("max_queue_size", 100)
    await submit(queue, 79)
    assert (await queue.status()).capacity_warnings == []
    assert await emitted(queue, *CAPACITY) == []
    await submit(queue, 1)
    assert (await queue.status()).capacity_warnings == ["warning: total 80 of 100"]
    (alert,) = await open_alerts(queue, "capacity_warning")
    assert alert.message == "Capacity: 80 of 100 tasks wait (total)"
    await submit(queue, 14)
    assert await emitted(queue, *CAPACITY) == ["capacity.warning"]
    await submit(queue, 1)
    assert await emitted(queue, *CAPACITY) == ["capacity.warning", "capacity.critical"]
    assert [alert.kind for alert in await open_alerts(queue, "capacity_warning", "capacity_critical")] == [
        "capacity_critical"
    ]
    await pass_time(queue, clock, 30)
    assert len(await emitted(queue, *CAPACITY)) == 2


async def test_regained_capacity_is_reported_and_closes_the_alert(queue: Queue, clock: MovedClock) -> None:
    await queue.settings.set("max_queue_size", 10)
    await submit(queue, 10)
    await work_off(queue, 1)
    await run_once(queue.engine, force=True)
    assert await emitted(queue, *CAPACITY) == ["capacity.critical", "capacity.warning"]
    await work_off(queue, 2)
    await pass_time(queue, clock, 30)
    assert await emitted(queue, *CAPACITY) == ["capacity.critical", "capacity.warning", "capacity.normal"]
    assert await open_alerts(queue, "capacity_warning", "capacity_critical") == []
    assert {alert.acknowledged_by for alert in await queue.alerts.list()} == {"maintenance:alerts"}
    await submit(queue, 1)
    assert (await emitted(queue, *CAPACITY))[3:] == ["capacity.warning"]


@pytest.mark.requirement("C-038")
async def test_capacity_thresholds_are_settings_and_apply_per_level(queue: Queue) -> None:
    await queue.settings.change({"priority_quotas.high": 10, "warning_at": 0.3, "critical_at": 0.5})
    await submit(queue, 2, HIGH)
    assert (await queue.status()).capacity_warnings == []
    await submit(queue, 1, HIGH)
    assert (await queue.status()).capacity_warnings == ["warning: high 3 of 10"]
    await submit(queue, 2, HIGH)
    assert (await queue.status()).capacity_warnings == ["critical: high 5 of 10"]


async def test_removed_limit_ends_its_warning(queue: Queue, clock: MovedClock) -> None:
    await queue.settings.set("max_queue_size", 1)
    await submit(queue, 1)
    await queue.settings.unset("max_queue_size")
    await pass_time(queue, clock, 30)
    assert await open_alerts(queue, "capacity_critical") == []


@pytest.mark.requirement("C-118")
async def test_deep_queue_raises_one_alert_until_it_is_shallow_again(queue: Queue, clock: MovedClock) -> None:
    await queue.settings.set("alerts.queue_depth", 10)
    await submit(queue, 10)
    await run_once(queue.engine)
    assert await open_alerts(queue, "queue_depth") == []
    await submit(queue, 1)
    clock.advance(29)
    await run_once(queue.engine)
    assert await open_alerts(queue, "queue_depth") == []
    clock.advance(1)
    await run_once(queue.engine)
    (alert,) = await open_alerts(queue, "queue_depth")
    assert alert.message == "More than 10 tasks wait"
    await pass_time_exactly(queue, clock, 30)
    assert len(await queue.alerts.list(kind="queue_depth")) == 1
    await work_off(queue, 1)
    await pass_time_exactly(queue, clock, 30)
    assert await open_alerts(queue, "queue_depth") == []
    assert await emitted(queue, "condition.began", "condition.over") == ["condition.began", "condition.over"]


@pytest.mark.requirement("C-120")
async def test_high_failure_rate_of_a_type_raises_an_alert(queue: Queue, clock: MovedClock) -> None:
    await queue.settings.change(
        {"alerts.failure_rate": 0.5, "alerts.failure_count": 4, "circuit_breaker": None, "max_attempts": 1}
    )
    await submit(queue, 4)
    await work_off(queue, 2)
    await queue.fail((await take(queue)).token, "crash", "boom")
    await run_once(queue.engine, force=True)
    assert await open_alerts(queue, "failure_rate") == []
    await queue.fail((await take(queue)).token, "crash", "boom")
    await run_once(queue.engine, force=True)
    (alert,) = await open_alerts(queue, "failure_rate")
    assert alert.message == "2 of 4 attempts of type code failed"
    await pass_time(queue, clock, 301)
    assert await open_alerts(queue, "failure_rate") == []


@pytest.mark.requirement("C-121")
async def test_long_running_task_raises_an_alert(queue: Queue, clock: MovedClock) -> None:
    await queue.submit(type="code", timeout_sec=1000)
    held = await take(queue, "mule")
    for _ in range(13):
        await pass_time_exactly(queue, clock, 60)
        await queue.heartbeat(held.token)
    assert await open_alerts(queue, "task_stuck") == []
    await pass_time_exactly(queue, clock, 20)
    (alert,) = await open_alerts(queue, "task_stuck")
    assert (alert.task_id, alert.message) == (held.id, f"Task {held.id} has been executed by mule for 800 s")
    await queue.complete(held.token)
    await pass_time_exactly(queue, clock, 30)
    assert await open_alerts(queue, "task_stuck") == []


async def test_task_unclaimed_for_an_hour_raises_an_alert(queue: Queue, clock: MovedClock) -> None:
    made = await queue.submit(type="code")
    await pass_time_exactly(queue, clock, 3599)
    assert await open_alerts(queue, "backlog_age") == []
    await pass_time_exactly(queue, clock, 1)
    (alert,) = await open_alerts(queue, "backlog_age")
    assert alert.task_id == made.id
    await finish(queue)
    await pass_time_exactly(queue, clock, 30)
    assert await open_alerts(queue, "backlog_age") == []


async def test_old_transaction_blocking_vacuum_raises_an_alert(postgres_dsn: str) -> None:
    async with Queue.open(postgres_dsn) as queue:
        await queue.settings.set("alerts.transaction_sec", 0)
        other = await asyncpg.connect(postgres_dsn)
        try:
            async with other.transaction():
                await other.execute("select 1")
                await run_once(queue.engine, force=True)
                (alert,) = await open_alerts(queue, "old_transaction")
                assert f"process {other.get_server_pid()} " in alert.message
            await run_once(queue.engine, force=True)
            assert await open_alerts(queue, "old_transaction") == []
        finally:
            await other.close()


@pytest.mark.requirement("C-100")
async def test_failure_groups_show_rate_and_agents(queue: Queue) -> None:
    await queue.settings.set("circuit_breaker", None)
    await queue.agents.register(id="sonnet-1", models_available=["sonnet"])
    await queue.agents.register(id="sonnet-2", models_available=["sonnet"])
    await queue.agents.register(id="any", models_available=["sonnet", "opus"])
    for agent, error in (("sonnet-1", "boom 1"), ("sonnet-2", "boom 2"), ("any", "bang"), ("any", None)):
        await queue.submit(type="code")
        held = await take(queue, agent)
        if error is None:
            await queue.complete(held.token)
        else:
            await queue.fail(held.token, "crash", error, retry=False)
    (of_type,) = await queue.metrics.failures("type")
    assert (of_type.value, of_type.total, of_type.rate) == ("code", 3, 0.75)
    assert of_type.agents == ["any", "sonnet-1", "sonnet-2"]
    by_agent = {each.value: each.rate for each in await queue.metrics.failures("agent")}
    assert by_agent == {"any": 0.5, "sonnet-1": 1.0, "sonnet-2": 1.0}
    by_model = {each.value: each.total for each in await queue.metrics.failures("model")}
    assert by_model == {"sonnet": 2, None: 1}
    alike = (await queue.metrics.failures("signature"))[0]
    assert (alike.value, alike.total, alike.rate) == ("code/crash/boom #", 2, None)
    assert alike.agents == ["sonnet-1", "sonnet-2"]


RULE = {"failure_rate": 0.5, "min_count": 3, "window_sec": 600, "create": {"type": "investigate", "payload": {"a": 1}}}


async def fail(queue: Queue, count: int, error: str = "boom 7") -> None:
    await submit(queue, count)
    for n in range(count):
        (held,) = await queue.claim(f"agent-{n % 2}", types=["code"], start=True)
        await queue.fail(held.token, "crash", error, retry=False)


@pytest.mark.requirement("F-207")
async def test_failure_rate_of_forty_percent_creates_a_refactor_task(queue: Queue) -> None:
    create = {"type": "refactor", "title": "Refactor {type}"}
    await queue.settings.set("friction", {"failure_rate": 0.4, "min_count": 2, "create": create})
    for n in range(5):
        await queue.submit(type="auth")
        held = await take(queue)
        if n < 2:
            await queue.fail(held.token, "crash", "login loop", retry=False)
        else:
            assert (await queue.tasks.list(type="refactor")).tasks == []
            await queue.complete(held.token)
    await run_once(queue.engine, force=True)
    (task,) = (await queue.tasks.list(type="refactor")).tasks
    assert (task.title, task.payload["friction"]["rate"]) == ("Refactor auth", 0.4)


async def test_repeated_similar_failures_create_a_task(queue: Queue, clock: MovedClock) -> None:
    await queue.settings.change({"friction": RULE, "circuit_breaker": None})
    await fail(queue, 2)
    await run_once(queue.engine, force=True)
    assert (await queue.tasks.list(type="investigate")).tasks == []
    await fail(queue, 1, "boom 8")
    await run_once(queue.engine, force=True)
    (task,) = (await queue.tasks.list(type="investigate")).tasks
    assert (task.title, task.created_by, task.status) == ("Find out why code keeps failing", "friction", "ready")
    found = task.payload["friction"]
    assert (found["type"], found["signature"], found["failed"], found["agents"], found["rate"]) == (
        *("code", "code/crash/boom #", 3, 2),
        1.0,
    )
    assert task.payload["a"] == 1
    assert len(await open_alerts(queue, "friction")) == 1


async def test_only_one_open_task_exists_per_friction(queue: Queue, clock: MovedClock) -> None:
    await queue.settings.change({"friction": RULE, "circuit_breaker": None})
    await fail(queue, 3)
    await pass_time(queue, clock, 30)
    await fail(queue, 3)
    await pass_time(queue, clock, 30)
    await pass_time(queue, clock, 601)  # over, and then it begins again
    await fail(queue, 3)
    await pass_time(queue, clock, 30)
    (task,) = (await queue.tasks.list(type="investigate")).tasks
    (held,) = await queue.claim("detective", types=["investigate"], start=True)
    await queue.complete(held.token, "found it")
    await pass_time(queue, clock, 601)
    await fail(queue, 3)
    await pass_time(queue, clock, 30)
    again = (await queue.tasks.list(type="investigate", status="ready")).tasks
    assert len(again) == 1
    assert again[0].id != task.id


async def test_friction_of_its_own_task_type_creates_no_other(queue: Queue) -> None:
    await queue.settings.change({"friction": {**RULE, "create": {"type": "code"}}, "circuit_breaker": None})
    await fail(queue, 3)
    await run_once(queue.engine, force=True)
    assert (await queue.tasks.list(status="ready")).tasks == []


async def test_friction_task_that_is_not_allowed_still_raises_the_alert(queue: Queue) -> None:
    await queue.settings.change({"friction": RULE, "circuit_breaker": None, "allowed_types": ["code"]})
    await fail(queue, 3)
    await run_once(queue.engine, force=True)
    assert len(await open_alerts(queue, "friction")) == 1
    assert (await queue.tasks.list(type="investigate")).tasks == []


async def test_friction_task_is_accepted_in_a_full_queue(queue: Queue) -> None:
    await queue.settings.change({"friction": RULE, "circuit_breaker": None})
    await fail(queue, 3)
    await queue.settings.set("max_queue_size", 1)
    await submit(queue, 1)
    await run_once(queue.engine, force=True)
    assert len((await queue.tasks.list(type="investigate")).tasks) == 1
    assert await events_named(queue, "task.displaced") == []
