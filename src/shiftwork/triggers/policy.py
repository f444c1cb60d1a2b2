"""The rules of triggers: which facts match, and whether the signature of a delivery to a hook is valid."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from shiftwork.model import events, globs
from shiftwork.model.errors import InputError
from shiftwork.triggers.model import DagEnds, Files, Happens, Signature, Where
from shiftwork.triggers.templates import MISSING, look_up

MAX_CHAIN_LENGTH = 5
"""The longest chain of triggers firing each other, so that no cycle runs forever."""
WINDOW_SEC = 300.0
"""The largest difference between a signature's time and ours; an older delivery may be a replay."""
WHSEC = "whsec_"
MIN_SECRET_BYTES = 16
MAX_CHARS = 512
_SCALARS = (str, int, float, bool, type(None))


def check_where(where: Where) -> None:
    for place, wanted in where.items():
        plain = isinstance(wanted, _SCALARS)
        several = isinstance(wanted, list) and bool(wanted) and all(isinstance(each, _SCALARS) for each in wanted)
        contains = isinstance(wanted, dict) and wanted.keys() == {"contains"} and isinstance(wanted["contains"], str)
        if not (plain or several or contains):
            raise InputError('expected a value, a list of values, or {"contains": text}', where=f"on.where.{place}")


def check_events(names: list[str]) -> None:
    """Refuse unknown events, and those of triggers, which would fire each other with no work in between."""
    able = {name for name in events.every_name() if not name.startswith("trigger.")}
    for name in names:
        if not events.chosen(name, able):
            hint = "docs/reference/events.md lists the events; those of triggers cannot be used."
            raise InputError(f"no trigger can wait for the event {name!r}", where="on.events", hint=hint)


def unmet(where: Where, facts: Mapping[str, Any]) -> str | None:
    """The first path whose value does not match, or None."""
    return next((place for place, wanted in where.items() if not _fits(look_up(facts, place), wanted)), None)


def _fits(found: Any, wanted: Any) -> bool:
    if found is MISSING:
        return False
    if isinstance(wanted, dict):
        return isinstance(found, str) and wanted["contains"] in found
    return any(_equal(found, each) for each in (wanted if isinstance(wanted, list) else [wanted]))


def _equal(found: Any, wanted: Any) -> bool:
    """JSON's true is not 1."""
    return isinstance(found, bool) == isinstance(wanted, bool) and bool(found == wanted)


def check_pattern(pattern: str) -> None:
    if pattern.startswith("/") or "\\" in pattern or ".." in pattern.split("/"):
        hint = "Write it as in `inbox/*.md` or `**/*.md`; paths are relative to the folder the server watches."
        raise InputError("expected a path inside the watched folder", where="on.pattern", hint=hint)


def is_file(on: Files, path: str) -> bool:
    return globs.compiled(on.pattern).matches(path)


def is_event(on: Happens, facts: Mapping[str, Any]) -> bool:
    names = [name for name in facts["names"] if not name.startswith("trigger.")]
    return any(events.chosen(name, names) for name in on.events) and unmet(on.where, facts) is None


def is_end(on: DagEnds, title: str | None, status: str) -> bool:
    return status in on.ends and fnmatchcase(title or "", on.title)


class Refused(Exception):
    """A delivery is refused; `reason` is for the event log, not for the sender."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class HookDelivery(NamedTuple):
    """A verified delivery."""

    key: str
    """Identifies the delivery if it is repeated."""
    id: str | None
    event: str | None


def secret_of(signature: Signature, noise: bytes) -> str:
    """Format random bytes as a secret for this kind of sender."""
    return WHSEC + base64.b64encode(noise).decode() if signature == "standard" else noise.hex()


def check_secret(signature: Signature, secret: str) -> None:
    """Check that a caller's secret has the right form and is not too easy to guess."""
    if signature == "standard":
        try:
            size = len(_standard_key(secret))
        except (binascii.Error, ValueError):
            what = "a Standard Webhooks secret is whsec_ followed by base64"
            raise InputError(what, where="secret", hint="Leave it out to have one generated.") from None
    else:
        size = len(secret.encode())
    if size < MIN_SECRET_BYTES or len(secret) > MAX_CHARS:
        what = f"a secret must have at least {MIN_SECRET_BYTES} bytes and at most {MAX_CHARS} characters"
        raise InputError(what, where="secret", hint="Leave it out to have one generated.")


def verify_signature(
    signature: Signature, secret: str, headers: Mapping[str, str], body: bytes, now: float
) -> HookDelivery:
    """Return the delivery if its signature is valid; header names are in lower case."""
    return _SCHEMES[signature](secret, headers, body, now)


def _standard(secret: str, headers: Mapping[str, str], body: bytes, now: float) -> HookDelivery:
    id_, sent = _needed(headers, "webhook-id"), _needed(headers, "webhook-timestamp")
    signed = f"{id_}.{sent}.".encode() + body
    right = base64.b64encode(_hmac(_standard_key(secret), signed)).decode()
    offered = [each.partition(",") for each in _needed(headers, "webhook-signature").split(" ")]
    if not any(version == "v1" and _equal_secrets(given, right) for version, _, given in offered):
        raise Refused("the signature is wrong")
    _check_time(sent, now)
    return HookDelivery(f"standard:{id_}", id_, None)


def _github(secret: str, headers: Mapping[str, str], body: bytes, now: float) -> HookDelivery:
    """GitHub signs only the body: a delivery id could be forged, so equal bodies count as one delivery."""
    del now
    right = _hmac(secret.encode(), body).hex()
    algorithm, _, given = _needed(headers, "x-hub-signature-256").partition("=")
    if algorithm != "sha256" or not _equal_secrets(given, right):
        raise Refused("the signature is wrong")
    return HookDelivery(f"github:{right}", _short(headers, "x-github-delivery"), _short(headers, "x-github-event"))


def _slack(secret: str, headers: Mapping[str, str], body: bytes, now: float) -> HookDelivery:
    sent = _needed(headers, "x-slack-request-timestamp")
    right = _hmac(secret.encode(), f"v0:{sent}:".encode() + body).hex()
    version, _, given = _needed(headers, "x-slack-signature").partition("=")
    if version != "v0" or not _equal_secrets(given, right):
        raise Refused("the signature is wrong")
    _check_time(sent, now)
    return HookDelivery(f"slack:{right}", None, None)


_Scheme = Callable[[str, Mapping[str, str], bytes, float], HookDelivery]
_SCHEMES: dict[Signature, _Scheme] = {"standard": _standard, "github": _github, "slack": _slack}


def _standard_key(secret: str) -> bytes:
    return base64.b64decode(secret.removeprefix(WHSEC), validate=True)


def _hmac(key: bytes, signed: bytes) -> bytes:
    return hmac.new(key, signed, hashlib.sha256).digest()


def _equal_secrets(given: str, right: str) -> bool:
    return hmac.compare_digest(given.encode(), right.encode())


def _needed(headers: Mapping[str, str], name: str) -> str:
    value = headers.get(name, "")
    if not 0 < len(value) <= MAX_CHARS:
        raise Refused(f"the header {name} is missing or too long")
    return value


def _short(headers: Mapping[str, str], name: str) -> str | None:
    """An unsigned header, shortened for an event."""
    return headers[name][:MAX_CHARS] if name in headers else None


def _check_time(sent: str, now: float) -> None:
    """Check the time, after the signature that covers it."""
    if not (sent.isascii() and sent.isdigit() and len(sent) <= len("99999999999")):
        raise Refused("the timestamp is not a number")
    if abs(now - int(sent)) > WINDOW_SEC:
        raise Refused("timestamp outside the allowed window")
