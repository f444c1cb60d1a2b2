"""Formats log lines: as text for people, or as one JSON object each for machines."""

from __future__ import annotations

import logging
import os
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from shiftwork import tracing
from shiftwork.model.text import one_line, printable

_USUAL = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}


class JsonLines(logging.Formatter):
    """One JSON object per record: the message, its task and trace, and the fields of `extra`."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "at": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **tracing.facts(),
        }
        line.update({name: value for name, value in vars(record).items() if name not in _USUAL})
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line, enc_hook=str).decode()


class PlainLines(logging.Formatter):
    """One line per record. Text of tasks and files can neither forge a record nor send control codes to a terminal."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # a name of the library
        record.message = one_line(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:  # noqa: N802  # a name of the library
        """Indent the traceback, since the message of an exception may contain line breaks, too."""
        return "\n".join(f"  {line}" for line in printable(super().formatException(ei)).split("\n"))


def set_up(*, json: bool, file: Path | None = None, quiet: bool = False) -> None:
    """Log to standard error or to a file; with `quiet`, only warnings and errors."""
    if file is not None and not file.exists():
        os.close(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
    handler = logging.FileHandler(file, encoding="utf-8") if file is not None else logging.StreamHandler(sys.stderr)
    people = PlainLines("%(asctime)s %(name)s %(levelname)s %(message)s")
    handler.setFormatter(JsonLines() if json else people)
    logging.basicConfig(level=logging.WARNING if quiet else logging.INFO, handlers=[handler], force=True)
    # asyncpg logs a traceback for every failed connection; the store itself logs that the database is unavailable.
    logging.getLogger("asyncpg.pool").setLevel(logging.ERROR)
