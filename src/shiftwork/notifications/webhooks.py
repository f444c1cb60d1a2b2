"""Sinks behind a URL: signed webhooks, and Slack-compatible ones."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import logging
import math
import os
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any

import aiohttp
import msgspec

from shiftwork.notifications import buttons, dial
from shiftwork.notifications.model import OutgoingDelivery
from shiftwork.notifications.policy import DeliveryOutcome, key_of, line

log = logging.getLogger("shiftwork.notifications")
TIMEOUT_SEC = 10.0
GONE = 410
BUSY = frozenset({429, 503})
"""Statuses whose `Retry-After` is respected."""

MAX_SLACK_TEXT_LENGTH = 3000
_JSON = {"content-type": "application/json", "user-agent": "shiftwork"}


class WebhookSender:
    """Sends over HTTP. Nothing is shared between messages: no connection, cookie or resolved name."""

    def __init__(self) -> None:
        self._sessions: dict[bool, aiohttp.ClientSession] = {}

    async def send(self, delivery: OutgoingDelivery, now: float) -> DeliveryOutcome:
        """One attempt."""
        body, headers = message(delivery, now)
        session = self.session(allow_private=delivery.place.allow_private)
        try:
            async with session.post(
                delivery.place.address, data=body, headers=headers, allow_redirects=False
            ) as answer:
                return _read(answer.status, answer.headers, now)
        except TimeoutError:
            return DeliveryOutcome(f"it did not answer within {TIMEOUT_SEC:g} s")
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return DeliveryOutcome(_why(error))

    async def close(self) -> None:
        for session in self._sessions.values():
            await session.close()

    def session(self, *, allow_private: bool) -> aiohttp.ClientSession:
        if allow_private not in self._sessions:
            connector = aiohttp.TCPConnector(
                force_close=True,
                use_dns_cache=False,
                limit=0,
                socket_factory=None if allow_private else dial.open_public,
            )
            self._sessions[allow_private] = aiohttp.ClientSession(
                connector=connector,
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=TIMEOUT_SEC),
                trust_env=False,  # a proxy would connect to addresses that we refuse
            )
        return self._sessions[allow_private]


def message(delivery: OutgoingDelivery, now: float) -> tuple[bytes, dict[str, str]]:
    """The body and headers of one attempt. The body is always the same; the signature includes the time."""
    if delivery.place.kind == "slack":
        return msgspec.json.encode(slack_message(delivery)), dict(_JSON)
    body = msgspec.json.encode(delivery.notification)
    signed = signature_headers(key_of(delivery.place.secret or ""), delivery.id, now, body)
    return body, {**_JSON, **signed}


def signature_headers(key: bytes, message_id: str, at: float, body: bytes) -> dict[str, str]:
    """The Standard Webhooks signature: HMAC-SHA256 over the id, the time and the body."""
    signed = f"{message_id}.{int(at)}.".encode() + body
    signature = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    return {"webhook-id": message_id, "webhook-timestamp": str(int(at)), "webhook-signature": f"v1,{signature}"}


def slack_text(delivery: OutgoingDelivery) -> str:
    """The text with Slack's links, mentions and commands escaped."""
    text = line(delivery.notification)[:MAX_SLACK_TEXT_LENGTH]
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def slack_message(delivery: OutgoingDelivery) -> dict[str, Any]:
    """The line, with buttons below if the sink has the secret that verifies presses."""
    text = slack_text(delivery)
    data = delivery.notification.data
    about, task_id = data.get("about"), data.get("task_id")
    if not about or not task_id or delivery.place.secret is None:
        return {"text": text}
    elements: list[dict[str, Any]] = [
        {
            "type": "button",
            "action_id": f"shiftwork.{place}",
            "text": {"type": "plain_text", "text": button.label},
            "value": msgspec.json.encode(button.pressed).decode(),
            **({} if button.style is None else {"style": button.style}),
        }
        for place, button in enumerate(buttons.of_request(task_id, about))
    ]
    if link := data.get("link"):
        opened = {"type": "plain_text", "text": "Open"}
        elements.append({"type": "button", "action_id": "shiftwork.open", "text": opened, "url": link})
    section = {"type": "section", "text": {"type": "mrkdwn", "text": text}}
    return {"text": text, "blocks": [section, *([{"type": "actions", "elements": elements}] if elements else [])]}


async def post_json(url: str, body: Any, *, allow_private: bool) -> None:
    """Post a message once, only to a public address unless private ones are allowed."""
    if not url.startswith(("https://", "http://") if allow_private else "https://"):
        return
    sender = WebhookSender()
    try:
        async with sender.session(allow_private=allow_private).post(
            url, data=msgspec.json.encode(body), headers=_JSON, allow_redirects=False
        ) as answer:
            if answer.status >= 300:
                log.info("Slack answered a reply with %d", answer.status)
    except (aiohttp.ClientError, OSError, ValueError) as error:
        log.info("a reply to Slack failed: %s", _why(error) if not isinstance(error, TimeoutError) else "timeout")
    finally:
        await sender.close()


def _read(status: int, headers: Mapping[str, str], now: float) -> DeliveryOutcome:
    if 200 <= status < 300:
        return DeliveryOutcome()
    if 300 <= status < 400:
        return DeliveryOutcome(f"it answered {status}, and redirects are not followed")
    if status == GONE:
        return DeliveryOutcome("it answered 410 Gone", gone=True)
    asked = _retry_after(headers.get("retry-after", ""), now) if status in BUSY else None
    return DeliveryOutcome(f"it answered {status}", asked)


def _retry_after(text: str, now: float) -> float | None:
    """Seconds, or a date."""
    try:
        seconds = float(text) if text.strip().isdigit() else parsedate_to_datetime(text).timestamp() - now
    except (ValueError, TypeError, OverflowError):
        return None
    return seconds if math.isfinite(seconds) and seconds > 0 else None


def _why(error: Exception) -> str:
    """Our own text: a library's message may contain the address, and so a secret."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return "its certificate is invalid"
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return "its host name cannot be resolved"
    if isinstance(error, aiohttp.ClientConnectorError):
        reason = error.os_error
        return str(reason) if isinstance(reason, dial.NotPublic) else f"no connection: {_reason(reason)}"
    if isinstance(error, aiohttp.ServerDisconnectedError | ConnectionError | asyncio.IncompleteReadError):
        return "it closed the connection without an answer"
    return f"its answer is not valid HTTP ({type(error).__name__})"


def _reason(error: OSError) -> str:
    return os.strerror(error.errno).lower() if error.errno and error.errno > 0 else "refused"
