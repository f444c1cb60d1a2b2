"""Serves hooks: the body is streamed, and no one has to be let in."""

from __future__ import annotations

from typing import Any

from shiftwork.server import reading
from shiftwork.server.ask import Ask
from shiftwork.server.handlers import serves
from shiftwork.triggers.api import Hooks
from shiftwork.triggers.hooks import receive_hook


@serves(Hooks.receive)
async def receive(ask: Ask, *_: Any) -> Any:
    name = ask.path["name"]
    queue = ask.queue.in_workspace(ask.query.workspace or "default").as_caller(f"hook:{name}")
    return await receive_hook(queue.executor, name, ask.request.headers, reading.stream(ask.request))
