"""Instructions to a running handler, and the file in which a command finds them."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from shiftwork import Queue
from shiftwork.model.errors import StoreUnavailable
from shiftwork.worker import Context, Fail, Worker
from shiftwork.worker.inbox import Inbox
from tests.worker.command_runner import CommandRunner, ask, desk_on
from tests.worker.steps import at_work, until, until_status


@pytest.fixture
def commands(store_url: str, tmp_path: Path) -> Iterator[CommandRunner]:
    with desk_on(store_url, tmp_path) as made:
        yield made


async def statuses(queue: Queue, task: str) -> list[str]:
    return [each.status for each in await queue.tasks.instructions(task)]


async def test_handler_receives_instructions_while_it_runs(shop: Queue, store_url: str) -> None:
    worker, begun, heard = Worker("listener"), asyncio.Event(), list[str]()

    @worker.handler("long")
    async def long(ctx: Context) -> list[str]:
        async for each in ctx.inbox():
            heard.append(each.text)
            begun.set()
            if each.text == "stop":
                break
        return heard

    task = await shop.submit(type="long")
    await task.tell("before")
    async with at_work(worker, store_url):
        await begun.wait()
        assert await statuses(shop, task.id) == ["acknowledged"]
        for text in ("blue", "green", "stop"):
            await task.tell(text)
        assert await task.result() == ["before", "blue", "green", "stop"]
    assert await statuses(shop, task.id) == ["acknowledged"] * 4


async def test_later_attempt_receives_all_instructions_again(shop: Queue, store_url: str) -> None:
    await shop.settings.set("retry.strategy", "immediate")
    worker = Worker("listener")

    @worker.handler("twice")
    async def twice(ctx: Context) -> list[list[object]]:
        found = await ctx.inbox().take()
        if ctx.task.attempts == 0:
            raise Fail("crash", "no luck")
        assert await ctx.inbox().take() == []
        return [[each.text, each.acknowledged_at is not None] for each in found]

    task = await shop.submit(type="twice")
    await task.tell("one")
    async with at_work(worker, store_url):
        assert await task.result() == [["one", True]]


async def test_handler_that_reads_no_inbox_leaves_instructions_unread(shop: Queue, store_url: str) -> None:
    worker, go = Worker("deaf"), asyncio.Event()

    @worker.handler("long")
    async def long(_: Context) -> None:
        await go.wait()

    task = await shop.submit(type="long")
    async with at_work(worker, store_url):
        await until_status(shop, task.id, "running")
        await task.tell("hello?")

        async def delivered() -> bool:
            return await statuses(shop, task.id) == ["delivered"]

        await until(delivered)
        go.set()
        await task.result()
    assert await statuses(shop, task.id) == ["unread"]


async def test_lost_acknowledgement_is_sent_with_the_next(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    await queue.submit(type="code")
    (claim,) = await queue.claim("worker", start=True)
    await queue.tell(claim.id, "one")
    inbox = Inbox(queue, claim.token)

    async def away(*_: object) -> None:
        raise StoreUnavailable("the store is away")

    with monkeypatch.context() as patch:
        patch.setattr(type(queue.claims), "acknowledge", away)
        assert [each.text for each in await inbox.take()] == ["one"]
    assert await statuses(queue, claim.id) == ["delivered"]
    inbox.receive((await queue.heartbeat(claim.token)).instructions)
    assert await inbox.take() == []
    assert await statuses(queue, claim.id) == ["acknowledged"]


async def test_command_finds_new_instructions_in_a_file(shop: Queue, commands: CommandRunner) -> None:
    task = await ask(shop, "listen")
    await shop.as_caller("human:ada").tell(task, "before")
    script = 'cat "$SHIFTWORK_INBOX" > first; touch begun'
    script += '; while ! grep -q enough "$SHIFTWORK_INBOX"; do sleep 0.05; done'
    runner = commands.start(["sh", "-c", script + '; cat "$SHIFTWORK_INBOX"'], "--until-idle", "--output", "text")
    await until((commands.work_dir / task / "begun").exists)
    first = (commands.work_dir / task / "first").read_text()
    assert [json.loads(line)["text"] for line in first.splitlines()] == ["before"]
    await shop.tell(task, "two\nlines")
    await shop.tell(task, "enough")
    assert await asyncio.to_thread(runner.wait, 60) == 0, commands.log()
    found = [json.loads(line) for line in ((await shop.result(task)).text or "").splitlines()]
    assert [(each["seq"], each["text"]) for each in found] == [(1, "before"), (2, "two\nlines"), (3, "enough")]
    assert found[0]["sent_by"] == "human:ada"
    assert await statuses(shop, task) == ["acknowledged"] * 3
