"""``python -m tests.requirements``: how many requirements are shown by a test, and which are still open."""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.requirements.collect import ROOT, faults, scan
from tests.requirements.ledger import DOCUMENTS, Row, load, load_document

REPORT = ".bench.json"
"""What `make bench` wrote last."""


@dataclass(frozen=True, slots=True)
class Tally:
    """The state of one document."""

    document: str
    shown: dict[str, list[str]]
    open: list[Row]
    context: list[str]

    @property
    def total(self) -> int:
        """Rows that can be shown; background rows are not counted."""
        return len(self.shown) + len(self.open)

    @property
    def percent(self) -> float:
        return _percent(len(self.shown), self.total)


def _percent(shown: int, total: int) -> float:
    """Rounded down to one decimal, so that 100.0 means all of them."""
    return shown * 1000 // total / 10 if total else 100.0


def tally(document: str, marks: dict[str, list[str]]) -> Tally:
    """Sort the rows of one document into shown, open and background."""
    rows = load_document(document)
    return Tally(
        document=document,
        shown={row.id: marks[row.id] for row in rows if row.id in marks and row.kind != "context"},
        open=[row for row in rows if row.id not in marks and row.kind != "context"],
        context=[row.id for row in rows if row.kind == "context"],
    )


def measured(marks: dict[str, list[str]], report: Path) -> dict[str, list[str]]:
    """The marks that count: one that only a benchmark carries is shown by its last report, within its limit."""
    rows = json.loads(report.read_text(encoding="utf-8"))["rows"] if report.exists() else {}
    kept = {}
    for row_id, names in marks.items():
        tests = [name for name in names if not name.startswith("bench/")]
        if tests or rows.get(row_id, {}).get("ok"):
            kept[row_id] = names
    return kept


def _line(name: str, shown: int, total: int) -> str:
    return f"{name:<12} {shown:>3} / {total:<3} shown {_percent(shown, total):>6.1f} %"


def _text(tallies: list[Tally], titles: dict[str, Row], *, show: bool) -> str:
    lines: list[str] = []
    for one in tallies:
        lines.append(_line(one.document, len(one.shown), one.total))
        if show:
            for row_id, names in one.shown.items():
                lines.append(f"  {row_id}  {titles[row_id].title}")
                lines.extend(f"           {name}" for name in names)
        else:
            for row in one.open:
                note = "  (benchmark)" if row.kind == "bench" else ""
                lines.append(f"  {row.id}  {row.title}{note}")
        if one.context:
            lines.append(f"  background only, not counted: {', '.join(one.context)}")
    if len(tallies) > 1:
        shown, total = sum(len(one.shown) for one in tallies), sum(one.total for one in tallies)
        lines.append(_line("all", shown, total))
    return "\n".join(lines)


def _json(tallies: list[Tally], found: list[str]) -> str:
    documents = {
        one.document: {
            "shown": one.shown,
            "open": {row.id: row.title for row in one.open},
            "context": one.context,
            "total": one.total,
            "percent": one.percent,
        }
        for one in tallies
    }
    return json.dumps({"documents": documents, "faults": found}, indent=2)


def main(argv: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Print the report; 1 if a mark names an unknown id or cannot be counted, else 0."""
    parser = argparse.ArgumentParser(prog="python -m tests.requirements", description=__doc__)
    parser.add_argument("--document", choices=sorted(DOCUMENTS), help="report one document only")
    parser.add_argument("--shown", action="store_true", help="list the shown rows and their tests instead")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    options = parser.parse_args(argv)

    ledger = load()
    result = scan(root)
    found = faults(ledger, result)
    names: list[str] = [options.document] if options.document else list(DOCUMENTS)
    marks = measured(result.marks, root / REPORT)
    tallies = [tally(name, marks) for name in names]
    report = _json(tallies, found) if options.json else _text(tallies, ledger, show=options.shown)
    sys.stdout.write(report + "\n")
    sys.stderr.writelines(fault + "\n" for fault in found)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
