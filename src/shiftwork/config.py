"""Finds the queue to use if the caller names none: from the environment, a file `shiftwork.toml`, or the default."""

from __future__ import annotations

import difflib
import os
import re
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit, urlunsplit

from shiftwork.model.errors import InvalidConfig

FILE = "shiftwork.toml"
DEFAULT_STORE = "sqlite:///shiftwork.db"
DEFAULT = "default"
KEYS = ("store", "workspace", "token_file")
VARIABLES = {
    "store": "SHIFTWORK_STORE",
    "workspace": "SHIFTWORK_WORKSPACE",
    "token": "SHIFTWORK_TOKEN",
    "token_file": "SHIFTWORK_TOKEN_FILE",
}
_SQLITE = "sqlite:///"
_PLACE = re.compile(r"\s*\(at (?:line (\d+), column \d+|end of document)\)$")


class Chosen(NamedTuple):
    """A value and its source: an option, a variable, a file, or the default."""

    value: str | None
    source: str = DEFAULT


class ConfigFile(NamedTuple):
    """The content of a file, with absolute paths."""

    path: Path
    store: str | None = None
    workspace: str | None = None
    token_file: str | None = None


class Address(NamedTuple):
    """The queue to use, the workspace in it, and the caller's token."""

    store: Chosen
    workspace: Chosen
    token: Chosen


def address(store: Chosen | None = None, workspace: Chosen | None = None, token: Chosen | None = None) -> Address:
    """Choose each value: the argument if given, then the environment, then the nearest file, then the default.

    If an argument or the environment names the store, no file is read: the file's workspace and token must never be
    used for another store.
    """
    store = store or _of_environment("store")
    file = found_file() if store is None else None
    store = store or _of_file(file, "store")
    return Address(
        store or Chosen(DEFAULT_STORE),
        workspace or _of_environment("workspace") or _of_file(file, "workspace") or Chosen(None),
        token or token_of_environment() or _read_token(_of_file(file, "token_file")) or Chosen(None),
    )


def token_of_environment() -> Chosen | None:
    """Return the token in SHIFTWORK_TOKEN, or in the file that SHIFTWORK_TOKEN_FILE names."""
    return _of_environment("token") or _read_token(_of_environment("token_file"))


def _of_environment(key: str) -> Chosen | None:
    value = os.environ.get(VARIABLES[key])
    return Chosen(value, VARIABLES[key]) if value else None


def _of_file(file: ConfigFile | None, key: str) -> Chosen | None:
    value = None if file is None else getattr(file, key)
    return None if value is None or file is None else Chosen(value, str(file.path))


def _read_token(file: Chosen | None) -> Chosen | None:
    if file is None or file.value is None:
        return None
    try:
        secret = Path(file.value).read_text(encoding="utf-8").strip()
    except UnicodeDecodeError:
        raise InvalidConfig(f"the token file {file.value} is not UTF-8 text", where=file.source) from None
    except OSError as error:
        what = f"the token file {file.value} cannot be read: {error.strerror}"
        raise InvalidConfig(what, where=file.source) from None
    if not secret:
        raise InvalidConfig(f"the token file {file.value} is empty", where=file.source)
    return Chosen(secret, f"{file.value} ({file.source})")


def nearest() -> Path | None:
    """Find the `shiftwork.toml` in the current folder or the nearest one above it."""
    try:
        here = Path.cwd()
    except FileNotFoundError:  # the current folder was removed; the caller may still name a queue
        return None
    found = (each / FILE for each in (here, *here.parents))
    return next((path for path in found if os.path.isfile(path)), None)  # noqa: PTH113  # a folder may be unreadable


def found_file() -> ConfigFile | None:
    """Read the nearest file, from the current folder upward."""
    path = nearest()
    if path is None:
        return None
    try:
        owner, text = path.stat().st_uid, path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise InvalidConfig("the file is not UTF-8 text", where=str(path)) from None
    except OSError as error:
        raise InvalidConfig(f"the file cannot be read: {error.strerror}", where=str(path)) from None
    if owner not in {0, os.geteuid()}:  # in a shared folder, another user could direct our token to their server
        hint = "Name the queue with --store or SHIFTWORK_STORE and work in another folder, or make the file yours."
        raise InvalidConfig("the file belongs to another user", where=str(path), hint=hint)
    return parsed(path, text)


def parsed(path: Path, text: str) -> ConfigFile:
    """Parse the text of a file; errors name the line."""
    import tomllib  # noqa: PLC0415  # most calls find no file

    try:
        fields: dict[str, Any] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        place = _PLACE.search(str(error))
        line = int(place[1]) if place and place[1] else len(text.splitlines())  # otherwise, the end of the document
        raise InvalidConfig(f"not TOML: {_PLACE.sub('', str(error))}", where=_place(path, line)) from None
    except RecursionError:
        raise InvalidConfig("not readable TOML: nested too deeply", where=str(path)) from None
    for key, value in fields.items():
        _check(path, text, key, value)
    known = {key: value.strip() for key, value in fields.items()}
    if "store" in known:
        known["store"] = _absolute(known["store"], path.parent)
    if "token_file" in known:
        known["token_file"] = str(path.parent / Path(known["token_file"]).expanduser())
    return ConfigFile(path, **known)


def _check(path: Path, text: str, key: str, value: object) -> None:
    where = _place(path, _line_of(text, key))
    if key not in KEYS:
        near = difflib.get_close_matches(key, KEYS, n=1)
        hint = f"Did you mean `{near[0]}`?" if near else f"The keys are {', '.join(f'`{each}`' for each in KEYS)}."
        raise InvalidConfig(f"there is no key `{key}`", where=where, hint=hint)
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        raise InvalidConfig(f"`{key}` must be non-empty text in quotes", where=where)
    if key == "store" and "://" not in value and not value.startswith("shiftwork+map:"):
        hint = "Use sqlite:///file.db, postgresql://… or a server at http://…"
        raise InvalidConfig(f"`store` is {value!r}, which is not an address", where=where, hint=hint)


def _line_of(text: str, key: str) -> int | None:
    quoted = re.escape(key)
    declared = re.compile(rf"""\s*(?:\[+\s*)?["']?{quoted}["']?\s*(?:=|\.|\])""")
    return next((number for number, line in enumerate(text.splitlines(), 1) if declared.match(line)), None)


def _place(path: Path, line: int | None) -> str:
    return str(path) if line is None else f"{path}, line {line}"


def _absolute(store: str, folder: Path) -> str:
    """Make the path of a SQLite file absolute; it is relative to the folder of the configuration file."""
    return f"{_SQLITE}{folder / store.removeprefix(_SQLITE)}" if store.startswith(_SQLITE) else store


def without_password(url: str) -> str:
    """Return an address without its password, to be shown or logged."""
    parts = urlsplit(url)
    if parts.password is None:
        return url
    user, _, host = parts.netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=f"{user.partition(':')[0]}:***@{host}"))
