"""An agent that is a shell script: it claims, works and submits by commands alone."""

import json
import subprocess
import sys
from pathlib import Path

import apsw
import pytest

from shiftwork import Queue
from tests.cli.terminal import Terminal
from tests.cli.test_processes import PROGRAM, call, clean_environment

SCRIPT = """
set -euo pipefail
export SHIFTWORK_AGENT=script
token=$(shiftwork claim --type code --print-token)
shiftwork start "$token"
shiftwork heartbeat "$token" --progress half
echo '{"lines": 7}' > result.json
shiftwork complete "$token" --data @result.json --cost 0.25
[ -z "$(shiftwork claim --type code)" ]
"""


def run_script(folder: Path, script: str) -> str:
    path = f"{Path(sys.executable).parent}:{clean_environment()['PATH']}"
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=folder,
        env={**clean_environment(), "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_shell_script_works_as_an_agent(tmp_path: Path) -> None:
    made = json.loads(call(tmp_path, "submit code --json").stdout)["id"]
    assert run_script(tmp_path, SCRIPT).splitlines() == [f"{made} running", "continue", f"{made} completed"]
    task = json.loads(call(tmp_path, f"show {made} --json").stdout)
    assert (task["status"], task["result"]["data"], task["cost_usd"]) == ("completed", {"lines": 7}, 0.25)
    assert (task["result"]["worker_id"], task["progress"]) == ("script", "half")
    assert {event["actor"] for event in task["history"][1:]} == {"agent:script"}


@pytest.mark.requirement("L-058", "L-061")
def test_claim_prints_the_task_id_or_nothing(terminal: Terminal) -> None:
    terminal.text("settings", "profile", "loki")
    made = terminal.ready()
    assert terminal.text("claim", "--agent", "a1") == f"{made}\n"
    task = terminal.json("show", made)
    assert (task["status"], task["claim"]["agent_id"]) == ("running", "a1")
    assert terminal.run("claim", "--agent", "a1") == (0, "", "")


@pytest.mark.requirement("L-053")
def test_claims_in_parallel_shells_get_different_tasks(tmp_path: Path) -> None:
    call(tmp_path, "settings profile loki")
    tasks = [{"type": "code", "payload": {"n": n}} for n in range(6)]
    made = json.loads(call(tmp_path, "submit --file - --json", stdin=json.dumps(tasks)).stdout)
    claims = [
        subprocess.Popen(
            [*PROGRAM, "claim", "--agent", f"shell-{n % 2}"],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            text=True,
            env=clean_environment(),
        )
        for n in range(6)
    ]
    taken = [claim.communicate(timeout=60)[0].strip() for claim in claims]
    assert sorted(taken) == sorted(task["id"] for task in made)


@pytest.mark.requirement("L-057")
def test_fifo_claim_takes_the_first_task_regardless_of_priority(terminal: Terminal) -> None:
    terminal.text("settings", "profile", "loki")
    made = [
        terminal.json("submit", f"t{n}", "--priority", f"{9 - n}", "--payload", f'{{"n": {n}}}')["id"] for n in range(3)
    ]
    assert [terminal.text("claim", "--fifo").strip() for _ in made] == made


@pytest.mark.requirement("L-055")
def test_claim_without_the_database_lock_exits_with_1(tmp_path: Path) -> None:
    """It waits for ten seconds, and so does this test."""
    call(tmp_path, "submit code")
    owner = apsw.Connection(str(tmp_path / "shiftwork.db"))
    owner.execute("begin immediate")
    refused = call(tmp_path, "claim --json")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert json.loads(refused.stderr)["code"] == "store_locked"
    owner.execute("rollback")
    assert call(tmp_path, "claim").returncode == 0


def test_waiting_claim_gets_a_later_task(tmp_path: Path) -> None:
    call(tmp_path, "migrate")
    with subprocess.Popen(
        [*PROGRAM, "claim", "--wait", "25", "--json"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
        env=clean_environment(),
    ) as waiting:
        made = json.loads(call(tmp_path, "submit code --json").stdout)["id"]
        answer = json.loads(waiting.communicate(timeout=60)[0])
    assert [assignment["task"]["id"] for assignment in answer["assignments"]] == [made]


def test_reason_for_an_empty_claim_is_printed_to_stderr(terminal: Terminal) -> None:
    for _ in range(2):
        terminal.ready()
    terminal.text("claim", "--agent", "a1")
    full = terminal.run("claim", "--agent", "a1")
    assert (full.code, full.out, full.err) == (0, "", "agent a1 is at capacity\n")
    assert terminal.json("claim", "--agent", "a1")["at_capacity"] is True
    terminal.text("pause", "code")
    assert terminal.run("claim", "--agent", "a2") == (0, "", "paused: code\n")


def test_claim_json_contains_task_and_lease_terms(terminal: Terminal) -> None:
    made = terminal.ready()
    (assignment,) = terminal.json("claim", "--agent", "a1")["assignments"]
    assert assignment["token"] == assignment["assignment_id"] == f"{made}.1"
    assert (assignment["task"]["payload"], assignment["task"]["status"]) == ({"file": "a.py"}, "claimed")
    assert assignment["ack_required_by"].endswith("Z")
    assert assignment["heartbeat_interval_sec"] == 30


def test_task_id_is_enough_for_the_claim_holder(terminal: Terminal) -> None:
    made = terminal.ready()
    assert terminal.text("claim").strip() == made
    assert terminal.text("start", made).split() == [made, "running"]
    assert terminal.run("complete", made, "--agent", "thief").code == 6
    assert terminal.run("complete", made, SHIFTWORK_AGENT="thief").code == 6
    assert terminal.json("complete", made)["status"] == "completed"
    assert terminal.json("complete", made)["repeated"] is True


def test_token_is_refused_after_the_claim_ended(terminal: Terminal) -> None:
    token = terminal.running()
    terminal.text("release", token)
    for line in (["complete", token], ["fail", token, "--reason", "crash"], ["progress", token, "5"]):
        refused = terminal.run(*line, "--json")
        assert (refused.code, json.loads(refused.err)["code"]) == (4, "lease_lost")


def test_heartbeat_exits_with_4_when_work_must_stop(terminal: Terminal) -> None:
    token = terminal.running()
    terminal.text("cancel", token.partition(".")[0], "--reason", "unwanted")
    assert terminal.run("heartbeat", token) == (4, "cancel: unwanted\n", "")
    lost = terminal.run("heartbeat", token.replace(".1", ".7"), "--json")
    assert (lost.code, json.loads(lost.out)["action"]) == (4, "lost")


def test_actor_option_is_recorded_in_history(terminal: Terminal) -> None:
    token = terminal.running()
    terminal.text("complete", token, "--actor", "human:bob")
    history = terminal.json("history", token.partition(".")[0])
    assert [event["actor"] for event in history][-1] == "human:bob"


@pytest.mark.parametrize(
    ("data", "stdin", "expected"),
    [('{"a": [1]}', None, {"a": [1]}), ("7", None, 7), ("-", '"from a pipe"', "from a pipe"), ("null", None, None)],
)
def test_result_can_be_any_json(terminal: Terminal, data: str, stdin: str | None, expected: object) -> None:
    token = terminal.running()
    terminal.text("complete", token, "--data", data, stdin=stdin)
    assert terminal.json("show", token.partition(".")[0])["result"]["data"] == expected


def test_no_retry_failure_is_dead_lettered_with_alert(terminal: Terminal) -> None:
    token = terminal.running()
    line = ["fail", token, "--reason", "auth_failure", "--error", "403", "--no-retry"]
    assert terminal.json(*line)["status"] == "dead_lettered"
    (pattern,) = terminal.json("failures", "--by", "reason")
    assert (pattern["value"], pattern["total"], pattern["error"]) == ("auth_failure", 1, "403")
    (alert,) = terminal.json("alerts")
    assert alert["message"] == f"Task {token.partition('.')[0]} moved to dead letter queue"


def test_messages_and_progress_are_recorded_in_history(terminal: Terminal) -> None:
    token = terminal.running()
    terminal.text("progress", token, "reading")
    terminal.text("message", token, "calls grep", "--kind", "tool_call", "--data", '{"args": ["-r"]}')
    output = terminal.json("history", token.partition(".")[0])[-2:]
    assert output[0]["data"] == {"progress": "reading"}
    assert output[1]["data"] == {"kind": "tool_call", "text": "calls grep", "data": {"args": ["-r"]}}


def test_unstarted_claims_are_rebalanced_to_idle_agents(terminal: Terminal) -> None:
    async def load(queue: Queue) -> None:
        await queue.agents.register(id="loaded", max_concurrent_tasks=5)
        await queue.submit_many([{"type": "code"}] * 3)
        await queue.claim("loaded", 3)
        await queue.agents.register(id="idle")

    terminal.on_queue(load)
    (given_back,) = terminal.json("rebalance")
    assert given_back["status"] == "ready"
    assert terminal.text("claim", "--agent", "idle").strip() == given_back["task_id"]


def test_verdict_is_shown_with_its_evidence(terminal: Terminal) -> None:
    token = terminal.submitted_output()
    task_id = token.partition(".")[0]
    assert terminal.json("show", task_id)["status"] == "validating"
    assert "its output waits for the verdict of its tests" in terminal.text("explain", task_id)
    evidence = json.dumps({"exit_code": 1, "at": 7})
    line = terminal.text(
        "verdict", task_id, "--agent", "mule", "--failed", "--evidence", evidence, "--note", "2 failed"
    )
    assert line == f"{task_id} retrying\n"
    assert "failed test-pass by agent:mule: 2 failed" in terminal.text("show", task_id)
    assert terminal.json("show", task_id)["result"]["verdict"]["evidence"] == {"exit_code": 1, "at": 7}


def test_verdict_requires_pass_or_fail(terminal: Terminal) -> None:
    assert terminal.run("verdict", terminal.submitted_output()).code == 2


def test_judge_task_and_missing_report_are_shown(terminal: Terminal) -> None:
    judged = {"type": "code", "output": {"validation": "llm-judge"}}
    task_id = terminal.json("submit", "--file", "-", stdin=json.dumps(judged))["id"]
    token = terminal.text("claim", "--start", "--print-token").strip()
    assert terminal.text("complete", token, "--text", "an essay") == f"{task_id} validating\n"
    asked = terminal.json("show", task_id)["judge_task_id"]
    assert asked in terminal.text("show", task_id)
    terminal.text("settings", "set", "require_decision_report", "true")
    terminal.ready()
    held = terminal.text("claim", "--agent", "b", "--type", "code", "--start", "--print-token").strip()
    refused = terminal.run("complete", held, "--text", "done")
    assert (refused.code, "report_required" in terminal.run("complete", held, "--json").err) == (2, True)
    assert "its decision report is missing" in terminal.text("show", held.partition(".")[0])
    report = json.dumps({"why": "as asked"})
    assert terminal.text("complete", held, "--text", "done", "--decision-report", report).endswith("completed\n")
