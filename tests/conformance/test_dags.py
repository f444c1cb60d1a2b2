"""DAGs: dependencies, the status of a whole DAG, and refused edges."""

from typing import Any

import pytest

from shiftwork import Completion, Queue
from shiftwork.model import ids
from shiftwork.model.errors import CircularDependency, InputError, UnknownDependency, VersionConflict, WrongState
from shiftwork.testing import MovedClock, pass_time
from tests.conformance.steps import events_named, finish, sql, states, statuses, submit_dag, take

DIAMOND = {"A": [], "B": ["A"], "C": ["A"], "D": ["B", "C"]}


async def finish_task(queue: Queue, task_id: str) -> None:
    """Complete this task, which must be the next."""
    assert await finish(queue) == task_id


@pytest.mark.requirement("F-004", "F-023", "F-024", "F-059", "F-060", "F-064", "F-096", "F-097")
async def test_task_is_ready_when_its_last_dependency_completes(queue: Queue) -> None:
    ids = await submit_dag(queue, DIAMOND)
    assert await statuses(queue, ids) == {"A": "ready", "B": "pending", "C": "pending", "D": "pending"}
    assert (await queue.get(ids["D"])).blocked_by == [ids["B"], ids["C"]]
    await finish_task(queue, ids["A"])
    assert await statuses(queue, ids) == {"A": "completed", "B": "ready", "C": "ready", "D": "pending"}
    await finish_task(queue, ids["B"])
    join = await queue.get(ids["D"])
    assert (join.status, join.blocked_by, join.dependencies) == ("pending", [ids["C"]], [ids["B"], ids["C"]])
    await finish_task(queue, ids["C"])
    join = await queue.get(ids["D"])
    assert (join.status, join.blocked_by) == ("ready", [])


@pytest.mark.requirement("F-098")
async def test_task_becoming_ready_emits_an_event(queue: Queue) -> None:
    ids = await submit_dag(queue, DIAMOND)
    assert await events_named(queue, "task.ready") == [ids["A"]]
    await finish_task(queue, ids["A"])
    assert await events_named(queue, "task.ready") == [ids["A"], ids["B"], ids["C"]]


@pytest.mark.requirement("F-214", "F-215", "F-217")
async def test_landing_page_dag_runs_in_dependency_order(queue: Queue) -> None:
    ids = await submit_dag(
        queue,
        {
            "Research(competitors)": [],
            "Design(wireframe)": [],
            "Synthesize requirements": ["Research(competitors)", "Design(wireframe)"],
            "Implement(code)": [],
            "Test & Deploy": ["Implement(code)", "Synthesize requirements"],
        },
        title="Build landing page for client X",
    )
    assert {(await states(queue, task_id))[1] for task_id in ids.values()} == {"pending"}
    names = {task_id: name for name, task_id in ids.items()}
    ready = [names[task_id or ""] for task_id in await events_named(queue, "task.ready")]
    assert ready == ["Research(competitors)", "Design(wireframe)", "Implement(code)"]
    while await queue.claim("worker", start=True):
        token = (await queue.tasks.list(status="running")).tasks[0].claim.assignment_id or ""
        await queue.complete(token)
    ready = [names[task_id or ""] for task_id in await events_named(queue, "task.ready")]
    assert ready[3:] == ["Synthesize requirements", "Test & Deploy"]
    assert set((await statuses(queue, ids)).values()) == {"completed"}


async def test_completing_both_parents_in_one_batch_unblocks_the_child(queue: Queue) -> None:
    ids = await submit_dag(queue, {"left": [], "right": [], "join": ["left", "right"]})
    await queue.agents.register(id="worker", max_concurrent_tasks=2)
    claimed = await queue.claim("worker", 2, start=True)
    await queue.batch.complete([Completion(token=assignment.token) for assignment in claimed])
    assert (await queue.get(ids["join"])).status == "ready"


@pytest.mark.requirement("F-008", "F-084", "F-085", "F-087", "F-091", "F-093", "F-094")
async def test_diamond_is_read_as_one_dag(queue: Queue) -> None:
    ids = await submit_dag(queue, DIAMOND)
    dag_ids = {(await queue.get(task_id)).dag_id for task_id in ids.values()}
    (dag_id,) = dag_ids
    dag = await queue.dags.get(dag_id)
    assert dag.id == dag_id
    assert sorted(dag.tasks) == sorted(ids.values())
    assert (dag.roots, dag.leaves) == ([ids["A"]], [ids["D"]])
    assert (dag.counts, dag.done, dag.total) == ({"ready": 1, "pending": 3}, 0, 4)
    assert [task.id for task in (await queue.tasks.list(dag=dag_id)).tasks] == sorted(ids.values())


@pytest.mark.requirement("F-086")
async def test_single_task_is_a_dag_of_its_own(queue: Queue) -> None:
    task = await queue.get((await queue.submit(type="code", title="Alone")).id)
    dag = await queue.dags.get(task.dag_id)
    assert (dag.tasks, dag.roots, dag.leaves, dag.title) == ([task.id], [task.id], [task.id], "Alone")


@pytest.mark.requirement("F-092")
async def test_dag_roots_and_leaves_follow_every_change(queue: Queue) -> None:
    ids = await submit_dag(queue, {"A": [], "B": ["A"]})
    dag_id = (await queue.get(ids["A"])).dag_id
    (more,) = await queue.dags.add_tasks(dag_id, [{"type": "code", "dependencies": [ids["B"]]}])
    dag = await queue.dags.get(dag_id)
    assert (dag.roots, dag.leaves) == ([ids["A"]], [more.id])
    await queue.tasks.update(more.id, {"dependencies": []})
    dag = await queue.dags.get(dag_id)
    assert (dag.roots, dag.leaves) == ([ids["A"], more.id], [ids["B"], more.id])


async def dag_status(queue: Queue, task_id: str) -> str:
    return (await queue.dags.get((await queue.get(task_id)).dag_id)).status


@pytest.mark.requirement("F-090", "F-100")
async def test_dag_status_goes_pending_running_completed_once(queue: Queue) -> None:
    ids = await submit_dag(queue, {"A": [], "B": ["A"]})
    assert await dag_status(queue, ids["A"]) == "pending"
    token = (await take(queue)).token
    assert await dag_status(queue, ids["A"]) == "running"
    await queue.complete(token)
    assert await dag_status(queue, ids["A"]) == "running"
    await finish_task(queue, ids["B"])
    assert await dag_status(queue, ids["A"]) == "completed"
    assert await events_named(queue, "dag.completed") == [(await queue.get(ids["A"])).dag_id]


@pytest.mark.requirement("F-069", "F-090")
async def test_dag_fails_when_only_a_review_can_continue_it(queue: Queue) -> None:
    ids = await submit_dag(queue, {"A": [], "B": [], "C": ["A"]})
    assert (await take(queue)).id == ids["A"]
    await queue.fail(f"{ids['A']}.1", "auth_failure")
    assert await dag_status(queue, ids["A"]) == "running"
    await finish_task(queue, ids["B"])
    assert await dag_status(queue, ids["A"]) == "failed"
    await queue.dead_letters.review(ids["A"], "retry")
    assert await dag_status(queue, ids["A"]) == "running"
    await finish_task(queue, ids["A"])
    await finish_task(queue, ids["C"])
    assert await dag_status(queue, ids["A"]) == "completed"
    assert len(await events_named(queue, "dag.failed")) == 1
    assert len(await events_named(queue, "dag.completed")) == 1


@pytest.mark.requirement("F-090")
@pytest.mark.parametrize("edges", [{"A": []}, {"A": [], "B": ["A"], "C": []}])
async def test_a_dag_can_be_cancelled(queue: Queue, edges: dict[str, list[str]]) -> None:
    ids = await submit_dag(queue, edges)
    await take(queue)
    dag_id = (await queue.get(ids["A"])).dag_id
    await queue.dags.cancel(dag_id, "the client went away")
    assert set((await statuses(queue, ids)).values()) == {"cancelled"}
    assert (await queue.dags.get(dag_id)).status == "cancelled"
    assert len(await events_named(queue, "dag.cancelled")) == 1


@pytest.mark.requirement("F-069", "F-099")
async def test_completed_and_cancelled_tasks_make_a_completed_dag(queue: Queue) -> None:
    ids = await submit_dag(queue, {"A": [], "B": []})
    await queue.cancel(ids["B"])
    assert await dag_status(queue, ids["A"]) == "pending"
    await finish_task(queue, ids["A"])
    dag = await queue.dags.get((await queue.get(ids["A"])).dag_id)
    assert (dag.status, dag.counts, dag.done) == ("completed", {"completed": 1, "cancelled": 1}, 2)


async def test_dag_of_a_single_task_emits_its_outcome(queue: Queue) -> None:
    await queue.submit(type="code", id="good")
    await finish(queue)
    await queue.submit(type="code", id="bad", max_attempts=1)
    await queue.fail((await take(queue)).token, "crash")
    await queue.submit(type="code", id="unwanted")
    await queue.cancel("unwanted")
    for name in ("completed", "failed", "cancelled"):
        assert len(await events_named(queue, f"dag.{name}")) == 1
    assert [await dag_status(queue, name) for name in ("good", "bad", "unwanted")] == [
        "completed",
        "failed",
        "cancelled",
    ]


async def test_dead_letter_in_a_grown_dag_can_be_retried(queue: Queue) -> None:
    lone = await queue.submit(type="code", title="Alone", max_attempts=1)
    await queue.fail((await take(queue)).token, "crash")
    dag_id = (await queue.get(lone.id)).dag_id
    await queue.dags.add_tasks(dag_id, [{"type": "code", "dependencies": [lone.id]}])
    assert ((await queue.dags.get(dag_id)).status, (await queue.dags.get(dag_id)).title) == ("failed", "Alone")
    await queue.dead_letters.review(lone.id, "retry")
    await finish_task(queue, lone.id)
    await finish(queue)
    assert (await queue.dags.get(dag_id)).status == "completed"


async def test_retry_as_new_task_counts_once_in_its_dag(queue: Queue) -> None:
    await queue.settings.use_profile("aegis")
    first = await queue.submit(type="code", target_agent_id="worker")
    await queue.fail((await take(queue)).token, "timeout")
    retry = await take(queue)
    await queue.spawn(retry.token, [{"type": "code", "target_agent_id": "worker"}])
    await queue.complete(retry.token)
    await finish(queue)
    dag = await queue.dags.get((await queue.get(first.id)).dag_id)
    assert (dag.status, dag.total, dag.done) == ("completed", 2, 2)


@pytest.mark.requirement("F-216")
@pytest.mark.parametrize(
    "bad",
    [
        {"type": "code", "key": "c", "priority": 1000},
        {"type": "code", "key": "c", "dependencies": ["d"]},
        {"type": "code", "key": "a"},
        {"type": "code", "key": "b", "dependencies": ["b"]},
    ],
)
async def test_a_dag_with_one_bad_task_creates_nothing(queue: Queue, bad: dict[str, Any]) -> None:
    await queue.settings.use_profile("factory")
    tasks = [{"type": "code", "key": "a"}, {"type": "code", "key": "x", "dependencies": ["a"]}, bad]
    with pytest.raises(InputError):
        await queue.submit_dag({"tasks": tasks})
    assert (await queue.status()).counts == {}
    assert (await queue.events()).events[-1].verb == "settings_changed"


@pytest.mark.requirement("F-108", "F-216")
async def test_cycle_in_a_dag_is_refused_and_named(queue: Queue) -> None:
    with pytest.raises(CircularDependency, match="Would create circular dependency") as refused:
        await submit_dag(queue, {"a": ["c"], "b": ["a"], "c": ["b"], "d": []})
    cycle = refused.value.facts["cycle"]
    assert (cycle[0], sorted(cycle[1:])) == (cycle[-1], ["a", "b", "c"])
    assert (await queue.status()).counts == {}


@pytest.mark.requirement("F-108")
async def test_an_edge_that_closes_a_cycle_is_refused(queue: Queue) -> None:
    ids = await submit_dag(queue, {"A": [], "B": ["A"], "C": ["B"]})
    for target in ("A", "B", "C"):
        with pytest.raises(CircularDependency):
            await queue.tasks.update(ids["A"], {"dependencies": [ids[target]]})
    assert (await queue.get(ids["A"])).dependencies == []
    await finish_task(queue, ids["A"])


@pytest.mark.requirement("F-108")
async def test_a_cycle_over_two_submissions_is_refused(queue: Queue) -> None:
    first = await queue.submit(type="code", id="A", dependencies=["B"])
    assert first.status == "pending"
    with pytest.raises(CircularDependency):
        await queue.submit(type="code", id="B", dependencies=["A"])
    with pytest.raises(CircularDependency):
        await queue.submit(type="code", id="B", dependencies=["B"])
    await queue.submit(type="code", id="B")
    assert await finish(queue) == (await queue.get("B")).id
    assert await finish(queue) == first.id


@pytest.mark.requirement("F-108")
async def test_a_cycle_over_two_submissions_through_new_tasks_is_refused(queue: Queue) -> None:
    await queue.submit(type="code", id="X", dependencies=["A"])
    tasks = [
        {"type": "code", "key": "between", "dependencies": ["X"]},
        {"type": "code", "id": "A", "dependencies": ["between"]},
    ]
    with pytest.raises(CircularDependency):
        await queue.submit_many(tasks)
    assert (await queue.status()).counts == {"pending": 1}


async def test_unknown_dependency_is_marked_missing_after_300_seconds(queue: Queue, clock: MovedClock) -> None:
    waits = await queue.submit(type="code", dependencies=["later"])
    await pass_time(queue, clock, 299)
    assert (await queue.get(waits.id)).blocked is False
    await pass_time(queue, clock, 1)
    assert (await queue.get(waits.id)).blocked_reason == "missing_dependency"
    await queue.submit(type="code", id="later")
    await finish(queue)
    task = await queue.get(waits.id)
    assert (task.status, task.blocked) == ("ready", False)


async def test_factory_profile_refuses_unknown_dependency(queue: Queue) -> None:
    await queue.settings.use_profile("factory")
    with pytest.raises(UnknownDependency):
        await queue.submit(type="code", dependencies=["later"])
    assert (await queue.status()).counts == {}


async def test_completed_dependency_is_satisfied_at_submit(queue: Queue) -> None:
    first = await queue.submit(type="code")
    await finish(queue)
    assert (await queue.submit(type="code", dependencies=[first.id])).status == "ready"


async def test_cancelled_dependency_cancels_its_new_dependent(queue: Queue) -> None:
    first = await queue.submit(type="code")
    await queue.cancel(first.id)
    then = await queue.submit(type="code", dependencies=[first.id])
    task = await queue.get(then.id)
    assert (task.status, task.cancel_reason) == ("cancelled", f"Parent {first.id} cancelled")


async def test_cancelling_a_task_cancels_all_dependents(queue: Queue) -> None:
    ids = await submit_dag(queue, DIAMOND)
    await queue.cancel(ids["A"])
    assert set((await statuses(queue, ids)).values()) == {"cancelled"}
    assert (await queue.get(ids["B"])).cancel_reason == f"Parent {ids['A']} cancelled"


async def test_waiting_task_can_be_updated_and_the_change_is_recorded(queue: Queue, clock: MovedClock) -> None:
    task_id = (await queue.submit(type="code", tags=["a"])).id
    await queue.as_caller("human:ada").tasks.update(
        task_id,
        {"priority": 5, "deadline": clock() + 60, "tags": ["b"], "timeout_sec": 7, "estimated_cost_usd": 2}
        | {"note": "the client called"},
    )
    task = await queue.get(task_id)
    assert (task.priority, task.deadline, task.tags) == (5, clock() + 60, ["b"])
    assert (task.timeout_sec, task.estimated_cost_usd) == (7, 2)
    event = (await queue.tasks.history(task_id)).events[-1]
    assert (event.verb, event.actor, event.reason) == ("updated", "human:ada", "the client called")
    assert event.data is not None
    assert event.data["priority"] == {"from": 50, "to": 5}


@pytest.mark.requirement("F-275")
async def test_priority_update_moves_a_task_to_the_front(queue: Queue) -> None:
    await queue.submit(type="code")
    urgent = await queue.submit(type="code")
    await queue.tasks.update(urgent.id, {"priority": 1})
    assert (await take(queue)).id == urgent.id


async def test_update_with_stale_version_is_refused(queue: Queue) -> None:
    task_id = (await queue.submit(type="code")).id
    version = (await queue.get(task_id)).version
    answer = await queue.tasks.update(task_id, {"priority": 10}, version=version)
    assert answer.data == {"version": version + 1}
    with pytest.raises(VersionConflict) as refused:
        await queue.tasks.update(task_id, {"priority": 20}, version=version)
    assert refused.value.facts["version"] == version + 1
    with pytest.raises(VersionConflict):
        await queue.cancel(task_id, version=version)
    assert (await queue.get(task_id)).priority == 10
    assert queue.engine.counters["version_conflict"] == 2


async def test_version_grows_with_every_change_but_not_with_heartbeats(queue: Queue) -> None:
    task_id = (await queue.submit(type="code")).id
    versions = [(await queue.get(task_id)).version]
    token = (await take(queue)).token
    versions.append((await queue.get(task_id)).version)
    await queue.heartbeat(token)
    versions.append((await queue.get(task_id)).version)
    await queue.complete(token)
    versions.append((await queue.get(task_id)).version)
    assert versions == [1, 2, 2, 3]


async def test_claimed_task_cannot_be_updated(queue: Queue) -> None:
    task_id = (await queue.submit(type="code")).id
    await queue.claim("worker")
    with pytest.raises(WrongState):
        await queue.tasks.update(task_id, {"priority": 1})


async def test_updated_dependencies_block_and_unblock_the_task(queue: Queue) -> None:
    first, second = [await queue.submit(type="code", id=name) for name in ("first", "second")]
    await queue.tasks.update("second", {"dependencies": ["first"]})
    assert (await queue.get("second")).blocked_by == [first.id]
    await queue.tasks.update("second", {"dependencies": []})
    assert (await queue.get("second")).status == "ready"
    await queue.tasks.update("second", {"dependencies": ["first"]})
    assert await finish(queue) == first.id
    assert await finish(queue) == second.id


async def test_removing_a_missing_dependency_unblocks_the_task(queue: Queue, clock: MovedClock) -> None:
    waits = await queue.submit(type="code", dependencies=["never"])
    await pass_time(queue, clock, 300)
    await queue.tasks.update(waits.id, {"dependencies": []})
    task = await queue.get(waits.id)
    assert (task.status, task.blocked) == ("ready", False)


async def test_dependency_added_later_can_be_missing(queue: Queue, clock: MovedClock) -> None:
    task_id = (await queue.submit(type="code")).id
    await queue.tasks.update(task_id, {"dependencies": ["later"]})
    await pass_time(queue, clock, 300)
    assert (await queue.get(task_id)).blocked_reason == "missing_dependency"


@pytest.mark.requirement("F-085", "F-092", "F-093", "F-094")
@pytest.mark.parametrize("done", [False, True], ids=["waiting", "completed"])
async def test_task_depending_on_an_earlier_one_joins_its_dag(
    queue: Queue,
    done: bool,  # noqa: FBT001  # a parameter of the test
) -> None:
    a = await queue.submit(type="code")
    if done:
        await finish(queue)
    b = await queue.submit(type="code", dependencies=[a.id])
    c = await queue.submit(type="code", dependencies=[b.id])
    assert b.dag_id == c.dag_id == a.dag_id
    dag = await queue.dags.get(a.dag_id or "")
    assert (dag.tasks, dag.roots, dag.leaves) == ([a.id, b.id, c.id], [a.id], [c.id])
    assert (dag.done, dag.total) == (int(done), 3)
    while assignments := await queue.claim("worker", start=True):
        await queue.complete(assignments[0].token)
    assert (await queue.dags.get(a.dag_id or "")).status == "completed"
    assert (await events_named(queue, "dag.completed"))[-1] == a.dag_id


async def test_tasks_join_the_dag_of_their_first_dependency(queue: Queue) -> None:
    one, two = await submit_dag(queue, {"a": []}), await submit_dag(queue, {"b": [], "c": ["b"]})
    first, second = (await queue.get(one["a"])).dag_id, (await queue.get(two["c"])).dag_id
    made = await queue.submit_many(
        [
            {"key": "x", "type": "code", "dependencies": [two["c"], one["a"]]},
            {"key": "y", "type": "code", "dependencies": ["x"]},
            {"key": "z", "type": "code", "dependencies": [one["a"]]},
        ]
    )
    assert [task.dag_id for task in made] == [second, second, first]
    x, y, z = (task.id for task in made)
    assert (await queue.dags.get(second)).leaves == [y]
    assert ((await queue.dags.get(first)).roots, (await queue.dags.get(first)).leaves) == ([one["a"]], [z])
    assert (await queue.dags.get(first)).tasks == [one["a"], z]
    assert x in (await queue.dags.get(second)).tasks


async def test_submitted_dag_stays_separate_from_the_dag_it_depends_on(queue: Queue) -> None:
    outside = await queue.submit(type="code")
    made = await submit_dag(queue, {"a": [outside.id], "b": [], "c": ["a", "b"]}, title="mine")
    dag = await queue.dags.get((await queue.get(made["a"])).dag_id)
    assert (dag.title, dag.total) == ("mine", 3)
    assert (dag.roots, dag.leaves) == ([made["b"]], [made["c"]])
    assert (await queue.dags.get(outside.dag_id or "")).leaves == []
    await finish(queue)
    assert (await queue.dags.get(outside.dag_id or "")).status == "completed"


async def test_task_joining_a_dag_counts_under_its_ceiling(queue: Queue) -> None:
    (a,) = await queue.submit_dag({"tasks": [{"type": "code", "estimated_cost_usd": 0.60}], "budget_ceiling_usd": 1.00})
    held = await take(queue)
    await queue.complete(held.token, usage={"cost_usd": 0.60})
    b = await queue.submit(type="code", dependencies=[a.id], estimated_cost_usd=0.60)
    assert b.dag_id == a.dag_id
    assert await queue.claim("worker") == []
    assert "0.40 of 1.00 USD left" in (await queue.explain(b.id)).summary


async def weights(queue: Queue, *task_ids: str) -> list[int]:
    rows = {ids.show_task(str(row["id"])): row["path_weight"] for row in await sql(queue, "select * from tasks")}
    return [rows[task_id] for task_id in task_ids]


@pytest.mark.requirement("F-110", "F-117")
async def test_chain_submitted_one_by_one_raises_urgency_of_its_head(queue: Queue) -> None:
    other = await queue.submit(type="code")
    chain = [(await queue.submit(type="code")).id]
    for _ in range(3):
        chain.append((await queue.submit(type="code", dependencies=[chain[-1]])).id)
    assert await weights(queue, *chain) == [3, 2, 1, 0]
    assert (await queue.get(chain[0])).priority_parts["dependency"] > 0
    assert await finish(queue) == chain[0], "before the older one that no other task waits for"
    assert (await queue.get(other.id)).status == "ready"


async def test_longer_branch_raises_path_weight_and_shorter_one_does_not(queue: Queue) -> None:
    ids_ = await submit_dag(queue, {"a": [], "b": ["a"], "c": ["b"]})
    versions = [(await queue.get(task)).version for task in ids_.values()]
    await queue.submit(type="code", dependencies=[ids_["a"]])
    assert await weights(queue, *ids_.values()) == [2, 1, 0]
    assert [(await queue.get(task)).version for task in ids_.values()] == versions
    await queue.submit_many(
        [
            {"key": "x", "type": "code", "dependencies": [ids_["b"]]},
            {"key": "y", "type": "code", "dependencies": ["x"]},
        ]
    )
    assert await weights(queue, *ids_.values()) == [3, 2, 0]


async def test_awaited_subtasks_get_path_weight_of_the_parent_chain(queue: Queue) -> None:
    parent = await queue.submit(type="parent")
    below = await queue.submit(type="code", dependencies=[parent.id])
    held = await take(queue)
    spawned = await queue.spawn(
        held.token,
        [{"key": "x", "type": "code"}, {"key": "y", "type": "code", "dependencies": ["x"]}],
        wait=True,
    )
    x, y = spawned
    assert await weights(queue, x.id, y.id, parent.id, below.id) == [3, 2, 1, 0]


async def test_edge_added_later_lengthens_the_path(queue: Queue) -> None:
    a = await queue.submit(type="code")
    b = await queue.submit(type="code", dependencies=[a.id])
    c, d = await queue.submit_many([{"key": "c", "type": "code"}, {"key": "d", "type": "code", "dependencies": ["c"]}])
    await queue.tasks.update(c.id, {"dependencies": [b.id]})
    assert await weights(queue, a.id, b.id, c.id, d.id) == [3, 2, 1, 0]
