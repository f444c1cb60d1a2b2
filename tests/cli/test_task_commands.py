"""What single commands do with tasks, their options and their output."""

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.cli.terminal import Terminal

DAG = {
    "title": "Page",
    "tasks": [{"key": "a", "type": "design"}, {"key": "b", "type": "code", "dependencies": ["a"]}],
}


def test_submit_options_set_the_task_fields(terminal: Terminal) -> None:
    line = (
        "--title Fix --priority 7 --tag a --tag b --idempotency-key k1 --id mine --issue i-1 --agent bob --timeout 60"
    )
    made = terminal.json("submit", "code", "--payload", '{"é": [1]}', *line.split(), "--max-attempts", "2")
    task = terminal.json("show", "mine")
    assert task["id"] == made["id"]
    assert task["payload"] == {"é": [1]}
    assert (task["title"], task["priority"], task["tags"], task["idempotency_key"]) == ("Fix", 7, ["a", "b"], "k1")
    assert (task["issue_id"], task["target_agent_id"], task["max_attempts"]) == ("i-1", "bob", 2)
    assert [event["actor"] for event in task["history"]] == ["human:ada"]


def test_approvals_are_listed_and_decided(terminal: Terminal) -> None:
    guarded, asking = terminal.guarded(), terminal.asking()
    listed = terminal.text("approvals")
    assert all(word in listed for word in (guarded, "Ship it", asking, "Where to?"))
    (asked,) = terminal.json("approvals", "--kind", "approval")
    assert terminal.run("approve", guarded, "--revision", "another").code == 4
    assert terminal.json("approve", guarded, "--revision", asked["revision"])["status"] == "ready"
    assert terminal.json("approve", terminal.guarded(), "--reject")["status"] == "cancelled"
    terminal.text("answer", asking, "--data", '{"city": "Rome"}')
    assert terminal.json("approvals") == []
    assert terminal.run("answer", asking, "--data", "Oslo").code == 4


def test_wait_command_exits_with_4_while_the_task_waits(terminal: Terminal) -> None:
    token = terminal.running()
    task = token.partition(".")[0]
    done = terminal.run("wait", token, "where", "--ask", "Where to?", "--schema", '{"enum": ["Rome"]}')
    assert (done.code, done.out, done.err) == (4, "", "where: the task waits\n")
    assert terminal.run("answer", task, "--data", "Oslo").code == 2
    terminal.text("answer", task, "--data", "Rome")
    again = terminal.text("claim", "--agent", "mule", "--start", "--print-token").strip()
    assert terminal.text("wait", again, "where", "--ask", "Where to?") == "Rome\n"
    other = terminal.ready()
    assert terminal.run("wait", again, "--task", other).code == 4
    assert terminal.json("show", task)["blocked_by"] == [other]
    for line in (["wait", again], ["wait", again, "w", "--task", other], ["wait", again, "w"]):
        assert terminal.run(*line).code == 2


def test_wait_command_returns_tasks_that_failed(terminal: Terminal) -> None:
    token, lost = terminal.running(), terminal.dead()
    assert terminal.run("wait", token, "--task", lost, "--failures", "ignore").code == 2
    done = terminal.text("wait", token, "--task", lost, "--failures", "return")
    assert done == f"the task is running\n{lost} is dead_lettered: crash: boom\n"
    (failed,) = terminal.json("wait", token, "--task", lost, "--failures", "return")["failed"]
    assert (failed["task_id"], failed["error"]) == (lost, "boom")
    task = token.partition(".")[0]
    assert lost in terminal.text("show", task)
    assert "boom" in terminal.text("explain", task)


def test_rerun_from_a_step_with_another_payload(terminal: Terminal) -> None:
    token = terminal.running()
    task = token.partition(".")[0]
    terminal.text("step", token, "plan", "--data", "1")
    terminal.text("step", token, "draft", "--data", "2")
    assert terminal.run("rerun", task, "--from-step", "draft").code == 4
    terminal.text("complete", token)
    refused = terminal.run("rerun", task, "--from-step", "drfat")
    assert refused.code == 2
    assert "'plan', 'draft'" in refused.err
    again = terminal.json("rerun", task, "--from-step", "draft", "-p", "file=b.py", "--model", "opus", "--downstream")
    assert again["data"] == {"kept_steps": 1, "downstream": []}
    fresh = terminal.json("show", again["task_id"])
    assert (fresh["payload"], fresh["rerun_of"]) == ({"file": "b.py"}, task)


def test_submit_warns_of_a_dependency_that_does_not_exist(terminal: Terminal) -> None:
    done = terminal.run("submit", "code", "--depends", "nope", "--json")
    assert done.code == 0
    assert json.loads(done.out)["missing_dependencies"] == ["nope"]
    assert "there is no task 'nope' yet" in done.err
    assert terminal.run("submit", "code", "--depends", terminal.ready()).err == ""


def test_same_key_twice_creates_one_task(terminal: Terminal) -> None:
    first = terminal.json("submit", "code", "--idempotency-key", "k")
    again = terminal.json("submit", "code", "--idempotency-key", "k")
    assert (again["id"], again["duplicate"]) == (first["id"], True)
    assert "already exists" in terminal.text("submit", "code", "--idempotency-key", "k")


@pytest.mark.parametrize(
    ("document", "count"),
    [({"type": "code"}, 1), ([{"type": "code"}, {"type": "code"}], 2), (DAG, 2), ([], 0)],
    ids=["a task", "a list", "a DAG", "an empty list"],
)
def test_tasks_are_submitted_from_a_file(terminal: Terminal, tmp_path: Path, document: Any, count: int) -> None:
    (tmp_path / "tasks.json").write_text(json.dumps(document))
    terminal.text("submit", "--file", str(tmp_path / "tasks.json"))
    assert len(terminal.json("list")["tasks"]) == count


def test_tasks_are_submitted_from_a_pipe(terminal: Terminal) -> None:
    made = terminal.json("submit", "--file", "-", stdin=json.dumps(DAG))
    assert [task["status"] for task in made["tasks"]] == ["ready", "pending"]
    assert made["dag_id"].startswith("dag_")
    one = terminal.json("submit", "code", "--payload", "-", stdin='{"from": "a pipe"}')
    assert terminal.json("show", one["id"])["payload"] == {"from": "a pipe"}


def test_task_id_is_accepted_in_every_form(terminal: Terminal) -> None:
    made = terminal.json("submit", "code", "--id", "my-own")
    history = terminal.json("history", made["id"])
    for form in ("my-own", made["id"], made["id"].lower().removeprefix("task_")):
        assert terminal.json("show", form)["id"] == made["id"]
        assert terminal.json("history", form) == history


def test_list_continues_after_its_last_task(terminal: Terminal) -> None:
    made = [terminal.ready() for _ in range(3)]
    page = terminal.json("list", "--limit", "2")
    rest = terminal.json("list", "--after", page["next"])
    assert [task["id"] for task in page["tasks"] + rest["tasks"]] == made
    assert f"--after {made[1]}" in terminal.run("list", "--limit", "2").err


def test_common_options_are_accepted_before_or_after_the_command(terminal: Terminal, tmp_path: Path) -> None:
    other = f"sqlite:///{tmp_path}/other.db"
    terminal.text("--store", other, "--workspace", "w", "--actor", "cron:nightly", "submit", "code")
    for line in (["--json", "--store", other, "events", "--workspace", "w"], ["events", "--json", "--store", other]):
        workspace = {"SHIFTWORK_WORKSPACE": "w"}
        event = json.loads(terminal.run(*line, **workspace).out)
        assert (event["actor"], event["workspace_id"]) == ("cron:nightly", "w")
    assert terminal.json("list", "--store", other)["tasks"] == []


def test_refused_cancel_leaves_the_others_cancelled(terminal: Terminal) -> None:
    ended, open_ = terminal.done(), terminal.ready()
    done = terminal.run("cancel", ended, open_)
    assert done.code == 4
    assert f"{open_}  cancelled" in done.out
    assert done.err.startswith(f"error: task {ended} is completed and cannot be cancelled")
    output = json.loads(terminal.run("cancel", ended, "--json").out)
    assert output[0]["error"]["code"] == "wrong_state"


def test_resume_reports_that_the_type_was_paused(terminal: Terminal) -> None:
    terminal.ready()
    terminal.text("pause", "code", "--reason", "upgrade")
    assert terminal.json("status")["paused"] == ["code"]
    assert terminal.json("resume", "code") == {"resumed": "code", "was_paused": True}


def test_similar_dead_letters_are_redriven_together(terminal: Terminal) -> None:
    for _ in range(3):
        terminal.dead()
    (group,) = terminal.json("dlq", "groups")
    assert group["total"] == 3
    assert terminal.text("dlq", "list").count(group["signature"]) == 3
    assert len(terminal.json("dlq", "redrive", group["signature"], "--decision", "abandon")) == 3
    assert terminal.json("dlq") == []
    assert {letter["resolution"] for letter in terminal.json("dlq", "list", "--all")} == {"abandon"}


def test_dead_letter_shows_its_review_decisions(terminal: Terminal) -> None:
    terminal.dead()
    task = terminal.dead()
    terminal.text("dlq", "escalate", task, "--note", "needs a person")
    letter = terminal.json("dlq", "show", task)
    assert (letter["task_id"], letter["error"]) == (task, "boom")
    assert [(r["decision"], r["actor"], r["note"]) for r in letter["reviews"]] == [
        ("escalate", "human:ada", "needs a person")
    ]
    assert "needs a person" in terminal.text("dlq", "show", task)
    assert "needs a person" in terminal.text("show", task)


def test_purge_asks_for_confirmation(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal.ready()
    monkeypatch.setattr("shiftwork.cli.params.is_typed_at", lambda: True)
    assert terminal.run("purge", "--type", "code", stdin="n\n").code == 1
    assert terminal.json("status")["counts"] == {"ready": 1}
    assert terminal.text("purge", "--type", "code", stdin="y\n").endswith("1 purged (cancelled, as purge.mode says)\n")


def test_events_command_honours_limit_and_tail(terminal: Terminal) -> None:
    for _ in range(30):
        terminal.ready()
    assert len(terminal.text("events").splitlines()) == 20
    assert len(terminal.text("events", "--after", "0").splitlines()) == 30
    assert len(terminal.text("events", "--after", "0", "--limit", "7").splitlines()) == 7
    assert len(terminal.text("events", "--follow", "--tail", "5", "--limit", "5", "--json").splitlines()) == 5
    assert terminal.text("events", "--tail", "0") == ""


def test_task_text_cannot_inject_terminal_codes(terminal: Terminal) -> None:
    evil = "\x1b[31mred\x07\u202e\nnext line"
    made = terminal.json("submit", "code", "--title", evil, "--payload", json.dumps({"x": evil}))
    assert terminal.json("show", made["id"])["title"] == evil
    for line in (["list"], ["show", made["id"]]):
        out = terminal.text(*line)
        assert "\x1b" not in out
        assert "\u202e" not in out
        assert r"\x1b[31mred\x07" in out


def test_time_beyond_the_calendar_is_shown_as_number(terminal: Terminal) -> None:
    made = terminal.json("submit", "--file", "-", stdin='{"type": "code", "deadline": 1e18}')
    assert terminal.json("show", made["id"])["deadline"] == 1e18
    assert made["id"] in terminal.text("show", made["id"])


def test_negative_setting_value_is_accepted(terminal: Terminal) -> None:
    (row,) = terminal.json("settings", "set", "retry.priority_delta", "-5")
    assert row["value"] == -5


def test_work_passes_its_options_to_the_worker(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[tuple[Any, Any]] = []

    def run(*args: Any, **named: Any) -> int:
        called.append((args, named))
        return 3

    package = ModuleType("shiftwork.worker")
    package.load_worker = SimpleNamespace(run=run)  # type: ignore[attr-defined]  # a module made up here
    package.run_summary = SimpleNamespace()  # type: ignore[attr-defined]  # likewise
    monkeypatch.setitem(sys.modules, "shiftwork.worker", package)
    assert terminal.run("work", "app:worker", "--processes", "2", "--concurrency", "5", "--until-idle", "-q").code == 3
    expected = {"url": terminal.url, "runtime_id": None, "processes": 2, "concurrency": 5, "until_idle": True}
    expected |= {"report": None, "max_tasks": None}
    assert called == [(("app:worker",), expected)]


def test_demo_passes_its_options_on(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[dict[str, Any]] = []

    def run(**named: Any) -> int:
        called.append(named)
        return 0

    package = ModuleType("shiftwork.demo")
    package.run = run  # type: ignore[attr-defined]  # a module made up here
    monkeypatch.setitem(sys.modules, "shiftwork.demo", package)
    assert terminal.run("demo", "--keep", "--json").code == 0
    assert called == [{"keep": True, "json": True}]


def test_file_survives_an_artifact_round_trip(terminal: Terminal, tmp_path: Path) -> None:
    file, copy = tmp_path / "big.bin", tmp_path / "copy.bin"
    file.write_bytes(bytes(range(256)) * 10_000)
    kept = terminal.text("artifacts", "put", str(file)).strip()
    assert terminal.text("artifacts", "put", "-", stdin="piped").startswith("artifact:sha256-")
    copy.write_text("older")
    terminal.text("artifacts", "get", kept, "-o", str(copy))
    assert copy.read_bytes() == file.read_bytes()
    assert sorted(path.name for path in tmp_path.glob("*.bin*")) == ["big.bin", "copy.bin"]
    for line, code in {("get", "artifact:sha256-0"): 3, ("get", kept, "-o", str(tmp_path / "no" / "x")): 2}.items():
        assert terminal.run("artifacts", *line).code == code
    assert terminal.run("artifacts", "put", str(tmp_path / "absent")).code == 2


def test_scheduled_task_is_shown_as_such(terminal: Terminal) -> None:
    made = terminal.json("submit", "code", "--delay", "2h", "--expires", "3h")
    assert "pending (in 2h)" in terminal.text("list")
    shown = terminal.text("show", made["id"])
    assert "pending (scheduled)" in shown
    assert "starts" in shown
    assert "expires" in shown
    assert "it is scheduled for" in terminal.text("explain", made["id"])
    assert "scheduled" in terminal.text("status")
    assert terminal.json("update", made["id"], "--clear", "run_at")["status"] == "ready"
