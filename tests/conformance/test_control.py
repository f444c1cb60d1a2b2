"""The whole queue: paused, purged, rebalanced, counted, explained and archived."""

import pytest

from shiftwork import Queue
from shiftwork.limits.model import Closed
from shiftwork.model.errors import InputError, NotFound, VersionConflict
from shiftwork.observe.model import Blocker
from shiftwork.testing import MovedClock, pass_time
from tests.conformance.steps import dead_letter, events_named, finish, pass_time_exactly, statuses, submit_dag, take


async def total(queue: Queue) -> int:
    """Return the number of all tasks, including archived and removed ones."""
    status = await queue.status()
    return sum(status.counts.values()) + status.tombstones + status.archived


@pytest.mark.requirement("C-054", "C-055", "C-134")
async def test_paused_queue_assigns_nothing_and_lets_running_tasks_complete(coscientist: Queue) -> None:
    running = (await coscientist.submit(type="Ranking", payload={"n": 1})).id
    token = (await take(coscientist, "first")).token
    waiting = (await coscientist.submit(type="Ranking", payload={"n": 2})).id
    await coscientist.control.pause(reason="deploy")
    answer = await coscientist.claims.request("second")
    assert (answer.assignments, answer.closed) == ([], (Closed("paused", "*"),))
    assert (await coscientist.complete(token)).status == "completed"
    assert await coscientist.control.resume() is True
    assert await coscientist.control.resume() is False
    assert (await take(coscientist, "second")).id == waiting
    assert (await coscientist.get(running)).status == "completed"


async def test_single_type_can_be_paused(queue: Queue) -> None:
    await queue.submit(type="deploy")
    code = (await queue.submit(type="code")).id
    await queue.control.pause("deploy")
    assert (await queue.status()).paused == ["deploy"]
    assert await finish(queue) == code
    assert await queue.claim("worker") == []
    await queue.control.resume("deploy")
    assert len(await queue.claim("worker")) == 1


@pytest.mark.requirement("C-053", "C-134")
async def test_purge_removes_only_matching_tasks(coscientist: Queue) -> None:
    async def submit(priority: float, n: int) -> str:
        return (await coscientist.submit(type="Ranking", priority=priority, payload={"n": n})).id

    running, high, low = await submit(70, 1), await submit(20, 2), await submit(70, 3)
    await coscientist.tasks.update(running, {"priority": 10})
    assert (await take(coscientist)).id == running
    assert await coscientist.control.purge(level="low") == 1
    task = await coscientist.get(low)
    assert (task.status, task.cancel_reason) == ("cancelled", "purged")
    assert (await coscientist.get(high)).status == "ready"
    assert (await coscientist.get(running)).status == "running"


async def test_purge_cancels_dependents_of_purged_tasks(queue: Queue) -> None:
    ids = await submit_dag(queue, {"a": [], "b": ["a"], "c": ["b"]})
    assert await queue.control.purge(status=["ready"]) == 1
    assert await statuses(queue, ids) == {"a": "cancelled", "b": "cancelled", "c": "cancelled"}


async def test_deleting_purge_leaves_a_tombstone_for_each_task(queue: Queue) -> None:
    await queue.settings.set("purge.mode", "delete")
    gone = (await queue.submit(type="old", id="mine", idempotency_key="k", tags=["t"])).id
    kept = (await queue.submit(type="new")).id
    assert await queue.control.purge(type="old") == 1
    with pytest.raises(NotFound):
        await queue.get(gone)
    assert [task.id for task in (await queue.tasks.list()).tasks] == [kept]
    assert (await queue.status()).tombstones == 1
    again = await queue.submit(type="old", id="mine", idempotency_key="k")
    assert again.duplicate is False


async def test_idempotency_key_of_a_deleted_task_is_free_in_every_profile(factory: Queue) -> None:
    await factory.settings.set("purge.mode", "delete")
    await factory.submit(type="code", idempotency_key="k")
    await finish(factory)
    assert await factory.control.purge(status=["completed"]) == 1
    assert (await factory.submit(type="code", idempotency_key="k")).duplicate is False


async def test_deleting_purge_skips_claimed_tasks(queue: Queue) -> None:
    await queue.settings.set("purge.mode", "delete")
    await queue.submit(type="code")
    token = (await take(queue)).token
    assert await queue.control.purge(type="code", held=True) == 0
    assert (await queue.complete(token)).status == "completed"


async def test_purge_without_a_condition_is_refused(queue: Queue) -> None:
    with pytest.raises(InputError):
        await queue.control.purge()
    with pytest.raises(InputError):
        await queue.control.purge(status=["nonsense"])


async def test_purge_with_invalid_condition_changes_nothing(queue: Queue) -> None:
    await queue.submit(type="code")
    with pytest.raises(InputError):
        await queue.control.purge(level="urgent")  # type: ignore[arg-type]  # on purpose
    assert (await queue.status()).counts == {"ready": 1}


@pytest.mark.requirement("C-110")
@pytest.mark.parametrize("mode", ["cancel", "delete"])
async def test_created_count_equals_all_states_and_tombstones(queue: Queue, clock: MovedClock, mode: str) -> None:
    await queue.settings.set("purge.mode", mode)
    await queue.settings.set("archive_after_sec", 3600)
    await submit_dag(queue, {"a": [], "b": ["a"], "c": ["b"]})
    await finish(queue)
    await dead_letter(queue)
    token = (await take(queue)).token
    await queue.spawn(token, [{"type": "child"}], wait=True)
    await queue.cancel((await queue.submit(type="code", tags=["x"])).id)
    await queue.tasks.rerun(await finish(queue))
    await queue.submit_many([{"type": "junk"}] * 3)
    await queue.control.purge(type="junk")
    created = len(await events_named(queue, "task.created"))
    assert await total(queue) == created == 10
    await pass_time(queue, clock, 3600)
    assert await total(queue) == created
    assert (await queue.status()).archived > 0


@pytest.mark.requirement("C-056", "C-134")
async def test_claimed_unstarted_tasks_are_rebalanced_to_idle_workers(coscientist: Queue) -> None:
    await coscientist.submit_many([{"type": "Ranking", "payload": {"n": n}} for n in range(3)])
    await coscientist.agents.register(id="loaded", max_concurrent_tasks=3)
    held = await coscientist.claim("loaded", 3)
    await coscientist.start(held[0].token)
    await coscientist.agents.register(id="idle")
    (outcome,) = await coscientist.agents.rebalance()
    assert outcome.status == "ready"
    moved = await take(coscientist, "idle")
    assert moved.id == outcome.task_id != held[0].id
    assert (await coscientist.get(moved.id)).attempts == 0


@pytest.mark.requirement("C-037", "C-061", "C-134")
async def test_status_counts_by_state_type_tier_and_level(queue: Queue, clock: MovedClock) -> None:
    await queue.submit_many([{"type": "code", "priority": p} for p in (5, 20, 40, 70, 90, 90)])
    await finish(queue)
    status = await queue.status()
    assert status.counts == {"ready": 5, "completed": 1}
    assert status.types == {"code": {"ready": 5, "completed": 1}}
    assert status.tiers == {"high": 1, "normal": 1, "low": 1, "background": 2}
    assert status.depth == {"high": 1, "medium": 1, "low": 3, "total": 5}
    assert status.calculated_at == clock()


@pytest.mark.requirement("C-217")
async def test_each_maintenance_job_reports_its_last_run(queue: Queue, clock: MovedClock) -> None:
    await queue.submit(type="code")
    await queue.fail((await take(queue)).token, "crash")
    await pass_time_exactly(queue, clock, 15)
    jobs = {job.name: job for job in await queue.control.maintenance()}
    assert jobs["promote"].counts == {"promoted": 1}
    for idle in ("snapshot", "clock"):  # no folder is named for snapshots, and the clock did not go back
        assert jobs.pop(idle).runs == 0
    for job in jobs.values():
        assert (job.last_run_at, job.runs) == (clock(), 1)
        assert (job.took_sec or 0.0) >= 0
    periods = {name: job.due_at - (job.last_run_at or 0.0) for name, job in jobs.items()}
    assert (periods["promote"], periods["displaced"]) == (5, 300)


@pytest.mark.requirement("C-246", "C-247")
async def test_update_with_outdated_version_is_refused_and_counted(queue: Queue) -> None:
    task_id = (await queue.submit(type="code")).id
    read = (await queue.get(task_id)).version
    await queue.tasks.update(task_id, {"priority": 10}, version=read)
    with pytest.raises(VersionConflict) as refused:
        await queue.tasks.update(task_id, {"priority": 90}, version=read)
    assert refused.value.facts["version"] == read + 1
    assert (await queue.get(task_id)).priority == 10
    assert queue.engine.counters["version_conflict"] == 1


@pytest.mark.requirement("C-247")
async def test_version_grows_with_each_change_but_not_with_heartbeat(queue: Queue) -> None:
    task_id = (await queue.submit(type="code")).id
    versions = [(await queue.get(task_id)).version]

    async def note() -> None:
        versions.append((await queue.get(task_id)).version)

    await queue.tasks.update(task_id, {"priority": 10})
    await note()
    (assignment,) = await queue.claim("worker")
    await note()
    await queue.start(assignment.token)
    await note()
    await queue.heartbeat(assignment.token, {"pct": 1}, {"cost_usd": 0.1})
    await note()
    await queue.complete(assignment.token)
    await note()
    assert versions == [1, 2, 3, 4, 4, 5]


async def hold(queue: Queue, task_id: str) -> Blocker:
    (found,) = (await queue.explain(task_id)).holds
    return found


async def test_explain_names_the_dependency_a_task_waits_for(queue: Queue) -> None:
    ids = await submit_dag(queue, {"a": [], "b": ["a"]})
    found = await hold(queue, ids["b"])
    assert (found.kind, found.tasks, found.lifts) == ("dependency", [ids["a"]], "that task completes")


async def test_explain_names_a_missing_dependency(queue: Queue) -> None:
    task_id = (await queue.submit(type="code", dependencies=["later"])).id
    found = await hold(queue, task_id)
    assert (found.kind, found.what) == ("missing_dependency", "no task later has been submitted")


async def test_explain_shows_when_a_retry_is_due(queue: Queue, clock: MovedClock) -> None:
    task_id = (await queue.submit(type="code", retry={"jitter": False})).id
    await queue.fail((await take(queue)).token, "crash")
    found = await hold(queue, task_id)
    assert (found.kind, found.until) == ("retry", clock() + 10)


async def test_explain_shows_pause_actor_and_reason(queue: Queue) -> None:
    task_id = (await queue.submit(type="code")).id
    await queue.agents.register(id="worker")
    await queue.as_caller("human:ada").control.pause(reason="deploy")
    found = await hold(queue, task_id)
    assert (found.kind, found.what) == ("paused", "the whole queue is paused by human:ada: deploy")


async def test_explain_shows_requirements_no_agent_meets(queue: Queue) -> None:
    await queue.agents.register(id="worker", capabilities=["python"])
    task_id = (await queue.submit(type="code", spec={"constraints": {"required_capabilities": ["rust"]}})).id
    found = await hold(queue, task_id)
    assert found.kind == "no_agent"
    assert "type code, capability rust" in found.what


async def test_explain_shows_agents_at_capacity_or_draining(queue: Queue) -> None:
    await queue.agents.register(id="worker")
    await queue.submit(type="code")
    await take(queue)
    task_id = (await queue.submit(type="code")).id
    assert (await hold(queue, task_id)).kind == "capacity"
    await queue.agents.set_status("worker", "draining")
    assert (await hold(queue, task_id)).kind == "agents_away"


async def test_explain_shows_price_no_agent_can_afford(queue: Queue) -> None:
    await queue.agents.register(id="worker", budget_remaining_usd=0.5)
    task_id = (await queue.submit(type="code", estimated_cost_usd=0.75)).id
    found = await hold(queue, task_id)
    assert (found.kind, found.what) == ("budget", "no able agent has 0.75 USD left")


async def test_explain_of_dead_letter_suggests_a_review(queue: Queue) -> None:
    task_id = await dead_letter(queue)
    found = await hold(queue, task_id)
    assert (found.kind, found.lifts) == ("dead_letter", "review it: retry, modify_and_retry or cancel")


async def test_explain_shows_position_of_a_ready_task(queue: Queue) -> None:
    await queue.agents.register(id="worker")
    await queue.submit_many([{"type": "code", "priority": 10}] * 2)
    task_id = (await queue.submit(type="code")).id
    explained = await queue.explain(task_id)
    assert (explained.holds, explained.position, explained.able_agents) == ([], 2, ["worker"])
    assert explained.summary == "ready, with 2 tasks before it in its lane"
    for _ in range(2):
        await finish(queue)
    assert (await queue.explain(task_id)).summary == "ready, first in its lane"


@pytest.mark.requirement("C-143")
async def test_archived_task_stays_readable(queue: Queue, clock: MovedClock) -> None:
    await queue.settings.set("archive_after_sec", 3600)
    task_id = (await queue.submit(type="code", id="mine", tags=["t"], payload={"n": 1})).id
    await finish(queue, data={"answer": 42})
    buried = await dead_letter(queue)
    await pass_time_exactly(queue, clock, 3599)
    before = await queue.get(task_id)
    assert before.archived is False
    await pass_time_exactly(queue, clock, 1)
    after = await queue.get("mine")
    assert (after.id, after.archived, after.status) == (task_id, True, "completed")
    assert (after.payload, after.result, after.tags) == (before.payload, before.result, ["t"])
    assert (await queue.result(task_id)).data == {"answer": 42}
    assert [event.verb for event in (await queue.tasks.history(task_id)).events] == [
        "submitted",
        "claimed",
        "completed",
    ]
    assert (await queue.get(buried)).archived is False
    assert ((await queue.status()).archived, (await queue.status()).counts) == (1, {"dead_lettered": 1})


async def test_archived_task_satisfies_dependencies_and_keeps_its_keys(queue: Queue, clock: MovedClock) -> None:
    await queue.settings.set("archive_after_sec", 60)
    old = (await queue.submit(type="code", id="mine", idempotency_key="k")).id
    await finish(queue)
    await pass_time(queue, clock, 60)
    assert (await queue.get((await queue.submit(type="code", dependencies=["mine"])).id)).status == "ready"
    assert (await queue.submit(type="code", idempotency_key="k")).id == old
    with pytest.raises(Exception, match="id_in_use"):
        await queue.submit(type="code", id="mine")


async def test_rerun_is_possible_after_previous_rerun_was_archived(queue: Queue, clock: MovedClock) -> None:
    await queue.settings.set("archive_after_sec", 60)
    first = (await queue.submit(type="code")).id
    await finish(queue)
    await queue.tasks.rerun(first)
    await finish(queue)
    await pass_time(queue, clock, 60)
    assert (await queue.tasks.rerun(first)).status == "ready"


@pytest.mark.parametrize("mode", ["cancel", "delete"])
async def test_purge_of_failed_tasks_keeps_their_retries(aegis: Queue, mode: str) -> None:
    await aegis.settings.set("purge.mode", mode)
    task_id = (await aegis.submit(type="agent")).id
    waiting = (await aegis.submit(type="agent", dependencies=[task_id])).id
    await aegis.fail((await take(aegis)).token, "timeout")
    assert await aegis.control.purge(status=["failed"]) == 0
    await finish(aegis)
    assert (await aegis.get(waiting)).status == "ready"


async def test_purged_dead_letter_is_no_longer_listed(queue: Queue) -> None:
    await dead_letter(queue)
    assert await queue.control.purge(status=["dead_lettered"]) == 1
    assert await queue.dead_letters.list() == []
