"""Waiting for results: the answer for each outcome, access, and timeouts."""

import asyncio
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from shiftwork import Queue, ResultTimeout, Submitted, TaskCancelled, TaskFailed, TaskHandle
from shiftwork.model.errors import InputError, NotFound
from tests.conformance.steps import finish, take


async def test_handle_returns_the_data_of_its_task(queue: Queue) -> None:
    handle = await queue.submit(type="code", key="k")
    waiting = asyncio.create_task(handle.result(timeout=30))
    await finish(queue, data={"n": 1})
    assert await waiting == {"n": 1}
    assert await handle.result() == {"n": 1}
    assert (await queue.result(handle)).data == {"n": 1}
    assert (await queue.result(handle.id, wait=timedelta(seconds=5))).data == {"n": 1}


async def test_handle_returns_the_text_if_there_is_no_data(queue: Queue) -> None:
    handle = await queue.submit(type="code")
    taken = await take(queue)
    await queue.complete(taken.token, text="done")
    assert await handle.result() == "done"


async def test_handle_has_the_fields_of_the_submission(queue: Queue) -> None:
    handle = await queue.submit(type="code", idempotency_key="same")
    again = await queue.submit(type="code", idempotency_key="same")
    assert isinstance(handle, Submitted)
    assert (handle.status, handle.duplicate, again.duplicate, again.id) == ("ready", False, True, handle.id)
    assert msgspec.to_builtins(handle) == {
        "id": handle.id, "status": "ready", "duplicate": False, "key": None, "dag_id": handle.dag_id,
        "missing_dependencies": [],
    }  # fmt: skip


async def test_handle_reads_explains_and_cancels_its_task(queue: Queue) -> None:
    handle = await queue.submit(type="code")
    assert (await handle.get()).type == "code"
    assert (await handle.explain()).status == "ready"
    assert (await handle.cancel("not needed")).status == "cancelled"
    with pytest.raises(TaskCancelled, match="was cancelled: not needed") as caught:
        await handle.result()
    assert caught.value.task_id == handle.id


async def test_handle_decodes_the_result(queue: Queue) -> None:
    def doubled(data: Any) -> int:
        return 2 * int(data)

    made = await queue.submit(type="code")
    await finish(queue, data=21)
    assert await TaskHandle.of(queue, made, doubled).result() == 42


async def test_each_task_of_a_batch_and_of_a_dag_has_a_handle(queue: Queue) -> None:
    batch = await queue.submit_many([{"type": "code"}, {"type": "code"}])
    dag = await queue.submit_dag({"tasks": [{"type": "code", "key": "a"}, {"type": "code", "dependencies": ["a"]}]})
    done = {await finish(queue, data=number): number for number in range(4)}
    assert {handle.id: await handle.result() for handle in [*batch, *dag]} == done
    assert dag.dag_id == dag[0].dag_id == dag[1].dag_id is not None


async def test_spawned_subtasks_have_handles(queue: Queue) -> None:
    await queue.submit(type="code")
    parent = await take(queue)
    (child,) = await queue.spawn(parent.token, [{"type": "code"}])
    await finish(queue, "another", data="child")
    assert await child.result() == "child"


async def test_failed_task_says_why(queue: Queue) -> None:
    handle = await queue.submit(type="code", max_attempts=1)
    taken = await take(queue)
    await queue.fail(taken.token, "agent_error", "it broke", data={"half": 1})
    with pytest.raises(TaskFailed, match="failed: it broke") as caught:
        await handle.result(timeout=5)
    error = caught.value
    assert (error.task_id, error.reason, error.error, error.attempts, error.data) == (
        handle.id, "agent_error", "it broke", 1, {"half": 1},
    )  # fmt: skip


async def test_task_that_is_retried_has_not_ended(queue: Queue) -> None:
    handle = await queue.submit(type="code", max_attempts=2)
    taken = await take(queue)
    await queue.fail(taken.token, "agent_error", "once")
    with pytest.raises(ResultTimeout, match=r"has not ended: it is retrying after a failed attempt \(once\)") as caught:
        await handle.result(timeout=0.01)
    assert (caught.value.task_id, caught.value.status) == (handle.id, "retrying")


async def test_result_requested_too_early_says_why_the_task_waits(queue: Queue) -> None:
    first = await queue.submit(type="code")
    second = await queue.submit(type="code", dependencies=[first.id])
    with pytest.raises(ResultTimeout, match=f"it is pending and depends on {first.id}") as caught:
        await queue.result(second.id)
    assert f"shiftwork explain {second.id}" in caught.value.hint


async def test_unknown_task_is_not_found(queue: Queue) -> None:
    for wait in (0, 5):
        with pytest.raises(NotFound, match="there is no task"):
            await queue.result("nothing", wait=wait)


async def test_task_of_another_workspace_is_not_found(queue: Queue) -> None:
    handle = await queue.submit(type="code")
    await finish(queue)
    with pytest.raises(NotFound):
        await queue.in_workspace("other").result(handle.id, wait=5)


@pytest.mark.parametrize("wait", [-1, float("nan"), timedelta(seconds=-1), "5", True])
async def test_invalid_wait_is_refused(queue: Queue, wait: Any) -> None:
    handle = await queue.submit(type="code")
    with pytest.raises(InputError, match="expected a non-negative duration") as caught:
        await queue.result(handle, wait=wait)
    assert caught.value.where == "wait"


async def test_result_of_a_failed_row_is_that_of_its_retry(aegis: Queue) -> None:
    handle = await aegis.submit(type="code", max_attempts=3)
    rows = []
    for agent in ("first", "second"):
        taken = await take(aegis, agent)
        await aegis.fail(taken.token, "timeout", "once")
        rows.append(taken.id)
        assert (await aegis.get(taken.id)).status == "failed"
        with pytest.raises(ResultTimeout):
            await handle.result(timeout=0)
    rows.append(await finish(aegis, "third", data="third time"))
    assert len(set(rows)) == 3
    assert [(await aegis.result(row)).data for row in rows] == ["third time"] * 3


async def test_result_of_a_cancelled_task_is_that_of_its_rerun(queue: Queue) -> None:
    handle = await queue.submit(type="code")
    await handle.cancel()
    await queue.tasks.rerun(handle.id)
    await finish(queue, data="again")
    assert await handle.result() == "again"


async def test_completed_task_keeps_its_result_when_it_is_rerun(queue: Queue) -> None:
    handle = await queue.submit(type="code")
    await finish(queue, data="first")
    await queue.tasks.rerun(handle.id)
    assert await handle.result(timeout=0) == "first"
