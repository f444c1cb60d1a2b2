"""Queries for observers: failure patterns, transitions, and lists of DAGs."""

from itertools import pairwise

import pytest

from shiftwork import Queue
from shiftwork.dags.model import DagStatus
from shiftwork.model.errors import InputError, NotFound
from shiftwork.model.states import TRANSITIONS
from shiftwork.testing import MovedClock, pass_time
from tests.conformance.steps import dead_letter, events_named, finish, submit_dag, take

NOWHERE = "task_01ARZ3NDEKTSV4RRFFQ69G5FAV"


@pytest.mark.requirement("C-100")
async def test_repeated_failures_form_one_pattern(queue: Queue, clock: MovedClock) -> None:
    first_at = clock()
    for port in (8080, 9090):
        await dead_letter(queue, error=f"port {port} is taken")
        clock.advance(5)
    last = await dead_letter(queue, error="port 1 is taken")
    await dead_letter(queue, error="no such file", type="docs")
    alike, other = await queue.metrics.failures()
    assert (alike.by, alike.value, alike.total) == ("signature", "code/crash/port # is taken", 3)
    assert (alike.first_at, alike.last_at) == (first_at, clock())
    assert (alike.task_id, alike.error) == (last, "port 1 is taken")
    assert (other.value, other.total) == ("docs/crash/no such file", 1)


async def test_failures_are_grouped_by_type_agent_or_reason(queue: Queue) -> None:
    await dead_letter(queue, "first", type="docs")
    await dead_letter(queue, "second")
    await queue.submit(type="code")
    await queue.fail((await take(queue, "second")).token, "network", "no route")

    async def grouped(by: str) -> dict[str | None, int]:
        return {pattern.value: pattern.total for pattern in await queue.metrics.failures(by)}  # type: ignore[arg-type]  # a parameter

    assert await grouped("type") == {"code": 2, "docs": 1}
    assert await grouped("agent") == {"second": 2, "first": 1}
    assert await grouped("reason") == {"crash": 2, "network": 1}


async def test_pattern_signature_can_be_used_to_redrive(queue: Queue, clock: MovedClock) -> None:
    """Patterns found here can be redriven, including those of tasks that went silent."""
    await queue.submit(type="code", max_attempts=1)
    await take(queue)
    await pass_time(queue, clock, 3600)
    (pattern,) = await queue.metrics.failures()
    assert pattern.value
    assert [outcome.status for outcome in await queue.dead_letters.redrive(pattern.value)] == ["ready"]


async def test_failures_before_a_time_are_left_out(queue: Queue, clock: MovedClock) -> None:
    await dead_letter(queue)
    clock.advance(10)
    await dead_letter(queue)
    assert [pattern.total for pattern in await queue.metrics.failures(since=clock())] == [1]
    assert [pattern.total for pattern in await queue.metrics.failures(since=clock() - 10)] == [2]
    assert await queue.in_workspace("other").metrics.failures() == []


async def test_failures_of_purged_tasks_still_count(queue: Queue) -> None:
    await queue.settings.set("purge.mode", "delete")
    await dead_letter(queue)
    await queue.control.purge(status=["dead_lettered"])
    assert [(pattern.value, pattern.total) for pattern in await queue.metrics.failures("type")] == [("code", 1)]


async def test_unknown_failure_grouping_is_refused(queue: Queue) -> None:
    with pytest.raises(InputError, match="Use one of type, agent, model, reason, signature"):
        await queue.metrics.failures("colour")  # type: ignore[arg-type]  # that is the point


def walked(steps: list[tuple[str, str]]) -> list[str]:
    """Return the states passed; every transition must begin at the end of the previous one."""
    assert all(one[1] == other[0] for one, other in pairwise(steps))
    return [steps[0][0], *(after for _, after in steps)]


@pytest.mark.requirement("F-058", "F-065", "F-070", "F-071", "F-072", "F-073", "F-074", "F-075", "F-077", "F-078")
async def test_transitions_list_every_state_change_of_a_task(factory: Queue, clock: MovedClock) -> None:
    task_id = (await factory.submit(type="code", retry={"jitter": False})).id
    (claim,) = await factory.claim("worker")
    await factory.start(claim.token)
    await factory.fail(claim.token, "crash", "boom")
    await pass_time(factory, clock, 60)
    await finish(factory)
    steps = await factory.tasks.transitions(task_id)
    assert walked([(step.from_status, step.to_status) for step in steps]) == [
        *("created", "pending", "ready", "claimed", "running", "failed", "retrying", "ready"),
        *("claimed", "running", "validating", "completed"),
    ]
    failed = next(step for step in steps if step.to_status == "failed")
    assert (failed.verb, failed.actor, failed.reason, failed.fence) == ("failed", "agent:worker", "crash", 1)
    assert [step.seq for step in steps] == sorted(step.seq for step in steps)
    assert steps[0].actor == "system"
    assert steps[-1].at == clock()


@pytest.mark.requirement("F-079", "F-080", "F-081", "F-082")
async def test_transitions_include_changes_by_maintenance(factory: Queue, clock: MovedClock) -> None:
    running = (await factory.submit(type="code", max_attempts=1)).id
    await take(factory, "first")
    claimed = (await factory.submit(type="code", max_attempts=1)).id
    await factory.claim("second")
    pending = (await factory.submit(type="code", dependencies=[running])).id
    await factory.cancel(pending)
    await pass_time(factory, clock, 3600)

    async def last(task_id: str) -> list[str]:
        return walked([(s.from_status, s.to_status) for s in await factory.tasks.transitions(task_id)])[-3:]

    assert await last(running) == ["running", "failed", "dead_lettered"]
    assert await last(claimed) == ["claimed", "failed", "dead_lettered"]
    assert (await last(pending))[-2:] == ["pending", "cancelled"]


async def test_every_transition_is_in_the_transition_table(queue: Queue, clock: MovedClock) -> None:
    task_id = await dead_letter(queue)
    await queue.dead_letters.review(task_id, "retry_later", at=clock() + 5)
    await pass_time(queue, clock, 5)
    await queue.release((await take(queue)).token)
    await queue.cancel(task_id)
    allowed = {(source.value, target.value) for (source, _), target in TRANSITIONS.items()}
    steps = [(step.from_status, step.to_status) for step in await queue.tasks.transitions(task_id)]
    assert set(steps) <= allowed
    assert walked(steps)[-1] == "cancelled"


async def test_transitions_of_unknown_task_are_not_found(queue: Queue) -> None:
    task_id = (await queue.submit(type="code", id="mine")).id
    assert await queue.tasks.transitions("mine") == await queue.tasks.transitions(task_id)
    with pytest.raises(NotFound):
        await queue.in_workspace("other").tasks.transitions(task_id)
    with pytest.raises(NotFound):
        await queue.tasks.transitions("task_00000000000000000000000001")


async def test_transitions_of_archived_task_can_be_read(queue: Queue, clock: MovedClock) -> None:
    await queue.settings.set("archive_after_sec", 10)
    task_id = (await queue.submit(type="code")).id
    await finish(queue)
    before = await queue.tasks.transitions(task_id)
    await pass_time(queue, clock, 10)
    assert (await queue.get(task_id)).archived
    assert await queue.tasks.transitions(task_id) == before


async def test_dags_are_listed_newest_first_by_page(queue: Queue) -> None:
    made = []
    for n in range(5):
        ids = await submit_dag(queue, {"a": [], "b": ["a"]}, title=f"Page {n}")
        made.append((await queue.get(ids["a"])).dag_id)
        await queue.submit(type="lone")
    page = await queue.dags.list(limit=2)
    assert [dag.id for dag in page.dags] == made[:2:-1]
    rest = await queue.dags.list(after=page.next, limit=3)
    assert [dag.id for dag in rest.dags] == made[2::-1]
    assert (await queue.dags.list(after=rest.next)).dags == []
    assert (await queue.in_workspace("other").dags.list()).dags == []


async def test_listed_dag_equals_the_single_dag(queue: Queue) -> None:
    ids = await submit_dag(queue, {"a": [], "b": ["a"], "c": ["a"]}, title="Page", budget_ceiling_usd=5)
    dag_id = (await queue.get(ids["a"])).dag_id
    fields = [
        *("id", "workspace_id", "title", "created_by", "status", "done", "total", "budget_ceiling_usd", "spent_usd"),
        *("created_at", "finished_at"),
    ]

    async def same(status: str, done: int) -> None:
        whole = await queue.dags.get(dag_id)
        (listed,) = (await queue.dags.list()).dags
        assert [getattr(listed, name) for name in fields] == [getattr(whole, name) for name in fields]
        assert (listed.status, listed.done) == (status, done)

    await same("pending", 0)
    await queue.release((await take(queue)).token)
    await same("running", 0)
    token = (await take(queue)).token
    await queue.heartbeat(token, usage={"cost_usd": 0.5})
    await same("running", 0)
    await queue.complete(token)
    await same("running", 1)
    await queue.fail((await take(queue)).token, retry=False)
    await finish(queue)
    await same("failed", 2)
    assert (await queue.dags.list()).dags[0].settled == 1


async def test_rerun_does_not_increase_total_of_listed_dag(queue: Queue) -> None:
    ids = await submit_dag(queue, {"a": [], "b": ["a"]})
    await finish(queue)
    await queue.tasks.rerun(ids["a"])
    (listed,) = (await queue.dags.list()).dags
    whole = await queue.dags.get(listed.id)
    assert (listed.done, listed.total) == (whole.done, whole.total)


async def test_dags_are_filtered_by_status(queue: Queue) -> None:
    ended = await submit_dag(queue, {"a": [], "b": []})
    for _ in range(2):
        await finish(queue)
    cancelled = (await queue.get((await submit_dag(queue, {"a": [], "b": []}))["a"])).dag_id
    await queue.dags.cancel(cancelled)
    begun = await submit_dag(queue, {"a": [], "b": ["a"]})
    await take(queue)
    waiting = [(await queue.get((await submit_dag(queue, {"a": [], "b": []}))["a"])).dag_id for _ in range(3)]

    async def found(status: DagStatus, limit: int = 100) -> list[str]:
        return [dag.id for dag in (await queue.dags.list(status=status, limit=limit)).dags]

    assert await found("completed") == [(await queue.get(ended["a"])).dag_id]
    assert await found("cancelled") == [cancelled]
    assert await found("running", 1) == [(await queue.get(begun["a"])).dag_id]
    assert await found("pending") == waiting[::-1]
    assert await found("failed") == []
    with pytest.raises(InputError, match=r"'open' \(at status\). Use one of pending, running"):
        await queue.dags.list(status="open")  # type: ignore[arg-type]  # wrong on purpose


@pytest.mark.requirement("F-265")
async def test_dag_title_and_ceiling_can_be_updated(queue: Queue) -> None:
    ids = await submit_dag(queue, {"a": [], "b": []}, title="Page", budget_ceiling_usd=5)
    dag_id = (await queue.get(ids["a"])).dag_id
    changed = await queue.as_caller("human:ada").dags.update(dag_id, {"budget_ceiling_usd": 7.5})
    assert (changed.title, changed.budget_ceiling_usd) == ("Page", 7.5)
    await queue.dags.update(dag_id, {"title": "Site", "budget_ceiling_usd": None})
    whole = await queue.dags.get(dag_id)
    assert (whole.title, whole.budget_ceiling_usd) == ("Site", None)
    events = [event for event in (await queue.events()).events if event.verb == "dag_updated"]
    assert [(event.dag_id, event.actor) for event in events] == [(dag_id, "human:ada"), (dag_id, "system")]
    assert events[0].data == {"budget_ceiling_usd": {"from": 5, "to": 7.5}}
    assert await events_named(queue, "dag.updated") == [dag_id, dag_id]


async def test_update_of_unknown_dag_or_invalid_field_is_refused(queue: Queue) -> None:
    lone = (await queue.get((await queue.submit(type="code")).id)).dag_id
    ids = await submit_dag(queue, {"a": [], "b": []})
    dag_id = (await queue.get(ids["a"])).dag_id
    for handle, missing in ((queue.in_workspace("other"), dag_id), (queue, lone), (queue, "nothing")):
        with pytest.raises(NotFound):
            await handle.dags.update(missing, {"title": "x"})
    for wrong in ({}, {"status": "failed"}, {"budget_ceiling_usd": -1}, {"title": "\x00"}):
        with pytest.raises(InputError):
            await queue.dags.update(dag_id, wrong)
    assert (await queue.dags.get(dag_id)).title is None


async def test_fifo_claim_takes_the_oldest_regardless_of_priority(loki: Queue) -> None:
    made = [(await loki.submit(type=f"t{n % 3}", priority=9 - n, payload={"n": n})).id for n in range(9)]
    first = await loki.claim("worker", fifo=True)
    rest = await loki.claim("worker", 100, fifo=True)
    assert [claim.id for claim in [*first, *rest]] == made


async def test_fifo_claim_skips_tasks_the_agent_cannot_take(queue: Queue) -> None:
    await queue.agents.register(id="poor", budget_remaining_usd=1, max_concurrent_tasks=9)
    await queue.submit(type="code", target_agent_id="rich")
    await queue.submit_many([{"type": "code", "estimated_cost_usd": 5}] * 9)
    cheap = (await queue.submit(type="code")).id
    assert [claim.id for claim in await queue.claim("poor", fifo=True)] == [cheap]
    assert await queue.claim("poor", fifo=True) == []


async def test_invalid_page_cursor_is_refused(queue: Queue) -> None:
    """A damaged cursor must not start at the first page again: its reader would never end."""
    made = [await queue.submit(type="code", id=name) for name in ("one", "two", "three")]
    assert [task.id for task in (await queue.tasks.list(after="two")).tasks] == [made[2].id]
    assert [task.id for task in (await queue.tasks.list(after=made[0].id)).tasks] == [made[1].id, made[2].id]
    for after in ("four", "task_zzz"):
        with pytest.raises(NotFound):
            await queue.tasks.list(after=after)
    for page in (queue.dead_letters.list, queue.approvals.list, queue.deliveries.list):
        with pytest.raises(InputError) as error:
            await page(after="zzz")
        assert error.value.where == "after"


async def test_subtasks_are_found_by_any_name_of_their_parent(queue: Queue) -> None:
    await queue.submit(type="code", id="my-parent")
    held = await take(queue)
    (subtask,) = await queue.spawn(held.token, [{"type": "code"}])
    await queue.submit(type="other")
    for name in ("my-parent", held.id):
        assert [task.id for task in (await queue.tasks.list(parent=name)).tasks] == [subtask.id]
    with pytest.raises(NotFound):
        await queue.tasks.list(parent="nobody")
    with pytest.raises(InputError):
        await queue.tasks.list(parent="")
    with pytest.raises(NotFound):
        await queue.tasks.list(dag="")


async def test_unknown_ids_in_a_batch_leave_the_others_unaffected(queue: Queue) -> None:
    other = await queue.in_workspace("other").submit(type="code")
    mine = await queue.submit(type="code")
    assert [task.id for task in await queue.batch.get(["nobody", mine.id, other.id])] == [mine.id]
    outcomes = await queue.batch.cancel(["nobody", other.id, mine.id])
    assert [outcome.status for outcome in outcomes] == [None, None, "cancelled"]
    assert [type(outcome.error) for outcome in outcomes] == [NotFound, NotFound, type(None)]
    assert [outcome.error.facts["task_id"] for outcome in outcomes if outcome.error] == ["nobody", other.id]
    missing = (await queue.batch.cancel([NOWHERE]))[0].error
    assert str(missing).replace(NOWHERE, other.id) == str(outcomes[1].error)  # no one learns that it is elsewhere
    assert (await queue.in_workspace("other").get(other.id)).status == "ready"
