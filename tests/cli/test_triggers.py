"""Triggers from the shell."""

import json
import re

from tests import deliveries
from tests.cli.terminal import Terminal

TASK = '{"type": "audit", "title": "Audit of {{ day }}"}'


def test_schedule_is_saved_previewed_and_fired(each_terminal: Terminal) -> None:
    line = ["triggers", "add", "nightly", "--cron", "30 2 * * *", "--zone", "Europe/Berlin", "--overlap", "skip"]
    stated = each_terminal.text(*line, "--task", TASK, "--parameter", "day=tick")
    assert stated.startswith("saved nightly, next ")
    header, row = each_terminal.text("triggers").splitlines()
    assert header.split("  ")[0] == "name"
    assert row.startswith("nightly  30 2 * * * Europe/Berlin  task audit")
    seen = each_terminal.json("triggers", "preview", "nightly")
    assert (seen["task"]["created_by"], len(seen["next"])) == ("cron:nightly", 10)
    assert each_terminal.text("triggers", "preview", "nightly").count("next  20") == 10
    fired = each_terminal.text("triggers", "fire", "nightly", "--parameter", "day=today", "--reason", "trying it")
    word, task_id = fired.split()
    assert (word, each_terminal.json("show", task_id)["title"]) == ("fired", "Audit of today")
    again = each_terminal.text("triggers", "fire", "nightly", "--parameter", "day=today")
    assert again.endswith("has not ended\n")
    shown = each_terminal.json("triggers", "show", "nightly")
    assert [firing["outcome"] for firing in shown["firings"]] == ["skipped", "fired"]
    assert task_id in each_terminal.text("triggers", "show", "nightly")
    assert each_terminal.json("triggers", "firings", "nightly") == shown["firings"]
    assert len(each_terminal.text("triggers", "firings", "nightly", "--limit", "1").splitlines()) == 2
    assert each_terminal.text("triggers", "pause", "nightly") == "nightly paused\n"
    assert each_terminal.text("triggers", "list").splitlines()[1].endswith("paused")
    assert each_terminal.text("triggers", "resume", "nightly") == "nightly resumed\n"
    assert each_terminal.json("triggers", "remove", "nightly") == {"name": "nightly", "removed": True}
    assert each_terminal.text("triggers") == "no triggers\n"


def test_every_trigger_kind_can_be_added(terminal: Terminal) -> None:
    task = ["--task", '{"type": "note"}']
    for name, line in {
        "a": ["--hook", "slack", "--where", "payload.command=/coder"],
        "b": ["--files", "inbox/*.md"],
        "c": ["--after-dag", "pipeline *", "--ends", "failed", "--ends", "cancelled"],
        "d": ["--event", "task.dead_lettered", "--event", "task.cancelled", "--where", 'type=["code", "review"]'],
        "e": ["--cron", "@hourly", "--missed", "skip", "--jitter", "5m"],
    }.items():
        terminal.text("triggers", "add", name, *line, *task)
    assert [each["on"] for each in terminal.json("triggers")] == [
        {"kind": "hook", "signature": "slack", "where": {"payload.command": "/coder"}},
        {"kind": "file", "pattern": "inbox/*.md"},
        {"kind": "dag", "title": "pipeline *", "ends": ["failed", "cancelled"]},
        {"kind": "event", "events": ["task.dead_lettered", "task.cancelled"], "where": {"type": ["code", "review"]}},
        {"kind": "cron", "at": "@hourly", "missed": "skip", "jitter_sec": 300},
    ]
    waits = [re.split(r" {2,}", line)[1] for line in terminal.text("triggers").splitlines()[1:]]
    assert waits[:3] == ["POST /api/hooks/a (slack)", "files inbox/*.md", "DAG pipeline * failed, cancelled"]


def test_hook_is_previewed_with_a_recorded_delivery(terminal: Terminal) -> None:
    file = str(deliveries.ROOT / "examples" / "review" / "trigger.json")
    line = ["triggers", "add", "review", "--file", file, "--secret-env", "REVIEW_SECRET"]
    assert terminal.run(*line, REVIEW_SECRET="a secret that only github knows").out == "saved review\n"
    facts = json.dumps({"event": "pull_request", "payload": json.loads(deliveries.PULL_REQUEST)})
    seen = terminal.json("triggers", "preview", "review", "--facts", facts)
    assert seen["dag"]["title"] == "review acme/shop#42"
    assert terminal.json("list")["tasks"] == []


def test_hook_secret_is_shown_only_once(terminal: Terminal) -> None:
    line = ["triggers", "add", "deploys", "--hook", "standard", "--task", '{"type": "note"}']
    first, second = terminal.text(*line), terminal.text(*line)
    assert "secret (shown this once): whsec_" in first
    assert second == "saved deploys\n"


def test_invalid_trigger_command_is_refused(terminal: Terminal) -> None:
    terminal.text("submit", "code")
    for line, stated in {
        "triggers add x --task {}": "give one of --cron",
        "triggers add x --cron @daily --hook github --task {}": "give one of --cron",
        "triggers add x --cron @daily": "give what it creates",
        "triggers add x --cron @daily --task {} --dag {}": "give what it creates",
        "triggers add x --cron @sometimes --task {}": "is not a cron expression",
        "triggers add x --hook github --task {} --secret-env NOT_SET_AT_ALL": "NOT_SET_AT_ALL is not set",
        "triggers add x --hook github --task {} --where payload": "not of the form NAME=VALUE",
        "triggers show x": "there is no trigger 'x'",
    }.items():
        done = terminal.run(*line.split())
        assert done.code != 0
        assert stated in done.err, line
    assert terminal.text("triggers") == "no triggers\n"
