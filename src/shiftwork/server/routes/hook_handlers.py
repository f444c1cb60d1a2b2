"""Serves hooks and Slack's buttons without a token: the requests are signed."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from shiftwork.notifications import slack_actions
from shiftwork.notifications.api import SlackButtons
from shiftwork.notifications.model import SlackAnswer
from shiftwork.server import request_parsing
from shiftwork.server.endpoint import serves
from shiftwork.server.request_context import RequestContext
from shiftwork.triggers.api import Hooks
from shiftwork.triggers.hooks import receive_hook, whole_body

log = logging.getLogger("shiftwork.server")
_replies: set[asyncio.Task[None]] = set()
"""Answer Slack within its three seconds; the message to show is sent afterwards."""


@serves(Hooks.receive)
async def receive(context: RequestContext, *_: Any) -> Any:
    name = context.path["name"]
    queue = context.queue.in_workspace(context.query.workspace or "default").as_caller(f"hook:{name}")
    return await receive_hook(queue.executor, name, context.request.headers, request_parsing.stream(context.request))


@serves(SlackButtons.press)
async def press(context: RequestContext, *_: Any) -> SlackAnswer:
    queue = context.queue.in_workspace(context.query.workspace or "default")
    body = await whole_body(request_parsing.stream(context.request))
    interaction, private = await slack_actions.verify(
        queue.engine, queue.workspace, context.path["sink"], context.request.headers, body
    )
    answer = await slack_actions.apply(queue, interaction)
    if interaction.response_url is not None and answer.status != "ignored":
        sending = asyncio.create_task(_show(interaction.response_url, answer, allow_private=private))
        _replies.add(sending)
        sending.add_done_callback(_replies.discard)
    return answer


async def _show(url: str, answer: SlackAnswer, *, allow_private: bool) -> None:
    try:
        from shiftwork.notifications.webhooks import post_json  # noqa: PLC0415  # an extra of its own: shiftwork[client]
    except ImportError as error:
        log.warning("cannot show the decision in Slack: %s is not installed (shiftwork[client])", error.name)
        return
    await post_json(url, slack_actions.reply(answer), allow_private=allow_private)
