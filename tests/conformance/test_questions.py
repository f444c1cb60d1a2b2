"""A running task asks a person: it gives its slot back, and goes on with the answer."""

from typing import Any

import pytest

from shiftwork import Queue
from shiftwork.core.errors import InputError, NotFound, WrongState
from shiftwork.testing import MovedClock, pass_time
from tests.conformance.steps import events_named, everything, take

WHICH = {"type": "object", "required": ["city"], "properties": {"city": {"enum": ["Rome", "Oslo"]}}}


async def ask(queue: Queue, **terms: Any) -> str:
    """A task that has asked where to fly; its id."""
    task = await queue.submit(type="travel", title="Trip", payload={"days": 3})
    await queue.wait((await take(queue)).token, "where", **{"question": "Where to?", "schema": WHICH, **terms})
    return task.id


async def asked_again(queue: Queue) -> Any:
    return await queue.wait((await take(queue)).token, "where", question="Where to?", schema=WHICH)


async def test_a_question_waits_for_a_person_and_its_answer_is_what_the_task_gets(queue: Queue) -> None:
    task_id = await ask(queue)
    task = await queue.get(task_id)
    assert (task.status, task.hold, task.attempts) == ("pending", "person", 0)
    told = await queue.as_caller("human:ada").answer(task_id, {"city": "Oslo"})
    assert (told.task_id, told.status) == (task_id, "ready")
    wait = await asked_again(queue)
    assert (wait.status, wait.value, wait.answered_by) == ("met", {"city": "Oslo"}, "human:ada")


async def test_asking_and_answering_stand_in_the_history(queue: Queue, clock: MovedClock) -> None:
    task_id = await ask(queue, timeout_sec=60)
    await pass_time(queue, clock, 60)
    await queue.wait((await take(queue)).token, "once more", question="Really?")
    await queue.as_caller("human:ada").answer(task_id, "yes")
    assert await events_named(queue, "question.asked") == [task_id, task_id]
    assert await events_named(queue, "question.expired") == [task_id]
    assert await events_named(queue, "question.answered") == [task_id]
    answered = next(event for event in await queue.history(task_id) if event.verb == "question_answered")
    assert (answered.actor, answered.path) == ("human:ada", ["pending", "ready"])


async def test_open_questions_are_listed_with_what_to_look_at(queue: Queue, clock: MovedClock) -> None:
    task_id = await ask(queue, timeout_sec=60)
    (asked,) = await queue.approvals()
    assert (asked.task_id, asked.kind, asked.type, asked.title) == (task_id, "question", "travel", "Trip")
    assert (asked.name, asked.question, asked.schema, asked.payload) == ("where", "Where to?", WHICH, {"days": 3})
    assert (asked.asked_at, asked.expires_at) == (clock(), clock() + 60)
    assert await queue.approvals(kind="approval") == []
    assert await queue.approvals(type="code") == []
    assert await queue.approvals(kind="question", type="travel", task=task_id) == [asked]
    assert await queue.in_workspace("other").approvals() == []
    await queue.answer(task_id, {"city": "Rome"})
    assert await queue.approvals() == []


async def test_questions_are_listed_page_by_page(queue: Queue) -> None:
    ids = [await ask(queue) for _ in range(3)]
    first = await queue.approvals(limit=2)
    rest = await queue.approvals(limit=2, after=first[-1].task_id)
    assert [asked.task_id for asked in [*first, *rest]] == sorted(ids)


@pytest.mark.parametrize("value", ["Rome", {"city": "Paris"}, {}, None])
async def test_an_answer_that_was_not_asked_for_is_refused(queue: Queue, value: Any) -> None:
    task_id = await ask(queue)
    before = await everything(queue)
    with pytest.raises(InputError) as refused:
        await queue.answer(task_id, value)
    assert refused.value.where == "value"
    assert await everything(queue) == before
    assert (await queue.answer(task_id, {"city": "Rome"})).status == "ready"


@pytest.mark.parametrize("value", [None, False, 0, "", "a word", [1, {"b": None}]])
async def test_without_a_schema_any_answer_will_do(queue: Queue, value: Any) -> None:
    task_id = await ask(queue, schema=None)
    await queue.answer(task_id, value)
    wait = await asked_again(queue)
    assert (wait.status, wait.value) == ("met", value)


async def test_a_question_is_answered_once(queue: Queue) -> None:
    task_id = await ask(queue)
    await queue.answer(task_id, {"city": "Rome"})
    with pytest.raises(WrongState):
        await queue.answer(task_id, {"city": "Oslo"})
    assert (await asked_again(queue)).value == {"city": "Rome"}


async def test_a_question_that_nobody_answers_in_time_expires(queue: Queue, clock: MovedClock) -> None:
    task_id = await ask(queue, timeout_sec=60)
    clock.advance(60)
    with pytest.raises(WrongState) as refused:
        await queue.answer(task_id, {"city": "Rome"})
    assert "expired" in refused.value.what
    assert (await pass_time(queue, clock, 0))["waits"] == {"ended": 1}
    with pytest.raises(WrongState):
        await queue.answer(task_id, {"city": "Rome"})
    wait = await asked_again(queue)
    assert (wait.status, wait.value, wait.answered_by) == ("expired", None, None)


async def test_nobody_answers_what_nobody_asked(queue: Queue) -> None:
    task = await queue.submit(type="travel")
    with pytest.raises(WrongState):
        await queue.answer(task.id, 1)
    await queue.wait((await take(queue)).token, "go", signal="go")
    with pytest.raises(WrongState):
        await queue.answer(task.id, 1)
    with pytest.raises(NotFound):
        await queue.answer("nobody", 1)
    with pytest.raises(NotFound):
        await queue.in_workspace("other").answer(task.id, 1)


async def test_a_cancelled_task_asks_nothing(queue: Queue) -> None:
    task_id = await ask(queue)
    await queue.cancel(task_id)
    assert await queue.approvals() == []
    with pytest.raises(WrongState):
        await queue.answer(task_id, {"city": "Rome"})


async def test_a_retry_as_a_new_task_is_not_asked_again(aegis: Queue, clock: MovedClock) -> None:
    task_id = await ask(aegis)
    await aegis.answer(task_id, {"city": "Oslo"})
    token = (await take(aegis)).token
    await aegis.fail(token, "timeout")
    await pass_time(aegis, clock, 3600)
    assert (await asked_again(aegis)).value == {"city": "Oslo"}
