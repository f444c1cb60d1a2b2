"""Sinks and deliveries, as callers see them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import UNSET, UnsetType

from shiftwork.model.errors import ConflictError, HookRefused, IdInUse, Malformed, NotFound, TooLarge
from shiftwork.model.task import Name, PageSize, Text
from shiftwork.notifications.model import (
    ALL_ALERTS,
    AddedSink,
    Address,
    Delivery,
    Kind,
    Secret,
    Sink,
    SinkFilter,
    SlackAnswer,
    Status,
)
from shiftwork.operation.declare import Namespace, operation
from shiftwork.operation.parameters import Accepts

Wanted = Annotated[SinkFilter | Mapping[str, Any], Accepts(SinkFilter)]


class Sinks(Namespace, name="sinks", group="Notifications"):
    """Where notifications are sent: webhooks, Slack-compatible webhooks, e-mail addresses."""

    @operation("POST /api/sinks", "admin", status=201, errors=(IdInUse, ConflictError))
    async def add(
        self,
        name: Name,
        kind: Kind,
        address: Address,
        *,
        wants: Wanted = ALL_ALERTS,
        secret: Secret | None = None,
        allow_private: bool = False,
        server: Address | None = None,
        sender: Address | None = None,
    ) -> AddedSink:
        """Notify a webhook, a Slack-compatible one, e-mail addresses or any service of apprise from now on.

        `address` is a URL, or e-mail addresses with commas between; e-mail goes through the mail server `server`
        (`smtp://user@host:587` or `smtps://user@host:465`) and comes from `sender`. `secret` signs webhooks
        (`whsec_…`), is the password at the mail server, or is the signing secret of a Slack app, whose messages then
        have buttons to answer with. A secret generated for a webhook is returned only here.
        `allow_private` permits an address that is not public.
        """

    @operation("GET /api/sinks/{sink}", "admin", errors=(NotFound,))
    async def get(self, sink: Name) -> Sink:
        """Return one sink, its status and its last error."""

    @operation("PATCH /api/sinks/{sink}", "admin", errors=(NotFound,))
    async def update(
        self,
        sink: Name,
        *,
        address: Address | UnsetType = UNSET,
        wants: Wanted | UnsetType = UNSET,
        secret: Secret | UnsetType = UNSET,
        allow_private: bool | UnsetType = UNSET,
        server: Address | UnsetType = UNSET,
        sender: Address | UnsetType = UNSET,
    ) -> Sink:
        """Change a sink's address, secret or filter; pending deliveries use the new address, too.

        A secret belongs to the address it was given for: with another address or mail server, send it again.
        """

    @operation("POST /api/sinks/{sink}/pause", "admin", errors=(NotFound,))
    async def pause(self, sink: Name, reason: Text | None = None) -> Sink:
        """Pause a sink until it is resumed; it then receives what happened meanwhile."""

    @operation("POST /api/sinks/{sink}/resume", "admin", errors=(NotFound,))
    async def resume(self, sink: Name) -> Sink:
        """Resume a paused sink."""

    @operation("DELETE /api/sinks/{sink}", "admin", envelope="removed")
    async def remove(self, sink: Name) -> bool:
        """Remove a sink and its deliveries. False if there is none."""

    @operation("POST /api/sinks/{sink}/test", "admin", status=201, errors=(NotFound, ConflictError))
    async def test(self, sink: Name) -> Delivery:
        """Send a test message; the status of the delivery says whether it arrived."""

    @operation("GET /api/sinks", "admin", envelope="sinks")
    async def list(self) -> list[Sink]:
        """Return all sinks of this workspace by name, without their secrets."""


class Deliveries(Namespace, name="deliveries", group="Notifications"):
    """Notifications to sinks, each retried until it arrives or is given up."""

    @operation("GET /api/deliveries/{delivery_id}", "read", errors=(NotFound,))
    async def get(self, delivery_id: Name) -> Delivery:
        """Return one delivery with the notification that is sent."""

    @operation("POST /api/deliveries/{delivery_id}/redeliver", "operate", errors=(NotFound,))
    async def redeliver(self, delivery_id: Name) -> Delivery:
        """Send a dead or sent delivery again, with the same id."""

    @operation("POST /api/deliveries/redeliver", "operate", envelope="redelivered", errors=(NotFound,))
    async def redeliver_dead(self, sink: Name) -> int:
        """Send every dead delivery of a sink again; return their number."""

    @operation("GET /api/deliveries", "read", envelope="deliveries")
    async def list(
        self,
        sink: Name | None = None,
        *,
        status: Status | None = None,
        after: Name | None = None,
        limit: PageSize = 100,
    ) -> list[Delivery]:
        """Return deliveries to all sinks or to one, newest first. Continue `after` the id of the last."""


class SlackButtons(Namespace, name="slack", group="Notifications"):
    """The endpoint for Slack's buttons; served over HTTP only."""

    @operation("POST /api/sinks/{sink}/slack", None, errors=(HookRefused, Malformed, TooLarge, NotFound), raw_body=True)
    async def press(self, sink: Name) -> SlackAnswer:
        """Accept a button that a person pressed in Slack: the interactivity request URL of the Slack app.

        No token is needed: Slack signs the request with the signing secret that is the sink's `secret`. The person
        decides as `human:NAME@slack`.
        """
