"""What travels over HTTP about notifications, besides the records of the queue's own verbs."""

from __future__ import annotations

import msgspec

from shiftwork.core.task import Fields, Name, Text
from shiftwork.queue.notification.deliveries import Delivery
from shiftwork.queue.notification.sinks import Sink


class SinkList(msgspec.Struct, frozen=True):
    sinks: list[Sink]


class PauseSinkBody(Fields, kw_only=True):
    reason: Text | None = None


class DeliveryList(msgspec.Struct, frozen=True):
    """Newest first, without what is sent; one delivery by its id has it."""

    deliveries: list[Delivery]


class RedeliverBody(Fields, kw_only=True):
    """Whose deliveries; all that were given up are meant."""

    sink: Name


class Redelivered(msgspec.Struct, frozen=True):
    redelivered: int
