"""The rules of notifications: what a sink receives, which addresses it can have, what is sent, and when to retry."""

from __future__ import annotations

import base64
import binascii
import ipaddress
import re
from collections.abc import Iterable
from datetime import UTC, datetime
from ipaddress import IPv4Address, IPv6Address
from typing import Any, Literal, NamedTuple
from urllib.parse import SplitResult, urlsplit

import msgspec

from shiftwork.model.errors import InputError
from shiftwork.model.events import chosen, every_name
from shiftwork.notifications.model import ALERT, ALL, TEST, Notification, SinkFilter, SinkTarget
from shiftwork.observe.alert_kinds import KINDS, Severity

SEVERITIES: tuple[Severity, ...] = ("info", "warning", "critical")
SIGNING = "whsec_"
MIN_SLACK_SECRET = 16
"""Slack generates 32 characters; anyone who guesses a secret can press any button."""

_LETTER = re.compile(r"[^\s@,<>\"]{1,64}@[^\s@,<>\"]{1,255}")
_NUMBER = re.compile(r"0x[0-9a-f]*|[0-9]+")
_SERVICE = re.compile(r"[a-z][a-z0-9+.-]{1,40}://\S{1,1900}\Z")
_PORTS = {"smtp": 587, "smtps": 465}
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_GLOBAL_UNICAST = ipaddress.ip_network("2000::/3")
"""The allocated public range of IPv6; the rest is local, unallocated, or an embedded IPv4 address."""

# `is_global` differs between versions of Python, so the ranges of the IANA registries are listed here.
_NOT_PUBLIC = [
    ipaddress.ip_network(each)
    for each in (
        *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12"),
        *("192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24"),
        *("203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4"),
        *("2001::/23", "2001:db8::/32", "3fff::/20"),
    )
]

REDACTED = "[redacted]"
MAX_TEXT_LENGTH = 2000
MAX_SEARCHED = 16_384
"""How many characters of a text are searched for secrets; the rest is not sent."""
_NAMES = re.compile(
    r"passw|passphrase|secret|api[_-]?key|access[_-]?key|private[_-]?key|authorization|credential|cookie|token$",
    re.IGNORECASE,
)
_SECRETS = re.compile(
    r"\bsw_[0-9a-z]{12}_[\w-]{43}|\bwhsec_[\w+/=]{16,200}"  # our own
    r"|\b(?:sk|rk|pk)[-_][\w-]{16,200}|\bgh[pousr]_\w{20,255}|\bgithub_pat_\w{20,255}|\bglpat-[\w-]{16,200}"
    r"|\bxox[a-z]-[\w-]{8,200}|\bA(?:KIA|SIA)[0-9A-Z]{16}\b|\bAIza[\w-]{30,100}|\beyJ[\w-]{8,600}\.[\w-]{8,4000}\.[\w-]{0,4000}"
    r"|-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----[\w+/=\s\\]{0,8000}"
    r"|(?<=://)[^\s/@]{1,200}(?=@)"  # a user and a password inside an address
    r"|(?<=hooks\.slack\.com/services/)\S{1,200}"
)
_NAMED = re.compile(
    r"(\b(?:bearer|basic)\s+|\b\w{0,40}(?:passw(?:or)?d|passphrase|secret|api[_-]?key|token)\"?\s{0,3}[=:]\s{0,3}[\"']?)"
    r"[^\s\"',;&]{4,4000}",
    re.IGNORECASE,
)

MAX_ATTEMPTS = 12
GIVE_UP_SEC = 86_400.0
"""How long after its first attempt a delivery is retried."""

FIRST_WAIT_SEC = 5.0
MAX_WAIT_SEC = 6 * 3600.0
FREE_FAILURES = 2
"""Consecutive failures that do not count against the sink: one bad notification must not slow down the others."""

MAX_REST_SEC = 300.0
AT_ONCE = 4
"""Concurrent deliveries per sink and process; a failing sink gets a single one."""


class AlertFacts(NamedTuple):
    """The facts of an alert that filters match."""

    kind: str
    severity: Severity
    type: str | None
    creator: str | None


class DeliveryOutcome(NamedTuple):
    """How one attempt ended; `error` None is success. Error texts are our own and contain no address."""

    error: str | None = None
    retry_after: float | None = None
    """The receiver's `Retry-After`."""
    gone: bool = False
    """Whether the receiver wants no more notifications."""


class Next(NamedTuple):
    """The next step of a delivery."""

    status: Literal["pending", "sent", "dead"]
    next_at: float


def check_wants(wants: SinkFilter) -> None:
    if not wants.alerts and not wants.events:
        raise _problem("wants", "a sink that wants neither alerts nor events receives nothing")
    unknown = [kind for kind in wants.alerts if kind != ALL and kind not in KINDS]
    if unknown:
        raise _problem("wants.alerts", f"there is no kind of alert {unknown[0]!r}")
    names = every_name() - {ALERT}
    for pattern in wants.events:
        if not chosen(pattern, names):
            raise _problem("wants.events", f"there is no event {pattern!r}")


def _problem(where: str, what: str) -> InputError:
    return InputError(what, where=where, hint="docs/reference/events.md lists all events and kinds of alert.")


def wants_alert(wants: SinkFilter, about: AlertFacts) -> bool:
    return (
        (ALL in wants.alerts or about.kind in wants.alerts)
        and SEVERITIES.index(about.severity) >= SEVERITIES.index(wants.severity)
        and (not wants.types or about.type in wants.types)
        and (not wants.creators or about.creator in wants.creators)
    )


def wanted_names(wants: SinkFilter, names: Iterable[str], type_: str | None) -> list[str]:
    """The names of an event that match a sink's filter. Alerts are separate notifications, with their own text."""
    if wants.types and type_ not in wants.types:
        return []
    return [name for name in names if name != ALERT and any(chosen(pattern, [name]) for pattern in wants.events)]


def check_place(place: SinkTarget) -> None:
    if place.kind == "email":
        _check_mail(place)
        return
    if place.kind == "apprise":
        _check_service(place)
        return
    if place.server is not None or place.sender is not None:
        raise InputError(f"a {place.kind} sink has no mail server and no sender", where="server")
    url = _url(place.address, ("http", "https"), "address")
    _check_host(url, place, "address")
    if place.kind == "slack" and place.secret is not None and len(place.secret) < MIN_SLACK_SECRET:
        raise InputError("this is shorter than the signing secret of a Slack app", where="secret")
    if place.kind == "webhook":
        key_of(place.secret or "")


def _check_service(place: SinkTarget) -> None:
    if _SERVICE.match(place.address) is None or not place.address.isascii() or not place.address.isprintable():
        raise InputError("expected an apprise address, such as tgram://…", where="address")
    for where, given in (("server", place.server), ("sender", place.sender), ("secret", place.secret)):
        if given is not None:
            raise InputError(f"an apprise sink has no {where}: its address contains everything", where=where)
    if not place.allow_private:
        raise InputError(
            "apprise opens connections itself, so its addresses cannot be checked",
            where="allow_private",
            hint="Let an admin add the sink with `allow_private`.",
        )


def _check_mail(place: SinkTarget) -> None:
    if place.server is None or place.sender is None:
        missing = "server" if place.server is None else "sender"
        raise InputError(f"e-mail needs a {missing}", where=missing)
    url = _url(place.server, tuple(_PORTS), "server")
    _check_host(url, place, "server")
    if url.password is not None:
        raise InputError("the password is the sink's secret, not a part of its address", where="server")
    if (url.username is None) != (place.secret is None):
        raise InputError("to log in to a mail server, give a user in its address and a secret", where="secret")
    for where, text in (("address", place.address), ("sender", place.sender)):
        for each in recipients(text):
            if _LETTER.fullmatch(each) is None:
                raise InputError(f"{each!r} is not an e-mail address", where=where)
    if len(recipients(place.sender)) != 1:
        raise InputError("expected one address", where="sender")


def _url(text: str, schemes: tuple[str, ...], where: str) -> SplitResult:
    expected = " or ".join(f"{scheme}://…" for scheme in schemes)
    try:
        url = urlsplit(text)
        port = url.port
    except ValueError:
        raise InputError(f"expected {expected}", where=where) from None
    if url.scheme not in schemes or not url.hostname or port == 0 or not text.isascii() or not text.isprintable():
        raise InputError(f"expected {expected} in printable ASCII", where=where)
    if " " in text:
        raise InputError("contains a space", where=where)
    return url


def _check_host(url: SplitResult, place: SinkTarget, where: str) -> None:
    host = url.hostname or ""
    if _NUMBER.fullmatch(host.rstrip(".").rpartition(".")[2]) and not is_address(host):
        raise InputError(f"{host} is neither a host name nor an IP address in the usual form", where=where)
    if not place.allow_private and is_address(host) and not is_public(host):
        raise InputError(
            f"{host} is not a public address",
            where=where,
            hint="Name a public one, or let an admin add the sink with `allow_private`.",
        )


def key_of(secret: str) -> bytes:
    """The bytes that webhooks are signed with."""
    try:
        key = base64.b64decode(secret.removeprefix(SIGNING).encode(), validate=True)
    except (binascii.Error, UnicodeEncodeError):
        key = b""
    if not secret.startswith(SIGNING) or not 24 <= len(key) <= 64:
        raise InputError(f"expected {SIGNING} and 24 to 64 bytes in base64", where="secret")
    return key


def recipients(address: str) -> list[str]:
    return [each.strip() for each in address.split(",")]


def mail_server(address: str) -> tuple[str, str, int, str | None]:
    """Scheme, host, port and user of a mail server."""
    url = urlsplit(address)
    return url.scheme, url.hostname or "", url.port or _PORTS[url.scheme], url.username


def shown(address: str) -> str:
    """The part of an address that is safe to show: of a URL only its host, since the rest often grants access.

    Of an apprise address only its scheme: what looks like a host is often a token.
    """
    if urlsplit(address).scheme not in {"http", "https"}:
        return f"{urlsplit(address).scheme}://…"
    url = urlsplit(address)
    host = f"{url.scheme}://{url.netloc.rpartition('@')[2]}"
    return host if url.path in {"", "/"} and not url.query else f"{host}/…"


def is_public(address: str) -> bool:
    """Whether this IP address is public; an IPv4 address embedded in an IPv6 one is checked itself."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    return all(_is_public(one) for one in _all_in(parsed))


def _is_public(one: IPv4Address | IPv6Address) -> bool:
    if one.version == 6 and one not in _GLOBAL_UNICAST:
        return False
    listed = any(one.version == each.version and one in each for each in _NOT_PUBLIC)
    return not listed and one.is_global and not one.is_multicast and not one.is_reserved


def is_address(text: str) -> bool:
    """Whether a host is written as an IP address and not as a name."""
    try:
        ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return False
    return True


def _all_in(address: IPv4Address | IPv6Address) -> list[IPv4Address | IPv6Address]:
    """The addresses that packets can reach: the address itself, or those embedded in it."""
    if isinstance(address, IPv4Address):
        return [address]
    if address.ipv4_mapped is not None:
        return [address.ipv4_mapped]
    if address.sixtofour is not None:
        return [address.sixtofour]
    if address in _NAT64:
        return [IPv4Address(int(address) & 0xFFFFFFFF)]
    return [address]


def after(outcome: DeliveryOutcome, attempts: int, now: float, give_up_at: float, chance: float) -> Next:
    """The next step after an outcome; `chance` is random, from 0 to 1."""
    if outcome.error is None:
        return Next("sent", now)
    wait = max(backoff(attempts, chance), min(outcome.retry_after or 0.0, MAX_WAIT_SEC))
    if outcome.gone or attempts >= MAX_ATTEMPTS or now + wait > give_up_at:
        return Next("dead", now)
    return Next("pending", now + wait)


def backoff(attempts: int, chance: float) -> float:
    """5 s, 20 s, 80 s, 5 min, 21 min, 85 min, then every 6 hours, each up to a fifth longer."""
    wait = min(FIRST_WAIT_SEC * 4 ** (attempts - 1), MAX_WAIT_SEC)
    return float(wait * (1 + chance / 5))


def rest(outcome: DeliveryOutcome, failures: int) -> float:
    """How long to pause a sink after this many consecutive failures."""
    asked = min(outcome.retry_after or 0.0, MAX_WAIT_SEC)
    if failures <= FREE_FAILURES:
        return asked
    return max(asked, min(FIRST_WAIT_SEC * 2.0 ** min(failures - FREE_FAILURES - 1, 10), MAX_REST_SEC))


def at_once(failures: int) -> int:
    """How many deliveries of a sink may run at once."""
    return AT_ONCE if failures <= FREE_FAILURES else 1


def timestamp(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def line(notification: Notification) -> str:
    """One line for people, without line breaks."""
    data = notification.data
    if notification.type == ALERT:
        named = data.get("about", {}).get("title")
        text = " ".join(
            each
            for each in (f"[{data['severity']}] {data['message']}", f"({named})" if named else "", data.get("link"))
            if each
        )
    elif notification.type == TEST:
        text = f"Test message to {data['sink']}, sent by {data['actor']}"
    else:
        text = " ".join(part for part in (notification.type, data.get("task_id"), _of(data)) if part)
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def title(notification: Notification) -> str:
    """A short title for an e-mail or a message."""
    what = notification.data.get("kind") if notification.type == ALERT else notification.type
    return f"Shiftwork: {what or notification.type}"


def _of(data: dict[str, Any]) -> str:
    """Further facts of an event, in brackets."""
    known = [("type", data.get("task_type")), ("reason", data.get("reason")), ("by", data.get("actor"))]
    return "(" + ", ".join(f"{name} {value}" for name, value in known if value) + ")"


def paragraphs(notification: Notification) -> str:
    """The text of an e-mail: the line, then one fact per line."""
    facts = [f"{name}: {_shown(value)}" for name, value in notification.data.items() if value not in (None, {}, [])]
    return "\n".join(
        [line(notification), "", f"at: {notification.timestamp}", f"type: {notification.type}", *facts, ""]
    )


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def redact(value: Any) -> Any:
    """The value with its secrets replaced."""
    if isinstance(value, str):
        return redact_text(value)
    if isinstance(value, dict):
        return {redact_text(str(name)): _member(str(name), inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [redact(inner) for inner in value]
    return value


def _member(name: str, value: Any) -> Any:
    """Numbers, such as counts of tokens, are not secrets."""
    hidden = isinstance(value, str | list | dict) and _NAMES.search(name)
    return REDACTED if hidden else redact(value)


def redact_text(value: str) -> str:
    """The text without recognisable secrets, shortened for people."""
    # Shorten after the search: half a secret would not be recognised.
    cleaned = _NAMED.sub(rf"\g<1>{REDACTED}", _SECRETS.sub(REDACTED, value[:MAX_SEARCHED]))
    if len(value) > MAX_SEARCHED and len(cleaned) < MAX_TEXT_LENGTH:
        # The searched part is shorter than the limit now, so its end, perhaps half a secret, would show.
        return cleaned[: cleaned.rfind(REDACTED) + len(REDACTED)] + "…"
    return cleaned if len(cleaned) <= MAX_TEXT_LENGTH else cleaned[: MAX_TEXT_LENGTH - 1] + "…"
