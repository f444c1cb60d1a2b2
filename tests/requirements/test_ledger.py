"""The ledger is complete, and every mark in the tests refers to a row of it."""

import json
from pathlib import Path

import pytest

from tests.requirements.__main__ import LIMITS, main, tally
from tests.requirements.collect import ROOT, Scan, collect, faults, scan, scan_source
from tests.requirements.ledger import DOCUMENTS, HERE, LedgerError, load, load_document

COUNTS = {"factory": 276, "loki": 150, "redis": 60, "aegis": 121, "coscientist": 267}
CONTEXT = {"F-276", "C-002", "A-002", "A-003", "A-117", "A-118", "A-119", "A-120", "A-121"}


def test_every_requirement_row_is_present() -> None:
    assert len(load()) == 874
    assert {name: len(load_document(name)) for name in DOCUMENTS} == COUNTS


@pytest.mark.parametrize("name", COUNTS)
def test_requirement_ids_have_no_gaps(name: str) -> None:
    ids = [row.id for row in load_document(name)]
    assert ids == [f"{DOCUMENTS[name]}-{number:03d}" for number in range(1, COUNTS[name] + 1)]


def test_context_and_bench_rows_are_marked() -> None:
    rows = load().values()
    assert {row.id for row in rows if row.kind == "context"} == CONTEXT
    assert sum(row.kind == "bench" for row in rows) == 15


def test_requirement_titles_are_short() -> None:
    assert [row.id for row in load().values() if not 4 <= len(row.title.split()) <= 10] == []


def test_every_mark_names_a_known_requirement() -> None:
    assert faults(load(), scan()) == []


def test_no_context_row_is_marked() -> None:
    assert CONTEXT & collect().keys() == set()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("F-1\tan id that is too short", "bad id"),
        ("L-001\tan id of another document", "bad id"),
        ("F-001", "1 columns"),
        ("F-001\t", "title is empty"),
        ("F-001\ta row of odd kind\todd", "unknown kind"),
        ("F-001\tthe same id again\nF-001\tthe same id again", "unique and sorted"),
    ],
)
def test_broken_ledger_is_refused(tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "factory.tsv").write_text(line + "\n", encoding="utf-8")
    with pytest.raises(LedgerError, match=message):
        load_document("factory", tmp_path)


SOURCE = """
import pytest
pytestmark = [pytest.mark.slow, pytest.mark.requirement("F-001")]
CASES = [pytest.param(1, marks=pytest.mark.requirement("F-002"))]

@pytest.mark.requirement("F-003", "F-004")
async def test_one(): ...

@pytest.mark.requirement("F-005")
class TestGroup:
    pytestmark = pytest.mark.requirement("F-006")

    @pytest.mark.parametrize("x", [pytest.param(1, marks=[pytest.mark.requirement("F-007")])])
    @pytest.mark.requirement("F-003")
    def test_two(self, x): ...

@pytest.mark.skip(reason="not yet")
@pytest.mark.requirement("F-008")
def test_off(): ...

@pytest.mark.parametrize("x", [pytest.param(1, marks=[pytest.mark.xfail, pytest.mark.requirement("F-009")])])
def test_case_off(x): ...
"""


def test_marks_are_found_everywhere_pytest_accepts_them() -> None:
    result = Scan()
    scan_source(SOURCE, "tests/test_a.py", result)
    assert result.problems == []
    assert result.marks == {
        "F-001": ["tests/test_a.py"],
        "F-002": ["tests/test_a.py::CASES"],
        "F-003": ["tests/test_a.py::test_one", "tests/test_a.py::TestGroup::test_two"],
        "F-004": ["tests/test_a.py::test_one"],
        "F-005": ["tests/test_a.py::TestGroup"],
        "F-006": ["tests/test_a.py::TestGroup"],
        "F-007": ["tests/test_a.py::TestGroup::test_two"],
    }


def test_benchmark_marks_are_found_in_source() -> None:
    result = Scan()
    scan_source('@requirement("C-104")\ndef assignment(): ...', "bench/latency.py", result)
    assert result == Scan({"C-104": ["bench/latency.py::assignment"]}, [])


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("@pytest.mark.requirement(NAME)\ndef test_a(): ...", "plain strings"),
        ("@pytest.mark.requirement()\ndef test_a(): ...", "one or more ids"),
        ('@pytest.mark.requirement("F-001")\ndef helper(): ...', "not a test"),
        ('def test_a():\n    @requirement("F-001")\n    def test_b(): ...', "not a test"),
        ("def test_requirement(:", "cannot be read"),
    ],
)
def test_marks_that_cannot_count_are_reported(source: str, message: str) -> None:
    result = Scan()
    scan_source(source, "tests/test_a.py", result)
    assert result.marks == {}
    assert [message in problem for problem in result.problems] == [True]


def _tree(root: Path, row_id: str) -> Path:
    (root / "tests").mkdir()
    source = f'@pytest.mark.requirement("{row_id}")\ndef test_a(): ...\n'
    (root / "tests" / "test_a.py").write_text(source, encoding="utf-8")
    return root


def test_report_lists_tested_and_open_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = _tree(tmp_path, "R-001")
    assert main(["--document", "redis"], root) == 0
    out = capsys.readouterr().out
    assert "1 by test,  0 by measurement,  59 not shown, of 60" in out
    assert "R-002" in out
    assert "R-001" not in out
    assert main(["--shown"], root) == 0
    assert "tests/test_a.py::test_a" in capsys.readouterr().out
    assert main(["--json"], root) == 0
    redis = json.loads(capsys.readouterr().out)["documents"]["redis"]
    assert redis["tested"] == {"R-001": ["tests/test_a.py::test_a"]}
    assert len(redis["open"]) == 59


@pytest.mark.parametrize("row_id", ["F-999", "F-276"])
def test_report_refuses_wrong_ids(tmp_path: Path, capsys: pytest.CaptureFixture[str], row_id: str) -> None:
    assert main(["--document", "redis"], _tree(tmp_path, row_id)) == 1
    assert row_id in capsys.readouterr().err


def test_ledger_files_match_the_documents() -> None:
    assert {path.stem for path in HERE.glob("*.tsv")} == set(DOCUMENTS)


def test_bench_only_row_is_shown_by_the_committed_report() -> None:
    marks = {row_id: ["bench/latency.py::calls"] for row_id in ("C-104", "C-105", "C-106")} | {
        "C-001": ["tests/t.py::t"]
    }
    entry = {"date": "2026-11-17", "machine": "2 cores", "checks": ["sqlite: claim, p99: 3 < 100 ms"]}
    one = tally("coscientist", marks, {"C-104": {**entry, "ok": True}, "C-105": {**entry, "ok": False}})
    assert (list(one.tested), list(one.measured)) == (["C-001"], ["C-104"])
    assert one.measured["C-104"] == "2026-11-17: sqlite: claim, p99: 3 < 100 ms"
    assert one.open["C-105"].startswith("missed on 2026-11-17")
    assert (one.open["C-106"], one.open["C-107"]) == ("not measured yet", "no test and no measurement")


def test_committed_report_names_only_rows_the_benchmark_checks() -> None:
    checked = {row_id for row_id, names in collect().items() if any(name.startswith("bench/") for name in names)}
    assert json.loads((ROOT / LIMITS).read_text()).keys() <= checked
