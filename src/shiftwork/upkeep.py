"""What every process that has opened a database owes it, besides its own work: maintenance and notifications."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from shiftwork.maintenance.loop import run_forever
from shiftwork.notifications.sender import NotificationSender
from shiftwork.queue import Queue


def upkeep(queue: object) -> list[Coroutine[Any, Any, None]]:
    """To be run beside the work until it ends, each in a task of its own; nothing for a server's queue, which has it.

    Many processes may do it at once: a job's row is locked by the one that runs it, and a delivery by its sender.
    """
    if not isinstance(queue, Queue):
        return []
    return [run_forever(queue.engine), NotificationSender(queue.engine).run_forever()]
