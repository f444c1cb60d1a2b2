"""Webhooks: signed, retried while the receiver is down, given up after a day, and redelivered by command."""

import base64
import time

import pytest
from standardwebhooks import Webhook

from shiftwork import Queue
from shiftwork.model.errors import InputError
from shiftwork.notifications import policy
from shiftwork.testing import MovedClock
from tests.conformance.steps import dead_letter, everything
from tests.sinks.receivers import Receiver, receiving
from tests.sinks.steps import NOT_PUBLIC, add, statuses, tell

HOUR = 3600.0
DAY = 24 * HOUR


@pytest.fixture
def clock() -> MovedClock:
    """The real time, since receivers refuse signatures that are old."""
    return MovedClock(float(int(time.time())))


async def test_dead_letter_is_sent_and_signed(queue: Queue, clock: MovedClock, receiver: Receiver) -> None:
    added = await add(queue, receiver)
    task_id = await dead_letter(queue)
    assert await tell(queue, clock) == 1
    (got,) = receiver.got
    assert added.secret is not None
    found = Webhook(added.secret).verify(got.body, got.headers)
    assert found["type"] == "alert.raised"
    about = {name: found["data"][name] for name in ("kind", "severity", "message", "task_id", "task_type")}
    assert about == {
        "kind": "dead_lettered",
        "severity": "warning",
        "message": f"Task {task_id} moved to dead letter queue",
        "task_id": task_id,
        "task_type": "code",
    }
    (sent,) = await queue.deliveries.list()
    assert (sent.id, sent.status, sent.attempts, sent.error) == (got.id, "sent", 1, None)
    assert (await queue.deliveries.get(sent.id)).notification is not None


async def test_each_notification_is_sent_once(queue: Queue, clock: MovedClock, receiver: Receiver) -> None:
    await add(queue, receiver, wants={"events": ["*"]})
    for _ in range(3):
        await dead_letter(queue)
        await tell(queue, clock, 5)
    seen = {(got.json["type"], got.json["data"]["seq"]) for got in receiver.got}
    assert len(seen) == len(receiver.got) > 10
    events = (await queue.events()).events
    names = [(name, event.seq) for event in events for name in event.names if event.verb != "sink_added"]
    assert {each for each in seen if each[0] != "alert.raised"} == {each for each in names if each[0] != "alert.raised"}


async def test_sink_gets_only_events_after_it_was_added(queue: Queue, clock: MovedClock, receiver: Receiver) -> None:
    await dead_letter(queue)
    await add(queue, receiver, wants={"events": ["task.*"]})
    assert await tell(queue, clock) == 0
    await queue.submit(type="code")
    await tell(queue, clock)
    assert sorted(receiver.types) == ["task.created", "task.ready"]


async def test_receiver_down_for_an_hour_gets_everything(queue: Queue, clock: MovedClock) -> None:
    async with receiving() as first:
        await add(queue, first)
        port = first.port
    for _ in range(3):
        await dead_letter(queue)
    for _ in range(13):
        await tell(queue, clock, HOUR / 13)
    assert set(await statuses(queue)) == {"pending"}
    assert (await queue.sinks.get("ops")).status == "resting"
    assert (await queue.deliveries.list())[0].error == "no connection: connection refused"
    async with receiving(port) as back:
        for _ in range(3):
            await tell(queue, clock, HOUR)
        assert len({got.id for got in back.got}) == len(back.got) == 3
    assert await statuses(queue) == ["sent"] * 3
    assert (await queue.sinks.get("ops")).status == "active"


async def test_receiver_answering_500_is_given_up_after_a_day_and_redelivered(
    queue: Queue, clock: MovedClock, receiver: Receiver
) -> None:
    await add(queue, receiver)
    receiver.status = 500
    await dead_letter(queue)
    began = clock()
    while await statuses(queue) in ([], ["pending"]):
        await tell(queue, clock, 60.0 if clock() - began < HOUR else HOUR)
    assert 12 * HOUR < clock() - began <= DAY
    (dead,) = [each for each in await queue.deliveries.list() if each.status == "dead"]
    assert dead.error == "it answered 500"
    assert dead.attempts == len(receiver.got) <= policy.MAX_ATTEMPTS
    assert {got.id for got in receiver.got} == {dead.id}
    (alert,) = await queue.alerts.list(kind="sink_failing", open_only=True)
    assert alert.message == "Sink ops does not accept notifications: it answered 500"
    receiver.status = 200
    assert await queue.deliveries.redeliver_dead("ops") == 1
    await tell(queue, clock)
    assert receiver.got[-1].id == dead.id or dead.id in {got.id for got in receiver.got[-2:]}
    assert set(await statuses(queue)) == {"sent"}
    assert await queue.alerts.list(kind="sink_failing", open_only=True) == []


async def test_sent_delivery_can_be_sent_again(queue: Queue, clock: MovedClock, receiver: Receiver) -> None:
    await add(queue, receiver)
    await dead_letter(queue)
    await tell(queue, clock)
    (sent,) = await queue.deliveries.list()
    assert (await queue.deliveries.redeliver(sent.id)).status == "pending"
    await tell(queue, clock)
    assert [got.id for got in receiver.got] == [sent.id, sent.id]
    assert receiver.got[0].body == receiver.got[1].body


async def test_hanging_receiver_is_cut_off_and_blocks_no_other(
    queue: Queue, clock: MovedClock, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shiftwork.notifications.webhooks.TIMEOUT_SEC", 1.0)
    async with receiving() as other:
        receiver.hangs = True
        for name, where in (("slow", receiver), ("quick", other)):
            await add(queue, where, name, wants={"events": ["task.created"]})
        await queue.submit_many([{"type": "code"}] * 10)
        await tell(queue, clock)
        assert len(other.got) == 10
    assert await statuses(queue, "quick") == ["sent"] * 10
    assert set(await statuses(queue, "slow")) == {"pending"}
    assert len(receiver.got) < 10  # it rests after a few
    tried = [each for each in await queue.deliveries.list("slow") if each.attempts]
    assert {each.error for each in tried} == {"it did not answer within 1 s"}


async def test_redirect_is_not_followed(queue: Queue, clock: MovedClock, receiver: Receiver) -> None:
    async with receiving() as private:
        receiver.status, receiver.headers = 302, {"location": private.url}
        await add(queue, receiver)
        await dead_letter(queue)
        await tell(queue, clock)
        assert private.got == []
    (kept,) = await queue.deliveries.list()
    assert (kept.status, kept.error) == ("pending", "it answered 302, and redirects are not followed")


async def test_private_address_is_not_contacted(queue: Queue, clock: MovedClock, receiver: Receiver) -> None:
    address = f"http://localhost:{receiver.port}/"
    await add(queue, receiver, address=address, allow_private=False)
    await dead_letter(queue)
    await tell(queue, clock)
    assert receiver.got == []
    (kept,) = await queue.deliveries.list()
    assert (kept.status, kept.error) == ("pending", NOT_PUBLIC)
    await queue.sinks.update("ops", allow_private=True)
    await tell(queue, clock, HOUR)
    assert len(receiver.got) == 1


async def test_process_without_private_sinks_does_not_contact_them(
    queue: Queue, clock: MovedClock, receiver: Receiver
) -> None:
    await add(queue, receiver)
    queue.engine.private_sinks = False
    await dead_letter(queue)
    await tell(queue, clock)
    assert receiver.got == []
    assert (await queue.deliveries.list())[0].error == NOT_PUBLIC


async def test_webhook_secret_is_not_reused_for_another_address(queue: Queue, receiver: Receiver) -> None:
    await add(queue, receiver)
    with pytest.raises(InputError) as refused:
        await queue.sinks.update("ops", address="https://example.com/elsewhere")
    assert refused.value.where == "secret"
    await queue.sinks.update("ops", address=receiver.url)  # the same as before
    await queue.sinks.update(
        "ops", address="https://example.com/elsewhere", secret="whsec_" + base64.b64encode(bytes(32)).decode()
    )


async def test_answer_410_pauses_the_sink(queue: Queue, clock: MovedClock, receiver: Receiver) -> None:
    await add(queue, receiver)
    receiver.status = 410
    await dead_letter(queue)
    await tell(queue, clock)
    sink = await queue.sinks.get("ops")
    assert (sink.status, sink.pause_reason) == ("paused", "it answered 410 Gone")
    assert await statuses(queue) == ["dead"]
    await dead_letter(queue)
    await tell(queue, clock, DAY)
    assert len(receiver.got) == 1
    receiver.status = 200
    await queue.sinks.resume("ops")
    await tell(queue, clock)
    assert sorted(got.json["data"]["kind"] for got in receiver.got[1:]) == ["dead_lettered", "sink_failing"]


@pytest.mark.parametrize("form", ["seconds", "date"])
async def test_retry_after_header_is_honoured(queue: Queue, clock: MovedClock, receiver: Receiver, form: str) -> None:
    await add(queue, receiver)
    at = clock() + 1800
    text = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(at)) if form == "date" else "1800"
    receiver.status, receiver.headers = 429, {"retry-after": text}
    await dead_letter(queue)
    await tell(queue, clock)
    receiver.status = 200
    await dead_letter(queue)
    await tell(queue, clock, 1790)
    assert len(receiver.got) == 1
    await tell(queue, clock, 20)
    assert len(receiver.got) == 3
    assert await statuses(queue) == ["sent", "sent"]


async def test_sink_test_message_is_delivered_and_recorded(queue: Queue, clock: MovedClock, receiver: Receiver) -> None:
    await add(queue, receiver)
    sent = await queue.as_caller("human:ada").sinks.test("ops")
    assert (sent.type, sent.status) == ("sink.test", "pending")
    await tell(queue, clock)
    assert receiver.got[0].json["data"] == {"workspace_id": "default", "sink": "ops", "actor": "human:ada"}
    assert (await queue.deliveries.get(sent.id)).status == "sent"


async def test_paused_sink_gets_notifications_after_resume(queue: Queue, clock: MovedClock, receiver: Receiver) -> None:
    await add(queue, receiver)
    await queue.sinks.pause("ops", "holiday")
    await dead_letter(queue)
    assert await tell(queue, clock, HOUR) == 0
    await queue.sinks.resume("ops")
    assert await tell(queue, clock) == 1


async def test_removed_sink_leaves_no_deliveries(queue: Queue, clock: MovedClock, receiver: Receiver) -> None:
    before = await everything(queue)
    await add(queue, receiver)
    receiver.status = 500
    await dead_letter(queue)
    await tell(queue, clock)
    assert await queue.sinks.remove("ops")
    assert not await queue.sinks.remove("ops")
    assert await queue.deliveries.list() == []
    await tell(queue, clock, HOUR)
    after = await everything(queue)
    assert (after["sinks"], after["deliveries"]) == (before["sinks"], before["deliveries"]) == ([], [])
    assert len(receiver.got) == 1


async def test_old_deliveries_are_deleted(queue: Queue, clock: MovedClock, receiver: Receiver) -> None:
    await add(queue, receiver)
    await dead_letter(queue)
    await tell(queue, clock)
    await tell(queue, clock, 8 * DAY)
    assert await queue.deliveries.list() == []
    assert len(receiver.got) == 1
