"""Prints answers: JSON for programs, tables for people."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from datetime import UTC, datetime
from typing import Any

import click
import msgspec

from shiftwork.model.errors import ShiftworkError
from shiftwork.model.text import printable

clean = printable

_TIMES = frozenset({"at", "deadline", "until", "ack_required_by", "execution_deadline"})
_TIMES |= {"last_heartbeat", "last_seen", "last_failure", "closed_until", "since"}
_OPAQUE = frozenset({"payload", "data", "progress", "settings", "spec", "output", "decision_report", "change"})
_OPAQUE |= {"value", "retry", "priority_parts", "schema", "evidence", "payload_schema", "result_schema"}
"""Fields with callers' own content: their values are never shown as times."""

_STYLES = {
    "ready": "cyan",
    "claimed": "blue",
    "running": "blue",
    "validating": "blue",
    "completed": "green",
    "retrying": "yellow",
    "failed": "red",
    "dead_lettered": "red",
    "cancelled": "dim",
    "active": "green",
    "draining": "yellow",
    "offline": "dim",
    "ok": "green",
    "warning": "yellow",
    "error": "bold red",
}
MAX_NAME_WIDTH = 40
"""Ids and other names of up to this length are not broken over two lines."""

_UNITS = ((86400.0, "d"), (3600.0, "h"), (60.0, "m"))


def plain(value: Any) -> Any:
    """The value for JSON, with times in ISO-8601 UTC."""
    if isinstance(value, ShiftworkError):
        return value.as_dict()
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, msgspec.Struct):
        value = _fields(value)
    if isinstance(value, Mapping):
        return {str(name): _member(str(name), inner) for name, inner in value.items()}
    return [plain(inner) for inner in value] if isinstance(value, list | tuple | set | frozenset) else value


def _fields(struct: msgspec.Struct) -> dict[str, Any]:
    """Its fields; one of several kinds, or with fields of other names in JSON, as it is over HTTP."""
    if struct.__struct_config__.tag is None and struct.__struct_encode_fields__ == struct.__struct_fields__:
        return msgspec.structs.asdict(struct)
    fields: dict[str, Any] = msgspec.to_builtins(struct)
    return fields


def _member(name: str, value: Any) -> Any:
    if name in _OPAQUE:
        return value
    is_time = name in _TIMES or name.endswith("_at")
    return iso(value) if is_time and isinstance(value, int | float) and not isinstance(value, bool) else plain(value)


def document(value: Any) -> None:
    """One JSON document."""
    click.echo(msgspec.json.format(encoded(value), indent=2))


def line(value: Any) -> None:
    """One line of a stream of JSON."""
    click.echo(encoded(value))


def encoded(value: Any) -> bytes:
    """Encode as JSON in UTF-8. A file name may contain invalid bytes: they are escaped."""
    try:
        return msgspec.json.encode(plain(value))
    except UnicodeEncodeError:
        return json.dumps(plain(value)).encode()


def iso(at: float) -> str | float:
    """A time for programs; a number without a calendar date stays a number."""
    try:
        return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (OverflowError, ValueError, OSError):
        return at


def when(at: float | None) -> str:
    """A time for people, in UTC."""
    return "" if at is None else str(iso(at)).replace("T", " ")[:19] + "Z"


def style(word: str) -> str:
    """The colour of a state."""
    return _STYLES.get(word, "")


def ago(at: float | None, now: float) -> str:
    """How long ago, in the largest fitting unit; a future time is `in …`."""
    if at is None:
        return ""
    span = abs(now - at)
    size, unit = next(((size, unit) for size, unit in _UNITS if span >= size), (1.0, "s"))
    return f"in {span / size:.0f}{unit}" if at > now + 0.5 else f"{span / size:.0f}{unit}"


def usd(amount: float | None) -> str:
    """Dollars with cents, and more digits only if needed."""
    if amount is None:
        return ""
    return f"${amount:.2f}" if round(amount, 2) == round(amount, 6) else f"${amount:.4f}"


def echo(text: str) -> None:
    """A line for people; what could control the terminal is escaped."""
    click.echo(clean(text))


def clip(text: str | None, most: int = 60) -> str:
    shown = clean(text or "").replace("\n", " ")
    return shown if len(shown) <= most else shown[: most - 1] + "…"


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(_cell(inner) for inner in value)
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, dict):
        return clean(msgspec.json.encode(value).decode())
    return clean(str(value)).replace("\n", " ")


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], empty: str = "none") -> None:
    """Rows under headings: as wide as the terminal allows, or whole when they go to a file or a pipe."""
    cells = [[_cell(value) for value in row] for row in rows]
    if not cells:
        click.echo(empty)
    elif sys.stdout.isatty():
        _terminal_table(columns, cells)
    else:
        widths = [max(len(c) for c in column) for column in zip(columns, *cells, strict=True)]
        for row in [list(columns), *cells]:
            click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _terminal_table(columns: Sequence[str], cells: list[list[str]]) -> None:
    from rich.console import Console  # noqa: PLC0415  # slow to load, and needed on a terminal alone
    from rich.table import Table  # noqa: PLC0415  # likewise
    from rich.text import Text  # noqa: PLC0415  # likewise

    drawn = Table(box=None, pad_edge=False, header_style="bold")
    for place, name in enumerate(columns):
        is_name = place == 0 or all(" " not in row[place] and len(row[place]) <= MAX_NAME_WIDTH for row in cells)
        drawn.add_column(Text(name), no_wrap=is_name, overflow="fold", min_width=len(name))
    for row in cells:
        drawn.add_row(*(Text(cell, style=style(cell)) for cell in row))
    Console(highlight=False).print(drawn)


def facts(pairs: Iterable[tuple[str, object]]) -> None:
    """Names and values below each other; unknown values are left out."""
    known = [(name, value) for name, value in pairs if value not in (None, "", [], {})]
    width = max((len(name) for name, _ in known), default=0)
    for name, value in known:
        text = clean(value) if isinstance(value, str) else _cell(value)
        click.echo(f"{name.ljust(width)}  " + text.replace("\n", "\n" + " " * (width + 2)))


def section(title: str, body: Callable[[], None]) -> None:
    click.echo(f"\n{title}")
    body()


def pretty(value: Any) -> str:
    return clean(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


STDOUT, STDERR = 1, 2


@contextmanager
def reserved_stdout() -> Iterator[Callable[[Any], None]]:
    """Reserve standard output for one document; yields the function that prints it.

    All other output inside the block, also that of child processes, goes to standard error.
    """
    stream = sys.stdout
    stream.flush()
    ours = os.dup(STDOUT)
    aside = os.dup(STDERR) if sys.stderr is not None else os.open(os.devnull, os.O_WRONLY)

    def print_document(value: Any) -> None:
        stream.flush()  # code that kept the stream may have printed there
        with _stdout_is(ours), redirect_stdout(stream):
            document(value)

    try:
        with _stdout_is(aside), redirect_stdout(sys.stderr):
            yield print_document
            stream.flush()
    finally:
        os.close(ours)
        os.close(aside)


@contextmanager
def _stdout_is(other: int) -> Iterator[None]:
    kept = os.dup(STDOUT)
    os.dup2(other, STDOUT)
    try:
        yield
    finally:
        os.dup2(kept, STDOUT)
        os.close(kept)
