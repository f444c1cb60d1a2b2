"""Fingerprints of failures: type, reason and the line of the error that names the cause, without its volatile parts."""

from __future__ import annotations

import re

from shiftwork.model import reasons

MAX_LENGTH = 200
HEAD = 2_000
TAIL = 6_000
"""How many characters to read at the beginning and at the end of an error."""

_ENDED = re.compile(r"(?:exit code \d{1,9}|killed by \w{1,40}|it ended well and printed no result)$")
"""The first line of a command's error; the cause comes after it."""

_TRACEBACK = "Traceback (most recent call last):"
_RAISED = re.compile(r"[A-Za-z_][\w.]{0,200}(?::[ ]|$)")
_TROUBLE = re.compile(
    r"error|exception|fatal|panic|failed|denied|invalid|limit|refused|not found|no such", re.IGNORECASE
)
_TYPED = re.compile(r"\\?[\"'](?:type|code|status)\\?[\"']:[ ]?\\?[\"'](?!error\b)([A-Za-z_]{1,64})\\?[\"']")
_MESSAGE = re.compile(r"\\?[\"']message\\?[\"']:[ ]?\\?[\"']([^\"\\\n]{1,200})")
_RESET = re.compile(
    r"[ ·∙|(,.]{0,4}\b(?:(?:will )?resets?|try again|retry[-_ ]after|please (?:try|retry|wait))\b", re.IGNORECASE
)

_PATH = re.compile(r"(?<![\w/])(?:[A-Za-z]:)?[~.\w-]{0,100}(?:[/\\][^\s/\\:'\"(),;]{1,100}){2,}")
_UUID = re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", re.IGNORECASE)
_TIME = re.compile(r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d)?(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?\b")
_TOKEN = re.compile(r"[^\W_]+")
_NUMBERS = re.compile(r"\d+(?:[.,:-]\d+)*")
_HEX_DIGITS = frozenset("0123456789abcdefABCDEF")


def fingerprint(type_: str, reason: str | None, error: str | None) -> str:
    """The group of a failure, as text that people read."""
    line = cause_line(error or "")
    if reason == reasons.RATE_LIMIT and (reset := _RESET.search(line)) is not None and reset.start() > 0:
        line = line[: reset.start()]  # the time of a reset differs each time
    return f"{type_}/{reason or 'unknown'}/{fold(line)[:MAX_LENGTH]}"


def cause_line(error: str) -> str:
    """The line with the cause: a traceback's exception, a command's last error, otherwise the first line."""
    text = error if len(error) <= HEAD + TAIL else f"{error[:HEAD]}\n{error[-TAIL:]}"
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        return ""
    ended = _ENDED.match(lines[0]) is not None
    rest = lines[1:] if ended else lines
    found = _raised(rest) or (_last_trouble(rest) if ended else None)
    return _typed((found or (rest[0] if rest else lines[0])).strip()[:2_000])


def _raised(lines: list[str]) -> str | None:
    """The exception of the last traceback."""
    starts = [place for place, line in enumerate(lines) if _TRACEBACK in line]
    if not starts:
        return None
    for line in lines[starts[-1] + 1 :]:
        if not line[0].isspace() and _RAISED.match(line) is not None:
            return line
    return None


def _last_trouble(lines: list[str]) -> str | None:
    return next((line for line in reversed(lines) if _TROUBLE.search(line[:2_000])), lines[-1] if lines else None)


def _typed(line: str) -> str:
    """A provider's JSON by its own type and message."""
    typed, message = _TYPED.search(line), _MESSAGE.search(line)
    if typed is None:
        return line
    return f"{typed[1]}: {message[1]}" if message is not None else typed[1]


def fold(line: str) -> str:
    """Remove numbers, ids, hashes, and the folders of paths."""
    named = _PATH.sub(lambda found: re.split(r"[/\\]", found[0])[-1], line[: 5 * MAX_LENGTH])
    plain = _TIME.sub("#", _UUID.sub("#", named))
    return _NUMBERS.sub("#", _TOKEN.sub(_fold_token, plain))


def _fold_token(found: re.Match[str]) -> str:
    token = found[0]
    if not any(map(str.isdigit, token)) or token.isdigit():
        return token
    is_hex = len(token) >= 7 and _HEX_DIGITS.issuperset(token)  # a short commit hash
    is_id = len(token) >= 10 and any(map(str.isalpha, token))
    return "#" if is_hex or is_id else token
