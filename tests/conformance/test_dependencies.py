"""Waiting for other tasks: known, missing, failed, and the chain that a person drives on."""

import logging

import pytest

from shiftwork import Queue
from shiftwork.core.errors import CircularDependency, UnknownDependency
from shiftwork.core.ids import parse
from shiftwork.testing import MovedClock, pass_time
from tests.conformance.steps import events_named, finish, statuses, submit_dag, take


async def fail_for_good(queue: Queue, task_id: str) -> None:
    assignment = await take(queue)
    assert assignment.id == task_id
    await queue.fail(assignment.token, "crash", "boom", retry=False)


@pytest.mark.requirement("L-006", "L-046", "L-069", "C-043", "C-079", "C-087", "C-088", "C-251")
@pytest.mark.parametrize("profile", ["loki", "coscientist", "factory"])
async def test_a_task_waits_until_all_it_depends_on_is_completed(queue: Queue, profile: str) -> None:
    await queue.use_profile(profile)
    await queue.set_setting("idempotency.source", "caller")
    ids = await submit_dag(queue, {"a": [], "b": [], "c": ["a", "b"]})
    assert sorted((await queue.get(ids["c"])).dependencies) == sorted([ids["a"], ids["b"]])
    assert await finish(queue) == ids["a"]
    assert (await queue.get(ids["c"])).blocked_by == [ids["b"]]
    assert await finish(queue) == ids["b"]
    assert (await events_named(queue, "task.ready"))[-1] == ids["c"]
    assert (await take(queue)).id == ids["c"]


@pytest.mark.requirement("C-086", "C-199")
async def test_the_state_of_each_prerequisite_can_be_read(queue: Queue) -> None:
    ids = await submit_dag(queue, {"a": [], "b": [], "c": ["a", "b"]})
    await take(queue)
    holds = (await queue.explain(ids["c"])).holds
    assert [(hold.kind, hold.tasks) for hold in holds] == [("dependency", [ids["a"]]), ("dependency", [ids["b"]])]
    assert [hold.what for hold in holds] == [
        f"it waits for {ids['a']}, which is running",
        f"it waits for {ids['b']}, which is ready",
    ]


# -- a dependency that is not there ------------------------------------------------------------------------------


@pytest.mark.requirement("C-201", "C-202", "C-203", "C-204", "C-223")
async def test_a_missing_dependency_is_waited_for_and_marked_after_five_minutes(
    coscientist: Queue, clock: MovedClock
) -> None:
    task_id = (await coscientist.submit(type="Ranking", dependencies=["tournament-7"])).id
    await pass_time(coscientist, clock, 299)
    assert (await coscientist.get(task_id)).blocked is False
    await pass_time(coscientist, clock, 1)
    task = await coscientist.get(task_id)
    assert (task.status, task.blocked, task.blocked_reason) == ("pending", True, "missing_dependency")
    (blocked,) = [e for e in await coscientist.history(task_id) if "task.blocked" in e.names]
    assert blocked.data is not None
    assert blocked.data["missing"] == ["tournament-7"]
    await coscientist.submit(type="Generation", id="tournament-7")
    await finish(coscientist)
    task = await coscientist.get(task_id)
    assert (task.status, task.blocked) == ("ready", False)


@pytest.mark.parametrize("form", ["shown", "uuid"])
async def test_a_dependency_that_was_purged_is_refused_since_it_never_comes_again(queue: Queue, form: str) -> None:
    await queue.set_setting("purge.mode", "delete")
    made = await queue.submit(type="code", id="build")
    other = await queue.submit(type="docs")
    assert await queue.purge(type="code") == 1
    gone = made.id if form == "shown" else parse(made.id)
    for call in (queue.submit(type="docs", dependencies=[gone]), queue.update(other.id, {"dependencies": [gone]})):
        with pytest.raises(UnknownDependency, match=f"task {made.id} was purged"):
            await call
    assert (await queue.get(other.id)).status == "ready"
    assert (await queue.submit(type="docs", dependencies=["build"])).status == "pending"  # a name may come again


async def test_a_dependency_that_comes_in_time_unblocks(coscientist: Queue, clock: MovedClock) -> None:
    task_id = (await coscientist.submit(type="Ranking", dependencies=["later"])).id
    await pass_time(coscientist, clock, 100)
    await coscientist.submit(type="Generation", id="later")
    await pass_time(coscientist, clock, 300)
    assert (await coscientist.get(task_id)).blocked is False
    await finish(coscientist)
    assert (await take(coscientist)).id == task_id


async def test_loki_waits_without_a_limit_and_the_factory_not_at_all(queue: Queue, clock: MovedClock) -> None:
    await queue.use_profile("loki")
    task_id = (await queue.submit(type="eng-backend", dependencies=["later"])).id
    await pass_time(queue, clock, 86_400)
    assert (await queue.get(task_id)).blocked is False
    await queue.use_profile("factory")
    with pytest.raises(UnknownDependency):
        await queue.submit(type="code", dependencies=["never"])


async def test_known_dependencies_are_waited_for_as_long_as_they_take(queue: Queue, clock: MovedClock) -> None:
    ids = await submit_dag(queue, {"a": [], "b": ["a"]})
    await pass_time(queue, clock, 3600)
    assert (await queue.get(ids["b"])).blocked is False
    await queue.set_setting("dependency_wait_applies_to", "all")
    ids = await submit_dag(queue, {"a": [], "b": ["a"]})
    await pass_time(queue, clock, 300)
    assert (await queue.get(ids["b"])).blocked_reason == "dependency_wait"


# -- cycles ------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("C-200", "C-210", "C-211")
async def test_a_cycle_is_refused_and_nothing_is_stored(coscientist: Queue) -> None:
    await coscientist.set_setting("idempotency.source", "caller")
    with pytest.raises(CircularDependency, match="Would create circular dependency") as refused:
        await submit_dag(coscientist, {"a": ["b"], "b": ["a"]})
    assert set(refused.value.facts["cycle"]) == {"a", "b"}
    assert (await coscientist.tasks()).tasks == []


@pytest.mark.requirement("C-200")
async def test_a_cycle_closed_by_a_second_submission_is_refused(coscientist: Queue) -> None:
    await coscientist.set_setting("idempotency.source", "caller")
    await coscientist.submit(type="Ranking", id="a", dependencies=["b"])
    with pytest.raises(CircularDependency):
        await coscientist.submit(type="Ranking", id="b", dependencies=["a"])
    assert len((await coscientist.tasks()).tasks) == 1


@pytest.mark.requirement("C-212")
async def test_a_refused_cycle_is_logged_with_its_path(coscientist: Queue, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "shiftwork.queue")
    await coscientist.set_setting("idempotency.source", "caller")
    with pytest.raises(CircularDependency):
        await submit_dag(coscientist, {"a": ["c"], "b": ["a"], "c": ["b"]})
    assert "Would create circular dependency: a -> c -> b -> a" in caplog.messages


# -- a dependency that failed ------------------------------------------------------------------------------------


@pytest.mark.requirement("C-206", "C-207")
async def test_the_co_scientist_cancels_what_depends_on_failed_work(coscientist: Queue) -> None:
    await coscientist.set_setting("idempotency.source", "caller")
    ids = await submit_dag(coscientist, {"a": [], "b": ["a"], "c": ["b"]})
    await fail_for_good(coscientist, ids["a"])
    task = await coscientist.get(ids["b"])
    assert (task.status, task.cancel_reason) == ("cancelled", f"Dependency {ids['a']} failed")
    assert (await coscientist.get(ids["c"])).cancel_reason == f"Parent {ids['b']} cancelled"
    assert await events_named(coscientist, "task.dependency_failed") == [ids["b"]]


@pytest.mark.parametrize("profile", ["standard", "factory", "loki"])
async def test_elsewhere_it_waits_for_a_person_and_goes_on_when_the_work_is_retried(queue: Queue, profile: str) -> None:
    await queue.use_profile(profile)
    await queue.set_setting("idempotency.source", "caller")
    ids = await submit_dag(queue, {"a": [], "b": ["a"]})
    await fail_for_good(queue, ids["a"])
    assert await statuses(queue, ids) == {"a": "dead_lettered", "b": "pending"}
    (hold,) = (await queue.explain(ids["b"])).holds
    assert (hold.kind, hold.tasks) == ("dependency", [ids["a"]])
    assert hold.lifts == "a person retries that task, or changes the dependencies"
    assert await events_named(queue, "task.dependency_failed") == [ids["b"]]
    await queue.review(ids["a"], "retry")
    await finish(queue)
    assert (await take(queue)).id == ids["b"]


async def test_one_failed_attempt_is_not_a_failed_dependency(coscientist: Queue) -> None:
    await coscientist.set_setting("idempotency.source", "caller")
    ids = await submit_dag(coscientist, {"a": [], "b": ["a"]})
    await coscientist.fail((await take(coscientist)).token, "network")
    assert await statuses(coscientist, ids) == {"a": "retrying", "b": "pending"}


@pytest.mark.requirement("C-209")
@pytest.mark.parametrize("setting", ["cancel", "retry_chain"])
async def test_one_command_drives_the_whole_chain_again(coscientist: Queue, setting: str) -> None:
    await coscientist.set_setting("on_dependency_failed", setting)
    await coscientist.set_setting("idempotency.source", "caller")
    ids = await submit_dag(coscientist, {"a": [], "b": ["a"], "c": ["b"], "d": ["a"]})
    await fail_for_good(coscientist, ids["a"])
    await coscientist.review(ids["a"], "retry", chain=True)
    assert await statuses(coscientist, ids) == {"a": "ready", "b": "pending", "c": "pending", "d": "pending"}
    done = [await finish(coscientist) for _ in range(4)]
    assert sorted(done) == sorted(ids.values())
    assert done.index(ids["b"]) < done.index(ids["c"])
    assert (await coscientist.dag((await coscientist.get(ids["a"])).dag_id)).status == "completed"


async def test_a_chain_brings_back_only_what_was_cancelled_because_of_the_failure(coscientist: Queue) -> None:
    await coscientist.set_setting("idempotency.source", "caller")
    ids = await submit_dag(coscientist, {"a": [], "b": ["a"], "c": ["a"]})
    await coscientist.cancel(ids["c"], "not wanted")
    await fail_for_good(coscientist, ids["a"])
    await coscientist.review(ids["a"], "retry", chain=True)
    assert await statuses(coscientist, ids) == {"a": "ready", "b": "pending", "c": "cancelled"}


async def test_a_task_submitted_after_the_failure_meets_the_same_rule(coscientist: Queue) -> None:
    first = (await coscientist.submit(type="Ranking", payload={"n": 1})).id
    await fail_for_good(coscientist, first)
    second = (await coscientist.submit(type="Ranking", payload={"n": 2}, dependencies=[first])).id
    assert (await coscientist.get(second)).cancel_reason == f"Dependency {first} failed"


@pytest.mark.requirement("C-201", "C-223")
async def test_a_known_dependency_that_takes_longer_is_a_notice_and_blocks_nothing(
    coscientist: Queue, clock: MovedClock
) -> None:
    first = (await coscientist.submit(type="Generation")).id
    waiting = (await coscientist.submit(type="Ranking", dependencies=[first])).id
    assert (await take(coscientist, "worker")).id == first
    for _ in range(11):
        await pass_time(coscientist, clock, 27)
        await coscientist.agent_heartbeat("worker")
    assert await events_named(coscientist, "task.dependency_slow") == []
    await pass_time(coscientist, clock, 3)
    assert await events_named(coscientist, "task.dependency_slow") == [waiting]
    (alert,) = await coscientist.alerts(kind="dependency_slow")
    assert alert.message == f"Task {waiting} still waits for {first} (running)"
    task = await coscientist.get(waiting)
    assert (task.status, task.blocked_reason) == ("pending", None)
    await pass_time(coscientist, clock, 20)
    assert len(await coscientist.alerts(kind="dependency_slow")) == 1
