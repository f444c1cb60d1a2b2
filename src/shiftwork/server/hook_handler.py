"""Serves hooks: the body is streamed, and no one has to be let in."""

from __future__ import annotations

from typing import Any

from shiftwork.server import reading
from shiftwork.server.handlers import serves
from shiftwork.server.request_context import RequestContext
from shiftwork.triggers.api import Hooks
from shiftwork.triggers.hooks import receive_hook


@serves(Hooks.receive)
async def receive(context: RequestContext, *_: Any) -> Any:
    name = context.path["name"]
    queue = context.queue.in_workspace(context.query.workspace or "default").as_caller(f"hook:{name}")
    return await receive_hook(queue.executor, name, context.request.headers, reading.stream(context.request))
