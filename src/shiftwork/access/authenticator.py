"""Authentication: the caller, its workspace and scopes."""

from __future__ import annotations

import asyncio
import ipaddress
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import urlsplit

from shiftwork.access.model import SCOPES, TokenInfo, allows
from shiftwork.engine.engine import StillAllowed
from shiftwork.model.errors import Forbidden, NotFound, Unauthorized

FRESH_SEC = 1.0
"""How long a revoked token may still be accepted by this server."""
MAX_KNOWN = 10_000
ID_LENGTH = 12
_LETTERS = "0123456789abcdefghjkmnpqrstvwxyz"
_SECRET = re.compile(rf"sw_([{_LETTERS}]{{{ID_LENGTH}}})_[A-Za-z0-9_-]{{43}}")
Headers = Mapping[str, str]
"""By lower-case names."""
BEARER_PROTOCOL = "bearer."
"""A browser cannot set headers on a WebSocket: it offers the token as a subprotocol with this prefix."""


class Identity(NamedTuple):
    """An authenticated caller."""

    name: str | None
    token_id: str | None
    workspace: str | None
    """The token's workspace; None if no token is needed and any may be named."""
    scopes: frozenset[str]

    def may(self, scope: str) -> bool:
        return allows(self.scopes, scope)


ANONYMOUS = Identity(None, None, None, frozenset())
ANYONE = Identity(None, None, None, frozenset(SCOPES))


def make_secret() -> tuple[str, str]:
    """A token's id and its secret, which contains the id: so a leaked secret can be revoked."""
    token_id = "".join(secrets.choice(_LETTERS) for _ in range(ID_LENGTH))
    return token_id, f"sw_{token_id}_{secrets.token_urlsafe(32)}"


def id_in(secret: str) -> str | None:
    """The id of the token to which this secret may belong."""
    match = _SECRET.fullmatch(secret)
    return match[1] if match else None


class Authenticator:
    """Admits callers with a token, or, without tokens, callers on this machine."""

    def __init__(self, find: Callable[[str], Awaitable[TokenInfo | None]], *, tokens: bool) -> None:
        self._find_token = find
        self.tokens = tokens
        self._known: dict[str, tuple[float, Identity | None]] = {}
        self._asking: dict[str, asyncio.Task[Identity | None]] = {}

    async def identify(self, headers: Headers, *, plain_get: bool = False) -> Identity:
        """Identify the caller by its token. `plain_get` marks a read-only call that ends: a link may be opened."""
        secret = _secret(headers)
        if secret is None:
            if self.tokens:
                raise Unauthorized("this server needs a token")
            check_local(headers, plain_get=plain_get)
            return ANYONE
        found = None if id_in(secret) is None else await self._find(secret)  # garbage is not worth remembering
        if found is None:
            raise Unauthorized("the token is unknown, has expired or was revoked")
        return found

    def checking(self, headers: Headers, scope: str) -> StillAllowed:
        """The check by which a waiting call learns whether its caller still has this scope."""

        async def check() -> None:
            require(await self.identify(headers), scope)

        return check

    async def _find(self, secret: str) -> Identity | None:
        known = self._known.get(secret)
        if known is not None and time.monotonic() < known[0]:
            return known[1]
        asking = self._asking.get(secret)
        if asking is None:  # hundreds of streams with one token ask at the same moment; the store is asked once
            asking = self._asking[secret] = asyncio.create_task(self._look_up(secret))
            asking.add_done_callback(lambda _: self._asking.pop(secret, None))
        return await asyncio.shield(asking)

    async def _look_up(self, secret: str) -> Identity | None:
        now = time.monotonic()
        token = await self._find_token(secret)
        found = None if token is None else Identity(token.name, token.id, token.workspace_id, frozenset(token.scopes))
        if len(self._known) >= MAX_KNOWN:
            self._known.clear()  # someone is guessing
        self._known[secret] = now + FRESH_SEC, found
        return found


def _secret(headers: Headers) -> str | None:
    kind, _, secret = headers.get("authorization", "").partition(" ")
    if kind.lower() == "bearer" and secret:
        return secret.strip()
    if kind:
        raise Unauthorized("the Authorization header must be `Bearer <token>`")
    offered = (name.strip() for name in headers.get("sec-websocket-protocol", "").split(","))
    return next((name.removeprefix(BEARER_PROTOCOL) for name in offered if name.startswith(BEARER_PROTOCOL)), None)


def check_local(headers: Headers, *, plain_get: bool = False) -> None:
    """Refuse pages of other sites in a browser on this machine, whatever host name they use.

    Other servers on this machine are other sites, too: agents may start them.
    """
    host = headers.get("host", "")
    if not is_local(host):
        raise Forbidden("without tokens, only this machine is served, as localhost", where="Host", hint=_HINT)
    origin = headers.get("origin")
    if origin is not None and not _is_origin_of(origin, host):
        raise Forbidden("cross-site requests are not allowed", where="Origin", hint=_HINT)
    is_link = plain_get and headers.get("sec-fetch-mode") == "navigate"
    if headers.get("sec-fetch-site") in _OTHER_SITES and not is_link:
        raise Forbidden("cross-site requests are not allowed", where="Sec-Fetch-Site", hint=_HINT)


def check_page_body(headers: Headers) -> None:
    """Require a JSON content type of pages: browsers send that to another site only after asking it."""
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if headers.get("origin") is not None and kind != "application/json":
        raise Forbidden("a page must send application/json", where="Content-Type", hint="Set the Content-Type.")


def _is_origin_of(origin: str, host: str) -> bool:
    """Whether a page comes from this host and port. TLS may have ended at a proxy, so either scheme will do."""
    try:
        scheme, netloc = urlsplit(origin)[:2]
    except ValueError:
        return False
    port = _DEFAULT_PORTS.get(scheme)
    if port is None or not netloc:
        return False
    return netloc.lower().removesuffix(port) == host.lower().removesuffix(port)


_OTHER_SITES = frozenset({"cross-site", "same-site"})
_DEFAULT_PORTS = {"http": ":80", "https": ":443"}
_HINT = "Call it from its own pages, as http://localhost or http://127.0.0.1, or serve with --tokens."


@lru_cache(256)
def is_local(netloc: str) -> bool:
    try:
        host = urlsplit(f"//{netloc}").hostname or ""
    except ValueError:
        return False
    return host == "localhost" or host.endswith(".localhost") or is_loopback(host)


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def workspace_for(who: Identity, named: str | None) -> str:
    if who.workspace is None:
        return named or "default"
    if named is not None and named != who.workspace:
        raise NotFound(f"there is no workspace {named!r}", where="workspace")
    return who.workspace


def require(who: Identity, scope: str) -> None:
    if not who.may(scope):
        raise Forbidden(f"this needs the scope {scope}", needs=scope, has=sorted(who.scopes))
