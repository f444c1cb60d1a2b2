"""Handles buttons pressed in Slack: verifies Slack's signature, then acts as the person."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qs

import msgspec

from shiftwork.engine.engine import Engine
from shiftwork.model import check
from shiftwork.model.errors import HookRefused, Malformed, NotFound, ShiftworkError
from shiftwork.model.outcome import Outcome
from shiftwork.notifications.buttons import Pressed
from shiftwork.notifications.model import SlackAnswer
from shiftwork.operation.interface import AnyQueue
from shiftwork.store.store import Tx
from shiftwork.triggers.policy import Refused, verify_signature

log = logging.getLogger("shiftwork.notifications")
NO_SECRET = secrets.token_hex(32)
"""A random secret to check requests for sinks without one; no signature matches it."""


class Person(msgspec.Struct):
    id: str
    username: str = ""
    name: str = ""


class Action(msgspec.Struct):
    action_id: str = ""
    value: str | None = None


class Interaction(msgspec.Struct):
    """The fields of Slack's `block_actions` that are used here."""

    type: str
    user: Person
    actions: list[Action] = []
    response_url: str | None = None


async def verify(
    engine: Engine, workspace: str, sink: str, headers: Mapping[str, str], body: bytes
) -> tuple[Interaction, bool]:
    """Verify a request; returns the interaction and the sink's `allow_private`. Every refusal looks the same."""
    check.name(sink, "sink")

    async def find(tx: Tx) -> Any:
        return await tx.one("read_sink", workspace=workspace, name=sink)

    row = await engine.store.read(find)
    usable = row is not None and row["kind"] == "slack" and row["secret"] is not None
    secret = engine.secrets.open(row["secret"]) if row is not None and usable else None
    lowered = {name.lower(): value for name, value in headers.items()}
    try:
        verify_signature("slack", secret or NO_SECRET, lowered, body, engine.store.now())
    except Refused as refused:
        log.info("slack_refused sink=%s reason=%s", sink, refused.reason, extra={"code": "hook_refused"})
        raise HookRefused(f"the request for the sink {sink!r} was refused", where="signature") from None
    assert row is not None  # no signature matches a random secret
    return _interaction(body), bool(row["allow_private"]) and engine.private_sinks


def _interaction(body: bytes) -> Interaction:
    try:
        payload = parse_qs(body.decode(), strict_parsing=True)["payload"][0]
        return msgspec.json.decode(payload, type=Interaction)
    except (ValueError, KeyError, RecursionError) as error:  # a DecodeError is a ValueError
        raise Malformed(f"the body is not a Slack interaction: {error}", where="body") from None


def actor_of(person: Person) -> str:
    """The actor of a press; the suffix keeps Slack names apart from the queue's own."""
    name = "".join(c for c in person.username or person.name if c.isprintable() and c not in ": ")[:80]
    return f"human:{name or person.id[:80]}@slack"


async def apply(queue: AnyQueue, interaction: Interaction) -> SlackAnswer:
    """Apply the button's decision or answer. If that is no longer possible, say so and change nothing."""
    pressed = next((each.value for each in interaction.actions if each.value), None)
    if interaction.type != "block_actions" or pressed is None:
        return SlackAnswer("ignored", "There is nothing to decide here.")  # links are buttons too
    try:
        button = msgspec.json.decode(pressed, type=Pressed)
    except msgspec.DecodeError as error:
        raise Malformed(f"the button is not one of ours: {error}", where="body") from None
    person = queue.as_caller(actor_of(interaction.user))
    try:
        await _decide(person, button)
    except ShiftworkError as error:
        return SlackAnswer("refused", f"This was refused: {error.what}.", task_id=button.task)
    return SlackAnswer("accepted", f"{_result_text(button)} by {actor_of(interaction.user)}", task_id=button.task)


async def _decide(person: AnyQueue, button: Pressed) -> Outcome:
    if button.decision == "approve":
        return await person.approvals.approve(button.task, revision=button.revision)
    if button.decision == "reject":
        return await person.approvals.reject(button.task, revision=button.revision)
    asked = await person.approvals.list(kind="question", task=button.task)
    if not any(each.name == button.question for each in asked):
        raise NotFound("the question is no longer open", task_id=button.task)
    return await person.approvals.answer(button.task, button.value)


def _result_text(button: Pressed) -> str:
    if button.decision is not None:
        return "Approved" if button.decision == "approve" else "Rejected"
    return f"Answered with {msgspec.json.encode(button.value).decode()}"


def reply(answer: SlackAnswer) -> dict[str, Any]:
    """The reply to Slack: replaces the buttons with the result, or shows a line to the person only."""
    text = answer.text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    if answer.status == "accepted":
        return {"replace_original": True, "text": f"{text} ({answer.task_id})"}
    return {"replace_original": False, "response_type": "ephemeral", "text": text}
