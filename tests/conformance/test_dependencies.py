"""Dependencies: known, missing and failed, and chains that are retried by a review."""

import logging

import pytest

from shiftwork import Queue
from shiftwork.model.errors import CircularDependency, UnknownDependency
from shiftwork.model.ids import parse
from shiftwork.testing import MovedClock, pass_time
from tests.conformance.steps import events_named, finish, statuses, submit_dag, take


async def fail_for_good(queue: Queue, task_id: str) -> None:
    assignment = await take(queue)
    assert assignment.id == task_id
    await queue.fail(assignment.token, "crash", "boom", retry=False)


@pytest.mark.requirement("L-006", "L-046", "L-069", "C-043", "C-079", "C-087", "C-088", "C-251")
@pytest.mark.parametrize("profile", ["loki", "coscientist", "factory"])
async def test_task_waits_until_all_dependencies_are_completed(queue: Queue, profile: str) -> None:
    await queue.settings.use_profile(profile)
    await queue.settings.set("idempotency.source", "caller")
    ids = await submit_dag(queue, {"a": [], "b": [], "c": ["a", "b"]})
    assert sorted((await queue.get(ids["c"])).dependencies) == sorted([ids["a"], ids["b"]])
    assert await finish(queue) == ids["a"]
    assert (await queue.get(ids["c"])).blocked_by == [ids["b"]]
    assert await finish(queue) == ids["b"]
    assert (await events_named(queue, "task.ready"))[-1] == ids["c"]
    assert (await take(queue)).id == ids["c"]


@pytest.mark.requirement("C-086", "C-199")
async def test_explain_shows_the_state_of_each_dependency(queue: Queue) -> None:
    ids = await submit_dag(queue, {"a": [], "b": [], "c": ["a", "b"]})
    await take(queue)
    holds = (await queue.explain(ids["c"])).holds
    assert [(hold.kind, hold.tasks) for hold in holds] == [("dependency", [ids["a"]]), ("dependency", [ids["b"]])]
    assert [hold.what for hold in holds] == [
        f"it waits for {ids['a']}, which is running",
        f"it waits for {ids['b']}, which is ready",
    ]


@pytest.mark.requirement("C-201", "C-202", "C-203", "C-204", "C-223")
async def test_missing_dependency_is_marked_after_five_minutes(coscientist: Queue, clock: MovedClock) -> None:
    task_id = (await coscientist.submit(type="Ranking", dependencies=["tournament-7"])).id
    await pass_time(coscientist, clock, 299)
    assert (await coscientist.get(task_id)).blocked is False
    await pass_time(coscientist, clock, 1)
    task = await coscientist.get(task_id)
    assert (task.status, task.blocked, task.blocked_reason) == ("pending", True, "missing_dependency")
    (blocked,) = [e for e in (await coscientist.tasks.history(task_id)).events if "task.blocked" in e.names]
    assert blocked.data is not None
    assert blocked.data["missing"] == ["tournament-7"]
    await coscientist.submit(type="Generation", id="tournament-7")
    await finish(coscientist)
    task = await coscientist.get(task_id)
    assert (task.status, task.blocked) == ("ready", False)


@pytest.mark.parametrize("form", ["shown", "uuid"])
async def test_purged_dependency_is_refused(queue: Queue, form: str) -> None:
    await queue.settings.set("purge.mode", "delete")
    made = await queue.submit(type="code", id="build")
    other = await queue.submit(type="docs")
    assert await queue.control.purge(type="code") == 1
    gone = made.id if form == "shown" else parse(made.id) or ""
    for call in (
        queue.submit(type="docs", dependencies=[gone]),
        queue.tasks.update(other.id, {"dependencies": [gone]}),
    ):
        with pytest.raises(UnknownDependency, match=f"task {made.id} was purged"):
            await call
    assert (await queue.get(other.id)).status == "ready"
    assert (await queue.submit(type="docs", dependencies=["build"])).status == "pending"  # a name may come again


async def test_dependency_submitted_in_time_unblocks_its_dependent(coscientist: Queue, clock: MovedClock) -> None:
    task_id = (await coscientist.submit(type="Ranking", dependencies=["later"])).id
    await pass_time(coscientist, clock, 100)
    await coscientist.submit(type="Generation", id="later")
    await pass_time(coscientist, clock, 300)
    assert (await coscientist.get(task_id)).blocked is False
    await finish(coscientist)
    assert (await take(coscientist)).id == task_id


async def test_loki_waits_without_limit_and_factory_refuses_unknown_dependency(queue: Queue, clock: MovedClock) -> None:
    await queue.settings.use_profile("loki")
    task_id = (await queue.submit(type="eng-backend", dependencies=["later"])).id
    await pass_time(queue, clock, 86_400)
    assert (await queue.get(task_id)).blocked is False
    await queue.settings.use_profile("factory")
    with pytest.raises(UnknownDependency):
        await queue.submit(type="code", dependencies=["never"])


async def test_known_dependencies_are_waited_for_without_limit_by_default(queue: Queue, clock: MovedClock) -> None:
    ids = await submit_dag(queue, {"a": [], "b": ["a"]})
    await pass_time(queue, clock, 3600)
    assert (await queue.get(ids["b"])).blocked is False
    await queue.settings.set("dependency_wait_applies_to", "all")
    ids = await submit_dag(queue, {"a": [], "b": ["a"]})
    await pass_time(queue, clock, 300)
    assert (await queue.get(ids["b"])).blocked_reason == "dependency_wait"


@pytest.mark.requirement("C-200", "C-210", "C-211")
async def test_cycle_is_refused_and_nothing_is_stored(coscientist: Queue) -> None:
    await coscientist.settings.set("idempotency.source", "caller")
    with pytest.raises(CircularDependency, match="Would create circular dependency") as refused:
        await submit_dag(coscientist, {"a": ["b"], "b": ["a"]})
    assert set(refused.value.facts["cycle"]) == {"a", "b"}
    assert (await coscientist.tasks.list()).tasks == []


@pytest.mark.requirement("C-200")
async def test_cycle_closed_by_a_second_submit_is_refused(coscientist: Queue) -> None:
    await coscientist.settings.set("idempotency.source", "caller")
    await coscientist.submit(type="Ranking", id="a", dependencies=["b"])
    with pytest.raises(CircularDependency):
        await coscientist.submit(type="Ranking", id="b", dependencies=["a"])
    assert len((await coscientist.tasks.list()).tasks) == 1


@pytest.mark.requirement("C-212")
async def test_refused_cycle_is_logged_with_its_path(coscientist: Queue, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "shiftwork.engine")
    await coscientist.settings.set("idempotency.source", "caller")
    with pytest.raises(CircularDependency):
        await submit_dag(coscientist, {"a": ["c"], "b": ["a"], "c": ["b"]})
    assert "Would create circular dependency: a -> c -> b -> a" in caplog.messages


@pytest.mark.requirement("C-206", "C-207")
async def test_coscientist_cancels_dependents_of_failed_task(coscientist: Queue) -> None:
    await coscientist.settings.set("idempotency.source", "caller")
    ids = await submit_dag(coscientist, {"a": [], "b": ["a"], "c": ["b"]})
    await fail_for_good(coscientist, ids["a"])
    task = await coscientist.get(ids["b"])
    assert (task.status, task.cancel_reason) == ("cancelled", f"Dependency {ids['a']} failed")
    assert (await coscientist.get(ids["c"])).cancel_reason == f"Parent {ids['b']} cancelled"
    assert await events_named(coscientist, "task.dependency_failed") == [ids["b"]]


@pytest.mark.parametrize("profile", ["standard", "factory", "loki"])
async def test_other_profiles_keep_dependents_waiting_until_failed_task_is_retried(queue: Queue, profile: str) -> None:
    await queue.settings.use_profile(profile)
    await queue.settings.set("idempotency.source", "caller")
    ids = await submit_dag(queue, {"a": [], "b": ["a"]})
    await fail_for_good(queue, ids["a"])
    assert await statuses(queue, ids) == {"a": "dead_lettered", "b": "pending"}
    (hold,) = (await queue.explain(ids["b"])).holds
    assert (hold.kind, hold.tasks) == ("dependency", [ids["a"]])
    assert hold.lifts == "a person retries that task, or changes the dependencies"
    assert await events_named(queue, "task.dependency_failed") == [ids["b"]]
    await queue.dead_letters.review(ids["a"], "retry")
    await finish(queue)
    assert (await take(queue)).id == ids["b"]


async def test_one_failed_attempt_is_not_a_failed_dependency(coscientist: Queue) -> None:
    await coscientist.settings.set("idempotency.source", "caller")
    ids = await submit_dag(coscientist, {"a": [], "b": ["a"]})
    await coscientist.fail((await take(coscientist)).token, "network")
    assert await statuses(coscientist, ids) == {"a": "retrying", "b": "pending"}


@pytest.mark.requirement("C-209")
@pytest.mark.parametrize("setting", ["cancel", "retry_chain"])
async def test_chain_review_retries_the_whole_chain(coscientist: Queue, setting: str) -> None:
    await coscientist.settings.set("on_dependency_failed", setting)
    await coscientist.settings.set("idempotency.source", "caller")
    ids = await submit_dag(coscientist, {"a": [], "b": ["a"], "c": ["b"], "d": ["a"]})
    await fail_for_good(coscientist, ids["a"])
    await coscientist.dead_letters.review(ids["a"], "retry", chain=True)
    assert await statuses(coscientist, ids) == {"a": "ready", "b": "pending", "c": "pending", "d": "pending"}
    done = [await finish(coscientist) for _ in range(4)]
    assert sorted(done) == sorted(ids.values())
    assert done.index(ids["b"]) < done.index(ids["c"])
    assert (await coscientist.dags.get((await coscientist.get(ids["a"])).dag_id)).status == "completed"


async def test_chain_review_restores_only_tasks_cancelled_by_the_failure(coscientist: Queue) -> None:
    await coscientist.settings.set("idempotency.source", "caller")
    ids = await submit_dag(coscientist, {"a": [], "b": ["a"], "c": ["a"]})
    await coscientist.cancel(ids["c"], "not wanted")
    await fail_for_good(coscientist, ids["a"])
    await coscientist.dead_letters.review(ids["a"], "retry", chain=True)
    assert await statuses(coscientist, ids) == {"a": "ready", "b": "pending", "c": "cancelled"}


async def test_task_submitted_after_dependency_failed_is_cancelled(coscientist: Queue) -> None:
    first = (await coscientist.submit(type="Ranking", payload={"n": 1})).id
    await fail_for_good(coscientist, first)
    second = (await coscientist.submit(type="Ranking", payload={"n": 2}, dependencies=[first])).id
    assert (await coscientist.get(second)).cancel_reason == f"Dependency {first} failed"


@pytest.mark.requirement("C-201", "C-223")
async def test_slow_known_dependency_raises_one_alert_and_blocks_nothing(coscientist: Queue, clock: MovedClock) -> None:
    first = (await coscientist.submit(type="Generation")).id
    waiting = (await coscientist.submit(type="Ranking", dependencies=[first])).id
    assert (await take(coscientist, "worker")).id == first
    for _ in range(11):
        await pass_time(coscientist, clock, 27)
        await coscientist.agents.heartbeat("worker")
    assert await events_named(coscientist, "task.dependency_slow") == []
    await pass_time(coscientist, clock, 3)
    assert await events_named(coscientist, "task.dependency_slow") == [waiting]
    (alert,) = await coscientist.alerts.list(kind="dependency_slow")
    assert alert.message == f"Task {waiting} still waits for {first} (running)"
    task = await coscientist.get(waiting)
    assert (task.status, task.blocked_reason) == ("pending", None)
    await pass_time(coscientist, clock, 20)
    assert len(await coscientist.alerts.list(kind="dependency_slow")) == 1


async def test_answer_of_submit_names_dependencies_that_do_not_exist_yet(queue: Queue) -> None:
    known = await queue.submit(type="code", id="known")
    made = await queue.submit(type="code", dependencies=["known", "nope"])
    assert (made.status, made.missing_dependencies) == ("pending", ["nope"])
    (hold,) = [hold for hold in (await queue.explain(made.id)).holds if hold.kind == "missing_dependency"]
    assert "nope" in hold.what
    batch = await queue.submit_many(
        [{"type": "code", "key": "a"}, {"type": "code", "dependencies": ["a", known.id, "later"]}]
    )
    assert [each.missing_dependencies for each in batch] == [[], ["later"]]
    assert (await queue.submit(type="code", id="later")).missing_dependencies == []
    assert (await queue.submit(type="code", dependencies=["later"])).missing_dependencies == []
