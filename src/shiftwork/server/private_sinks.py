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
    """The operator of the server decides what it may reach in its network, not the admin of a workspace."""
    if values["allow_private"] is True and not context.queue.engine.private_sinks:
        raise Forbidden(
            "this server sends to public addresses alone",
            where="allow_private",
            hint="Its operator allows others by starting it with --private-sinks.",
        )
