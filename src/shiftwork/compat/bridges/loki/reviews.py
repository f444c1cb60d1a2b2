"""Writes review decisions about dead letters to `logs/decisions/dlq-review-{date}.md`, one file per day."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path

from shiftwork.compat.external.loki_folder import read_own, replace
from shiftwork.model.text import printable
from shiftwork.queue import Queue
from shiftwork.store.store import Row

PAGE = 1000
LOOK_BACK = 100
"""How many earlier decisions to read again: concurrent ones can become visible out of order."""


class Reviews:
    """Writes each decision once, marked with its number in a comment."""

    def __init__(self, queue: Queue, folder: Path) -> None:
        self._queue = queue
        self._folder = folder / "logs" / "decisions"
        self._last = 0

    async def write(self) -> int:
        """Append new decisions; returns how many."""
        added = 0
        after = max(0, self._last - LOOK_BACK)
        while rows := await self._after(after):
            added += await asyncio.to_thread(self._add, rows)
            after = self._last = int(rows[-1]["seq"])  # only after writing, so that a failed write is repeated
        return added

    async def _after(self, after: int) -> list[Row]:
        names = {"after": after, "workspace": self._queue.workspace, "count": PAGE}
        return list(await self._queue.engine.store.read(lambda tx: tx.all("reviews_after", **names)))

    def _add(self, rows: list[Row]) -> int:
        by_day: dict[str, list[Row]] = defaultdict(list)
        for row in rows:
            by_day[_when(row).date().isoformat()].append(row)
        return sum(self._add_to_day(day, of_day) for day, of_day in by_day.items())

    def _add_to_day(self, day: str, rows: list[Row]) -> int:
        file = self._folder / f"dlq-review-{day}.md"
        known = read_own(file)
        text = f"# Dead letters reviewed on {day}\n\n" if known is None else known.decode("utf-8", "replace")
        lines = [_line(row) for row in rows if _mark(row) not in text]
        if lines:
            file.parent.mkdir(parents=True, exist_ok=True)
            replace(file, (text + "".join(lines)).encode())
        return len(lines)


def _line(row: Row) -> str:
    name, kind, actor = map(_one_line, (row["external_id"] or row["task_id"], row["type"], row["actor"]))
    note = f": {_one_line(row['note'])}" if row["note"] else ""
    error = f" Last error: {_one_line(row['error'])}" if row["error"] else ""
    time = _when(row).strftime("%H:%M:%SZ")
    return f"- {time} **{row['decision']}** of `{name}` ({kind}) by {actor}{note}.{error} {_mark(row)}\n"


def _mark(row: Row) -> str:
    return f"<!-- review {row['seq']} -->"


def _when(row: Row) -> datetime:
    return datetime.fromtimestamp(row["at"], UTC)


def _one_line(text: str) -> str:
    """Agents and people must not be able to add a line or a mark to the record."""
    return printable(" ".join(text.split())).replace("<!--", "< !--").rstrip(".")
