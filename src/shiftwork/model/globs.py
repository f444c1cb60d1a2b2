"""File patterns with `*`, `?` and `**/`, matched in one pass over the path, whatever the pattern is."""

from __future__ import annotations

import re
from functools import lru_cache

_PARTS = re.compile(r"(\*\*/|\*|\?)")


class Glob:
    """A pattern as bits, one for each of its positions; a path is read once, and all positions advance together.

    `*` and `?` match between two slashes, `**/` matches any number of folders. A regular expression would backtrack at
    every star, which takes a power of the length.
    """

    def __init__(self, pattern: str) -> None:
        self._literal: dict[str, int] = {}
        self._any = self._stars = self._folders = self._inside = 0
        place = 1
        for part in _PARTS.split(pattern):
            place = self._add(part, place)
        self._end = place
        self._skipped = self._stars | self._folders | self._inside

    def _add(self, part: str, place: int) -> int:
        if part == "**/":
            # Two places: inside a folder's name, and between two folders, from where the rest may begin.
            self._inside, self._folders = self._inside | place, self._folders | place << 1
            return place << 2
        if part == "*":
            self._stars |= place
            return place << 1
        if part == "?":
            self._any |= place
            return place << 1
        for character in part:
            self._literal[character] = self._literal.get(character, 0) | place
            place <<= 1
        return place

    def matches(self, path: str) -> bool:
        at = self._settle(self._enter(1))
        for character in path:
            ahead = at & self._literal.get(character, 0)
            stay = 0
            if character == "/":
                between = (at & self._inside) << 1
            else:
                ahead |= at & self._any
                stay = at & (self._stars | self._inside) | (at & self._folders) >> 1
                between = 0
            at = self._settle(self._enter(ahead << 1) | stay | between)
            if not at:
                return False
        return bool(at & self._end)

    def _enter(self, at: int) -> int:
        """The positions reached from these; `**/` begins between two folders."""
        first = at & self._inside
        return at ^ first | first << 1

    def _settle(self, at: int) -> int:
        """Add the positions reached without a character, because stars and folders may match nothing.

        The carry of one addition fills a run of them from its first position to its end.
        """
        free = at & ~self._inside
        run = self._skipped
        return at | (((free & run) + run) ^ run | free) & ~self._inside


@lru_cache(1024)
def compiled(pattern: str) -> Glob:
    return Glob(pattern)
