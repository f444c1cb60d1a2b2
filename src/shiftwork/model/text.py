"""Text for people: durations and dollars, and what callers wrote made safe to print on a terminal or in a log."""

from __future__ import annotations

from urllib.parse import parse_qsl, urlencode, urlsplit

SHOWN_OF_QUERIES = frozenset({"schema"})
"""The parameters of an address that are printed; others may be a password or the name of a file with one."""


def printable(text: str) -> str:
    """Escape characters that could move the cursor, colour the terminal or reorder the line. Line breaks stay."""
    return text if text.isprintable() else "".join(c if c.isprintable() or c == "\n" else _escape(c) for c in text)


def one_line(text: str) -> str:
    """The same with line breaks escaped, so that one text cannot look like two lines."""
    return printable(text).replace("\n", "\\n")


def _escape(character: str) -> str:
    return "    " if character == "\t" else character.encode("unicode_escape", "backslashreplace").decode()


def without_secrets(url: str) -> str:
    """An address without its password, and without parameters that may be one."""
    parts = urlsplit(url)
    user, at, host = parts.netloc.rpartition("@")
    query = urlencode([pair for pair in parse_qsl(parts.query) if pair[0] in SHOWN_OF_QUERIES])
    if not at and query == parts.query:
        return url
    return parts._replace(netloc=f"{user.partition(':')[0]}{at}{host}", query=query).geturl()


def duration(seconds: float) -> str:
    """A duration for people: 12 ms, 3.4 s, 2 min 5 s, 1 h 2 min."""
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def dollars(amount: float) -> str:
    """Dollars to the cent, with more digits for smaller amounts."""
    return f"${amount:.2f}" if amount >= 0.995 or round(amount, 2) == round(amount, 6) else f"${amount:.4f}"
