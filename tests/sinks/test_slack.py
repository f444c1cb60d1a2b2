"""Slack-compatible webhooks: one line of text, in which nothing is a mention or a link."""

from shiftwork import Queue
from shiftwork.testing import MovedClock
from tests.conformance.steps import bury
from tests.sinks.receivers import Receiver
from tests.sinks.steps import add, tell


async def test_a_line_is_told(queue: Queue, clock: MovedClock, receiver: Receiver) -> None:
    added = await add(queue, receiver, kind="slack")
    assert added.secret is None
    task_id = await bury(queue)
    await tell(queue, clock)
    assert receiver.got[0].json == {"text": f"[warning] Task {task_id} moved to dead letter queue"}
    assert "webhook-signature" not in receiver.got[0].headers


async def test_nobody_can_call_the_whole_channel(queue: Queue, clock: MovedClock, receiver: Receiver) -> None:
    await add(queue, receiver, kind="slack", wants={"alerts": [], "events": ["queue.paused"]})
    await queue.as_caller("human:<!channel> & co").pause()
    await tell(queue, clock)
    assert receiver.got[0].json == {"text": "queue.paused (by human:&lt;!channel&gt; &amp; co)"}
