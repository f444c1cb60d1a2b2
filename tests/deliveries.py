"""Webhooks as their senders make them: recorded bodies, signed as each sender signs."""

import hashlib
import hmac
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

from standardwebhooks import Webhook

ROOT = Path(__file__).resolve().parents[1]
PULL_REQUEST = (ROOT / "examples" / "review" / "pull_request.json").read_bytes()
ASSIGNED, MENTION = (
    (ROOT / "tests" / "examples" / "deliveries" / name).read_bytes() for name in ("issue_assigned.json", "mention.json")
)


def github(secret: str, body: bytes, event: str) -> dict[str, str]:
    signature = hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
    return {
        "Content-Type": "application/json",
        "X-GitHub-Event": event,
        "X-GitHub-Delivery": "72d3162e-cc78-11e3-81ab-4c9367dc0958",
        "X-Hub-Signature-256": f"sha256={signature}",
    }


def standard(secret: str, body: bytes, now: float, id_: str = "msg_1") -> dict[str, str]:
    """By the library that senders use."""
    signature = Webhook(secret).sign(id_, datetime.fromtimestamp(int(now), UTC), body.decode())
    return {"webhook-id": id_, "webhook-timestamp": str(int(now)), "webhook-signature": signature}


def slack(secret: str, body: bytes, now: float) -> dict[str, str]:
    signature = hmac.new(secret.encode(), f"v0:{int(now)}:".encode() + body, hashlib.sha256).hexdigest()
    return {
        "Content-Type": "application/x-www-form-urlencoded",
        "X-Slack-Request-Timestamp": str(int(now)),
        "X-Slack-Signature": f"v0={signature}",
    }


async def stream(body: bytes) -> AsyncIterator[bytes]:
    yield body
