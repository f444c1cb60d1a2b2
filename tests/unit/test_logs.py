"""Log lines for people: one record is one line, whatever text it contains."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

from shiftwork import logs


def record(message: str, *args: object, error: BaseException | None = None) -> logging.LogRecord:
    caught = None if error is None else (type(error), error, error.__traceback__)
    return logging.LogRecord("shiftwork.compat.bridges", logging.WARNING, __file__, 1, message, args, caught)


def test_external_text_cannot_forge_log_records_or_control_codes(tmp_path: Path) -> None:
    file = tmp_path / "log"
    try:
        logs.set_up(json=False, file=file)
        logging.getLogger("shiftwork.compat.bridges").warning(
            "%s was refused", "a\n2026-01-01 root INFO all is well\x1b[2J"
        )
    finally:
        logging.basicConfig(handlers=[logging.StreamHandler(sys.stderr)], force=True)
    (line,) = file.read_text().splitlines()
    assert "a\\n2026-01-01 root INFO all is well\\x1b[2J was refused" in line


def test_exception_message_cannot_forge_a_log_record() -> None:
    text = logs.PlainLines("%(message)s").format(record("failed", error=ValueError("a\nforged\x1b[2J")))
    assert [line for line in text.split("\n") if not line.startswith("  ")] == ["failed"]
    assert "\x1b" not in text
