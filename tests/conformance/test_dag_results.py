"""Waiting for DAGs: the outcome of each task, the first failure, and DAGs that cannot continue."""

import asyncio

import pytest

from shiftwork import Queue, ResultTimeout, TaskCancelled, TaskFailed
from shiftwork.model.errors import InputError, NotFound
from tests.conformance.steps import finish, take

CHAIN = {"tasks": [{"type": "code", "key": "a"}, {"type": "code", "key": "b", "dependencies": ["a"]}]}


async def test_dag_result_has_the_result_of_each_task(queue: Queue) -> None:
    dag = await queue.submit_dag(CHAIN)
    waiting = asyncio.create_task(dag.result(timeout=30))
    for number in range(2):
        await finish(queue, data=number)
    assert await waiting == {"a": 0, "b": 1}
    found = await queue.dags.result(dag, wait=0)
    assert (found.dag_id, found.status, found.failures) == (dag.dag_id, "completed", [])
    assert [(task.id, task.status, task.output) for task in found.tasks] == [
        (dag[0].id, "completed", 0),
        (dag[1].id, "completed", 1),
    ]


async def test_open_dag_reports_its_progress(queue: Queue) -> None:
    dag = await queue.submit_dag(CHAIN)
    await finish(queue)
    with pytest.raises(ResultTimeout, match="1 of 2 tasks are done"):
        await queue.dags.result(dag.dag_id or "", wait=0.01)
    with pytest.raises(ResultTimeout):
        await dag.results(timeout=0)


async def test_dag_that_cannot_continue_has_failed(queue: Queue) -> None:
    dag = await queue.submit_dag(CHAIN)
    waiting = asyncio.create_task(dag.results(timeout=30))
    taken = await take(queue)
    await queue.fail(taken.token, "invalid_input", "no such file")
    results = await waiting
    assert (results["a"].status, results["a"].error, results["a"].reason) == (
        "dead_lettered", "no such file", "invalid_input",
    )  # fmt: skip
    assert results["b"].status == "pending"
    with pytest.raises(TaskFailed, match="of the DAG failed: no such file") as caught:
        await dag.result()
    assert caught.value.task_id == dag[0].id
    assert [task.id for task in (await queue.dags.result(dag)).failures] == [dag[0].id]


async def test_cancelled_dag_is_reported_as_cancelled(queue: Queue) -> None:
    dag = await queue.submit_dag(CHAIN)
    await queue.dags.cancel(dag.dag_id or "", "enough")
    with pytest.raises(TaskCancelled):
        await dag.result(timeout=5)
    assert (await queue.dags.result(dag)).status == "cancelled"


async def test_result_of_a_retried_task_is_that_of_its_newest_row(aegis: Queue) -> None:
    dag = await aegis.submit_dag({"tasks": [{"type": "code", "key": "a"}, {"type": "code", "key": "b"}]})
    taken = await take(aegis, "first")
    await aegis.fail(taken.token, "timeout")
    for agent in ("second", "third"):
        await finish(aegis, agent, data=agent)
    assert set((await dag.result(timeout=5)).values()) == {"second", "third"}
    assert {task.id for task in (await aegis.dags.result(dag)).tasks} == {task.id for task in dag}


async def test_already_existing_task_is_awaited_too(queue: Queue) -> None:
    await queue.submit(type="code", idempotency_key="same")
    dag = await queue.submit_dag({"tasks": [{"type": "code", "idempotency_key": "same"}, {"type": "code", "key": "b"}]})
    done = {await finish(queue, data=number): number for number in range(2)}
    assert await dag.result(timeout=5) == {dag[0].id: done[dag[0].id], "b": done[dag[1].id]}


async def test_standalone_task_is_a_dag_of_one(queue: Queue) -> None:
    made = await queue.submit(type="code")
    assert made.dag_id is not None
    waiting = asyncio.create_task(queue.dags.result(made.dag_id, wait=30))
    await finish(queue, data="alone")
    assert [task.output for task in (await waiting).tasks] == ["alone"]


async def test_unknown_dag_and_invalid_wait_are_refused(queue: Queue) -> None:
    dag = await queue.submit_dag(CHAIN)
    with pytest.raises(NotFound):
        await queue.dags.result("dag_00000000000000000000000000", wait=5)
    with pytest.raises(NotFound):
        await queue.in_workspace("other").dags.result(dag)
    with pytest.raises(InputError, match="expected a non-negative duration"):
        await queue.dags.result(dag, wait=-1)
