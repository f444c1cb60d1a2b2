"""Converts A2A messages to new tasks and to people's answers."""

from __future__ import annotations

import base64
from typing import Any
from uuid import NAMESPACE_OID, uuid5

import msgspec
from a2a.types import AgentCard, Message, Part
from google.protobuf.json_format import MessageToDict

from shiftwork.model.errors import InputError
from shiftwork.waits.model import ApprovalRequest

TAG = "a2a"
CONTEXT = "a2a-context:"
KEY = "a2a:"
SKILL = "skill"
MAX_CONTEXT = 200
MAX_EXACT = 2**53
WORDS = {
    **dict.fromkeys(("approve", "approved", "yes"), "approve"),
    **dict.fromkeys(("reject", "rejected", "no"), "reject"),
}


def text_of(message: Message) -> str:
    return "\n\n".join(part.text for part in message.parts if part.HasField("text"))


def data_of(message: Message) -> list[Any]:
    return [_whole(MessageToDict(part.data)) for part in message.parts if part.HasField("data")]


def _whole(value: Any) -> Any:
    """Turn whole floats back into integers: A2A sends every number of a data part as a float."""
    if isinstance(value, float) and value.is_integer() and abs(value) < MAX_EXACT:
        return int(value)
    if isinstance(value, list):
        return [_whole(each) for each in value]
    return {name: _whole(each) for name, each in value.items()} if isinstance(value, dict) else value


def words_of(message: Message) -> str:
    """The whole message as text, for an agent that is already working."""
    return "\n\n".join([text_of(message), *(msgspec.json.encode(each).decode() for each in data_of(message))]).strip()


def new_task(message: Message, card: AgentCard) -> dict[str, Any]:
    """The fields of the task that a message becomes.

    Its text is the prompt and its JSON object the payload. The message's id is the idempotency key, so that a message
    sent twice creates one task.
    """
    if not message.message_id:
        raise InputError("a message needs an id", where="message.messageId")
    # A new context is named after the message, so that the same message has the same one.
    context_id = check_context(message.context_id) or uuid5(NAMESPACE_OID, message.message_id).hex
    data = data_of(message)
    payload = data[0] if len(data) == 1 and isinstance(data[0], dict) else {"data": data} if data else {}
    files = [_file(part) for part in message.parts if part.HasField("url") or part.HasField("raw")]
    return {
        "type": _type(message, card),
        "payload": payload | ({"files": files} if files else {}),
        "spec": {"prompt": text_of(message) or None},
        "tags": [TAG, CONTEXT + context_id],
        "idempotency_key": KEY + message.message_id,
    }


def _type(message: Message, card: AgentCard) -> str:
    known = [skill.id for skill in card.skills]
    chosen = MessageToDict(message.metadata).get(SKILL, known[0])
    if chosen not in known:
        raise InputError(
            f"there is no skill {chosen!r}", where=f"message.metadata.{SKILL}", hint=f"The card has {', '.join(known)}."
        )
    return str(chosen)


def _file(part: Part) -> dict[str, Any]:
    named = {"name": part.filename, "media_type": part.media_type}
    content = {"url": part.url} if part.HasField("url") else {"base64": base64.b64encode(part.raw).decode()}
    return {name: value for name, value in named.items() if value} | content


def check_context(context_id: str) -> str:
    if len(context_id) > MAX_CONTEXT or not context_id.isprintable():
        raise InputError(f"a context id has at most {MAX_CONTEXT} printable characters", where="message.contextId")
    return context_id


def answer(message: Message, question: ApprovalRequest) -> Any:
    """The answer to a question: the message's data, or its text, parsed as JSON if the schema wants more than text."""
    data = data_of(message)
    if data:
        return data[0]
    text = text_of(message)
    if question.schema is None or question.schema.get("type") == "string":
        return text
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text  # the queue's error says what the schema wants


def decision(message: Message) -> tuple[str, str | None]:
    """`approve` or `reject`, and a note."""
    data = data_of(message)
    found = data[0] if data and isinstance(data[0], dict) else {"decision": text_of(message).strip()}
    chosen = WORDS.get(str(found.get("decision")).lower().rstrip(".!"))
    if chosen is None:
        raise InputError(
            "the task waits for approval, and the message neither approves nor rejects it",
            where="message.parts",
            hint='Send the word `approve` or `reject`, or {"decision": "reject", "note": "..."}.',
        )
    note = found.get("note")
    return chosen, note if isinstance(note, str) else None
