"""The examples do what they say, as separate programs; fleet, review and MCP are tested elsewhere."""

import asyncio
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from shiftwork import Queue
from shiftwork.worker.load_worker import load
from tests.integrations.agents.model_server import model_server
from tests.server.processes import start
from tests.sinks.receivers import receiving
from tests.worker.steps import until_status

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
FIRST = "Foragers dance in the dark of the hive."


def run(name: str, folder: Path, *arguments: str) -> list[str]:
    line = [sys.executable, str(EXAMPLES / name), *arguments]
    done = subprocess.run(line, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_research_fleet_charges_each_call_once(store_url: str, tmp_path: Path) -> None:
    assert run("research.py", tmp_path, store_url) == [
        f"{FIRST} The angle of the dance is the angle to the sun. I have followed them for years.",
        "from a thesis, field notes, letters",
        "5 calls of the model, 1 failed attempt",
        "steps of the lead: plan, spawn read, report; spent 0.10 USD",
    ]


def test_tournament_example_prints_a_ranking(store_url: str, tmp_path: Path) -> None:
    assert run("tournament.py", tmp_path, store_url) == [
        "1. finding the hive by sound (1246)",
        "2. finding the hive by smell (1215)",
        "3. finding the hive by light (1185)",
        "4. finding the hive by heat (1154)",
        "refined: finding the hive by smell, and measured twice; finding the hive by sound, and measured twice",
        "6 matches, 3 verdicts refused, 0.31 USD",
    ]


def test_week_of_audits_runs_on_a_test_clock(tmp_path: Path) -> None:
    printed = run("audits.py", tmp_path)
    assert [line.split()[1] for line in printed[:6]] == ["fired", "fired", "fired", "fired", "skipped", "fired"]
    assert printed[4].endswith("has not ended")
    assert printed[6:] == [
        "audit of 2026-03-03T01:30:00Z: nothing",
        "audit of 2026-03-04T01:30:00Z: left-pad is out of date",
        "audit of 2026-03-05T01:30:00Z: nothing",
        "audit of 2026-03-06T01:30:00Z: nothing",
        "audit of 2026-03-08T01:30:00Z: nothing",
    ]


def test_audits_example_keeps_the_schedule_until_stopped(store_url: str, tmp_path: Path) -> None:
    line = [sys.executable, "-u", str(EXAMPLES / "audits.py"), store_url]
    with subprocess.Popen(line, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert re.fullmatch(r"next audit: \d{4}-\d\d-\d\d 0[01]:30 UTC\n", process.stdout.readline())
        assert asyncio.run(audit_result_of(store_url, "2026-03-04")) == "left-pad is out of date"
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0


async def audit_result_of(store_url: str, night: str) -> object:
    async with Queue.open(store_url) as queue:
        fired = await queue.triggers.fire("nightly", parameters={"night": night})
        await until_status(queue, fired.tasks[2], "completed")
        return (await queue.result(fired.tasks[2])).data


def test_every_example_is_listed_in_its_readme() -> None:
    listed = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    programs = [str(path.relative_to(EXAMPLES)) for path in EXAMPLES.rglob("*.py")]
    assert [name for name in programs if f"]({name})" not in listed] == []


@pytest.mark.parametrize("name", ["research", "audits", "tournament"])
def test_example_module_declares_a_worker(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(EXAMPLES)
    assert load(f"{name}:worker").handlers


NEWSLETTER = ["49 summaries, unread: page 13 does not exist, approved: True", "cancelled"]


def test_newsletter_survives_a_failed_page(store_url: str, tmp_path: Path) -> None:
    assert run("newsletter.py", tmp_path, store_url) == NEWSLETTER


async def test_newsletter_over_http_notifies_a_webhook(store_url: str, tmp_path: Path) -> None:
    async with receiving() as receiver, await start(store_url, "--private-sinks") as server:
        printed = await asyncio.to_thread(run, "newsletter.py", tmp_path, server.url, receiver.url)
        async with asyncio.timeout(60):
            while not any(got.json["data"].get("task_type") == "newsletter" for got in receiver.got):  # noqa: ASYNC110  # a server
                await asyncio.sleep(0.02)
    assert printed == NEWSLETTER


def test_newsletter_is_typed_and_short() -> None:
    path = EXAMPLES / "newsletter.py"
    line = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", "/dev/null", str(path)]
    checked = subprocess.run(line, cwd=EXAMPLES.parent, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout
    assert len([line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]) <= 60


FORECAST = [
    'The agent wants to call publish with {"text": "Rain in Oslo."}. May it?',
    "It rains in Oslo.",
    "3 calls of the model, 2 of tools",
]


@pytest.mark.parametrize("name", ["pydantic_ai_agent", "openai_agent", "langgraph_agent"])
def test_agent_of_a_framework_is_paid_for_once(sqlite_url: str, tmp_path: Path, name: str) -> None:
    assert run(f"frameworks/{name}.py", tmp_path, sqlite_url) == FORECAST


async def test_claude_agent_is_paid_for_once(sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with model_server() as server:
        known = {"ANTHROPIC_BASE_URL": server.url, "ANTHROPIC_API_KEY": "none", "CLAUDE_CONFIG_DIR": str(tmp_path)}
        for name, value in {**known, "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"}.items():
            monkeypatch.setenv(name, value)
        printed = await asyncio.to_thread(run, "frameworks/claude_agent.py", tmp_path, sqlite_url)
    assert server.answered == ["weather", "publish", "words"]
    assert printed == [
        'The agent wants to call mcp__desk__publish with {"text": "It rains in Oslo."}. May it?',
        "It rains in Oslo.",
        "2 calls of tools: weather, publish",
    ]
