"""What every process that has opened a database owes it, besides its own work: maintenance and notifications."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from shiftwork.operation.interface import AnyQueue

if TYPE_CHECKING:
    from shiftwork.queue import Queue


def upkeep(queue: AnyQueue) -> list[Coroutine[Any, Any, None]]:
    """To run until the work ends, each in a task of its own; nothing for a server's queue, which has it.

    Many processes may do it at once: a job's row is locked by the one that runs it, and a delivery by its sender.
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
    """The queue itself if this process has opened its database; None if a server has."""
    if queue.url.startswith(("http://", "https://")):
        return None
    from shiftwork.queue import Queue  # noqa: PLC0415  # a worker of a server loads no engine

    return queue if isinstance(queue, Queue) else None
