"""Work that is offered in someone else's stream: who carries it over, what is offered, and who took it."""

from __future__ import annotations

from typing import NamedTuple


class Bridge(NamedTuple):
    """Who carries work over: its name, the group of workers it speaks for, and what of the work is for them."""

    workspace: str
    name: str
    group: str
    types: tuple[str, ...] | None = None
    capabilities: tuple[str, ...] = ()


class Offer(NamedTuple):
    """One entry of a stream, as verbs name it."""

    task_id: str
    number: int


class StreamDelivery(NamedTuple):
    """An entry that someone has taken."""

    offer: Offer
    message_id: str
    consumer: str
