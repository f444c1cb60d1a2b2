"""Typed tasks: payloads are decoded before the function runs, results encoded after, on every kind of queue."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, assert_type

import msgspec
import pytest

from shiftwork import Client, Context, Done, Queue, SyncQueue, Worker
from shiftwork.model.errors import InputError, InvalidPayload
from shiftwork.worker import typed_handlers
from tests.client.serving import served
from tests.worker.steps import at_work, until


@dataclass
class Summary:
    text: str
    words: int


class Job(msgspec.Struct):
    urls: list[str]


def typed_worker() -> Worker:
    worker = Worker("ada")

    @worker.task
    async def summarise(text: str, words: int = 2) -> Summary:
        return Summary(" ".join(text.split()[:words]), words)

    @worker.task(type="fetch")
    def fetch_all(ctx: Context, job: Job) -> list[str]:
        return [f"{ctx.type} {url}" for url in job.urls]

    @worker.task
    async def explained(n: int) -> Done:
        return Done({"n": n}, text="in words")

    @worker.task
    async def wrong(n: int) -> Summary:
        return {"text": n}  # type: ignore[return-value]  # what is tested

    return worker


@pytest.mark.parametrize(
    ("type_", "payload", "data"),
    [
        ("summarise", {"text": "a b c"}, {"text": "a b", "words": 2}),
        ("summarise", {"text": "a b c", "words": 1}, {"text": "a", "words": 1}),
        ("fetch", {"urls": ["x"]}, ["fetch x"]),
        ("explained", {"n": 1}, {"n": 1}),
    ],
)
async def test_function_gets_its_arguments_and_its_result_is_stored(
    shop: Queue, store_url: str, type_: str, payload: dict[str, Any], data: Any
) -> None:
    task = await shop.submit(type=type_, payload=payload)
    await typed_worker().run(store_url, until_idle=True)
    assert (await shop.get(task.id)).result is not None
    assert (await shop.result(task.id)).data == data


async def test_payload_that_does_not_decode_fails_without_retry(shop: Queue, store_url: str) -> None:
    task = await shop.submit(type="summarise", payload={"text": 3})
    await typed_worker().run(store_url, until_idle=True)
    found = await shop.get(task.id)
    assert (found.status, found.attempts, found.failure_reason) == ("dead_lettered", 1, "invalid_input")
    assert "text: Expected `str`, got `int`" in (found.last_error or "")


async def test_result_that_does_not_fit_its_annotation_is_an_invalid_output(shop: Queue, store_url: str) -> None:
    task = await shop.submit(type="wrong", payload={"n": 3}, max_attempts=1)
    await typed_worker().run(store_url, until_idle=True)
    found = await shop.get(task.id)
    assert (found.status, found.failure_reason) == ("dead_lettered", "invalid_output")
    assert "text" in (found.last_error or "")


worker = Worker("ada")


@worker.task
async def double(n: int, times: int = 1) -> Summary:
    return Summary("x" * n, times)


@worker.task(max_attempts=1)
async def broken(n: int) -> int:
    raise ValueError(n)


@worker.task
async def twice(ctx: Context, n: int) -> str:
    """Submits from inside a handler, to the queue that it runs on."""
    handle = await double.with_options(tags=["inner"]).submit(n)
    return handle.id


async def test_submit_returns_a_handle_whose_result_has_the_declared_type(shop: Queue, store_url: str) -> None:
    async with at_work(worker, store_url):
        handle = await double.on(shop).submit(2, times=3)
        result = await handle.result(timeout=60)
    assert_type(result, Summary)
    assert result == Summary("xx", 3)
    assert (await shop.get(handle.id)).payload == {"n": 2, "times": 3}


async def test_submit_goes_to_the_queue_of_the_block_around_it(store_url: str) -> None:
    async with Queue.open(store_url) as outer:
        one = await double.submit(1)
        async with Queue.open("sqlite:///:memory:") as inner:
            two = await double.submit(2)
            assert (await inner.get(two.id)).payload == {"n": 2}
        three = await double.submit(3)
        assert {(await outer.get(each.id)).payload["n"] for each in (one, three)} == {1, 3}
    with pytest.raises(InputError, match="no current queue"):
        await double.submit(1)


async def test_submit_inside_a_handler_goes_to_its_queue(shop: Queue, store_url: str) -> None:
    handle = await twice.on(shop).submit(2)
    await worker.run(store_url, until_idle=True)
    inner = await shop.get(await handle.result(timeout=60))
    assert (inner.type, inner.status, inner.tags) == ("double", "completed", ["inner"])


async def test_options_of_a_submit_are_fields_of_the_task(shop: Queue) -> None:
    bound = double.on(shop).with_options(priority=7, tags=["a"])
    handle = await bound.with_options(idempotency_key="k").submit(1)
    task = await shop.get(handle.id)
    assert (task.priority, task.tags, task.idempotency_key) == (7, ["a"], "k")
    assert (await bound.with_options(idempotency_key="k").submit(1)).duplicate
    with pytest.raises(InputError, match="prioirty"):
        await double.on(shop).with_options(prioirty=3).submit(1)  # type: ignore[call-arg]  # what is tested


async def test_tasks_are_made_for_batches_and_dags(shop: Queue) -> None:
    made = await shop.submit_dag(
        {"tasks": [double.with_options(key="a").new(1), double.with_options(dependencies=["a"]).new(2)]}
    )
    assert [(await shop.get(each.id)).status for each in made] == ["ready", "pending"]


async def test_arguments_that_do_not_fit_are_refused_before_they_are_sent(shop: Queue) -> None:
    with pytest.raises(InvalidPayload, match="n: Expected `int`, got `str`"):
        await double.on(shop).submit("x")  # type: ignore[arg-type]  # what is tested
    assert (await shop.tasks.list()).tasks == []


async def test_worker_registers_its_types_when_it_starts(shop: Queue, store_url: str) -> None:
    await worker.run(store_url, until_idle=True)
    found = {type_.name: type_ for type_ in await shop.types.list()}
    assert found.keys() == {"double", "broken", "twice"}
    assert found["broken"].options.max_attempts == 1
    assert (found["double"].result_schema or {})["required"] == ["text", "words"]
    shop.engine.settings_cache.forget(shop.workspace)  # a second later
    with pytest.raises(InvalidPayload) as refused:
        await shop.submit(type="double", payload={"n": "x"})
    assert refused.value.where == "task.payload.n"


async def test_worker_with_invalid_options_does_not_start(shop: Queue, store_url: str) -> None:
    wrong = Worker("ada")

    @wrong.task(retry={"strategy": "schedule"})
    async def odd() -> None: ...

    with pytest.raises(InputError, match="at least one delay"):
        await wrong.run(store_url, until_idle=True)


async def test_drift_is_logged_when_a_worker_starts(
    shop: Queue, store_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    await shop.settings.set("max_attempts", 9, type="broken")
    await worker.run(store_url, until_idle=True)
    assert "type broken: max_attempts is 9 from type broken; the code declares 1" in caplog.text


async def test_older_worker_takes_over_when_the_newer_has_gone(
    shop: Queue, store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A release is rolled back: the old workers are started again before the new ones end."""
    monkeypatch.setattr(typed_handlers, "DECLARE_AGAIN_SEC", 0.05)
    old, new = Worker("old"), Worker("new")

    @old.task(type="code")
    async def before(n: int) -> None: ...

    @new.task(type="code")
    async def after(text: str) -> None: ...

    async def fields() -> list[str]:
        return list(((await shop.types.get("code")).payload_schema or {})["properties"])

    async def declared_by(*agents: str) -> bool:
        return {agent.id for agent in await shop.agents.list() if agent.status == "active"} == set(agents)

    await old.run(store_url, until_idle=True)
    async with at_work(new, store_url):
        await until(lambda: declared_by("new"))

        async def replaced() -> bool:
            return await fields() == ["text"]

        await until(replaced)
        running = asyncio.create_task(old.run(store_url))
        await until(lambda: declared_by("old", "new"))
        assert await fields() == ["text"]

    async def back() -> bool:
        return await fields() == ["n"]

    await until(back)
    old.stop()
    await running


async def test_typed_tasks_work_over_http(sqlite_url: str) -> None:
    with served(sqlite_url) as server:
        async with Client.open(server.url) as client, at_work(worker, server.url):
            handle = await double.submit(2)
            assert await handle.result(timeout=60) == Summary("xx", 1)
            with pytest.raises(InvalidPayload) as refused:
                await client.submit(type="double", payload={"n": 1, "tims": 2})
            assert "tims" in refused.value.facts["errors"][0]
            assert [type_.name for type_ in await client.types.list()] == ["broken", "double", "twice"]


async def test_typed_tasks_work_without_an_event_loop(sqlite_url: str) -> None:
    def produce() -> Summary:
        with SyncQueue.open(sqlite_url) as queue:
            handle = double.on(queue).with_options(priority=3).submit(2)
            return handle.result(timeout=60)

    async with at_work(worker, sqlite_url):
        assert await asyncio.to_thread(produce) == Summary("xx", 1)
