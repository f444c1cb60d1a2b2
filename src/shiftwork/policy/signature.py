"""Whether a delivery to a hook comes from who knows its secret, and not again: the signatures of three senders."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Callable, Mapping
from typing import NamedTuple

from shiftwork.core.errors import InputError
from shiftwork.core.trigger import Signature

WINDOW_SEC = 300.0
"""How far the time in a signature may be from ours: what is older may be a replay."""
PREFIX = "whsec_"
LEAST_BYTES = 16
MOST_CHARS = 512


class Refused(Exception):
    """A delivery that is not taken; `reason` is for the log of events, not for the sender."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Delivery(NamedTuple):
    """A delivery that is what it says."""

    key: str
    """By which it is known when it comes again."""
    id: str | None
    event: str | None


def secret_of(signature: Signature, noise: bytes) -> str:
    """A secret made of random bytes, as this kind of sender takes it."""
    return PREFIX + base64.b64encode(noise).decode() if signature == "standard" else noise.hex()


def check_secret(signature: Signature, secret: str) -> None:
    """Whether a secret that somebody brings can be used, and is not too easy to guess."""
    if signature == "standard":
        try:
            size = len(_standard_key(secret))
        except (binascii.Error, ValueError):
            what = "the secret of Standard Webhooks is whsec_ and base64"
            raise InputError(what, where="secret", mend="Leave it out, and one is made.") from None
    else:
        size = len(secret.encode())
    if size < LEAST_BYTES or len(secret) > MOST_CHARS:
        what = f"a secret has at least {LEAST_BYTES} bytes and at most {MOST_CHARS} characters"
        raise InputError(what, where="secret", mend="Leave it out, and one is made.")


def verify(signature: Signature, secret: str, headers: Mapping[str, str], body: bytes, now: float) -> Delivery:
    """The delivery, if its signature fits; names of headers are in lower case."""
    return _SCHEMES[signature](secret, headers, body, now)


def _standard(secret: str, headers: Mapping[str, str], body: bytes, now: float) -> Delivery:
    id_, sent = _needed(headers, "webhook-id"), _needed(headers, "webhook-timestamp")
    signed = f"{id_}.{sent}.".encode() + body
    right = base64.b64encode(_hmac(_standard_key(secret), signed)).decode()
    offered = [each.partition(",") for each in _needed(headers, "webhook-signature").split(" ")]
    if not any(version == "v1" and _same(given, right) for version, _, given in offered):
        raise Refused("the signature is wrong")
    _check_time(sent, now)
    return Delivery(f"standard:{id_}", id_, None)


def _github(secret: str, headers: Mapping[str, str], body: bytes, now: float) -> Delivery:
    """GitHub signs the body alone: the id of a delivery could be made up, so the same body is the same delivery."""
    del now
    right = _hmac(secret.encode(), body).hex()
    algorithm, _, given = _needed(headers, "x-hub-signature-256").partition("=")
    if algorithm != "sha256" or not _same(given, right):
        raise Refused("the signature is wrong")
    return Delivery(f"github:{right}", _short(headers, "x-github-delivery"), _short(headers, "x-github-event"))


def _slack(secret: str, headers: Mapping[str, str], body: bytes, now: float) -> Delivery:
    sent = _needed(headers, "x-slack-request-timestamp")
    right = _hmac(secret.encode(), f"v0:{sent}:".encode() + body).hex()
    version, _, given = _needed(headers, "x-slack-signature").partition("=")
    if version != "v0" or not _same(given, right):
        raise Refused("the signature is wrong")
    _check_time(sent, now)
    return Delivery(f"slack:{right}", None, None)


_Scheme = Callable[[str, Mapping[str, str], bytes, float], Delivery]
_SCHEMES: dict[Signature, _Scheme] = {"standard": _standard, "github": _github, "slack": _slack}


def _standard_key(secret: str) -> bytes:
    return base64.b64decode(secret.removeprefix(PREFIX), validate=True)


def _hmac(key: bytes, signed: bytes) -> bytes:
    return hmac.new(key, signed, hashlib.sha256).digest()


def _same(given: str, right: str) -> bool:
    return hmac.compare_digest(given.encode(), right.encode())


def _needed(headers: Mapping[str, str], name: str) -> str:
    value = headers.get(name, "")
    if not 0 < len(value) <= MOST_CHARS:
        raise Refused(f"the header {name} is missing or too long")
    return value


def _short(headers: Mapping[str, str], name: str) -> str | None:
    """A header that no signature covers, as much of it as may stand in an event."""
    return headers[name][:MOST_CHARS] if name in headers else None


def _check_time(sent: str, now: float) -> None:
    """Looked at after the signature, which covers it."""
    if not (sent.isascii() and sent.isdigit() and len(sent) <= len("99999999999")):
        raise Refused("the time of sending is no number")
    if abs(now - int(sent)) > WINDOW_SEC:
        raise Refused("it was sent too long ago, or is of the future")
