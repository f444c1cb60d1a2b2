"""Makes the text of errors and programs safe for logs and stores."""

from __future__ import annotations

import traceback

MAX_LINE_LENGTH = 2_000
MAX_TRACE_LENGTH = 50_000
"""How many characters of an error are logged."""


class Shortened(Exception):
    """Replaces an error whose message would flood the log, or is not text, keeping the traceback."""


def describe(error: BaseException) -> str:
    """The error in one line, even if its `__str__` fails."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001  # the user's own __str__
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def in_log(error: BaseException) -> BaseException:
    """The error to log: itself, unless its message or its causes' are too long, or are not text."""
    words = "".join(traceback.format_exception(error))
    if len(words) <= MAX_TRACE_LENGTH and words == in_line(words, MAX_TRACE_LENGTH):
        return error
    return Shortened(in_line(describe(error))).with_traceback(error.__traceback__)


def in_line(words: str, limit: int = MAX_LINE_LENGTH) -> str:
    """Text that every log accepts: a UTF-8 file refuses a lone surrogate, and the line would be lost."""
    return words[:limit].encode("utf-8", "replace").decode()


def clean(text: object, limit: int) -> str:
    """Text that every store can hold, even of an object whose `__str__` fails."""
    plain = text if isinstance(text, str) else "" if text is None else _words(text)
    return plain.replace("\0", "").encode("utf-8", "replace").decode()[:limit]


def _words(value: object) -> str:
    try:
        return str(value)
    except Exception:  # noqa: BLE001  # the user's own __str__
        return type(value).__name__
