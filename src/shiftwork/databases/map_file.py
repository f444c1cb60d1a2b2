"""The map: a TOML file that names the databases of a queue. The databases record which workspaces they own."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

from shiftwork.model.errors import InvalidConfig

SCHEME = "shiftwork+map:"
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,47}")
_EXAMPLE = 'default = "a" and [databases] with a = "postgresql://…"'


class DatabaseMap(NamedTuple):
    """Databases by name, and the one where new workspaces are created."""

    url: str
    default: str
    databases: dict[str, str]


def is_map(url: str) -> bool:
    return url.startswith(SCHEME)


def addresses(url: str) -> list[str]:
    """The addresses of a map's databases, or the address itself."""
    return list(read_map(url).databases.values()) if is_map(url) else [url]


def read_map(url: str) -> DatabaseMap:
    """Read the file at `shiftwork+map:/path/map.toml`."""
    path = Path(url.removeprefix(SCHEME).removeprefix("//"))
    try:
        fields = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise _wrong(path, f"the map cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise _wrong(path, f"the map is not TOML: {error}") from None
    return _checked(url, path, fields)


def _checked(url: str, path: Path, fields: dict[str, Any]) -> DatabaseMap:
    unknown = sorted(fields.keys() - {"default", "databases"})
    if unknown:
        raise _wrong(path, f"there is no key `{unknown[0]}`")
    databases, default = fields.get("databases"), fields.get("default")
    if not isinstance(databases, dict) or not databases:
        raise _wrong(path, "the map names no databases")
    for name, address in databases.items():
        if not _NAME.fullmatch(name):
            raise _wrong(path, f"{name!r} cannot name a database: use lower-case letters, digits, `-` and `_`")
        if not isinstance(address, str) or not address.startswith(("postgresql://", "postgres://")):
            raise _wrong(path, f"database `{name}` needs an address postgresql://…")
    if not isinstance(default, str) or default not in databases:
        raise _wrong(path, "`default` must name one of the databases: new workspaces are created there")
    return DatabaseMap(url, default, dict(databases))


def _wrong(path: Path, what: str) -> InvalidConfig:
    return InvalidConfig(what, where=str(path), hint=f"Write {_EXAMPLE}.")
