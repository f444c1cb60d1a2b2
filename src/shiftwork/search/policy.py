"""Splits text into words, and decides when the words of a task match a search.

Both databases get words instead of text, so that they find the same tasks, and no search reaches their query languages.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from shiftwork.model import check
from shiftwork.model.bounds import MAX_SEARCH
from shiftwork.model.errors import InputError

MAX_TERMS = 16
MAX_WORDS = 2_000
"""The most different words indexed per task."""

MAX_WORD = 64
"""Longer words are found by their beginning."""

WHOLE_BELOW = 3
"""A shorter word only matches whole words: nearly every task has one that begins with a given letter."""

_WORD = re.compile(r"[^\W_]+")
_ESCAPE = re.compile(r"\\(?:u[0-9a-fA-F]{4}|.)")
"""In JSON text, where `\\n` would become the beginning of the next word."""


class Terms(NamedTuple):
    """The words that a task must have: whole, or the beginning of one."""

    words: tuple[str, ...]

    def match(self, words: Sequence[str]) -> bool:
        """Whether each is among the words of a task, which are sorted."""
        return all(_has(words, term) for term in self.words)

    @property
    def tsquery(self) -> str:
        """The search for PostgreSQL. Words have only letters and digits, so none contains an operator."""
        return " & ".join(f"'{word}':*" if is_beginning(word) else f"'{word}'" for word in self.words)

    @property
    def fts5(self) -> str:
        """The search for SQLite."""
        return " AND ".join(f'"{word}"*' if is_beginning(word) else f'"{word}"' for word in self.words)


def terms(search: str) -> Terms:
    """The words of a search."""
    check.text(search, "search", MAX_SEARCH)
    found = tuple(dict.fromkeys(words_of([search])))
    if not found:
        raise InputError("a search needs a letter or a digit", where="search", hint="Search for one or more words.")
    if len(found) > MAX_TERMS:
        raise InputError(
            f"{len(found)} words, at most {MAX_TERMS} are allowed", where="search", hint="Use fewer words."
        )
    return Terms(found)


def is_beginning(word: str) -> bool:
    return len(word) >= WHOLE_BELOW


def words_of(texts: Iterable[str | None]) -> list[str]:
    """The words of some texts in order: letters and digits, in lower case."""
    found: list[str] = []
    for text in texts:
        if text:
            folded = unicodedata.normalize("NFKC", text).casefold()
            found += [word[:MAX_WORD] for word in _WORD.findall(folded)]
    return found


def index_words(texts: Iterable[str | None], documents: Iterable[str | None]) -> list[str]:
    """The indexed words of a task, each once and sorted; `documents` are JSON."""
    plain = [None if text is None else _ESCAPE.sub(" ", text) for text in documents]
    kept = dict.fromkeys(words_of([*texts, *plain]))
    return sorted(list(kept)[:MAX_WORDS])


def _has(words: Sequence[str], term: str) -> bool:
    place = bisect_left(words, term)
    if place == len(words):
        return False
    return words[place].startswith(term) if is_beginning(term) else words[place] == term
