"""DAGs: what depends on what, how a DAG stands as a whole, and which edges are refused."""

from typing import Any

import pytest

from shiftwork import Queue, Report
from shiftwork.core import ids
from shiftwork.core.errors import CircularDependency, InputError, UnknownDependency, VersionConflict, WrongState
from shiftwork.testing import MovedClock, pass_time
from tests.conformance.steps import events_named, finish, sql, states, statuses, submit_dag, take

DIAMOND = {"A": [], "B": ["A"], "C": ["A"], "D": ["B", "C"]}


async def finish_task(queue: Queue, task_id: str) -> None:
    """Complete this task, which must be the next."""
    assert await finish(queue) == task_id


# -- order -------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("F-004", "F-023", "F-024", "F-059", "F-060", "F-064", "F-096", "F-097")
async def test_a_task_is_ready_when_its_last_dependency_has_completed(queue: Queue) -> None:
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
async def test_becoming_ready_is_told(queue: Queue) -> None:
    ids = await submit_dag(queue, DIAMOND)
    assert await events_named(queue, "task.ready") == [ids["A"]]
    await finish_task(queue, ids["A"])
    assert await events_named(queue, "task.ready") == [ids["A"], ids["B"], ids["C"]]


@pytest.mark.requirement("F-214", "F-215", "F-217")
async def test_the_landing_page_is_built_in_order(queue: Queue) -> None:
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
        token = (await queue.tasks(status="running")).tasks[0].claim.assignment_id or ""
        await queue.complete(token)
    ready = [names[task_id or ""] for task_id in await events_named(queue, "task.ready")]
    assert ready[3:] == ["Synthesize requirements", "Test & Deploy"]
    assert set((await statuses(queue, ids)).values()) == {"completed"}


async def test_completing_both_parents_in_one_batch_frees_the_child(queue: Queue) -> None:
    ids = await submit_dag(queue, {"left": [], "right": [], "join": ["left", "right"]})
    await queue.register_agent(id="worker", max_concurrent_tasks=2)
    claimed = await queue.claim("worker", 2, start=True)
    await queue.complete_many([Report(assignment.token) for assignment in claimed])
    assert (await queue.get(ids["join"])).status == "ready"


# -- a DAG as a whole --------------------------------------------------------------------------------------------


@pytest.mark.requirement("F-008", "F-084", "F-085", "F-087", "F-091", "F-093", "F-094")
async def test_a_diamond_reads_as_one_dag(queue: Queue) -> None:
    ids = await submit_dag(queue, DIAMOND)
    dag_ids = {(await queue.get(task_id)).dag_id for task_id in ids.values()}
    (dag_id,) = dag_ids
    dag = await queue.dag(dag_id)
    assert dag.id == dag_id
    assert sorted(dag.tasks) == sorted(ids.values())
    assert (dag.roots, dag.leaves) == ([ids["A"]], [ids["D"]])
    assert (dag.counts, dag.done, dag.total) == ({"ready": 1, "pending": 3}, 0, 4)
    assert [task.id for task in (await queue.tasks(dag=dag_id)).tasks] == sorted(ids.values())


@pytest.mark.requirement("F-086")
async def test_a_lone_task_is_a_dag_of_its_own(queue: Queue) -> None:
    task = await queue.get((await queue.submit(type="code", title="Alone")).id)
    dag = await queue.dag(task.dag_id)
    assert (dag.tasks, dag.roots, dag.leaves, dag.title) == ([task.id], [task.id], [task.id], "Alone")


@pytest.mark.requirement("F-092")
async def test_roots_and_leaves_follow_every_change(queue: Queue) -> None:
    ids = await submit_dag(queue, {"A": [], "B": ["A"]})
    dag_id = (await queue.get(ids["A"])).dag_id
    (more,) = await queue.add_to_dag(dag_id, [{"type": "code", "dependencies": [ids["B"]]}])
    dag = await queue.dag(dag_id)
    assert (dag.roots, dag.leaves) == ([ids["A"]], [more.id])
    await queue.update(more.id, {"dependencies": []})
    dag = await queue.dag(dag_id)
    assert (dag.roots, dag.leaves) == ([ids["A"], more.id], [ids["B"], more.id])


async def dag_status(queue: Queue, task_id: str) -> str:
    return (await queue.dag((await queue.get(task_id)).dag_id)).status


@pytest.mark.requirement("F-090", "F-100")
async def test_a_dag_is_pending_running_and_completed_once(queue: Queue) -> None:
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
async def test_a_dag_fails_when_only_a_person_can_move_it_on(queue: Queue) -> None:
    ids = await submit_dag(queue, {"A": [], "B": [], "C": ["A"]})
    assert (await take(queue)).id == ids["A"]
    await queue.fail(f"{ids['A']}.1", "auth_failure")
    assert await dag_status(queue, ids["A"]) == "running"
    await finish_task(queue, ids["B"])
    assert await dag_status(queue, ids["A"]) == "failed"
    await queue.review(ids["A"], "retry")
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
    await queue.cancel_dag(dag_id, "the client went away")
    assert set((await statuses(queue, ids)).values()) == {"cancelled"}
    assert (await queue.dag(dag_id)).status == "cancelled"
    assert len(await events_named(queue, "dag.cancelled")) == 1


@pytest.mark.requirement("F-069", "F-099")
async def test_completed_and_cancelled_tasks_make_a_completed_dag(queue: Queue) -> None:
    ids = await submit_dag(queue, {"A": [], "B": []})
    await queue.cancel(ids["B"])
    assert await dag_status(queue, ids["A"]) == "pending"
    await finish_task(queue, ids["A"])
    dag = await queue.dag((await queue.get(ids["A"])).dag_id)
    assert (dag.status, dag.counts, dag.done) == ("completed", {"completed": 1, "cancelled": 1}, 2)


async def test_a_lone_tasks_dag_tells_how_it_ended(queue: Queue) -> None:
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


async def test_a_dead_letter_whose_dag_grew_can_be_brought_back(queue: Queue) -> None:
    lone = await queue.submit(type="code", title="Alone", max_attempts=1)
    await queue.fail((await take(queue)).token, "crash")
    dag_id = (await queue.get(lone.id)).dag_id
    await queue.add_to_dag(dag_id, [{"type": "code", "dependencies": [lone.id]}])
    assert ((await queue.dag(dag_id)).status, (await queue.dag(dag_id)).title) == ("failed", "Alone")
    await queue.review(lone.id, "retry")
    await finish_task(queue, lone.id)
    await finish(queue)
    assert (await queue.dag(dag_id)).status == "completed"


async def test_a_retry_as_a_new_task_counts_once_in_its_dag(queue: Queue) -> None:
    await queue.use_profile("aegis")
    first = await queue.submit(type="code", target_agent_id="worker")
    await queue.fail((await take(queue)).token, "timeout")
    retry = await take(queue)
    await queue.spawn(retry.token, [{"type": "code", "target_agent_id": "worker"}])
    await queue.complete(retry.token)
    await finish(queue)
    dag = await queue.dag((await queue.get(first.id)).dag_id)
    assert (dag.status, dag.total, dag.done) == ("completed", 2, 2)


# -- all or nothing ----------------------------------------------------------------------------------------------


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
    await queue.use_profile("factory")
    tasks = [{"type": "code", "key": "a"}, {"type": "code", "key": "x", "dependencies": ["a"]}, bad]
    with pytest.raises(InputError):
        await queue.submit_dag({"tasks": tasks})
    assert (await queue.status()).counts == {}
    assert (await queue.events())[0][-1].verb == "settings_changed"


@pytest.mark.requirement("F-108", "F-216")
async def test_a_cycle_in_a_dag_is_refused_and_named(queue: Queue) -> None:
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
            await queue.update(ids["A"], {"dependencies": [ids[target]]})
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


# -- dependencies outside the DAG --------------------------------------------------------------------------------


async def test_an_unknown_dependency_is_waited_for_and_named_after_300_seconds(queue: Queue, clock: MovedClock) -> None:
    waits = await queue.submit(type="code", dependencies=["later"])
    await pass_time(queue, clock, 299)
    assert (await queue.get(waits.id)).blocked is False
    await pass_time(queue, clock, 1)
    assert (await queue.get(waits.id)).blocked_reason == "missing_dependency"
    await queue.submit(type="code", id="later")
    await finish(queue)
    task = await queue.get(waits.id)
    assert (task.status, task.blocked) == ("ready", False)


async def test_the_factory_takes_no_unknown_dependency(queue: Queue) -> None:
    await queue.use_profile("factory")
    with pytest.raises(UnknownDependency):
        await queue.submit(type="code", dependencies=["later"])
    assert (await queue.status()).counts == {}


async def test_a_dependency_that_has_already_completed_is_satisfied(queue: Queue) -> None:
    first = await queue.submit(type="code")
    await finish(queue)
    assert (await queue.submit(type="code", dependencies=[first.id])).status == "ready"


async def test_a_dependency_that_was_already_cancelled_cancels_its_dependent(queue: Queue) -> None:
    first = await queue.submit(type="code")
    await queue.cancel(first.id)
    then = await queue.submit(type="code", dependencies=[first.id])
    task = await queue.get(then.id)
    assert (task.status, task.cancel_reason) == ("cancelled", f"Parent {first.id} cancelled")


async def test_a_cancelled_task_cancels_all_that_depends_on_it(queue: Queue) -> None:
    ids = await submit_dag(queue, DIAMOND)
    await queue.cancel(ids["A"])
    assert set((await statuses(queue, ids)).values()) == {"cancelled"}
    assert (await queue.get(ids["B"])).cancel_reason == f"Parent {ids['A']} cancelled"


# -- update ------------------------------------------------------------------------------------------------------


async def test_a_waiting_task_can_be_changed_and_the_change_is_recorded(queue: Queue, clock: MovedClock) -> None:
    task_id = (await queue.submit(type="code", tags=["a"])).id
    await queue.as_caller("human:ada").update(
        task_id,
        {"priority": 5, "deadline": clock() + 60, "tags": ["b"], "timeout_sec": 7, "estimated_cost_usd": 2},
        note="the client called",
    )
    task = await queue.get(task_id)
    assert (task.priority, task.deadline, task.tags) == (5, clock() + 60, ["b"])
    assert (task.timeout_sec, task.estimated_cost_usd) == (7, 2)
    event = (await queue.history(task_id))[-1]
    assert (event.verb, event.actor, event.reason) == ("updated", "human:ada", "the client called")
    assert event.data is not None
    assert event.data["priority"] == {"from": 50, "to": 5}


@pytest.mark.requirement("F-275")
async def test_a_person_can_put_a_task_first(queue: Queue) -> None:
    await queue.submit(type="code")
    urgent = await queue.submit(type="code")
    await queue.update(urgent.id, {"priority": 1})
    assert (await take(queue)).id == urgent.id


async def test_a_change_of_a_stale_version_is_refused(queue: Queue) -> None:
    task_id = (await queue.submit(type="code")).id
    version = (await queue.get(task_id)).version
    answer = await queue.update(task_id, {"priority": 10}, version=version)
    assert answer.data == {"version": version + 1}
    with pytest.raises(VersionConflict) as refused:
        await queue.update(task_id, {"priority": 20}, version=version)
    assert refused.value.facts["version"] == version + 1
    with pytest.raises(VersionConflict):
        await queue.cancel(task_id, version=version)
    assert (await queue.get(task_id)).priority == 10
    assert queue.engine.counters["version_conflict"] == 2


async def test_the_version_grows_with_every_change_but_not_with_beats(queue: Queue) -> None:
    task_id = (await queue.submit(type="code")).id
    versions = [(await queue.get(task_id)).version]
    token = (await take(queue)).token
    versions.append((await queue.get(task_id)).version)
    await queue.heartbeat(token)
    versions.append((await queue.get(task_id)).version)
    await queue.complete(token)
    versions.append((await queue.get(task_id)).version)
    assert versions == [1, 2, 2, 3]


async def test_a_held_task_cannot_be_changed(queue: Queue) -> None:
    task_id = (await queue.submit(type="code")).id
    await queue.claim("worker")
    with pytest.raises(WrongState):
        await queue.update(task_id, {"priority": 1})


async def test_changed_dependencies_hold_and_free_the_task(queue: Queue) -> None:
    first, second = [await queue.submit(type="code", id=name) for name in ("first", "second")]
    await queue.update("second", {"dependencies": ["first"]})
    assert (await queue.get("second")).blocked_by == [first.id]
    await queue.update("second", {"dependencies": []})
    assert (await queue.get("second")).status == "ready"
    await queue.update("second", {"dependencies": ["first"]})
    assert await finish(queue) == first.id
    assert await finish(queue) == second.id


async def test_a_task_that_was_blocked_by_a_missing_one_is_freed_by_a_change(queue: Queue, clock: MovedClock) -> None:
    waits = await queue.submit(type="code", dependencies=["never"])
    await pass_time(queue, clock, 300)
    await queue.update(waits.id, {"dependencies": []})
    task = await queue.get(waits.id)
    assert (task.status, task.blocked) == ("ready", False)


async def test_a_dependency_given_later_may_be_missing_too(queue: Queue, clock: MovedClock) -> None:
    task_id = (await queue.submit(type="code")).id
    await queue.update(task_id, {"dependencies": ["later"]})
    await pass_time(queue, clock, 300)
    assert (await queue.get(task_id)).blocked_reason == "missing_dependency"


# -- DAGs that grow over several submissions ---------------------------------------------------------------------


@pytest.mark.requirement("F-085", "F-092", "F-093", "F-094")
@pytest.mark.parametrize("done", [False, True], ids=["waiting", "completed"])
async def test_a_task_that_depends_on_an_earlier_one_is_in_its_dag(
    queue: Queue,
    done: bool,  # noqa: FBT001  # a parameter of the test
) -> None:
    a = await queue.submit(type="code")
    if done:
        await finish(queue)
    b = await queue.submit(type="code", dependencies=[a.id])
    c = await queue.submit(type="code", dependencies=[b.id])
    assert b.dag_id == c.dag_id == a.dag_id
    dag = await queue.dag(a.dag_id or "")
    assert (dag.tasks, dag.roots, dag.leaves) == ([a.id, b.id, c.id], [a.id], [c.id])
    assert (dag.done, dag.total) == (int(done), 3)
    while assignments := await queue.claim("worker", start=True):
        await queue.complete(assignments[0].token)
    assert (await queue.dag(a.dag_id or "")).status == "completed"
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
    assert (await queue.dag(second)).leaves == [y]
    assert ((await queue.dag(first)).roots, (await queue.dag(first)).leaves) == ([one["a"]], [z])
    assert (await queue.dag(first)).tasks == [one["a"], z]
    assert x in (await queue.dag(second)).tasks


async def test_a_dag_that_depends_on_another_keeps_to_itself(queue: Queue) -> None:
    outside = await queue.submit(type="code")
    made = await submit_dag(queue, {"a": [outside.id], "b": [], "c": ["a", "b"]}, title="mine")
    dag = await queue.dag((await queue.get(made["a"])).dag_id)
    assert (dag.title, dag.total) == ("mine", 3)
    assert (dag.roots, dag.leaves) == ([made["b"]], [made["c"]])
    assert (await queue.dag(outside.dag_id or "")).leaves == []
    await finish(queue)
    assert (await queue.dag(outside.dag_id or "")).status == "completed"


async def test_a_task_that_joins_a_dag_stands_under_its_ceiling(queue: Queue) -> None:
    (a,) = await queue.submit_dag({"tasks": [{"type": "code", "estimated_cost_usd": 0.60}], "budget_ceiling_usd": 1.00})
    held = await take(queue)
    await queue.complete(held.token, usage={"cost_usd": 0.60})
    b = await queue.submit(type="code", dependencies=[a.id], estimated_cost_usd=0.60)
    assert b.dag_id == a.dag_id
    assert await queue.claim("worker") == []
    assert "0.40 of 1.00 USD left" in (await queue.explain(b.id)).summary


# -- the critical path follows -----------------------------------------------------------------------------------


async def weights(queue: Queue, *task_ids: str) -> list[int]:
    rows = {ids.show_task(str(row["id"])): row["path_weight"] for row in await sql(queue, "select * from tasks")}
    return [rows[task_id] for task_id in task_ids]


@pytest.mark.requirement("F-110", "F-117")
async def test_a_chain_that_is_built_one_by_one_becomes_more_urgent_from_its_head(queue: Queue) -> None:
    other = await queue.submit(type="code")
    chain = [(await queue.submit(type="code")).id]
    for _ in range(3):
        chain.append((await queue.submit(type="code", dependencies=[chain[-1]])).id)
    assert await weights(queue, *chain) == [3, 2, 1, 0]
    assert (await queue.get(chain[0])).priority_parts["dependency"] > 0
    assert await finish(queue) == chain[0], "before the older one that no other task waits for"
    assert (await queue.get(other.id)).status == "ready"


async def test_a_longer_branch_counts_and_a_shorter_one_changes_nothing(queue: Queue) -> None:
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


async def test_a_subtask_that_its_parent_waits_for_heads_the_chain_below_the_parent(queue: Queue) -> None:
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


async def test_an_edge_that_is_added_later_lengthens_the_path(queue: Queue) -> None:
    a = await queue.submit(type="code")
    b = await queue.submit(type="code", dependencies=[a.id])
    c, d = await queue.submit_many([{"key": "c", "type": "code"}, {"key": "d", "type": "code", "dependencies": ["c"]}])
    await queue.update(c.id, {"dependencies": [b.id]})
    assert await weights(queue, a.id, b.id, c.id, d.id) == [3, 2, 1, 0]
