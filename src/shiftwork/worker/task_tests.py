"""Runs a task's tests in its work folder and returns the verdict."""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from shiftwork.validation.commands import Trial
from shiftwork.worker.error_text import clean
from shiftwork.worker.process_group import Group

MAX_OUTPUT = 65_536
"""The last bytes of the tests' output that are kept."""


async def run_tests(wanted: Trial, folder: Path, limit_sec: float | None, mark: str | None = None) -> dict[str, Any]:
    """Run the tests and return the verdict with its evidence. All their processes end with them, or at the time limit.

    Their processes carry a mark, by which they are found if this process dies first.
    """
    limits = [limit for limit in (wanted.timeout_sec, limit_sec) if limit is not None]
    limit = max(0.0, min(limits)) if limits else None
    printed = bytearray()
    began, exit_code, in_time = time.monotonic(), None, False
    try:
        group = _start(wanted, folder, mark or secrets.token_hex(8))
    except (OSError, ValueError) as error:
        return _verdict(wanted, None, b"", 0.0, f"the tests cannot be started: {error}")

    def collect(data: bytes) -> None:
        printed.extend(data)
        del printed[:-MAX_OUTPUT]

    try:
        await group.listen(collect, collect)
        with suppress(TimeoutError):
            async with asyncio.timeout(limit):
                await group.ended()
                in_time = True
    finally:
        exit_code = await group.reap()
    took = time.monotonic() - began
    late = None if in_time else f"the tests were ended after {took:.0f}s"
    return _verdict(wanted, exit_code if in_time else None, bytes(printed), took, late)


def _start(wanted: Trial, folder: Path, mark: str) -> Group:
    line = wanted.command
    arguments = ["/bin/sh", "-c", line] if isinstance(line, str) else line
    return Group.start(arguments, folder=folder, environment=os.environ, stdin=Path(os.devnull), mark=mark)


def _verdict(wanted: Trial, exit_code: int | None, printed: bytes, took: float, note: str | None) -> dict[str, Any]:
    evidence = {
        "command": wanted.command,
        "exit_code": exit_code,
        "output": clean(printed.decode("utf-8", "replace"), MAX_OUTPUT),
        "duration_sec": round(took, 3),
    }
    return {"passed": exit_code == 0, "evidence": evidence, "note": note}
