"""Metrics from the shell, and JSON log lines of a worker."""

import json
import os
import subprocess
import sys

from tests.cli.terminal import Terminal


def test_metrics_are_shown_as_text_and_json(each_terminal: Terminal) -> None:
    each_terminal.text("submit", "code")
    token = each_terminal.json("claim", "--agent", "ada", "--start")["assignments"][0]["token"]
    each_terminal.text("complete", token, "--cost", "0.12", "--on-model", "large")
    rows = [line.split() for line in each_terminal.text("metrics").splitlines()]
    assert rows[0] == ["metric", "labels", "value"]
    assert ["tasks_completed_total", "type=code", "1"] in rows
    assert ["task_cost_usd", "type=code", "agent=ada", "model=large", "0.12"] in rows
    assert [row[:3] for row in rows if row[0] == "shiftwork_execution_seconds"] == [
        ["shiftwork_execution_seconds", "type=code", "1,"]
    ]
    assert not [row for row in rows if row[0].endswith(("_bucket", "_sum", "_count"))]
    output = each_terminal.json("metrics", "agent_claim", "daily")
    assert {sample["name"]: sample["value"] for sample in output["samples"]} == {
        "agent_claim_success_rate": 1.0,
        "daily_spend_usd": 0.12,
    }


def test_earlier_metric_snapshots_are_shown(terminal: Terminal) -> None:
    terminal.text("submit", "code")
    assert terminal.text("metrics", "--snapshots", "3") == "no snapshots yet\n"
    terminal.text("maintenance", "--run")
    (kept,) = terminal.json("metrics", "--snapshots", "3", "shiftwork_queue_depth")
    assert [sample["value"] for sample in kept["samples"]] == [0.0, 1.0, 0.0]


def test_worker_logs_json_in_all_its_processes(terminal: Terminal) -> None:
    terminal.text("submit", "code")
    words = ["work", "--type", "code", "--until-idle", "--processes", "2", "--log-format", "json", "--", "true"]
    done = subprocess.run(
        [sys.executable, "-m", "shiftwork", *words],
        env={**os.environ, "SHIFTWORK_STORE": terminal.url},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert len([line for line in lines if line["message"].startswith("stopped: ")]) == 2
