"""Ended work is done again from a step on, with another payload or model, or with everything downstream."""

from typing import Any

import pytest

from shiftwork import Assignment, Queue
from shiftwork.model.errors import InputError, InvalidPayload, NotFound, WrongState
from shiftwork.testing import MovedClock
from tests.conformance.steps import finish, statuses, submit_dag, take

STEPS = ("plan", "draft", "polish")


async def worked(queue: Queue, clock: MovedClock, **fields: Any) -> str:
    """A completed task with three steps, an effect after each of them, and an answered question after the first."""
    made = await queue.submit(type="code", payload={"topic": "cats"}, **fields)
    assignment = await take(queue)
    for name in STEPS:
        clock.advance(10)
        await queue.steps.complete(assignment.token, name, {"by": name}, {"cost_usd": 0.25})
        clock.advance(10)
        effect = await queue.effects.begin(assignment.token, f"send-{name}")
        await queue.effects.finish(assignment.token, effect.key, {"sent": name})
        if name == "plan":
            await queue.waits.wait(assignment.token, "go", question="Go on?")
            await queue.approvals.answer(made.id, "yes")
            assignment = await take(queue)
    await queue.complete(assignment.token, {"cats": 9})
    return made.id


async def steps_of(queue: Queue, task: str) -> dict[str, Any]:
    return {step.name: step.result for step in await queue.steps.list(task)}


async def effect_of(queue: Queue, assignment: Assignment, step: str) -> str:
    return (await queue.effects.begin(assignment.token, f"send-{step}")).status


async def test_rerun_from_a_step_keeps_the_steps_before_it(queue: Queue, clock: MovedClock) -> None:
    task = await worked(queue, clock)
    again = await queue.tasks.rerun(task, from_step="draft")
    assert (again.status, again.data) == ("ready", {"kept_steps": 1})
    fresh = await queue.get(again.task_id)
    assert (fresh.rerun_of, fresh.payload, fresh.attempts, fresh.cost_usd) == (task, {"topic": "cats"}, 0, 0)
    assert await steps_of(queue, again.task_id) == {"plan": {"by": "plan"}}
    assignment = await take(queue)
    assert assignment.id == again.task_id
    assert [await effect_of(queue, assignment, step) for step in STEPS] == ["done", "new", "new"]
    assert (await queue.effects.begin(assignment.token, "send-plan")).result == {"sent": "plan"}
    answered = await queue.waits.wait(assignment.token, "go", question="Go on?")
    assert (answered.status, answered.value) == ("met", "yes")
    assert await steps_of(queue, task) == {step: {"by": step} for step in STEPS}


async def test_rerun_from_the_first_step_keeps_nothing(queue: Queue, clock: MovedClock) -> None:
    task = await worked(queue, clock)
    again = await queue.tasks.rerun(task, from_step="plan")
    assert again.data == {"kept_steps": 0}
    assignment = await take(queue)
    assert [await effect_of(queue, assignment, step) for step in STEPS] == ["new"] * 3
    asked = await queue.waits.wait(assignment.token, "go", question="Go on?")
    assert asked.status == "open"


async def test_rerun_without_a_step_begins_from_nothing(queue: Queue, clock: MovedClock) -> None:
    again = await queue.tasks.rerun(await worked(queue, clock))
    assert again.data is None
    assert await steps_of(queue, again.task_id) == {}


async def test_rerun_of_a_rerun_keeps_what_the_first_kept(queue: Queue, clock: MovedClock) -> None:
    task = await worked(queue, clock)
    first = await queue.tasks.rerun(task, from_step="polish")
    token = (await take(queue)).token
    await queue.steps.complete(token, "polish", {"by": "another"})
    await queue.complete(token)
    second = await queue.tasks.rerun(first.task_id, from_step="polish")
    assert second.data == {"kept_steps": 2}
    assignment = await take(queue)
    assert [await effect_of(queue, assignment, step) for step in STEPS] == ["done", "done", "new"]
    await queue.complete(assignment.token)
    assert (await queue.tasks.rerun(task, from_step="draft")).data == {"kept_steps": 1}


async def test_retry_of_a_rewound_task_finds_its_kept_effects_done(queue: Queue, clock: MovedClock) -> None:
    task = await worked(queue, clock, retry={"mode": "new_task", "strategy": "immediate"})
    await queue.tasks.rerun(task, from_step="draft")
    await queue.fail((await take(queue)).token, "crash")
    assignment = await take(queue, "another")
    assert await steps_of(queue, assignment.id) == {"plan": {"by": "plan"}}
    assert await effect_of(queue, assignment, "plan") == "done"


async def test_artifacts_made_before_the_step_stay(queue: Queue, clock: MovedClock) -> None:
    made = await queue.submit(type="code")
    token = (await take(queue)).token
    await queue.artifacts.put(b"early", name="early.txt", token=token)
    clock.advance(10)
    await queue.steps.complete(token, "plan", {})
    clock.advance(10)
    await queue.artifacts.put(b"late", name="late.txt", token=token)
    await queue.complete(token)
    again = await queue.tasks.rerun(made.id, from_step="plan")
    assert [each.name for each in await queue.artifacts.list(again.task_id)] == ["early.txt"]


async def test_rerun_with_another_payload_and_model(queue: Queue, clock: MovedClock) -> None:
    spec = {"prompt": "Write.", "constraints": {"model_preferences": ["opus"], "fallback_models": ["haiku"]}}
    task = await worked(queue, clock, spec=spec, title="Cats", tags=["pets"], priority=30)
    again = await queue.tasks.rerun(task, from_step="polish", payload={"topic": "dogs"}, model="sonnet")
    fresh = await queue.get(again.task_id)
    assert fresh.payload == {"topic": "dogs"}
    assert fresh.spec is not None
    assert fresh.spec["prompt"] == "Write."
    assert fresh.spec["constraints"]["model_preferences"] == ["sonnet"]
    assert (fresh.title, fresh.tags, fresh.priority) == ("Cats", ["pets"], 30)
    assert (await queue.get(task)).payload == {"topic": "cats"}
    await queue.agents.register(id="old", models_available=["opus"])
    await queue.agents.register(id="new", models_available=["sonnet"])
    assert await queue.claim("old") == []
    (assignment,) = await queue.claim("new")
    assert (assignment.payload, assignment.model) == ({"topic": "dogs"}, "sonnet")


async def test_rerun_of_a_dead_letter_reviews_it(queue: Queue) -> None:
    made = await queue.submit(type="code")
    token = (await take(queue)).token
    await queue.steps.complete(token, "plan", {})
    await queue.fail(token, "invalid_input", retry=False)
    again = await queue.tasks.rerun(made.id, from_step="plan", payload={"n": 2})
    assert again.status == "ready"
    assert await queue.dead_letters.list() == []


async def test_unknown_step_is_refused_with_the_known_ones(queue: Queue, clock: MovedClock) -> None:
    task = await worked(queue, clock)
    with pytest.raises(InputError, match="has no step 'polsih'") as refused:
        await queue.tasks.rerun(task, from_step="polsih")
    assert refused.value.where == "from_step"
    assert refused.value.hint == "Its finished steps: 'plan', 'draft', 'polish'."
    assert (await queue.get(task)).superseded_by is None


async def test_step_of_a_task_without_steps_is_refused(queue: Queue) -> None:
    made = await queue.submit(type="code")
    await finish(queue)
    with pytest.raises(InputError, match="has no step 'plan'") as refused:
        await queue.tasks.rerun(made.id, from_step="plan")
    assert refused.value.hint == "It has no finished steps."


async def test_unfinished_step_is_refused(queue: Queue) -> None:
    made = await queue.submit(type="code")
    token = (await take(queue)).token
    await queue.steps.begin(token, "plan")
    await queue.fail(token, "invalid_input", retry=False)
    with pytest.raises(WrongState, match="'plan' of task"):
        await queue.tasks.rerun(made.id, from_step="plan")


async def test_running_task_cannot_be_rerun_from_a_step(queue: Queue) -> None:
    made = await queue.submit(type="code")
    token = (await take(queue)).token
    await queue.steps.complete(token, "plan", {})
    with pytest.raises(WrongState, match="has not ended yet"):
        await queue.tasks.rerun(made.id, from_step="plan", payload={"n": 2})
    assert (await queue.get(made.id)).status == "running"


async def test_payload_that_its_type_refuses_is_refused(queue: Queue, clock: MovedClock) -> None:
    task = await worked(queue, clock)
    schema = {"type": "object", "properties": {"topic": {"type": "string"}}, "required": ["topic"]}
    await queue.types.save("code", payload_schema=schema)
    with pytest.raises(InvalidPayload):
        await queue.tasks.rerun(task, from_step="draft", payload={"subject": "dogs"})
    assert (await queue.get(task)).superseded_by is None
    again = await queue.tasks.rerun(task, from_step="draft", payload={"topic": "dogs"})
    assert again.data == {"kept_steps": 1}


BAD: dict[str, dict[str, Any]] = {
    "a payload that is no object": {"payload": [1]},
    "a payload with NUL": {"payload": {"text": "a\0b"}},
    "an empty step": {"from_step": ""},
    "an empty model": {"model": ""},
    "a step that is a number": {"from_step": 7},
}


@pytest.mark.parametrize("case", BAD)
async def test_bad_rerun_is_refused_and_changes_nothing(queue: Queue, clock: MovedClock, case: str) -> None:
    task = await worked(queue, clock)
    with pytest.raises(InputError):
        await queue.tasks.rerun(task, **BAD[case])
    assert (await queue.get(task)).superseded_by is None
    assert (await queue.status()).counts == {"completed": 1}


async def test_rerun_downstream_repeats_a_node_and_what_depends_on_it(queue: Queue) -> None:
    ids = await submit_dag(queue, {"a": [], "b": ["a"], "c": ["b"], "d": ["a"], "e": ["c", "d"]})
    for _ in ids:
        await finish(queue, data={"run": 1})
    dag = (await queue.get(ids["a"])).dag_id
    assert (await queue.dags.get(dag)).status == "completed"
    again = await queue.tasks.rerun(ids["b"], downstream=True, payload={"n": 2})
    assert again.status == "ready"
    assert again.data is not None
    fresh = {task.rerun_of: task for task in [await queue.get(each) for each in again.data["downstream"]]}
    assert fresh.keys() == {ids["c"], ids["e"]}
    assert {task.status for task in fresh.values()} == {"pending"}
    assert (await queue.dags.get(dag)).status == "running"
    done = [await finish(queue, data={"run": 2}) for _ in range(3)]
    assert done == [again.task_id, fresh[ids["c"]].id, fresh[ids["e"]].id]
    assert (await queue.dags.get(dag)).status == "completed"
    kept = {key: (await queue.get(ids[key])).superseded_by for key in ("a", "d")}
    assert kept == {"a": None, "d": None}


async def test_rerun_downstream_of_a_failed_node_frees_what_waits_for_it(queue: Queue) -> None:
    ids = await submit_dag(queue, {"a": [], "b": ["a"]})
    await queue.fail((await take(queue)).token, "invalid_input", retry=False)
    again = await queue.tasks.rerun(ids["a"], downstream=True, payload={"n": 2})
    assert again.data == {"downstream": [ids["b"]]}
    assert await finish(queue) == again.task_id
    assert await finish(queue) == ids["b"]


async def test_rerun_downstream_repeats_tasks_that_continued_without_the_node(queue: Queue) -> None:
    await queue.settings.set("on_dependency_failed", "continue")
    ids = await submit_dag(queue, {"a": [], "b": ["a"]})
    await queue.fail((await take(queue)).token, "invalid_input", retry=False)
    await finish(queue)
    again = await queue.tasks.rerun(ids["a"], downstream=True)
    await finish(queue)
    assignment = await take(queue)
    assert again.data == {"downstream": [assignment.id]}
    assert assignment.task().failed_dependencies == []


async def test_rerun_downstream_is_refused_while_something_below_runs(queue: Queue) -> None:
    ids = await submit_dag(queue, {"a": [], "b": ["a"], "c": ["b"]})
    await finish(queue)
    await take(queue)
    with pytest.raises(WrongState, match=f"{ids['b']} is running"):
        await queue.tasks.rerun(ids["a"], downstream=True)
    assert await statuses(queue, ids) == {"a": "completed", "b": "running", "c": "pending"}
    assert (await queue.get(ids["a"])).superseded_by is None


async def test_rerun_downstream_of_a_standalone_task_is_a_rerun(queue: Queue) -> None:
    made = await queue.submit(type="code")
    await finish(queue)
    assert (await queue.tasks.rerun(made.id, downstream=True)).data == {"downstream": []}


async def test_rerun_downstream_of_an_unknown_task_is_refused(queue: Queue) -> None:
    with pytest.raises(NotFound):
        await queue.tasks.rerun("task_01M7ZZZZZZZZZZZZZZZZZZZZZZ", downstream=True)


async def test_rerun_without_downstream_leaves_dependents_as_they_are(queue: Queue) -> None:
    ids = await submit_dag(queue, {"a": [], "b": ["a"]})
    for _ in ids:
        await finish(queue)
    await queue.tasks.rerun(ids["a"])
    assert (await queue.get(ids["b"])).superseded_by is None
