"""Common steps of tests of notifications."""

from __future__ import annotations

from typing import Any

from shiftwork import Queue
from shiftwork.notifications.model import AddedSink
from shiftwork.notifications.sender import NotificationSender
from shiftwork.testing import MovedClock, pass_time
from tests.sinks.receivers import Receiver

NOT_PUBLIC = "its address is not public: set allow_private, and SHIFTWORK_PRIVATE_SINKS=1 on the sending process"


async def add(queue: Queue, receiver: Receiver, name: str = "ops", **fields: Any) -> AddedSink:
    """Add a webhook to a receiver of this machine."""
    known = {"kind": "webhook", "address": receiver.url, "allow_private": True}
    return await queue.sinks.add(name, **{**known, **fields})


async def tell(queue: Queue, clock: MovedClock, seconds: float = 0.0) -> int:
    """Let time pass, run the maintenance jobs, and send what is due; return the number of attempts."""
    await pass_time(queue, clock, seconds)
    return await NotificationSender(queue.engine).send_due()


async def statuses(queue: Queue, sink: str | None = None) -> list[str]:
    """Return the statuses of all deliveries, oldest first."""
    return [each.status for each in reversed(await queue.deliveries.list(sink))]
