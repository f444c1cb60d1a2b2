"""Refuses sinks at private addresses that are added over HTTP, unless the server was started to allow them."""

from __future__ import annotations

from typing import Any

from shiftwork.model.errors import Forbidden
from shiftwork.notifications.api import Sinks
from shiftwork.server.handlers import checks
from shiftwork.server.request_context import RequestContext


@checks(Sinks.add)
@checks(Sinks.update)
def check_private(context: RequestContext, values: dict[str, Any]) -> None:
    """Refuse private addresses: the server's operator, not a workspace's admin, decides what it may reach."""
    if values["allow_private"] is True and not context.queue.engine.private_sinks:
        raise Forbidden(
            "this server sends to public addresses only",
            where="allow_private",
            hint="Its operator can allow others by starting it with --private-sinks.",
        )
