"""Webhooks: signed, sent again while the receiver is down, given up after a day, and sent again by command."""

import base64
import time

import pytest
from standardwebhooks import Webhook

from shiftwork import Queue
from shiftwork.core.errors import InputError
from shiftwork.policy import delivery
from shiftwork.testing import MovedClock
from tests.conformance.steps import bury, everything
from tests.sinks.receivers import Receiver, receiving
from tests.sinks.steps import NOT_PUBLIC, add, statuses, tell

HOUR = 3600.0
DAY = 24 * HOUR


@pytest.fixture
def clock() -> MovedClock:
    """The real time, since receivers refuse signatures that are old."""
    return MovedClock(float(int(time.time())))


async def test_a_dead_letter_is_told_and_signed(queue: Queue, clock: MovedClock, receiver: Receiver) -> None:
    added = await add(queue, receiver)
    task_id = await bury(queue)
    assert await tell(queue, clock) == 1
    (got,) = receiver.got
    assert added.secret is not None
    told = Webhook(added.secret).verify(got.body, got.headers)
    assert told["type"] == "alert.raised"
    about = {name: told["data"][name] for name in ("kind", "severity", "message", "task_id", "task_type")}
    assert about == {
        "kind": "dead_lettered",
        "severity": "warning",
        "message": f"Task {task_id} moved to dead letter queue",
        "task_id": task_id,
        "task_type": "code",
    }
    (sent,) = await queue.deliveries()
    assert (sent.id, sent.status, sent.attempts, sent.error) == (got.id, "sent", 1, None)
    assert (await queue.delivery(sent.id)).notification is not None


async def test_nothing_is_told_twice(queue: Queue, clock: MovedClock, receiver: Receiver) -> None:
    await add(queue, receiver, wants={"events": ["*"]})
    for _ in range(3):
        await bury(queue)
        await tell(queue, clock, 5)
    seen = {(got.json["type"], got.json["data"]["seq"]) for got in receiver.got}
    assert len(seen) == len(receiver.got) > 10
    events, _ = await queue.events()
    names = [(name, event.seq) for event in events for name in event.names if event.verb != "sink_added"]
    assert {each for each in seen if each[0] != "alert.raised"} == {each for each in names if each[0] != "alert.raised"}


async def test_a_sink_hears_what_happens_after_it_was_added(
    queue: Queue, clock: MovedClock, receiver: Receiver
) -> None:
    await bury(queue)
    await add(queue, receiver, wants={"events": ["task.*"]})
    assert await tell(queue, clock) == 0
    await queue.submit(type="code")
    await tell(queue, clock)
    assert sorted(receiver.types) == ["task.created", "task.ready"]


async def test_a_receiver_that_is_down_for_an_hour_gets_everything(queue: Queue, clock: MovedClock) -> None:
    async with receiving() as first:
        await add(queue, first)
        port = first.port
    for _ in range(3):
        await bury(queue)
    for _ in range(13):
        await tell(queue, clock, HOUR / 13)
    assert set(await statuses(queue)) == {"pending"}
    assert (await queue.sink("ops")).status == "resting"
    assert (await queue.deliveries())[0].error == "no connection: connection refused"
    async with receiving(port) as back:
        for _ in range(3):
            await tell(queue, clock, HOUR)
        assert len({got.id for got in back.got}) == len(back.got) == 3
    assert await statuses(queue) == ["sent"] * 3
    assert (await queue.sink("ops")).status == "active"


async def test_one_that_answers_500_is_given_up_after_a_day_and_redriven(
    queue: Queue, clock: MovedClock, receiver: Receiver
) -> None:
    await add(queue, receiver)
    receiver.status = 500
    await bury(queue)
    began = clock()
    while await statuses(queue) in ([], ["pending"]):
        await tell(queue, clock, 60.0 if clock() - began < HOUR else HOUR)
    assert 12 * HOUR < clock() - began <= DAY
    (dead,) = [each for each in await queue.deliveries() if each.status == "dead"]
    assert dead.error == "it answered 500"
    assert dead.attempts == len(receiver.got) <= delivery.MOST_ATTEMPTS
    assert {got.id for got in receiver.got} == {dead.id}
    (alert,) = await queue.alerts(kind="sink_failing", open_only=True)
    assert alert.message == "Sink ops does not take notifications: it answered 500"
    receiver.status = 200
    assert await queue.redeliver_dead("ops") == 1
    await tell(queue, clock)
    assert receiver.got[-1].id == dead.id or dead.id in {got.id for got in receiver.got[-2:]}
    assert set(await statuses(queue)) == {"sent"}
    assert await queue.alerts(kind="sink_failing", open_only=True) == []


async def test_what_was_sent_can_be_sent_again(queue: Queue, clock: MovedClock, receiver: Receiver) -> None:
    await add(queue, receiver)
    await bury(queue)
    await tell(queue, clock)
    (sent,) = await queue.deliveries()
    assert (await queue.redeliver(sent.id)).status == "pending"
    await tell(queue, clock)
    assert [got.id for got in receiver.got] == [sent.id, sent.id]
    assert receiver.got[0].body == receiver.got[1].body


async def test_one_that_hangs_is_cut_off_and_holds_up_nobody(
    queue: Queue, clock: MovedClock, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shiftwork.sinks.web.TIMEOUT_SEC", 1.0)
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
    tried = [each for each in await queue.deliveries("slow") if each.attempts]
    assert {each.error for each in tried} == {"it did not answer within 1 s"}


async def test_a_redirect_is_not_followed(queue: Queue, clock: MovedClock, receiver: Receiver) -> None:
    async with receiving() as private:
        receiver.status, receiver.headers = 302, {"location": private.url}
        await add(queue, receiver)
        await bury(queue)
        await tell(queue, clock)
        assert private.got == []
    (kept,) = await queue.deliveries()
    assert (kept.status, kept.error) == ("pending", "it answered 302, and redirects are not followed")


async def test_a_private_address_is_not_dialled(queue: Queue, clock: MovedClock, receiver: Receiver) -> None:
    address = f"http://localhost:{receiver.port}/"
    await add(queue, receiver, address=address, allow_private=False)
    await bury(queue)
    await tell(queue, clock)
    assert receiver.got == []
    (kept,) = await queue.deliveries()
    assert (kept.status, kept.error) == ("pending", NOT_PUBLIC)
    await queue.update_sink("ops", allow_private=True)
    await tell(queue, clock, HOUR)
    assert len(receiver.got) == 1


async def test_a_process_that_was_not_started_for_private_sinks_does_not_dial_them(
    queue: Queue, clock: MovedClock, receiver: Receiver
) -> None:
    await add(queue, receiver)
    queue.engine.private_sinks = False
    await bury(queue)
    await tell(queue, clock)
    assert receiver.got == []
    assert (await queue.deliveries())[0].error == NOT_PUBLIC


async def test_a_secret_does_not_follow_the_sink_to_another_address(queue: Queue, receiver: Receiver) -> None:
    await add(queue, receiver)
    with pytest.raises(InputError) as refused:
        await queue.update_sink("ops", address="https://example.com/elsewhere")
    assert refused.value.where == "secret"
    await queue.update_sink("ops", address=receiver.url)  # the same as before
    await queue.update_sink(
        "ops", address="https://example.com/elsewhere", secret="whsec_" + base64.b64encode(bytes(32)).decode()
    )


async def test_410_pauses_the_sink(queue: Queue, clock: MovedClock, receiver: Receiver) -> None:
    await add(queue, receiver)
    receiver.status = 410
    await bury(queue)
    await tell(queue, clock)
    sink = await queue.sink("ops")
    assert (sink.status, sink.pause_reason) == ("paused", "it answered 410 Gone: it wants no more")
    assert await statuses(queue) == ["dead"]
    await bury(queue)
    await tell(queue, clock, DAY)
    assert len(receiver.got) == 1
    receiver.status = 200
    await queue.resume_sink("ops")
    await tell(queue, clock)
    assert sorted(got.json["data"]["kind"] for got in receiver.got[1:]) == ["dead_lettered", "sink_failing"]


@pytest.mark.parametrize("form", ["seconds", "date"])
async def test_retry_after_is_heeded(queue: Queue, clock: MovedClock, receiver: Receiver, form: str) -> None:
    await add(queue, receiver)
    at = clock() + 1800
    text = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(at)) if form == "date" else "1800"
    receiver.status, receiver.headers = 429, {"retry-after": text}
    await bury(queue)
    await tell(queue, clock)
    receiver.status = 200
    await bury(queue)
    await tell(queue, clock, 1790)
    assert len(receiver.got) == 1
    await tell(queue, clock, 20)
    assert len(receiver.got) == 3
    assert await statuses(queue) == ["sent", "sent"]


async def test_a_test_message_says_whether_it_arrives(queue: Queue, clock: MovedClock, receiver: Receiver) -> None:
    await add(queue, receiver)
    sent = await queue.as_caller("human:ada").test_sink("ops")
    assert (sent.type, sent.status) == ("sink.test", "pending")
    await tell(queue, clock)
    assert receiver.got[0].json["data"] == {"workspace_id": "default", "sink": "ops", "actor": "human:ada"}
    assert (await queue.delivery(sent.id)).status == "sent"


async def test_a_paused_sink_is_told_later(queue: Queue, clock: MovedClock, receiver: Receiver) -> None:
    await add(queue, receiver)
    await queue.pause_sink("ops", "holiday")
    await bury(queue)
    assert await tell(queue, clock, HOUR) == 0
    await queue.resume_sink("ops")
    assert await tell(queue, clock) == 1


async def test_a_removed_sink_leaves_nothing(queue: Queue, clock: MovedClock, receiver: Receiver) -> None:
    before = await everything(queue)
    await add(queue, receiver)
    receiver.status = 500
    await bury(queue)
    await tell(queue, clock)
    assert await queue.remove_sink("ops")
    assert not await queue.remove_sink("ops")
    assert await queue.deliveries() == []
    await tell(queue, clock, HOUR)
    after = await everything(queue)
    assert (after["sinks"], after["deliveries"]) == (before["sinks"], before["deliveries"]) == ([], [])
    assert len(receiver.got) == 1


async def test_what_ended_long_ago_is_forgotten(queue: Queue, clock: MovedClock, receiver: Receiver) -> None:
    await add(queue, receiver)
    await bury(queue)
    await tell(queue, clock)
    await tell(queue, clock, 8 * DAY)
    assert await queue.deliveries() == []
    assert len(receiver.got) == 1
