"""Push notifications of A2A: kept in the database, sent at every change, again after failures, on both stores."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from a2a.types import (
    AuthenticationInfo,
    DeleteTaskPushNotificationConfigRequest,
    GetTaskPushNotificationConfigRequest,
    ListTaskPushNotificationConfigsRequest,
    StreamResponse,
    TaskPushNotificationConfig,
)
from a2a.utils.errors import InvalidParamsError, TaskNotFoundError
from google.protobuf.json_format import ParseDict

from shiftwork import Queue
from shiftwork.a2a.push_sender import LEASE_SEC, MAX_ATTEMPTS, MAX_WAIT_SEC, PushSender
from shiftwork.testing import MovedClock
from tests.a2a.serving import CARD, PATIENCE_SEC, A2aClient, connected, serving, state, take
from tests.sinks.receivers import Receiver, receiving

SECRET = "s3cret"  # of the test


@pytest.fixture(autouse=True)
async def agents(queue: Queue) -> None:
    await queue.agents.register(id="crab")


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as found:
        yield found


@pytest.fixture
async def client(queue: Queue) -> AsyncIterator[A2aClient]:
    async with serving(queue, private_push=True) as url, connected(url) as found:
        yield found


@pytest.fixture
async def sender(queue: Queue) -> AsyncIterator[PushSender]:
    found = PushSender(queue, allow_private=True)
    yield found
    await found.close()


def config(receiver: Receiver, **fields: str) -> TaskPushNotificationConfig:
    auth = AuthenticationInfo(scheme="Bearer", credentials=SECRET)
    return TaskPushNotificationConfig(url=receiver.url, token="known", authentication=auth, **fields)


def states(receiver: Receiver) -> list[str]:
    """Return the received notifications as the protocol's own type."""
    return [state(ParseDict(got.json, StreamResponse()).task) for got in receiver.got]


async def test_client_is_notified_of_every_change_until_the_end(
    queue: Queue, client: A2aClient, sender: PushSender, receiver: Receiver
) -> None:
    sent = await client.send("Write it", push=config(receiver))
    assert await sender.send_due() == 1
    assigned = await take(queue)
    assert await sender.send_due() == 1
    assert await sender.send_due() == 0
    await queue.complete(assigned.token, text="done")
    assert await sender.send_due() == 1
    await queue.tasks.rerun(sent.id)
    assert await sender.send_due() == 0
    assert states(receiver) == ["submitted", "working", "completed"]
    headers = receiver.got[0].headers
    assert (headers["x-a2a-notification-token"], headers["authorization"]) == ("known", f"Bearer {SECRET}")
    assert receiver.got[-1].json["task"]["artifacts"][0]["parts"][0]["text"] == "done"


async def test_refused_notification_is_sent_again_later(
    queue: Queue, client: A2aClient, sender: PushSender, receiver: Receiver, clock: MovedClock
) -> None:
    receiver.status = 500
    await client.send("Write it", push=config(receiver))
    assert await sender.send_due() == 1
    assert await sender.send_due() == 0
    receiver.status = 204
    clock.advance(5)
    assert await sender.send_due() == 1
    assert await sender.send_due() == 0
    assert states(receiver) == ["submitted", "submitted"]


async def test_notification_is_abandoned_after_its_last_attempt(
    queue: Queue, client: A2aClient, sender: PushSender, receiver: Receiver, clock: MovedClock
) -> None:
    receiver.status = 500
    await client.send("Write it", push=config(receiver))
    for _ in range(MAX_ATTEMPTS):
        assert await sender.send_due() == 1
        clock.advance(MAX_WAIT_SEC + 1)
    assert await sender.send_due() == 0
    assert len(receiver.got) == MAX_ATTEMPTS


async def test_server_that_died_while_sending_leaves_it_to_another(
    queue: Queue, client: A2aClient, receiver: Receiver, clock: MovedClock
) -> None:
    await client.send("Write it", push=config(receiver))
    dying, other = PushSender(queue, allow_private=True), PushSender(queue, allow_private=True)
    receiver.hangs = True
    under_way = asyncio.create_task(dying.send_due())
    await receiver.wait_for(1)
    assert await other.send_due() == 0
    under_way.cancel()
    await asyncio.gather(under_way, return_exceptions=True)
    receiver.hangs = False
    clock.advance(LEASE_SEC + 1)
    assert await other.send_due() == 1
    assert states(receiver) == ["submitted", "submitted"]
    for each in (dying, other):
        await each.close()


async def test_configs_are_listed_changed_and_removed(client: A2aClient, receiver: Receiver) -> None:
    sent = await client.send("Write it")
    made = await client.sdk.create_task_push_notification_config(config(receiver, task_id=sent.id, id="one"))
    assert (made.id, made.authentication.scheme, made.authentication.credentials) == ("one", "Bearer", "")
    await client.sdk.create_task_push_notification_config(config(receiver, task_id=sent.id, id="one"))
    second = await client.sdk.create_task_push_notification_config(config(receiver, task_id=sent.id))
    wanted = ListTaskPushNotificationConfigsRequest(task_id=sent.id)
    listed = await client.sdk.list_task_push_notification_configs(wanted)
    assert {each.id for each in listed.configs} == {"one", second.id}
    known = GetTaskPushNotificationConfigRequest(task_id=sent.id, id="one")
    assert (await client.sdk.get_task_push_notification_config(known)).url == receiver.url
    gone = DeleteTaskPushNotificationConfigRequest(task_id=sent.id, id="one")
    await client.sdk.delete_task_push_notification_config(gone)
    with pytest.raises(TaskNotFoundError):
        await client.sdk.delete_task_push_notification_config(gone)
    with pytest.raises(TaskNotFoundError):
        await client.sdk.get_task_push_notification_config(known)


async def test_address_inside_our_network_is_refused(queue: Queue, receiver: Receiver) -> None:
    async with serving(queue) as url, connected(url) as client:
        sent = await client.send("Write it")
        for wrong in (receiver.url, "http://10.0.0.1/", "ftp://example.com", "nonsense", "http://2130706433/"):
            given = TaskPushNotificationConfig(task_id=sent.id, url=wrong)
            with pytest.raises(InvalidParamsError):
                await client.sdk.create_task_push_notification_config(given)
        name = TaskPushNotificationConfig(task_id=sent.id, url=receiver.url.replace("127.0.0.1", "localhost"))
        await client.sdk.create_task_push_notification_config(name)
    sender = PushSender(queue, allow_private=False)
    assert await sender.send_due() == 1  # the name is public until it is dialled
    await sender.close()
    assert receiver.got == []


async def test_credentials_are_not_shown_and_a_task_has_few_configs(client: A2aClient, receiver: Receiver) -> None:
    sent = await client.send("Write it")
    for number in range(20):
        await client.sdk.create_task_push_notification_config(config(receiver, task_id=sent.id, id=str(number)))
    with pytest.raises(InvalidParamsError, match="at most 20"):
        await client.sdk.create_task_push_notification_config(config(receiver, task_id=sent.id, id="more"))
    listed = await client.sdk.list_task_push_notification_configs(
        ListTaskPushNotificationConfigsRequest(task_id=sent.id)
    )
    assert SECRET not in str(listed)


async def test_real_server_pushes(store_url: str, tmp_path: Path, receiver: Receiver) -> None:
    path = tmp_path / "card.json"
    path.write_text(json.dumps(CARD), encoding="utf-8")
    line = [sys.executable, "-m", "shiftwork", "--json", "a2a", "--store", store_url, "--card", str(path)]
    options = ["--http", "127.0.0.1:0", "--private-push"]
    with await asyncio.to_thread(subprocess.Popen, [*line, *options], stdout=subprocess.PIPE, text=True) as running:
        try:
            assert running.stdout is not None
            said = json.loads(await asyncio.to_thread(running.stdout.readline))
            async with connected(said["card"].removesuffix("/.well-known/agent-card.json")) as client:
                await client.send("Write it", push=config(receiver))
                async with await Queue.open(store_url) as queue:
                    await queue.agents.register(id="crab")
                    assigned = await take(queue)
                    await queue.complete(assigned.token, text="done")
                async with asyncio.timeout(PATIENCE_SEC):
                    await receiver.wait_for(1)
                    while states(receiver)[-1] != "completed":
                        await receiver.wait_for(len(receiver.got) + 1)
        finally:
            running.terminate()
    assert running.returncode == 0
