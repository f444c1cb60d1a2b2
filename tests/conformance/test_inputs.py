"""Inputs of a task are available when it is claimed: artifacts and outputs of other tasks."""

from typing import Any

import pytest

from shiftwork import Queue
from shiftwork.artifacts.inputs import INLINE_BYTES
from shiftwork.model.errors import InputError, TooLarge, UnknownReference
from shiftwork.testing import MovedClock, pass_time
from tests.conformance.steps import dead_letter, everything, finish, take

ABSENT = f"artifact:sha256-{'0' * 64}"


def referring(*refs: str, **fields: Any) -> dict[str, Any]:
    return {"type": "write", "spec": {"context_refs": list(refs)}, **fields}


async def refs(queue: Queue, task_id: str) -> list[str]:
    spec = (await queue.get(task_id)).spec
    assert spec is not None
    return list(spec["context_refs"])


@pytest.mark.requirement("F-013")
async def test_claim_contains_referenced_artifacts_and_outputs(queue: Queue) -> None:
    notes = await queue.artifacts.put(b"# notes", name="notes.md")
    first = await queue.submit(type="research", id="xyz")
    await finish(queue, data={"answer": 42})
    task = await queue.submit(referring(notes.id, "task:xyz:output"))
    assignment = await take(queue)
    artifact, output = assignment.inputs
    assert (artifact.ref, artifact.kind, artifact.id) == (notes.id, "artifact", notes.id)
    assert (artifact.size, artifact.media_type) == (7, "text/markdown")
    assert (output.ref, output.kind, output.id) == (f"task:{first.id}:output", "output", first.id)
    assert (output.status, output.inline, output.data) == ("completed", True, {"answer": 42})
    assert await queue.artifacts.inputs(task.id) == assignment.inputs


@pytest.mark.requirement("F-013")
async def test_task_of_the_same_batch_is_referenced_by_its_key(queue: Queue) -> None:
    plan, write = await queue.submit_dag(
        {
            "tasks": [
                {"key": "plan", "type": "plan"},
                {**referring("task:plan:output"), "key": "write", "dependencies": ["plan"]},
            ]
        }
    )
    assert await refs(queue, write.id) == [f"task:{plan.id}:output"]
    held = await take(queue)
    made = await queue.artifacts.put(b"figure", token=held.token)
    await queue.complete(held.token, {"steps": 3}, text="three steps", artifacts=[made.id])
    (found,) = (await take(queue)).inputs
    assert (found.id, found.data, found.text, found.artifacts) == (plan.id, {"steps": 3}, "three steps", [made.id])


async def test_subtask_can_reference_output_of_a_sibling(queue: Queue) -> None:
    await queue.submit(type="lead")
    lead = await take(queue)
    first, _ = await queue.spawn(
        lead.token,
        [{"key": "a", "type": "a"}, {**referring("task:a:output"), "key": "b", "dependencies": ["a"]}],
    )
    await finish(queue, "sub", {"n": 1})
    (found,) = (await take(queue, "sub")).inputs
    assert (found.id, found.data) == (first.id, {"n": 1})


async def test_reference_to_a_later_task_is_resolved_at_claim(queue: Queue) -> None:
    await queue.submit(referring("task:later:output", dependencies=["later"]))
    came = await queue.submit(type="research", id="later")
    await finish(queue, data="found")
    (found,) = (await take(queue)).inputs
    assert (found.id, found.data) == (came.id, "found")


@pytest.mark.parametrize(
    "ref",
    [ABSENT, "artifact:abc", "artifact:", "task:nobody:output", "task::output", "task:xyz", "notes.md", "task:a:input"],
)
async def test_reference_to_missing_object_is_refused(queue: Queue, ref: str) -> None:
    before = await everything(queue)
    with pytest.raises(UnknownReference) as refused:
        await queue.submit_many([{"type": "fine"}, referring(ref)])
    assert "context_refs" in (refused.value.where or "")
    after = await everything(queue)
    assert {name: rows for name, rows in after.items() if name != "lanes"} == {
        name: rows for name, rows in before.items() if name != "lanes"
    }


async def test_reference_to_unfinished_output_without_dependency_is_refused(queue: Queue) -> None:
    """Nothing would ensure that the other task has ended when this one is claimed."""
    running = await queue.submit(type="research")
    with pytest.raises(UnknownReference, match="has not completed and is not a dependency") as refused:
        await queue.submit(referring(f"task:{running.id}:output"))
    assert "dependencies" in refused.value.hint
    with pytest.raises(UnknownReference, match="'a' has not completed"):
        await queue.submit_many([{"key": "a", "type": "a"}, referring("task:a:output")])
    await queue.submit(referring(f"task:{running.id}:output", dependencies=[running.id]))
    await finish(queue)
    await queue.submit(referring(f"task:{running.id}:output"))


async def test_reference_to_task_of_another_workspace_is_refused(queue: Queue) -> None:
    await queue.submit(type="research")
    done = await finish(queue, data="secret")
    with pytest.raises(UnknownReference, match="there is no task"):
        await queue.in_workspace("other").submit(referring(f"task:{done}:output"))


async def test_too_many_references_are_refused(queue: Queue) -> None:
    await queue.settings.set("bounds.dependencies", 2)
    kept = (await queue.artifacts.put(b"x")).id
    with pytest.raises(TooLarge):
        await queue.submit(referring(kept, kept, kept))


async def test_large_output_is_left_to_the_result_call(queue: Queue) -> None:
    await queue.submit(type="research")
    data = "x" * INLINE_BYTES
    done = await finish(queue, data=data)
    await queue.submit(referring(f"task:{done}:output"))
    (found,) = (await take(queue)).inputs
    assert (found.inline, found.data, found.status) == (False, None, "completed")
    assert found.size is not None
    assert found.size > INLINE_BYTES
    assert (await queue.result(found.id)).data == data


async def test_output_of_the_retry_is_used_for_references(queue: Queue, clock: MovedClock) -> None:
    await queue.settings.set("retry.mode", "new_task")
    first = await queue.submit(type="research")
    await queue.submit(referring(f"task:{first.id}:output", dependencies=[first.id]))
    held = await take(queue)
    await queue.fail(held.token, "crash", "boom", data={"half": True})
    await pass_time(queue, clock, 3600)
    await finish(queue, data={"whole": True})
    (found,) = (await take(queue)).inputs
    assert (found.id, found.data) == (first.id, {"whole": True})


async def test_cancelled_dependency_has_no_output(queue: Queue) -> None:
    await queue.settings.set("on_dependency_cancelled", "satisfy")
    first = await queue.submit(type="research")
    await queue.submit(referring(f"task:{first.id}:output", dependencies=[first.id]))
    await queue.cancel(first.id)
    (found,) = (await take(queue)).inputs
    assert (found.status, found.inline, found.data, found.size) == ("cancelled", False, None, None)


async def test_archived_output_is_still_available(queue: Queue, clock: MovedClock) -> None:
    await queue.settings.set("archive_after_sec", 10)
    await queue.submit(type="research")
    done = await finish(queue, data={"old": True})
    await queue.submit(referring(f"task:{done}:output"))
    await pass_time(queue, clock, 60)
    assert (await queue.get(done)).archived
    await queue.submit(referring(f"task:{done}:output"))
    for _ in range(2):
        assignment = await take(queue)
        assert [(found.data, found.inline) for found in assignment.inputs] == [({"old": True}, True)]
        await queue.complete(assignment.token)


async def test_purged_output_is_reported_without_status(queue: Queue) -> None:
    await queue.settings.set("purge.mode", "delete")
    await queue.submit(type="research")
    done = await finish(queue)
    await queue.submit(referring(f"task:{done}:output"))
    await queue.control.purge(type="research", status=["completed"])
    (found,) = (await take(queue)).inputs
    assert (found.id, found.status, found.inline) == (done, None, False)


async def test_repeated_submit_adds_no_second_reference(queue: Queue) -> None:
    kept = await queue.artifacts.put(b"x")
    first = await queue.submit(referring(kept.id, kept.id, idempotency_key="k"))
    again = await queue.submit(referring(kept.id, idempotency_key="k"))
    assert again.id == first.id
    assert len(await queue.artifacts.list(first.id)) == 1


async def test_changed_references_are_checked_like_new_ones(queue: Queue) -> None:
    kept = await queue.artifacts.put(b"better notes")
    task_id = await dead_letter(queue)
    with pytest.raises(UnknownReference):
        await queue.dead_letters.review(task_id, "modify_and_retry", change={"spec": {"context_refs": [ABSENT]}})
    await queue.dead_letters.review(task_id, "modify_and_retry", change={"spec": {"context_refs": [kept.id]}})
    (found,) = (await take(queue)).inputs
    assert found.id == kept.id
    assert [each.id for each in await queue.artifacts.list(task_id)] == [kept.id]


async def test_task_without_context_refs_has_no_inputs(queue: Queue) -> None:
    task = await queue.submit(type="code", payload={"context_refs": [ABSENT]})
    assert (await take(queue)).inputs == []
    assert await queue.artifacts.inputs(task.id) == []
    with pytest.raises(InputError):
        await queue.submit(type="code", spec={"context_refs": "artifact:abc"})
