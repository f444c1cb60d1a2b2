"""OAuth protected-resource metadata (RFC 9728): tells a client without a token how to get one.

A server that needs tokens describes itself under `/.well-known/oauth-protected-resource`, and its 401 answers name that
address. Shiftwork issues its tokens itself (`shiftwork tokens create`) and runs no authorization server; if an external
one issues the tokens, the metadata names it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import msgspec

from shiftwork.access.model import MEANING, SERVER
from shiftwork.model.errors import InputError

WELL_KNOWN = "/.well-known/oauth-protected-resource"
SCOPES = [scope for scope in MEANING if scope != SERVER]
_HOST = re.compile(r"[A-Za-z0-9._-]{1,255}(:[0-9]{1,5})?|\[[0-9A-Fa-f:.]{2,45}\](:[0-9]{1,5})?")


class ProtectedResource(msgspec.Struct, frozen=True, kw_only=True):
    """One resource that needs a token."""

    name: str
    path: str
    """The path of the resource, e.g. /mcp."""
    public_url: str | None = None
    """The server's public URL, without the path; None takes it from the request."""
    authorization_servers: tuple[str, ...] = ()

    def describes(self, path: str) -> bool:
        """Whether this is the path of the metadata, with or without the resource's path appended."""
        return path in {WELL_KNOWN, WELL_KNOWN + self.path.rstrip("/")}

    def document(self, headers: Mapping[str, str], scheme: str) -> dict[str, Any]:
        found: dict[str, Any] = {
            "resource": self._base(headers, scheme) + self.path,
            "resource_name": self.name,
            "scopes_supported": SCOPES,
            "bearer_methods_supported": ["header"],
        }
        servers = {"authorization_servers": list(self.authorization_servers)}
        return found | (servers if self.authorization_servers else {})

    def challenge(self, headers: Mapping[str, str], scheme: str) -> str:
        """The `WWW-Authenticate` header of a 401 answer."""
        return f'Bearer resource_metadata="{self._base(headers, scheme)}{WELL_KNOWN}{self.path.rstrip("/")}"'

    def _base(self, headers: Mapping[str, str], scheme: str) -> str:
        if self.public_url is not None:
            return self.public_url.rstrip("/")
        host = headers.get("host", "")
        return f"{scheme}://{host if _HOST.fullmatch(host) else 'localhost'}"


def check_url(given: str, where: str) -> str:
    """Require an absolute http(s) URL without user, query or fragment; returns it unchanged."""
    try:
        parts = urlsplit(given)
    except ValueError:
        parts = urlsplit("")
    fits = parts.scheme in {"http", "https"} and _HOST.fullmatch(parts.netloc) and not parts.query + parts.fragment
    if not fits or any(ord(char) <= 32 or char == '"' for char in given):
        raise InputError(f"{given!r} is not the address of a server", where=where, hint="Write https://HOST[:PORT].")
    return given
