"""The key of cooldowns and limits: provider, account, model and type.

A key is written `provider:anthropic,account:team-a,model:opus`; each part is optional, but there must be one. A key
matches every use that has all of its parts. A comma or a percent sign inside a name is written %2C or %25.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from shiftwork.model.bounds import MAX_NAME
from shiftwork.model.errors import InputError, TooLarge

_WRITTEN = {"%": "%25", ",": "%2C"}
_READ = {"%25": "%", "%2C": ","}
_ESCAPE = re.compile("%25|%2C", re.IGNORECASE)
_HINT = "Write provider:NAME, account:NAME, model:NAME or type:NAME, several joined by commas."


class Key(NamedTuple):
    """One use of a service, or all uses that share the parts given."""

    provider: str | None = None
    account: str | None = None
    model: str | None = None
    type: str | None = None

    @property
    def text(self) -> str:
        """The canonical text of this key."""
        named = zip(self._fields, self, strict=True)
        return ",".join(f"{part}:{_write(name)}" for part, name in named if name is not None)

    def covers(self, use: Key) -> bool:
        """Whether a use has all the parts of this key."""
        return all(mine is None or mine == theirs for mine, theirs in zip(self, use, strict=True))


def _write(name: str) -> str:
    return "".join(_WRITTEN.get(character, character) for character in name)


def parse(text: str, where: str = "key") -> Key:
    """Parse the text of a key."""
    parts: dict[str, str] = {}
    for written in text.split(","):
        part, colon, name = written.strip().partition(":")
        if not colon or part not in Key._fields:
            raise InputError(f"{written.strip()!r} is not part of a key", where=where, hint=_HINT)
        if not name:
            raise InputError(f"the {part} has no name", where=where, hint=_HINT)
        if part in parts:
            raise InputError(f"the key names its {part} twice", where=where, hint=_HINT)
        if len(name) > MAX_NAME:
            raise TooLarge(f"{len(name)} characters, at most {MAX_NAME} are allowed", where=where, hint=_HINT)
        parts[part] = _ESCAPE.sub(lambda found: _READ[found[0].upper()], name)
    return Key(**parts)
