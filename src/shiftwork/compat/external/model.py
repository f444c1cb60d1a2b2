"""Work offered in a foreign stream: the bridge, the offers, and their deliveries."""

from __future__ import annotations

from typing import NamedTuple


class Bridge(NamedTuple):
    """A bridge: its name, the group of workers it stands for, and the work that they can do."""

    workspace: str
    name: str
    group: str
    types: tuple[str, ...] | None = None
    capabilities: tuple[str, ...] = ()


class Offer(NamedTuple):
    """The id of one offer."""

    task_id: str
    number: int


class StreamDelivery(NamedTuple):
    """An entry delivered to a consumer."""

    offer: Offer
    message_id: str
    consumer: str
