"""Dynamic expansion: a running task adds subtasks to its own DAG, and continues or waits for them."""

import pytest

from shiftwork import Queue
from shiftwork.model.errors import CircularDependency, InputError, LeaseLost, NotFound, SpawnLimit, WrongState
from shiftwork.testing import MovedClock, pass_time
from tests.conformance.steps import everything, finish, states, submit_dag, take

SUBTASK = {"type": "research"}


async def start_parent(queue: Queue) -> str:
    """A task that the caller calls `parent`, running; its claim token."""
    await queue.submit(type="code", id="parent", title="Parent", created_by="human:adam")
    return (await take(queue)).token


@pytest.mark.requirement("F-007", "F-092", "F-101", "F-102", "F-103", "F-105", "F-106")
async def test_running_task_spawns_three_subtasks_and_continues(queue: Queue) -> None:
    token = await start_parent(queue)
    spawned = await queue.spawn(token, [SUBTASK, SUBTASK, SUBTASK])
    parent = await queue.get("parent")
    assert (parent.status, parent.parent_id) == ("running", None)
    for made in spawned:
        child = await queue.get(made.id)
        assert (child.status, child.parent_id, child.dag_id) == ("ready", parent.id, parent.dag_id)
    dag = await queue.dags.get(parent.dag_id)
    assert sorted(dag.tasks) == sorted([parent.id, *(made.id for made in spawned)])
    assert sorted(dag.roots) == sorted(dag.leaves) == sorted(dag.tasks)


@pytest.mark.requirement("F-203")
async def test_subtask_names_the_agent_that_spawned_it(queue: Queue) -> None:
    token = await start_parent(queue)
    own, given = await queue.spawn(token, [SUBTASK, {**SUBTASK, "created_by": "human:ada"}])
    assert (await queue.get(own.id)).created_by == "agent:worker"
    assert (await queue.tasks.history(own.id)).events[0].actor == "agent:worker"
    assert (await queue.get(given.id)).created_by == "human:ada"


async def test_dag_of_a_single_task_keeps_title_and_author_when_it_grows(queue: Queue) -> None:
    await queue.spawn(await start_parent(queue), [SUBTASK])
    dag = await queue.dags.get((await queue.get("parent")).dag_id)
    assert (dag.title, dag.created_by, dag.status, dag.total) == ("Parent", "human:adam", "running", 2)


async def test_dag_is_not_completed_before_its_subtasks(queue: Queue) -> None:
    token = await start_parent(queue)
    await queue.spawn(token, [SUBTASK])
    await queue.complete(token)
    dag_id = (await queue.get("parent")).dag_id
    assert (await queue.dags.get(dag_id)).status == "running"
    await finish(queue)
    assert (await queue.dags.get(dag_id)).status == "completed"


async def test_subtasks_can_depend_on_each_other_and_on_existing_tasks(queue: Queue) -> None:
    ids = await submit_dag(queue, {"first": [], "second": []})
    assert (await take(queue)).id == ids["first"]
    tasks = [
        {"type": "code", "key": "x", "dependencies": [ids["second"]]},
        {"type": "code", "key": "y", "dependencies": ["x"]},
    ]
    x, y = await queue.spawn(f"{ids['first']}.1", tasks)
    assert (await queue.get(x.id)).blocked_by == [ids["second"]]
    assert (await queue.get(y.id)).blocked_by == [x.id]
    dag = await queue.dags.get((await queue.get(ids["first"])).dag_id)
    assert (dag.roots, dag.leaves) == ([ids["first"], ids["second"]], [ids["first"], y.id])


@pytest.mark.requirement("F-083", "F-107")
async def test_parent_waits_until_its_subtask_completes(queue: Queue) -> None:
    (child,) = await queue.spawn(await start_parent(queue), [SUBTASK], wait=True)
    parent = await queue.get("parent")
    assert (parent.status, parent.blocked_by, parent.attempts) == ("pending", [child.id], 0)
    assert (await states(queue, "parent"))[-2:] == ["running", "pending"]
    assert await finish(queue, data={"found": 3}) == child.id
    parent = await queue.get("parent")
    assert (parent.status, parent.blocked_by) == ("ready", [])
    assert await finish(queue) == parent.id
    assert (await queue.get("parent")).attempts == 0


async def test_waiting_parent_releases_its_slot_and_claim(queue: Queue) -> None:
    token = await start_parent(queue)
    await queue.spawn(token, [SUBTASK], wait=True)
    with pytest.raises(LeaseLost):
        await queue.complete(token)
    assert (await take(queue)).type == "research"


async def test_waiting_parent_does_not_time_out(queue: Queue, clock: MovedClock) -> None:
    await queue.spawn(await start_parent(queue), [SUBTASK], wait=True)
    await pass_time(queue, clock, 3600)
    assert (await queue.get("parent")).status == "pending"


async def test_parent_can_wait_for_existing_tasks(queue: Queue) -> None:
    token = await start_parent(queue)
    other = await queue.submit(type="code")
    assert await queue.waits.wait_for_tasks(token, [other.id]) == "pending"
    await finish(queue)
    again = await take(queue)
    assert again.id == (await queue.get("parent")).id
    assert await queue.waits.wait_for_tasks(again.token, [other.id]) == "running"  # it is done, so the slot is kept
    assert (await queue.complete(again.token)).status == "completed"


SQUARES = [{"type": "square", "payload": {"n": n}} for n in (2, 3)]


@pytest.mark.parametrize("wait", [False, True])
async def test_named_spawn_happens_once_in_the_life_of_a_task(queue: Queue, *, wait: bool) -> None:
    token = await start_parent(queue)
    first = await queue.spawn(token, SQUARES, name="squares", wait=wait)
    for _ in SQUARES:
        await queue.complete((await take(queue, "other", types=["square"])).token)
    if not wait:
        await queue.release(token)
    again = await take(queue)
    second = await queue.spawn(again.token, SQUARES, name="squares", wait=wait)
    assert [(each.id, each.status, each.duplicate) for each in second] == [
        (each.id, "completed", True) for each in first
    ]
    assert (await queue.get("parent")).status == "running"
    assert len((await queue.tasks.list(parent=again.id)).tasks) == 2
    other = await queue.spawn(again.token, SQUARES, name="more squares")
    assert {each.id for each in other}.isdisjoint({each.id for each in first})


async def test_repeated_named_spawn_waits_for_open_subtasks(queue: Queue) -> None:
    token = await start_parent(queue)
    await queue.spawn(token, SQUARES, name="squares")
    await queue.release(token)
    again = await take(queue, types=["code"])
    await queue.spawn(again.token, SQUARES, name="squares", wait=True)
    assert (await queue.get("parent")).status == "pending"
    for _ in SQUARES:
        await queue.complete((await take(queue, "other", types=["square"])).token)
    assert (await queue.get("parent")).status == "ready"


async def test_spawn_under_the_name_of_a_step_is_refused(queue: Queue) -> None:
    token = await start_parent(queue)
    await queue.steps.complete(token, "plan", {"parts": 2})
    with pytest.raises(InputError, match="spawned nothing"):
        await queue.spawn(token, SQUARES, name="plan")


async def test_waiting_for_a_cancelled_task_cancels_the_parent(queue: Queue) -> None:
    token = await start_parent(queue)
    other = await queue.submit(type="code")
    await queue.cancel(other.id)
    assert await queue.waits.wait_for_tasks(token, [other.id]) == "cancelled"
    assert (await queue.get("parent")).cancel_reason == f"Parent {other.id} cancelled"


async def test_unstarted_task_cannot_wait_for_subtasks(queue: Queue) -> None:
    await queue.submit(type="code")
    (assignment,) = await queue.claim("worker")
    with pytest.raises(WrongState):
        await queue.spawn(assignment.token, [SUBTASK], wait=True)
    assert (await queue.status()).counts == {"claimed": 1}


@pytest.mark.requirement("F-104")
@pytest.mark.parametrize("wait", [False, True])
async def test_subtask_depending_on_its_parent_is_refused(queue: Queue, wait: bool) -> None:  # noqa: FBT001  # pytest passes it by name
    token = await start_parent(queue)
    with pytest.raises(CircularDependency) as refused:
        await queue.spawn(token, [SUBTASK, {**SUBTASK, "dependencies": ["parent"]}], wait=wait)
    assert refused.value.what == "Would create circular dependency"
    parent = await queue.get("parent")
    assert (await queue.dags.get(parent.dag_id)).tasks == [parent.id]
    assert (await queue.status()).counts == {"running": 1}


@pytest.mark.requirement("F-104")
async def test_wait_that_closes_a_cycle_is_refused(queue: Queue) -> None:
    ids = await submit_dag(queue, {"A": [], "B": ["A"], "C": ["B"]})
    token = (await take(queue)).token
    for target in ("A", "B", "C"):
        with pytest.raises(CircularDependency):
            await queue.waits.wait_for_tasks(token, [ids[target]])
    assert (await queue.get(ids["A"])).status == "running"


async def test_spawn_under_a_lost_claim_is_refused(queue: Queue) -> None:
    token = await start_parent(queue)
    await queue.release(token)
    with pytest.raises(LeaseLost):
        await queue.spawn(token, [SUBTASK])
    assert (await queue.status()).counts == {"ready": 1}


async def test_spawn_is_all_or_nothing(queue: Queue) -> None:
    token = await start_parent(queue)
    with pytest.raises(InputError):
        await queue.spawn(token, [SUBTASK, {"type": "code", "priority": 1000}])
    with pytest.raises(InputError):
        await queue.spawn(token, [])
    with pytest.raises(NotFound):
        await queue.waits.wait_for_tasks(token, ["nobody"])
    assert (await queue.status()).counts == {"running": 1}


async def test_spawn_depth_is_limited_by_setting(queue: Queue) -> None:
    await queue.settings.set("spawn.max_depth", 2)
    await start_parent(queue)
    token = f"{(await queue.get('parent')).id}.1"
    for _ in range(2):
        await queue.spawn(token, [SUBTASK], wait=True)
        token = (await take(queue)).token
    before = await everything(queue)
    with pytest.raises(SpawnLimit) as refused:
        await queue.spawn(token, [SUBTASK])
    assert (refused.value.code, refused.value.facts["limit"]) == ("spawn_limit", "spawn.max_depth")
    assert await everything(queue) == before
    await queue.complete(token)


async def test_subtask_count_is_limited_by_setting(queue: Queue) -> None:
    await queue.settings.set("spawn.max_subtasks", 3)
    token = await start_parent(queue)
    named = [{**SUBTASK, "idempotency_key": f"part-{number}"} for number in range(2)]
    await queue.spawn(token, named)
    before = await everything(queue)
    with pytest.raises(SpawnLimit) as refused:
        await queue.spawn(token, [SUBTASK, SUBTASK])
    assert refused.value.facts["limit"] == "spawn.max_subtasks"
    assert await everything(queue) == before
    assert [made.duplicate for made in await queue.spawn(token, named)] == [True, True]  # those are not new ones
    await queue.spawn(token, [SUBTASK])


async def test_default_spawn_limits_are_depth_ten_and_thousand_subtasks(queue: Queue) -> None:
    await queue.settings.set("max_concurrent_tasks", None)
    token = await start_parent(queue)
    await queue.spawn(token, [SUBTASK] * 1000)
    with pytest.raises(SpawnLimit):
        await queue.spawn(token, [SUBTASK])
    for _ in range(9):
        await queue.spawn((await take(queue)).token, [{**SUBTASK, "priority": 1}])
    with pytest.raises(SpawnLimit):
        await queue.spawn((await take(queue)).token, [SUBTASK])


@pytest.mark.requirement("F-107")
async def test_resumed_parent_gets_outputs_of_its_subtasks(queue: Queue) -> None:
    await queue.submit(type="parent")
    parent = await take(queue)
    children = await queue.spawn(parent.token, [{"type": "child", "payload": {"n": n}} for n in range(2)], wait=True)
    for number in range(2):
        await queue.complete((await take(queue)).token, {"found": number})
    resumed = await take(queue)
    ids = [child.id for child in children]
    assert resumed.id == parent.id
    assert sorted(resumed.task().dependencies) == sorted((await queue.get(parent.id)).dependencies) == sorted(ids)
    handed = {given.ref: given.data for given in resumed.inputs}
    assert handed == {f"task:{child}:output": {"found": number} for number, child in enumerate(ids)}
    assert [given.ref for given in await queue.artifacts.inputs(parent.id)] == [given.ref for given in resumed.inputs]
