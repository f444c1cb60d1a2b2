"""Handlers read what their task refers to, and submit what they made."""

import pytest

from shiftwork import Client, Context, Done, Queue, Worker
from shiftwork.artifacts.inputs import INLINE_BYTES
from shiftwork.model.errors import NotFound
from tests.client.serving import served


def fleet() -> Worker:
    worker = Worker(agent_id="writer")

    @worker.handler("research")
    async def research(ctx: Context) -> str:
        return "x" * int(ctx.payload["length"])

    @worker.handler("write")
    async def write(ctx: Context) -> Done:
        notes, found = ctx.inputs
        whole = len(await ctx.read_input(found.ref))
        with pytest.raises(NotFound):
            await ctx.read_input("task:nobody:output")
        page = await ctx.put_artifact(await ctx.read_input(notes.ref), name="page.md")
        first = [part async for part in ctx.open_artifact(page.id, end=3)]
        return Done({"found": whole, "inline": found.inline, "first": b"".join(first).decode()}, artifacts=[page.id])

    return worker


async def submit(queue: Queue | Client, length: int) -> str:
    notes = await queue.artifacts.put(b"our notes", name="notes.md")
    refs = [notes.id, "task:research:output"]
    _, write = await queue.submit_many(
        [
            {"key": "research", "type": "research", "payload": {"length": length}},
            {"type": "write", "dependencies": ["research"], "spec": {"context_refs": refs}},
        ]
    )
    return write.id


async def check(queue: Queue | Client, task_id: str, length: int) -> None:
    result = await queue.result(task_id)
    assert result.data == {"found": length, "inline": length <= INLINE_BYTES, "first": "our"}
    (page,) = result.artifacts
    assert b"".join([part async for part in queue.artifacts.get(page)]) == b"our notes"
    assert {(each.role, each.name) for each in await queue.artifacts.list(task_id)} == {
        ("input", None), ("made", "page.md"), ("result", None),
    }  # fmt: skip


@pytest.mark.parametrize("length", [100, 2 * INLINE_BYTES])
async def test_handler_reads_its_inputs(store_url: str, length: int) -> None:
    async with Queue.open(store_url) as queue:
        task_id = await submit(queue, length)
        await fleet().run(queue, until_idle=True)
        await check(queue, task_id, length)


async def test_handler_reads_its_inputs_over_http(store_url: str) -> None:
    with served(store_url) as server:
        async with Client.open(server.url) as client:
            task_id = await submit(client, 2 * INLINE_BYTES)
            await fleet().run(client, until_idle=True)
            await check(client, task_id, 2 * INLINE_BYTES)


async def test_result_naming_a_missing_artifact_fails_the_attempt(store_url: str) -> None:
    worker = Worker(agent_id="careless")

    @worker.handler("write")
    async def write(_ctx: Context) -> Done:
        return Done(artifacts=[f"artifact:sha256-{'0' * 64}"])

    async with Queue.open(store_url) as queue:
        made = await queue.submit(type="write", max_attempts=1)
        await worker.run(queue, until_idle=True)
        task = await queue.get(made.id)
        assert task.status == "dead_lettered"
        assert "there is no artifact" in (task.last_error or "")
