"""The benchmark runs and writes its report; its speed is not tested."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench import report

ROOT = Path(__file__).resolve().parents[1]


def test_quick_benchmark_prints_its_table_and_writes_its_report(tmp_path: Path) -> None:
    out = tmp_path / "report.json"
    command = [sys.executable, "-m", "bench", "--quick", "--only", "submit", "--only", "cycle", "--store", "sqlite"]
    done = subprocess.run([*command, "--json", out], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "200 callers at once, coalesced" in done.stdout
    report = json.loads(out.read_text(encoding="utf-8"))
    assert {figure["measurement"] for figure in report["figures"]} == {"submit", "cycle"}
    assert report["rows"].keys() == {"F-109"}
    assert {"limit", "value", "ok"} <= report["rows"]["F-109"].keys()
    assert report["environment"]["SQLite"].endswith("synchronous=FULL")


def test_unknown_measurement_is_refused_with_the_known_ones() -> None:
    command = [sys.executable, "-m", "bench", "--only", "speed"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "there is no measurement 'speed'; there are submit, batches, drain" in done.stderr


async def one(_: report.Bench) -> None: ...


async def other(_: report.Bench) -> None: ...


def test_recorded_limits_keep_incompletely_measured_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "MEASUREMENTS", {"one": one, "other": other})
    monkeypatch.setattr(report, "ROWS_OF", {one: ("C-104", "C-213"), other: ("C-213",)})
    file = tmp_path / "limits.json"
    checks = [
        report.Check("sqlite", row, "claim, p99", 10, value, "ms", at_least=False)
        for row, value in (("C-104", 3.0), ("C-213", 12.0))
    ]
    report.record(file, "2 cores", "2026-11-17", ["one"], checks)
    assert json.loads(file.read_text()).keys() == {"C-104"}
    report.record(file, "2 cores", "2026-11-18", ["one", "other"], checks[1:])
    kept = json.loads(file.read_text())
    assert (kept["C-104"]["date"], kept["C-104"]["ok"]) == ("2026-11-17", True)
    assert kept["C-213"]["checks"] == ["sqlite: claim, p99: 12.0 < 10.0 ms: missed"]
