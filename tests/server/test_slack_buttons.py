"""Buttons of Slack over HTTP: open to Slack's signature with or without tokens, and answered in Slack."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from tests import deliveries
from tests.server.running import Reply, Running
from tests.sinks import test_people
from tests.sinks.receivers import Receiver, receiving
from tests.sinks.test_people import SECRET, pressed


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as running:
        yield running


async def press(api: Running, body: bytes, secret: str = SECRET) -> Reply:
    headers = deliveries.slack(secret, body, api.state.queue.now())
    return await api.call("POST", "/api/sinks/people/slack", data=body, headers=headers)


@pytest.fixture
async def value(guarded: Running, receiver: Receiver) -> str:
    """What the button Approve carries."""
    queue = guarded.state.queue
    queue.engine.private_sinks = True
    await queue.sinks.add("people", "slack", receiver.url, secret=SECRET, allow_private=True)
    task = await test_people.guarded(queue)
    (asked,) = await queue.approvals.list(task=task)
    return json.dumps({"task": task, "decision": "approve", "revision": asked.revision})


async def test_press_decides_and_is_shown_in_slack(guarded: Running, value: str, receiver: Receiver) -> None:
    reply = await press(guarded, pressed(value, receiver.url))
    assert (reply.status, reply.json["status"]) == (200, "accepted")
    task = reply.json["task_id"]
    assert (await guarded.state.queue.get(task)).status == "ready"
    await receiver.wait_for(1)
    assert receiver.got[0].json == {"replace_original": True, "text": f"Approved by human:ada@slack ({task})"}
    again = await press(guarded, pressed(value, receiver.url))
    assert (again.status, again.json["status"]) == (200, "refused")
    await receiver.wait_for(2)
    assert receiver.got[1].json["response_type"] == "ephemeral"


async def test_forged_press_decides_nothing(guarded: Running, value: str) -> None:
    reply = await press(guarded, pressed(value), secret="another secret")
    assert (reply.status, reply.code) == (403, "hook_refused")
    assert (await guarded.state.queue.get(json.loads(value)["task"])).status == "waiting_approval"


async def test_press_is_not_shown_at_a_private_address_unless_allowed(
    guarded: Running, value: str, receiver: Receiver
) -> None:
    guarded.state.queue.engine.private_sinks = False
    assert (await press(guarded, pressed(value, receiver.url))).json["status"] == "accepted"
    await asyncio.sleep(0)
    assert receiver.got == []
