"""Webhooks are signed as Standard Webhooks says: HMAC-SHA256 over the id, the time and the body."""

from __future__ import annotations

import base64
import hashlib
import hmac


def headers(key: bytes, message_id: str, at: float, body: bytes) -> dict[str, str]:
    """What a receiver needs to know that a message is ours, new, and as we wrote it."""
    signed = f"{message_id}.{int(at)}.".encode() + body
    signature = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    return {"webhook-id": message_id, "webhook-timestamp": str(int(at)), "webhook-signature": f"v1,{signature}"}
