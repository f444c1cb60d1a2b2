"""The benchmark against other queues: its report, and a quick run of Shiftwork alone; speed is not tested."""

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from bench.peers import figures, install, limit, page, rows
from bench.peers.catalogue import PEERS, Peer
from bench.peers.figures import Figure, Queue, Ratio, Run
from bench.peers.measurements import Sizes
from bench.processor import seconds_of_tree

ROOT = Path(__file__).resolve().parents[1]


def figure(measurement: str, what: str, queue: str, *values: float | None, unit: str = "tasks/s") -> Figure:
    return Figure(measurement=measurement, what=what, queue=queue, unit=unit, values=list(values))


def queue(label: str, store: str, name: str | None = None) -> Queue:
    return Queue(label=label, name=name or label, store=store, version="1", settings={})


def run(*found: Figure) -> Run:
    queues = [
        queue("Shiftwork postgres", "postgres", "Shiftwork"),
        queue("Shiftwork sqlite", "sqlite", "Shiftwork"),
        queue("Shiftwork at before postgres", "postgres", "Shiftwork at before"),
        queue("Shiftwork at before sqlite", "sqlite", "Shiftwork at before"),
        queue("graphile-worker", "postgres"),
        queue("pgqueuer", "postgres"),
        queue("huey", "sqlite"),
        queue("Restate", "http"),
    ]
    return Run(date="2026-11-18", commit="abc", quick=True, environment={}, queues=queues, figures=list(found))


def test_ratio_compares_values_of_the_same_round() -> None:
    assert figures.ratio_of([10, 30], [10, 20]) == Ratio(1.25, 1.0, 1.5)
    assert figures.ratio_of([10, None, 30], [5, 20, None]) == Ratio(2, 2, 2)
    assert figures.ratio_of([None], [1]) is None
    assert str(Ratio(1.25, 1, 1.5)) == "1.25 (1.00 to 1.50)"
    assert str(Ratio(2, 2, 2)) == "2.00"


def test_rows_name_the_best_peer_and_count_more_as_better() -> None:
    found = run(
        figure("drain", "fast, 1 process", "Shiftwork postgres", 12, 24),
        figure("drain", "fast, 1 process", "graphile-worker", 10, 20),
        figure("submit", "one by one", "Shiftwork postgres", 5),
        figure("submit", "one by one", "pgqueuer", 10),
        figure("submit", "one by one", "graphile-worker", 4),
        figure("submit", "one by one", "Shiftwork sqlite", 6),
        figure("submit", "one by one", "huey", 3),
        figure("pickup", "default, p50", "Shiftwork postgres", 6, unit="ms"),
        figure("pickup", "fast, p50", "Shiftwork postgres", 8, unit="ms"),
        figure("pickup", "default, p50", "graphile-worker", 3, unit="ms"),
        figure("drain", "fast, 1 process", "Shiftwork sqlite", 8),
        figure("drain", "fast, 1 process", "Shiftwork at before sqlite", 4),
    )
    answers = {name: answer for name, _, answer in rows.answers(found)}
    assert answers == {
        "PostgreSQL drain / graphile-worker's fastest, 1 and 2 processes": "1.20 graphile-worker",
        "single submit / best PostgreSQL peer (pgqueuer)": "0.50 pgqueuer",
        "pick-up p50 / best PostgreSQL peer (graphile)": "0.50 graphile-worker",
        "SQLite drain / today's SQLite in the same run; single submit / huey's": (
            "2.00 Shiftwork at before sqlite, 2.00 huey"
        ),
    }


def test_other_checkout_is_compared_case_by_case() -> None:
    found = run(
        figure("drain", "fast, 1 process", "Shiftwork postgres", 20),
        figure("drain", "fast, 1 process", "Shiftwork at before postgres", 10),
        figure("pickup", "default, p50", "Shiftwork postgres", 2, unit="ms"),
        figure("pickup", "default, p50", "Shiftwork at before postgres", 6, unit="ms"),
        figure("pickup", "default, p50", "pgqueuer", 1, unit="ms"),
    )
    before = "Shiftwork at before postgres"
    assert rows.old_and_new(found) == [
        ("postgres drain fast, 1 process", before, "2.00"),
        ("postgres pickup default, p50", before, "3.00"),
    ]


def test_depth_agents_and_crowd_have_their_rows() -> None:
    found = run(
        figure("depth", "5,000 ready", "Shiftwork postgres", 100),
        figure("depth", "200,000 ready", "Shiftwork postgres", 90),
        figure("depth", "1,000,000 ready", "Shiftwork postgres", 80),
        figure("agents", "50 at once", "Shiftwork postgres", 2500),
        figure("agents", "50 at once", "Shiftwork sqlite", 3000),
        figure("agents", "50 at once", "Shiftwork http postgres", 300),
        figure("agents", "50 at once", "Restate", 150),
        figure("crowd", "200 wait, p50", "Shiftwork http sqlite", 9, unit="ms"),
        figure("crowd", "200 wait, p95", "Shiftwork http sqlite", 40, unit="ms"),
    )
    assert [(name, answer) for name, _, answer in rows.answers(found)] == [
        ("drain out of 200 k and 1 M ready / out of 5 k", "0.90 and 0.80 Shiftwork postgres"),
        ("50 agents, one task at a time each, one process: tasks/s on PostgreSQL / SQLite", "2,500 / 3,000"),
        ("the same over HTTP, one server", "300 / -, 2.00 Restate"),
        ("200 agents wait, 200 tasks/s: submit to claimed p50 / p95", "9 / 40 ms Shiftwork http sqlite"),
    ]


def test_page_takes_tables_and_chart_of_a_run(tmp_path: Path) -> None:
    lost = Figure(
        measurement="crash", what="kill -9 to re-run", queue="huey", unit="s", values=[None], note="not in 60 s"
    )
    found = run(
        figure("submit", "one by one", "Shiftwork postgres", 1500),
        figure("drain", "fast, 1 process", "Shiftwork postgres", 12000, 14000),
        figure("drain", "default, 1 process", "graphile-worker", 1150),
        figure("pickup", "fast, p50", "pgqueuer", 2.5, unit="ms"),
        figure("pickup", "fast, p99", "pgqueuer", 7.25, unit="ms"),
        lost,
        figure("limit", "insert, 1 at a time, 1 connection", "pgbench", 4292),
    )
    written, chart = tmp_path / "page.md", tmp_path / "chart.svg"
    written.write_text(f"# Before\n\n{page.BEGIN}\nold\n{page.END}\n\n## After\n", encoding="utf-8")
    page.write(found, written, chart)
    text = written.read_text(encoding="utf-8")
    assert text.startswith(f"# Before\n\n{page.BEGIN}\n\nMeasured on 2026-11-18 at commit abc, median of 2 rounds")
    assert text.endswith(f"{page.END}\n\n## After\n")
    assert "A quick run: too small to quote" in text
    assert "| Shiftwork postgres | 1,500 | - | - | - | 13,000 | - | - |" in text
    assert "| pgqueuer 1 (postgres) | 2.5, 7.25 ms (fast) | - | - | - |" in text
    assert "| huey 1 (sqlite) | - | - | not in 60 s | - |" in text
    assert "| insert, 1 at a time, 1 connection | 4,292 |" in text
    assert "old" not in text
    words = [each.text for each in ET.parse(chart).iter() if each.text]  # noqa: S314  # our own
    assert {"Shiftwork postgres", "13,000", "graphile-worker", "1,150"} <= set(words)
    page.write(found, written, chart)
    assert written.read_text(encoding="utf-8") == text
    with pytest.raises(ValueError, match="no place for the tables"):
        page.replaced("# A page without the marks\n", "")


def test_committed_page_has_a_place_for_the_tables() -> None:
    assert "![Tasks completed" in page.replaced(page.PAGE.read_text(encoding="utf-8"), page.section(run()))


def test_rate_is_read_from_what_pgbench_prints() -> None:
    printed = "latency average = 0.23 ms\ntps = 4292.5 (without initial connection time)"
    assert limit.transactions_per_second(printed) == 4292.5
    with pytest.raises(RuntimeError, match="pgbench printed no rate: could not connect"):
        limit.transactions_per_second("could not connect")


def test_slow_queue_is_given_fewer_tasks() -> None:
    assert Sizes().scaled(0.25).drain == 5_000
    assert Sizes().scaled(0.0001).drain == 100
    assert Sizes().limited(50, 1).scaled(0.05).drain == 50


def test_run_is_read_as_it_was_written(tmp_path: Path) -> None:
    written = run(figure("drain", "fast, 1 process", "pgqueuer", 1.5, None))
    figures.write(tmp_path / "run.json", written)
    assert figures.read(tmp_path / "run.json") == written


def test_processor_time_of_a_process_includes_what_it_started() -> None:
    loop = "for n in range(10**7): pass"
    program = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {loop!r}]); print(); sys.stdin.read()"
    line = [sys.executable, "-c", program]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert seconds_of_tree([process.pid]) > 0.1
        process.communicate()


def test_peer_that_cannot_be_installed_is_reported_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    (tmp_path / "python").symlink_to(sys.prefix)  # to make an environment takes longer than the rest
    huey = next(peer for peer in PEERS if peer.name == "huey")
    peer = huey._replace(packages=("no-such-queue-for-agents",))
    with pytest.raises(install.NotInstalledError, match=r"huey could not be installed, .*no-such-queue"):
        install.command(peer, tmp_path)
    assert not (tmp_path / "huey.installed").exists()


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)
def test_every_peer_is_pinned_and_says_what_it_lacks(peer: Peer) -> None:
    assert install.version(peer)[0].isdigit()
    assert (install.PROGRAMS / peer.program).exists()
    assert peer.settings.keys() == {"default", "fast"}
    assert peer.lacks


def test_quick_run_of_shiftwork_alone_writes_its_report(tmp_path: Path) -> None:
    out = tmp_path / "run.json"
    line = [sys.executable, "-m", "bench.peers", "--quick", "--rounds", "1", "--peer", "none", "--store", "sqlite"]
    line += ["--tasks", "50", "--only", "submit", "--only", "drain", "--json", str(out)]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text(encoding="utf-8"))
    assert {each["queue"] for each in found["figures"]} == {"Shiftwork sqlite"}
    assert {each["what"] for each in found["figures"]} >= {"one by one", "in batches of 1000", "fast, 2 processes"}
    assert all(each["values"][0] is not None for each in found["figures"])


def test_unknown_peer_is_refused_with_the_known_ones() -> None:
    line = [sys.executable, "-m", "bench.peers", "--peer", "rabbit"]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "there is no peer 'rabbit'; there are graphile-worker, pgqueuer" in done.stderr
