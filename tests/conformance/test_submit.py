"""Submitting: every field of the task schema, all forms of ids, and idempotency keys."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from shiftwork import Queue
from shiftwork.model.errors import DuplicateTask, IdInUse, InputError, NotFound, ShiftworkError, TooLarge
from shiftwork.testing import MovedClock, pass_time
from tests.conformance.steps import finish, states, take

SPEC: dict[str, Any] = {
    "prompt": "Answer preflight requests",
    "constraints": {
        "max_cost_usd": 0.50,
        "max_duration_sec": 300,
        "required_capabilities": ["code-execution", "web-search"],
        "model_preferences": ["claude-sonnet-4", "gpt-4o"],
        "fallback_models": ["claude-haiku"],
    },
}


@pytest.mark.requirement("F-010", "F-011", "F-012", "F-014", "F-018")
async def test_task_is_read_and_claimed_as_it_was_submitted(queue: Queue) -> None:
    title = "Fix auth middleware CORS handling"
    spec = {**SPEC, "context_refs": [(await queue.artifacts.put(b"the failing request")).id]}
    submitted = await queue.submit(type="code", title=title, spec=spec)
    assert (await queue.get(submitted.id)).title == title
    assert (await queue.get(submitted.id)).spec == spec
    (assignment,) = await queue.claim("coder", capabilities=["code-execution", "web-search"])
    assert assignment.spec == spec
    assert assignment.task().title == title


@pytest.mark.requirement("F-009")
@pytest.mark.parametrize("type_", ["code", "research", "review", "test", "deploy", "synthesis"])
async def test_each_of_the_six_types_is_accepted(queue: Queue, type_: str) -> None:
    assert (await queue.get((await queue.submit(type=type_)).id)).type == type_


@pytest.mark.requirement("F-022", "F-057", "F-088", "F-089")
async def test_deadline_tags_and_author_are_kept(queue: Queue, clock: MovedClock) -> None:
    lone = await queue.get((await queue.submit(type="code")).id)
    assert (lone.deadline, lone.tags) == (None, [])
    tags = ["repo:myapp", "sprint:12"]
    tasks = [{"type": "code", "deadline": clock() + 60, "tags": tags}]
    (made,) = await queue.submit_dag(
        {"title": "Build landing page for client X", "created_by": "human:adam", "tasks": tasks}
    )
    task = await queue.get(made.id)
    assert (task.deadline, task.tags) == (clock() + 60, tags)
    dag = await queue.dags.get(task.dag_id)
    assert (dag.title, dag.created_by) == ("Build landing page for client X", "human:adam")


@pytest.mark.requirement("F-046", "F-048")
@pytest.mark.parametrize("type_", ["code", "markdown", "json", "artifact"])
async def test_requested_output_is_kept_with_the_task(queue: Queue, type_: str) -> None:
    output = {"type": type_, "validation": "json-schema", "validation_schema": {"type": "object"}}
    task = await queue.get((await queue.submit(type="code", output=output)).id)
    assert task.output == {**output, "data": None, "artifacts": []}


@pytest.mark.requirement("F-029", "F-031", "F-051", "F-115")
async def test_new_task_has_initial_values(queue: Queue, clock: MovedClock) -> None:
    task = await queue.get((await queue.submit(type="code")).id)
    assert (task.attempts, task.max_attempts, task.created_at, task.age_minutes) == (0, 3, clock(), 0)
    assert (task.claim.agent_id, task.claim.claimed_at, task.claim.heartbeat_at) == (None, None, None)
    assert task.claim.heartbeat_interval_sec == 30
    assert (task.started_at, task.completed_at, task.result) == (None, None, None)
    assert (task.cost_usd, task.tokens_used) == (0, {"input": 0, "output": 0})
    clock.advance(1800)
    assert (await queue.get(task.id)).age_minutes == 30


@pytest.mark.requirement("F-037", "F-042")
async def test_task_defaults_match_the_document(queue: Queue) -> None:
    task = await queue.get((await queue.submit(type="code")).id)
    assert (task.priority, task.priority_boost_per_minute) == (50, 0.1)
    assert task.retry["strategy"] == "exponential"
    assert (task.retry["initial_delay_sec"], task.retry["backoff_multiplier"]) == (10, 2.0)
    assert (task.retry["max_delay_sec"], task.retry["jitter"]) == (300, True)
    assert list(task.retry["retry_on"]) == ["timeout", "crash", "rate_limit", "invalid_output"]
    assert list(task.retry["no_retry_on"]) == ["auth_failure", "budget_exceeded", "cancelled"]


@pytest.mark.parametrize("author", ["agent:orchestrator", "human:adam", "cron:nightly-audit"])
async def test_creator_of_a_task_is_kept(queue: Queue, author: str) -> None:
    task = await queue.get((await queue.submit(type="code", created_by=author)).id)
    assert task.created_by == author
    assert (await queue.tasks.history(task.id)).events[0].actor == author


@pytest.mark.requirement("F-024")
@pytest.mark.parametrize("field", ["blocked_by", "status", "attempts", "dag_id", "effective_priority"])
async def test_read_only_field_is_refused_at_submit(queue: Queue, field: str) -> None:
    with pytest.raises(InputError, match=field):
        await queue.submit({"type": "code", field: []})


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({"priority": 101}, "task.priority"),
        ({"priority": -1}, "task.priority"),
        ({"max_attempts": 0}, "task.max_attempts"),
        ({"output": {"type": "video"}}, "task.output.type"),
        ({"spec": {"constraints": {"max_cost_usd": -1}}}, "task.spec.constraints.max_cost_usd"),
        ({"type": ""}, "task.type"),
        ({"retry": {"strategy": "sometimes"}}, None),
        ({"output": {"validation": "json-schema", "validation_schema": {"type": 5}}}, None),
        ({"payload": {"text": "\0"}}, "task"),
    ],
)
async def test_invalid_field_is_refused_with_its_path(queue: Queue, fields: dict[str, Any], where: str | None) -> None:
    with pytest.raises(InputError) as refused:
        await queue.submit({"type": "code", **fields})
    assert where is None or refused.value.where == where
    assert (await queue.status()).counts == {}


async def test_batch_over_the_limit_is_refused_whole(queue: Queue) -> None:
    await queue.settings.set("bounds.batch", 3)
    with pytest.raises(TooLarge):
        await queue.submit_many([{"type": "code"}] * 4)
    assert (await queue.status()).counts == {}


async def test_refused_submit_does_not_affect_others_of_its_flush(queue: Queue) -> None:
    await queue.submit(type="code", id="mine")
    answers = await asyncio.gather(
        *(queue.submit(type="code", id=name) for name in ("a", "mine", "b")), return_exceptions=True
    )
    assert [type(answer).__name__ for answer in answers] == ["TaskHandle", "IdInUse", "TaskHandle"]


@pytest.mark.requirement("F-005", "F-087")
async def test_ids_sort_by_creation_within_one_instant(queue: Queue) -> None:
    ids = [(await queue.submit(type="code")).id for _ in range(5)]
    ids += [made.id for made in await queue.submit_many([{"type": "code"}] * 20)]
    assert ids == sorted(set(ids))
    assert all(re.fullmatch("task_[0-9A-HJKMNP-TV-Z]{26}", task_id) for task_id in ids)
    task = await queue.get(ids[0])
    assert re.fullmatch("dag_[0-9A-HJKMNP-TV-Z]{26}", task.dag_id)
    assert (await queue.dags.get(task.dag_id)).id == task.dag_id


async def test_task_is_found_by_both_id_forms_and_external_id(queue: Queue) -> None:
    own = "01563e3a-b5d3-d676-4c61-efb99302bd5b"  # the pair of the ULID specification
    submitted = await queue.submit(type="code", id=own)
    assert submitted.id == "task_01ARZ3NDEKTSV4RRFFQ69G5FAV"
    assert (await queue.get(own)).id == submitted.id
    assert (await queue.get(submitted.id.lower())).id == submitted.id
    named = await queue.submit(type="code", id="nightly/2026-02-08")
    assert (await queue.get("nightly/2026-02-08")).id == named.id
    assert (await queue.get(named.id)).external_id == "nightly/2026-02-08"
    waits = await queue.submit(type="code", dependencies=[own, "nightly/2026-02-08"])
    assert (await queue.get(waits.id)).dependencies == sorted([submitted.id, named.id])


async def test_external_id_works_in_every_verb(queue: Queue) -> None:
    await queue.submit(type="code", id="mine")
    await queue.tasks.update("mine", {"priority": 5})
    await take(queue)
    await queue.heartbeat("mine.1")
    await queue.complete("mine.1", {"ok": True})
    assert (await queue.result("mine")).data == {"ok": True}
    assert (await states(queue, "mine"))[-1] == "completed"


@pytest.mark.parametrize("id_", ["mine", "7d444840-9dc0-11d1-b245-5ffdce74fad2"])
async def test_id_in_use_is_refused(queue: Queue, id_: str) -> None:
    await queue.submit(type="code", id=id_)
    with pytest.raises(IdInUse):
        await queue.submit(type="code", id=id_)
    with pytest.raises(IdInUse):
        await queue.submit_many([{"type": "code", "id": "twice"}, {"type": "code", "id": "twice"}])
    assert (await queue.status()).counts == {"ready": 1}


async def test_external_id_belongs_to_its_workspace(queue: Queue) -> None:
    other = queue.in_workspace("other")
    here = await queue.submit(type="code", id="mine")
    there = await other.submit(type="code", id="mine")
    assert (await queue.get("mine")).id == here.id
    assert (await other.get("mine")).id == there.id


async def test_task_is_not_found_from_other_workspaces(queue: Queue) -> None:
    other = queue.in_workspace("other")
    task = await queue.get((await queue.submit(type="code")).id)
    (made, _) = await queue.submit_dag({"tasks": [{"type": "code"}] * 2})
    for dag_id in (task.dag_id, made.dag_id or ""):
        await refused(other.dags.get(dag_id), other.dags.cancel(dag_id), other.dags.add_tasks(dag_id, [{"type": "x"}]))
    await refused(other.get(task.id), other.cancel(task.id), other.tasks.update(task.id, {"priority": 1}))
    await refused(other.tasks.rerun(task.id), other.dead_letters.review(task.id, "retry"), other.explain(task.id))
    await refused(other.tasks.history(task.id), other.tasks.attempts(task.id))
    assert (await queue.status()).counts == {"ready": 3}
    assert (await other.status()).counts == {}


async def refused(*calls: Awaitable[object]) -> None:
    for call in calls:
        with pytest.raises(NotFound):
            await call


@pytest.mark.requirement("F-006")
async def test_same_key_creates_one_task(queue: Queue) -> None:
    first = await queue.submit(type="code", idempotency_key="pr-123-lint")
    again = await queue.submit(type="code", idempotency_key="pr-123-lint", priority=1)
    assert (again.id, again.status, again.duplicate, first.duplicate) == (first.id, "ready", True, False)
    assert (await queue.get(first.id)).idempotency_key == "pr-123-lint"
    assert (await queue.status()).counts == {"ready": 1}
    await finish(queue)
    assert (await queue.submit(type="code", idempotency_key="pr-123-lint")).id == first.id


async def test_concurrent_submits_with_same_key_create_one_task(queue: Queue, store_url: str) -> None:
    async with Queue.open(store_url) as other:
        answers = await asyncio.gather(
            *((queue, other)[n % 2].submit(type="code", idempotency_key="once") for n in range(20))
        )
    assert len({answer.id for answer in answers}) == 1
    assert [answer.duplicate for answer in answers].count(False) == 1
    assert (await queue.status()).counts == {"ready": 1}


async def test_duplicates_in_one_batch_are_merged(queue: Queue) -> None:
    tasks = [{"type": "code", "idempotency_key": key} for key in ("a", "b", "a")]
    first, second, twin = await queue.submit_many(tasks)
    assert (twin.id, twin.duplicate) == (first.id, True)
    assert second.id != first.id
    assert (await queue.status()).counts == {"ready": 2}


async def test_task_can_depend_on_a_duplicate_in_its_batch(queue: Queue) -> None:
    existing = await queue.submit(type="code", idempotency_key="base")
    tasks: list[dict[str, Any]] = [
        {"type": "code", "key": "base", "idempotency_key": "base"},
        {"type": "code", "key": "top", "dependencies": ["base"]},
    ]
    _, top = await queue.submit_many(tasks)
    assert (await queue.get(top.id)).blocked_by == [existing.id]


async def test_retry_never_conflicts_with_its_own_key(queue: Queue, clock: MovedClock) -> None:
    submitted = await queue.submit(type="code", idempotency_key="k", retry={"jitter": False})
    await queue.fail((await take(queue)).token, "crash")
    await pass_time(queue, clock, 10)
    assert (await take(queue)).id == submitted.id
    assert (await queue.submit(type="code", idempotency_key="k")).id == submitted.id


async def test_dead_letter_frees_its_key_and_can_be_retried(queue: Queue) -> None:
    first = await queue.submit(type="code", idempotency_key="k", max_attempts=1)
    await queue.fail((await take(queue)).token, "crash")
    second = await queue.submit(type="code", idempotency_key="k")
    assert (second.duplicate, second.id == first.id) == (False, False)
    assert (await queue.dead_letters.review(first.id, "retry")).status == "ready"
    assert (await queue.submit(type="code", idempotency_key="k")).id == second.id
    assert {await finish(queue), await finish(queue)} == {first.id, second.id}


async def test_key_is_free_after_its_window(queue: Queue, clock: MovedClock) -> None:
    await queue.settings.set("idempotency.window_sec", 60)
    first = await queue.submit(type="code", idempotency_key="k")
    clock.advance(59)
    assert (await queue.submit(type="code", idempotency_key="k")).id == first.id
    clock.advance(1)
    assert (await queue.submit(type="code", idempotency_key="k")).duplicate is False


async def test_duplicate_can_be_refused_by_setting(queue: Queue) -> None:
    await queue.settings.set("idempotency.on_duplicate", "reject")
    first = await queue.submit(type="code", idempotency_key="k")
    with pytest.raises(DuplicateTask) as refused:
        await queue.submit(type="code", idempotency_key="k")
    assert refused.value.facts["task_id"] == first.id


async def test_duplicate_can_be_merged_into_a_waiting_task(queue: Queue) -> None:
    await queue.settings.set("idempotency.on_duplicate", "merge")
    first = await queue.submit(type="code", idempotency_key="k", priority=40, tags=["a"])
    await queue.submit(type="code", idempotency_key="k", priority=20, tags=["b"])
    task = await queue.get(first.id)
    assert (task.priority, task.tags) == (20, ["a", "b"])
    await take(queue)
    await queue.submit(type="code", idempotency_key="k", priority=1)
    assert (await queue.get(first.id)).priority == 20


async def test_keys_belong_to_their_workspace(queue: Queue) -> None:
    first = await queue.submit(type="code", idempotency_key="k")
    other = await queue.in_workspace("other").submit(type="code", idempotency_key="k")
    assert (other.duplicate, other.id == first.id) == (False, False)


@pytest.mark.parametrize(
    ("second", "where"),
    [
        ({"id": "taken"}, "tasks[1].id"),
        ({"id": "first"}, "tasks[1].id"),
        ({"key": "a"}, "tasks[1].key"),
        ({"dependencies": ["nobody"], "settings": {"missing_dependency": "reject"}}, "tasks[1].dependencies"),
        ({"priority": 101}, "tasks[1].priority"),
    ],
)
async def test_refused_batch_names_the_invalid_task(queue: Queue, second: dict[str, Any], where: str) -> None:
    await queue.submit(type="code", id="taken")
    with pytest.raises(ShiftworkError) as refused:
        await queue.submit_many([{"type": "code", "id": "first", "key": "a"}, {"type": "code", **second}])
    assert refused.value.where == where


VARIED: dict[str, Callable[[int], Any]] = {
    "type": lambda n: f"type-{n % 2}",
    "priority": lambda n: n % 3 * 10,
    "issue_id": lambda n: f"issue-{n % 4}",
    "session_id": lambda n: f"session-{n}",
    "work_dir": lambda n: f"/work/{n}" if n % 2 else None,
    "trigger_type": lambda n: "comment" if n % 3 else None,
    "created_by": lambda n: f"author-{n % 2}",
    "max_attempts": lambda n: 1 + n % 5,
}


@pytest.mark.parametrize("count", [2, 9])
@pytest.mark.parametrize("fields", [1, 2, 4, len(VARIED)])
async def test_tasks_of_a_batch_keep_what_differs_between_them(queue: Queue, count: int, fields: int) -> None:
    varied = list(VARIED.items())[:fields]
    tasks = [{"type": "code", "payload": {"n": n}} | {name: of(n) for name, of in varied} for n in range(count)]
    for task, handle in zip(tasks, await queue.submit_many(tasks), strict=True):
        stored = await queue.get(handle.id)
        assert {name: getattr(stored, name) for name in task} == task
        assert (stored.id, stored.dag_id) == (handle.id, handle.dag_id)
