"""The end of an id, as tables and pages print it, names a task wherever an id does."""

import pytest

from shiftwork import Queue
from shiftwork.maintenance.loop import run_once
from shiftwork.model import ids
from shiftwork.model.errors import AmbiguousId, NotFound
from tests.conformance.steps import dead_letter, finish, take


@pytest.fixture(params=[False, True], ids=["fresh", "indexed"])
def is_indexed(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


async def submitted(queue: Queue, *, is_indexed: bool) -> str:
    made = await queue.submit(type="code")
    if is_indexed:
        await run_once(queue.engine, force=True)
    return made.id


@pytest.mark.parametrize("shape", ["{6}", "…{6}", "...{6}", "{8}", "{lower}", "{25}"])
async def test_printed_end_of_an_id_names_its_task(queue: Queue, is_indexed: bool, shape: str) -> None:  # noqa: FBT001  # a fixture
    task_id = await submitted(queue, is_indexed=is_indexed)
    short = {"{6}": 6, "…{6}": 6, "...{6}": 6, "{8}": 8, "{lower}": 8, "{25}": 25}[shape]
    text = shape.partition("{")[0] + task_id[-short:]
    assert (await queue.get(text.lower() if shape == "{lower}" else text)).id == task_id


async def test_every_operation_takes_a_short_id(queue: Queue) -> None:
    task_id = await submitted(queue, is_indexed=True)
    short = task_id[-6:]
    assert (await queue.explain(short)).task_id == task_id
    assert (await queue.tasks.history(short)).events[0].task_id == task_id
    assert (await queue.tasks.update(short, {"priority": 3})).task_id == task_id
    assert await queue.steps.list(short) == []
    assert (await queue.tasks.list(after=short)).tasks == []
    assert [outcome.task_id for outcome in await queue.batch.cancel([short])] == [task_id]
    assert (await queue.tasks.rerun(short)).status == "ready"
    await finish(queue)
    buried = await dead_letter(queue)
    assert (await queue.dead_letters.reviews(buried[-6:])) == []
    assert (await queue.dead_letters.review(buried[-6:], "retry")).task_id == buried


async def test_token_with_a_short_id_is_taken(queue: Queue) -> None:
    await submitted(queue, is_indexed=True)
    claimed = await take(queue)
    name, fence = ids.split_token(str(claimed.token)) or ("", 0)
    assert (await queue.complete(f"{name[-8:]}.{fence}", 1)).status == "completed"


async def test_ambiguous_short_id_lists_its_candidates(queue: Queue, is_indexed: bool) -> None:  # noqa: FBT001  # a fixture
    made = [f"01M7P49T8CE06RHX9N{n:02d}ABCDEF"[-26:] for n in range(12)]
    await queue.submit_many([{"type": "code", "id": f"task_{each}"} for each in made[:2]])
    if is_indexed:
        await run_once(queue.engine, force=True)
    with pytest.raises(AmbiguousId, match="the ids of 2 tasks end in 'ABCDEF'") as caught:
        await queue.get("ABCDEF")
    assert caught.value.facts["candidates"] == [f"task_{each}" for each in made[:2]]
    assert f"task_{made[0]}" in str(caught.value)
    assert (await queue.get(made[0][-8:])).id == f"task_{made[0]}"
    await queue.submit_many([{"type": "code", "id": f"task_{each}"} for each in made[2:]])
    with pytest.raises(AmbiguousId, match="more than 10 tasks") as caught:
        await queue.get("ABCDEF")
    assert len(caught.value.facts["candidates"]) == 10
    outcomes = await queue.batch.cancel(["ABCDEF", made[0][-8:]])
    assert isinstance(outcomes[0].error, AmbiguousId)
    assert outcomes[1].status == "cancelled"


async def test_name_of_a_submitter_wins_over_a_short_id(queue: Queue) -> None:
    task_id = await submitted(queue, is_indexed=True)
    named = (await queue.submit(type="code", id=task_id[-6:])).id
    assert (await queue.get(task_id[-6:])).id == named
    assert (await queue.get(task_id)).id == task_id


@pytest.mark.parametrize("text", ["ABCDE", "ABCDEI", "ABC-EF", "ABCDEF" * 5, "……ABCDEF", "abc%ef", "~~~~~~", "……"])
async def test_other_text_is_no_short_id(queue: Queue, text: str) -> None:
    await submitted(queue, is_indexed=True)
    with pytest.raises(NotFound) as caught:
        await queue.get(text)
    assert caught.value.code == "not_found"


async def test_unknown_end_is_not_found(queue: Queue) -> None:
    task_id = await submitted(queue, is_indexed=True)
    other = "0" if task_id[-1] != "0" else "1"
    with pytest.raises(NotFound) as caught:
        await queue.get(task_id[-8:-1] + other)
    assert caught.value.code == "not_found"


async def test_short_id_of_another_workspace_is_not_found(queue: Queue, is_indexed: bool) -> None:  # noqa: FBT001  # a fixture
    task_id = await submitted(queue.in_workspace("other"), is_indexed=is_indexed)
    for call in (queue.get, queue.cancel, queue.explain):
        with pytest.raises(NotFound):
            await call(task_id[-8:])
