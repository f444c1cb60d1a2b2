"""The numbered requirements, one tab-separated file per source document.

A line is ``id<TAB>title`` with an optional third column: ``context`` for a row that only gives background
(nothing to test) and ``bench`` for a row about speed, shown by the benchmark instead of a test.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Kind = Literal["test", "bench", "context"]

HERE = Path(__file__).resolve().parent

# Document name -> the letter its ids start with.
DOCUMENTS = {"factory": "F", "loki": "L", "redis": "R", "aegis": "A", "coscientist": "C"}

_ID = re.compile(r"[A-Z]-[0-9]{3}")
_KINDS: dict[str, Kind] = {"bench": "bench", "context": "context"}


class LedgerError(ValueError):
    """A ledger file breaks its own format."""


@dataclass(frozen=True, slots=True)
class Row:
    """One requirement."""

    id: str
    title: str
    kind: Kind


def _parse(line: str, letter: str) -> Row:
    fields = line.split("\t")
    if len(fields) not in (2, 3):
        raise LedgerError(f"{len(fields)} columns, expected 2 or 3")
    row_id, title = fields[0], fields[1]
    if not _ID.fullmatch(row_id) or row_id[0] != letter:
        raise LedgerError(f"bad id {row_id!r}, expected {letter}-nnn")
    if not title or title != title.strip():
        raise LedgerError(f"{row_id}: title is empty or padded with blanks")
    if len(fields) == 2:
        return Row(row_id, title, "test")
    if fields[2] not in _KINDS:
        raise LedgerError(f"{row_id}: unknown kind {fields[2]!r}")
    return Row(row_id, title, _KINDS[fields[2]])


def _rows(path: Path, letter: str) -> Iterator[Row]:
    previous = ""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            row = _parse(line, letter)
        except LedgerError as error:
            raise LedgerError(f"{path.name}:{number}: {error}") from None
        if row.id <= previous:
            raise LedgerError(f"{path.name}:{number}: {row.id} after {previous}: ids must be unique and sorted")
        previous = row.id
        yield row


def load(folder: Path = HERE) -> dict[str, Row]:
    """Read every document of the ledger; ids are checked to be well formed, unique and sorted."""
    return {row.id: row for name in DOCUMENTS for row in load_document(name, folder)}


def load_document(name: str, folder: Path = HERE) -> list[Row]:
    """Read one document of the ledger, in id order."""
    return list(_rows(folder / f"{name}.tsv", DOCUMENTS[name]))
