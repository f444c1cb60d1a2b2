"""Slack-compatible webhooks: one line of text without mentions or links."""

from shiftwork import Queue
from shiftwork.testing import MovedClock
from tests.conformance.steps import dead_letter
from tests.sinks.receivers import Receiver
from tests.sinks.steps import add, tell


async def test_slack_message_is_one_line(queue: Queue, clock: MovedClock, receiver: Receiver) -> None:
    added = await add(queue, receiver, kind="slack")
    assert added.secret is None
    task_id = await dead_letter(queue)
    await tell(queue, clock)
    assert receiver.got[0].json == {"text": f"[warning] Task {task_id} moved to dead letter queue"}
    assert "webhook-signature" not in receiver.got[0].headers


async def test_slack_text_cannot_mention_the_channel(queue: Queue, clock: MovedClock, receiver: Receiver) -> None:
    await add(queue, receiver, kind="slack", wants={"alerts": [], "events": ["queue.paused"]})
    await queue.as_caller("human:<!channel> & co").control.pause()
    await tell(queue, clock)
    assert receiver.got[0].json == {"text": "queue.paused (by human:&lt;!channel&gt; &amp; co)"}
