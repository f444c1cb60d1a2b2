"""``python -m tests.requirements``: which requirements a test shows, which a measurement does, and which are open."""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.requirements.collect import ROOT, faults, scan
from tests.requirements.ledger import DOCUMENTS, Row, load, load_document

LIMITS = "bench/limits.json"
"""What `python -m bench --record` measured last, limit by limit."""

Limits = dict[str, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Tally:
    """The state of one document."""

    document: str
    tested: dict[str, list[str]]
    """Rows that a test shows, and which."""
    measured: dict[str, str]
    """Rows that the committed report of the benchmark shows, and how."""
    open: dict[str, str]
    """Rows that neither shows, and why not."""
    context: list[str]

    @property
    def total(self) -> int:
        """Rows that can be shown; background rows are not counted."""
        return len(self.tested) + len(self.measured) + len(self.open)


def tally(document: str, marks: dict[str, list[str]], limits: Limits) -> Tally:
    """Sort the rows of one document."""
    one = Tally(document, {}, {}, {}, [])
    for row in load_document(document):
        names = marks.get(row.id, [])
        tests = [name for name in names if not name.startswith("bench/")]
        if row.kind == "context":
            one.context.append(row.id)
        elif tests:
            one.tested[row.id] = tests
        elif names and limits.get(row.id, {}).get("ok"):
            one.measured[row.id] = _measured(limits[row.id])
        else:
            one.open[row.id] = _reason(row.id, names, limits.get(row.id))
    return one


def _measured(entry: dict[str, Any]) -> str:
    return f"{entry['date']}: {'; '.join(entry['checks'])}"


OUTSIDE = {"A-104": "the gate is `.ci/run`, which runs this suite and so cannot be run by it"}
"""Rows that only an observer of the whole project can see."""


def _reason(row_id: str, names: list[str], entry: dict[str, Any] | None) -> str:
    if not names:
        return OUTSIDE.get(row_id, "no test and no measurement")
    return "not measured yet" if entry is None else f"missed on {_measured(entry)}"


def _line(name: str, *tallies: Tally) -> str:
    tested, measured, open_ = (
        sum(len(getattr(one, kind)) for one in tallies) for kind in ("tested", "measured", "open")
    )
    total = tested + measured + open_
    return f"{name:<12} {tested:>3} by test, {measured:>2} by measurement, {open_:>3} not shown, of {total}"


def _text(tallies: list[Tally], titles: dict[str, Row], *, show: bool) -> str:
    lines: list[str] = []
    for one in tallies:
        lines.append(_line(one.document, one))
        if show:
            for row_id, names in one.tested.items():
                lines.append(f"  {row_id}  {titles[row_id].title}")
                lines.extend(f"           {name}" for name in names)
        for heading, rows in (("measured", one.measured), ("not shown", one.open)):
            lines.extend(f"  {row_id}  {titles[row_id].title} ({heading}: {why})" for row_id, why in rows.items())
        if one.context:
            lines.append(f"  background only, not counted: {', '.join(one.context)}")
    if len(tallies) > 1:
        lines.append(_line("all", *tallies))
    return "\n".join(lines)


def _json(tallies: list[Tally], found: list[str]) -> str:
    documents = {
        one.document: {
            "tested": one.tested,
            "measured": one.measured,
            "open": one.open,
            "context": one.context,
            "total": one.total,
        }
        for one in tallies
    }
    return json.dumps({"documents": documents, "faults": found}, indent=2)


def main(argv: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Print the report; 1 if a mark names an unknown id or cannot be counted, else 0."""
    parser = argparse.ArgumentParser(prog="python -m tests.requirements", description=__doc__)
    parser.add_argument("--document", choices=sorted(DOCUMENTS), help="report one document only")
    parser.add_argument("--shown", action="store_true", help="list the tests of each row as well")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    options = parser.parse_args(argv)

    ledger = load()
    result = scan(root)
    found = faults(ledger, result)
    names: list[str] = [options.document] if options.document else list(DOCUMENTS)
    report = root / LIMITS
    limits: Limits = json.loads(report.read_text(encoding="utf-8")) if report.exists() else {}
    tallies = [tally(name, result.marks, limits) for name in names]
    text = _json(tallies, found) if options.json else _text(tallies, ledger, show=options.shown)
    sys.stdout.write(text + "\n")
    sys.stderr.writelines(fault + "\n" for fault in found)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
