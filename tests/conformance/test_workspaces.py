"""Workspaces are isolated: objects of another workspace are not found, whatever the id or token."""

from collections.abc import Awaitable, Callable

import pytest

from shiftwork import Completion, Queue
from shiftwork.model.errors import NotFound

Attempt = Callable[[Queue, str, str], Awaitable[object]]

ATTEMPTS: dict[str, Attempt] = {
    "get": lambda q, task, _: q.get(task),
    "explain": lambda q, task, _: q.explain(task),
    "cancel": lambda q, task, _: q.cancel(task),
    "rerun": lambda q, task, _: q.tasks.rerun(task),
    "update": lambda q, task, _: q.tasks.update(task, {"priority": 1}),
    "review": lambda q, task, _: q.dead_letters.review(task, "retry"),
    "cancel_dag": lambda q, task, _: q.dags.cancel(task.replace("task_", "dag_")),
    "add_to_dag": lambda q, task, _: q.dags.add_tasks(task.replace("task_", "dag_"), [{"type": "code"}]),
    "dag": lambda q, task, _: q.dags.get(task.replace("task_", "dag_")),
    "complete": lambda q, _, token: q.complete(token, 1),
    "fail": lambda q, _, token: q.fail(token, "crash"),
    "release": lambda q, _, token: q.release(token),
    "progress": lambda q, _, token: q.claims.message(token, "text", "hello"),
    "session": lambda q, _, token: q.claims.pin_session(token, "s"),
    "spawn": lambda q, _, token: q.spawn(token, [{"type": "code"}]),
}


@pytest.mark.parametrize("verb", ATTEMPTS)
async def test_task_of_another_workspace_is_not_found_by_any_verb(verb: str, queue: Queue) -> None:
    mine = await queue.submit(type="code")
    (claim,) = await queue.claim("coder", start=True)
    with pytest.raises(NotFound):
        await ATTEMPTS[verb](queue.in_workspace("other"), mine.id, claim.token)
    task = await queue.get(mine.id)
    assert (task.status, task.version, task.priority) == ("running", 2, 50)


async def test_each_workspace_claims_only_its_own_tasks(queue: Queue) -> None:
    await queue.submit(type="code")
    assert await queue.in_workspace("other").claim("coder") == []


async def test_batch_of_results_is_refused_item_by_item(queue: Queue) -> None:
    await queue.submit(type="code")
    (claim,) = await queue.claim("coder", start=True)
    other = queue.in_workspace("other")
    await other.submit(type="code")
    (own,) = await other.claim("coder", start=True)
    outcomes = await other.batch.complete([Completion(1, token=claim.token), Completion(1, token=own.token)])
    assert [type(outcome.error).__name__ for outcome in outcomes] == ["NotFound", "NoneType"]


async def test_dependency_never_refers_to_another_workspace(queue: Queue) -> None:
    mine = await queue.submit(type="code")
    child = await queue.in_workspace("other").submit(type="code", dependencies=[mine.id])
    (claim,) = await queue.claim("coder", start=True)
    await queue.complete(claim.token, 1)
    assert (await queue.in_workspace("other").get(child.id)).status == "pending"


async def test_read_by_another_process_does_not_set_the_workspace_profile(store_url: str) -> None:
    async with Queue.open(store_url, profile="loki") as server:
        await server.in_workspace("other").submit(type="code")
        async with Queue.open(store_url, workspace="other") as looking:
            assert len((await looking.tasks.list()).tasks) == 1
            assert await looking.settings.profile() == "loki"
        async with Queue.open(store_url, workspace="unused") as looking:
            assert (await looking.tasks.list()).tasks == []
        await server.in_workspace("unused").agents.register({"id": "a1"})
    async with Queue.open(store_url) as later:
        assert [await later.in_workspace(name).settings.profile() for name in ("default", "other", "unused")] == [
            "loki"
        ] * 3


async def test_first_writer_to_a_workspace_records_its_profile(store_url: str) -> None:
    async with Queue.open(store_url) as first, await Queue.open(store_url, profile="aegis") as second:
        await first.in_workspace("team").submit(type="code")
        await second.in_workspace("team").submit(type="code")
        assert await second.in_workspace("team").settings.profile() == "standard"
