"""Background work of every process that has opened a database: maintenance and notifications."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from shiftwork.operation.interface import AnyQueue

if TYPE_CHECKING:
    from shiftwork.queue import Queue


def upkeep(queue: AnyQueue) -> list[Coroutine[Any, Any, None]]:
    """Return the coroutines to run until the process ends, each as a task; none for a server's queue.

    Many processes may run them at once: the process that runs a job locks its row, and a sender locks its delivery.
    """
    opened = opened_here(queue)
    if opened is None:
        return []
    from shiftwork.maintenance.loop import run_forever  # noqa: PLC0415  # a worker of a server loads no engine
    from shiftwork.notifications.sender import NotificationSender  # noqa: PLC0415  # likewise

    engines = [each.engine for each in opened.databases()]
    senders = [NotificationSender(engine) for engine in engines]
    return [*(run_forever(engine) for engine in engines), *(sender.run_forever() for sender in senders)]


def opened_here(queue: AnyQueue) -> Queue | None:
    """Return the queue if this process has opened its database; None if a server has."""
    if queue.url.startswith(("http://", "https://")):
        return None
    from shiftwork.queue import Queue  # noqa: PLC0415  # a worker of a server loads no engine

    return queue if isinstance(queue, Queue) else None
