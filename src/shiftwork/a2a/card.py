"""The agent card: written by the operator, completed with this server's addresses and abilities."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from a2a.types import AgentCard, AgentInterface, HTTPAuthSecurityScheme, SecurityRequirement, SecurityScheme, StringList
from google.protobuf.json_format import ParseDict, ParseError

from shiftwork.model.errors import InputError

WHERE = "--card"
RPC_PATH = "/a2a"
REST_PATH = "/a2a/rest"
VERSION = "1.0"
OLDER_VERSION = "0.3"
NEEDED = ("name", "description", "version", "skills")
TEXT = "text/plain"
JSON = "application/json"


def load(path: Path) -> AgentCard:
    """Read the card from its file. The id of a skill is the type of the tasks that its messages become."""
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path} is not a JSON file: {error}", where=WHERE) from None
    if not isinstance(fields, dict):
        raise InputError(f"{path} is not a JSON object", where=WHERE)
    missing = [name for name in NEEDED if not fields.get(name)]
    if missing:
        hint = "A card has name, description, version, and skills with an id, a name, a description and tags."
        raise InputError(f"the card lacks {', '.join(missing)}", where=WHERE, hint=hint)
    return _parse(fields)


def _parse(fields: dict[str, Any]) -> AgentCard:
    try:
        card: AgentCard = ParseDict(fields, AgentCard())
    except (ParseError, TypeError) as error:
        raise InputError(f"the card is not valid in A2A {VERSION}: {error}", where=WHERE) from None
    if any(not skill.id for skill in card.skills):
        raise InputError("every skill needs an id: the type of its tasks", where=WHERE)
    return card


def completed(card: AgentCard, base_url: str, *, tokens: bool, push: bool) -> AgentCard:
    """The card as clients get it. Addresses and modes that the operator set are kept."""
    whole = AgentCard()
    whole.CopyFrom(card)
    if not whole.supported_interfaces:
        for url, binding, version in (
            (RPC_PATH, "JSONRPC", VERSION),
            (REST_PATH, "HTTP+JSON", VERSION),
            (RPC_PATH, "JSONRPC", OLDER_VERSION),
        ):
            whole.supported_interfaces.append(
                AgentInterface(url=base_url + url, protocol_binding=binding, protocol_version=version)
            )
    whole.capabilities.streaming = True
    whole.capabilities.push_notifications = push
    for modes in (whole.default_input_modes, whole.default_output_modes):
        if not modes:
            modes.extend([TEXT, JSON])
    if tokens and not whole.security_schemes:
        bearer = SecurityScheme(http_auth_security_scheme=HTTPAuthSecurityScheme(scheme="bearer"))
        whole.security_schemes["token"].CopyFrom(bearer)
        whole.security_requirements.append(SecurityRequirement(schemes={"token": StringList()}))
    return whole
