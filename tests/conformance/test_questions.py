"""A running task asks a question: it releases its slot, and continues with the answer."""

from typing import Any

import pytest

from shiftwork import Queue
from shiftwork.model.errors import InputError, NotFound, WrongState
from shiftwork.testing import MovedClock, pass_time
from tests.conformance.steps import events_named, everything, take

WHICH = {"type": "object", "required": ["city"], "properties": {"city": {"enum": ["Rome", "Oslo"]}}}


async def ask(queue: Queue, **terms: Any) -> str:
    """A task that has asked where to fly; its id."""
    task = await queue.submit(type="travel", title="Trip", payload={"days": 3})
    await queue.waits.wait((await take(queue)).token, "where", **{"question": "Where to?", "schema": WHICH, **terms})
    return task.id


async def asked_again(queue: Queue) -> Any:
    return await queue.waits.wait((await take(queue)).token, "where", question="Where to?", schema=WHICH)


async def test_question_waits_for_its_answer_and_returns_it_to_the_task(queue: Queue) -> None:
    task_id = await ask(queue)
    task = await queue.get(task_id)
    assert (task.status, task.hold, task.attempts) == ("pending", "person", 0)
    found = await queue.as_caller("human:ada").approvals.answer(task_id, {"city": "Oslo"})
    assert (found.task_id, found.status) == (task_id, "ready")
    wait = await asked_again(queue)
    assert (wait.status, wait.value, wait.answered_by) == ("met", {"city": "Oslo"}, "human:ada")


async def test_question_and_answer_are_recorded_in_history(queue: Queue, clock: MovedClock) -> None:
    task_id = await ask(queue, timeout_sec=60)
    await pass_time(queue, clock, 60)
    await queue.waits.wait((await take(queue)).token, "once more", question="Really?")
    await queue.as_caller("human:ada").approvals.answer(task_id, "yes")
    assert await events_named(queue, "question.asked") == [task_id, task_id]
    assert await events_named(queue, "question.expired") == [task_id]
    assert await events_named(queue, "question.answered") == [task_id]
    answered = next(event for event in (await queue.tasks.history(task_id)).events if event.verb == "question_answered")
    assert (answered.actor, answered.path) == ("human:ada", ["pending", "ready"])


async def test_open_questions_are_listed_with_details(queue: Queue, clock: MovedClock) -> None:
    task_id = await ask(queue, timeout_sec=60)
    (asked,) = await queue.approvals.list()
    assert (asked.task_id, asked.kind, asked.type, asked.title) == (task_id, "question", "travel", "Trip")
    assert (asked.name, asked.question, asked.schema, asked.payload) == ("where", "Where to?", WHICH, {"days": 3})
    assert (asked.asked_at, asked.expires_at) == (clock(), clock() + 60)
    assert await queue.approvals.list(kind="approval") == []
    assert await queue.approvals.list(type="code") == []
    assert await queue.approvals.list(kind="question", type="travel", task=task_id) == [asked]
    assert await queue.in_workspace("other").approvals.list() == []
    await queue.approvals.answer(task_id, {"city": "Rome"})
    assert await queue.approvals.list() == []


async def test_questions_are_listed_page_by_page(queue: Queue) -> None:
    ids = [await ask(queue) for _ in range(3)]
    first = await queue.approvals.list(limit=2)
    rest = await queue.approvals.list(limit=2, after=first[-1].task_id)
    assert [asked.task_id for asked in [*first, *rest]] == sorted(ids)


@pytest.mark.parametrize("value", ["Rome", {"city": "Paris"}, {}, None])
async def test_answer_violating_the_schema_is_refused(queue: Queue, value: Any) -> None:
    task_id = await ask(queue)
    before = await everything(queue)
    with pytest.raises(InputError) as refused:
        await queue.approvals.answer(task_id, value)
    assert refused.value.where == "value"
    assert await everything(queue) == before
    assert (await queue.approvals.answer(task_id, {"city": "Rome"})).status == "ready"


@pytest.mark.parametrize("value", [None, False, 0, "", "a word", [1, {"b": None}]])
async def test_without_schema_any_answer_is_accepted(queue: Queue, value: Any) -> None:
    task_id = await ask(queue, schema=None)
    await queue.approvals.answer(task_id, value)
    wait = await asked_again(queue)
    assert (wait.status, wait.value) == ("met", value)


async def test_question_can_be_answered_only_once(queue: Queue) -> None:
    task_id = await ask(queue)
    await queue.approvals.answer(task_id, {"city": "Rome"})
    with pytest.raises(WrongState):
        await queue.approvals.answer(task_id, {"city": "Oslo"})
    assert (await asked_again(queue)).value == {"city": "Rome"}


async def test_unanswered_question_expires_after_its_timeout(queue: Queue, clock: MovedClock) -> None:
    task_id = await ask(queue, timeout_sec=60)
    clock.advance(60)
    with pytest.raises(WrongState) as refused:
        await queue.approvals.answer(task_id, {"city": "Rome"})
    assert "expired" in refused.value.what
    assert (await pass_time(queue, clock, 0))["waits"] == {"ended": 1}
    with pytest.raises(WrongState):
        await queue.approvals.answer(task_id, {"city": "Rome"})
    wait = await asked_again(queue)
    assert (wait.status, wait.value, wait.answered_by) == ("expired", None, None)


async def test_answer_without_a_question_is_refused(queue: Queue) -> None:
    task = await queue.submit(type="travel")
    with pytest.raises(WrongState):
        await queue.approvals.answer(task.id, 1)
    await queue.waits.wait((await take(queue)).token, "go", signal="go")
    with pytest.raises(WrongState):
        await queue.approvals.answer(task.id, 1)
    with pytest.raises(NotFound):
        await queue.approvals.answer("nobody", 1)
    with pytest.raises(NotFound):
        await queue.in_workspace("other").approvals.answer(task.id, 1)


async def test_cancelled_task_has_no_open_question(queue: Queue) -> None:
    task_id = await ask(queue)
    await queue.cancel(task_id)
    assert await queue.approvals.list() == []
    with pytest.raises(WrongState):
        await queue.approvals.answer(task_id, {"city": "Rome"})


async def test_retry_as_new_task_keeps_the_answer(aegis: Queue, clock: MovedClock) -> None:
    task_id = await ask(aegis)
    await aegis.approvals.answer(task_id, {"city": "Oslo"})
    token = (await take(aegis)).token
    await aegis.fail(token, "timeout")
    await pass_time(aegis, clock, 3600)
    assert (await asked_again(aegis)).value == {"city": "Oslo"}
