"""Notifications out: sinks, and the deliveries to them."""

from __future__ import annotations

from typing import Annotated, Any

from shiftwork.core.errors import ConflictError, Forbidden, IdInUse, NotFound
from shiftwork.core.task import Name
from shiftwork.queue.notification.deliveries import Delivery, Status
from shiftwork.queue.notification.sinks import AddedSink, NewSink, Sink, SinkChanges
from shiftwork.server.ask import Ask
from shiftwork.server.door import SOMETHING, Doors, PageSize, Query
from shiftwork.wire.protection import Removed
from shiftwork.wire.sinks import DeliveryList, PauseSinkBody, RedeliverBody, Redelivered, SinkList

door = Doors("Notifications")


@door("POST /api/sinks", "admin", body=NewSink, answer=AddedSink, status=201, errors=(IdInUse, ConflictError))
async def add_sink(ask: Ask, body: NewSink) -> Any:
    """Tell a webhook, a Slack-compatible one or an e-mail address of what happens from now on.

    Where a secret was made for it, it is answered once and never again.
    """
    _check_private(ask, body)
    return await ask.queue.add_sink(body)


@door("GET /api/sinks", "admin", answer=SinkList)
async def list_sinks(ask: Ask) -> Any:
    """All sinks of this workspace by name, without their secrets."""
    return SinkList(await ask.queue.sinks())


@door("GET /api/sinks/{sink}", "admin", answer=Sink, errors=(NotFound,))
async def get_sink(ask: Ask) -> Any:
    """One sink, and how it fares."""
    return await ask.queue.sink(ask.path["sink"])


@door("PATCH /api/sinks/{sink}", "admin", body=Annotated[SinkChanges, SOMETHING], answer=Sink, errors=(NotFound,))
async def update_sink(ask: Ask, body: SinkChanges) -> Any:
    """Change where a sink is, what it is signed with or what it wants; what waits for it goes there, too.

    A secret is for the place it was given for: with another address or mail server it must be sent again.
    """
    _check_private(ask, body)
    return await ask.queue.update_sink(ask.path["sink"], body)


def _check_private(ask: Ask, given: NewSink | SinkChanges) -> None:
    """An admin of one workspace does not choose what this machine can reach in its network: its operator does."""
    if given.allow_private is True and not ask.queue.engine.private_sinks:
        raise Forbidden(
            "this server sends to public addresses alone",
            where="allow_private",
            mend="Its operator allows others by starting it with --private-sinks.",
        )


@door("DELETE /api/sinks/{sink}", "admin", answer=Removed)
async def remove_sink(ask: Ask) -> Any:
    """Forget a sink with all that waits for it; false where there was none."""
    return Removed(await ask.queue.remove_sink(ask.path["sink"]))


@door("POST /api/sinks/{sink}/pause", "admin", body=PauseSinkBody, answer=Sink, errors=(NotFound,))
async def pause_sink(ask: Ask, body: PauseSinkBody) -> Any:
    """Send nothing to a sink until it is resumed; it is told then of what happened meanwhile."""
    return await ask.queue.pause_sink(ask.path["sink"], body.reason)


@door("POST /api/sinks/{sink}/resume", "admin", answer=Sink, errors=(NotFound,))
async def resume_sink(ask: Ask) -> Any:
    """Send to a sink again, whoever or whatever paused it."""
    return await ask.queue.resume_sink(ask.path["sink"])


@door("POST /api/sinks/{sink}/test", "admin", answer=Delivery, status=201, errors=(NotFound, ConflictError))
async def test_sink(ask: Ask) -> Any:
    """Send a test message; the delivery tells whether it arrives."""
    return await ask.queue.test_sink(ask.path["sink"])


class DeliveryQuery(Query):
    """Which deliveries."""

    sink: Name | None = None
    status: Status | None = None
    after: Name | None = None
    limit: PageSize = 100


@door("GET /api/deliveries", "read", query=DeliveryQuery, answer=DeliveryList)
async def list_deliveries(ask: Ask) -> Any:
    """Notifications to all sinks or to one, newest first: go on `after` the id of the last."""
    query = ask.query
    page = {"status": query.status, "after": query.after, "limit": query.limit}
    return DeliveryList(await ask.queue.deliveries(query.sink, **page))


@door("POST /api/deliveries/redeliver", "operate", body=RedeliverBody, answer=Redelivered, errors=(NotFound,))
async def redeliver_dead(ask: Ask, body: RedeliverBody) -> Any:
    """Send again all that was given up for a sink."""
    return Redelivered(await ask.queue.redeliver_dead(body.sink))


@door("GET /api/deliveries/{delivery_id}", "read", answer=Delivery, errors=(NotFound,))
async def get_delivery(ask: Ask) -> Any:
    """One notification with all that is sent."""
    return await ask.queue.delivery(ask.path["delivery_id"])


@door("POST /api/deliveries/{delivery_id}/redeliver", "operate", answer=Delivery, errors=(NotFound,))
async def redeliver(ask: Ask) -> Any:
    """Send again what was given up or sent, with the same id."""
    return await ask.queue.redeliver(ask.path["delivery_id"])
