"""Scans a SQLite file for damage: broken pages, invalid UTF-8, and invalid JSON."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import apsw
import msgspec

from shiftwork.store.catalogue import Table, tables
from shiftwork.store.sqlite_tx import translate

SECONDS = 5.0
"""Time limit for the pages, and again for the rows: a large file is only scanned in part."""

MAX_COUNT = 10
"""The scan stops after this many findings."""

STEPS = 10_000
"""Steps of the engine between two checks of the clock."""

FIRST = ("bodies", "tasks", "lanes", "agents", "settings", "attempts")
"""Tables that every claim and list reads come first."""


class DamageReport(NamedTuple):
    """The findings, and whether the time sufficed for the whole file."""

    damage: list[str]
    whole: bool


def scan(file: Path, seconds: float = SECONDS) -> DamageReport:
    """Scan without writing anything. Errors of the engine, such as a locked file, are raised."""
    connection = apsw.Connection(str(file), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        pages = _pages(connection, seconds)
        rows = _rows(connection, seconds) if not pages.damage else DamageReport([], whole=False)
    except (apsw.Error, UnicodeDecodeError) as error:
        raise translate(error, str(file)) from error
    finally:
        connection.close()
    return DamageReport([*pages.damage, *rows.damage][:MAX_COUNT], pages.whole and rows.whole)


def _pages(connection: apsw.Connection, seconds: float) -> DamageReport:
    """Check the pages with the engine's own check."""
    is_over = _limit(seconds)
    connection.set_progress_handler(is_over, STEPS)
    try:
        lines = [str(line) for (line,) in connection.execute(f"pragma quick_check({MAX_COUNT})")]
    except apsw.InterruptError:
        return DamageReport([], whole=False)
    finally:
        connection.set_progress_handler(None)
    return DamageReport([] if lines == ["ok"] else lines, whole=True)


def _rows(connection: apsw.Connection, seconds: float) -> DamageReport:
    """Read each row as the queue does: the engine does not check the contents of columns."""
    is_over = _limit(seconds)
    order = {name: place for place, name in enumerate(FIRST)}
    damage: list[str] = []
    for table in sorted(tables(), key=lambda table: order.get(table.name, len(order))):
        for found in _damaged_rows(connection, table):
            if is_over():
                return DamageReport(damage, whole=False)
            if found is not None:
                damage.append(found)
            if len(damage) >= MAX_COUNT:
                return DamageReport(damage, whole=False)
    return DamageReport(damage, whole=True)


def _damaged_rows(connection: apsw.Connection, table: Table) -> Iterator[str | None]:
    """For each row, its defect or None."""
    rows: Iterator[Any] = connection.execute(f"select {', '.join(table.names)} from {table.name}")  # noqa: S608  # names of our own
    for number in itertools.count():
        try:
            yield _what_is_no_json(table, next(rows))
        except StopIteration:
            return
        except UnicodeDecodeError:
            yield _what_is_no_text(connection, table, number)


def _what_is_no_json(table: Table, row: Sequence[Any]) -> str | None:
    for place in table.places("json"):
        try:
            if row[place] is not None:
                msgspec.json.decode(row[place])
        except msgspec.DecodeError as error:
            return f"{table.name}.{table.names[place]} of {row[0]} is not valid JSON: {error}"
    return None


def _what_is_no_text(connection: apsw.Connection, table: Table, number: int) -> str:
    """Name the unreadable column of the row, which is read as bytes, and its task."""
    columns = ", ".join(f"cast({name} as blob)" for name in table.names)
    query = f"select {columns} from {table.name} limit 1 offset ?"  # noqa: S608  # likewise
    values: list[bytes | None] = list(next(iter(connection.execute(query, (number,)))))
    owner = (values[0] or b"").decode(errors="backslashreplace")
    bad = [name for name, value in zip(table.names, values, strict=True) if not _is_text(value)]
    return f"{table.name}.{', '.join(bad)} of {owner} is not UTF-8"


def _is_text(value: bytes | None) -> bool:
    try:
        (value or b"").decode()
    except UnicodeDecodeError:
        return False
    return True


def _limit(seconds: float) -> Callable[[], bool]:
    end = time.monotonic() + seconds
    return lambda: time.monotonic() > end
