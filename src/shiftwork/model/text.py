"""Text that callers wrote, made safe to print on a terminal or in a log."""

from __future__ import annotations


def printable(text: str) -> str:
    """Write out what could move the cursor, colour the terminal or reorder the line. Line breaks stay."""
    return text if text.isprintable() else "".join(c if c.isprintable() or c == "\n" else _escape(c) for c in text)


def one_line(text: str) -> str:
    """The same with line breaks written out, so that one text cannot look like two lines."""
    return printable(text).replace("\n", "\\n")


def _escape(character: str) -> str:
    return "    " if character == "\t" else character.encode("unicode_escape", "backslashreplace").decode()
