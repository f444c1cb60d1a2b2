"""`doctor` finds what keeps a queue from working, and says how to fix it."""

import asyncio
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import apsw
import asyncpg
import pytest

from shiftwork import Queue
from shiftwork.cli import doctor
from shiftwork.maintenance.loop import run_once
from shiftwork.store import migrate
from shiftwork.testing import MovedClock
from tests.cli.terminal import Terminal


def findings(terminal: Terminal, check: str) -> list[dict[str, Any]]:
    found = json.loads(terminal.run("doctor", "--json").out)
    return [finding for finding in found if finding["check"] == check]


def test_healthy_queue_has_no_findings(each_terminal: Terminal) -> None:
    each_terminal.done()
    found = each_terminal.json("doctor")
    assert {finding["level"] for finding in found} == {"ok"}
    assert {"store", "schema", "clock", "waiting", "dependencies", "maintenance"} <= {
        finding["check"] for finding in found
    }


def test_missing_queue_is_an_error(terminal: Terminal, tmp_path: Path) -> None:
    done = terminal.run("doctor")
    assert done.code == 1
    assert "there is no queue at" in done.out
    assert list(tmp_path.iterdir()) == []
    assert "/nowhere does not exist" in terminal.run("doctor", "--store", "sqlite:////nowhere/q.db").out


def test_unwritable_folder_is_an_error(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal.ready()
    monkeypatch.setattr(os, "access", lambda *_: False)
    done = terminal.run("doctor")
    assert done.code == 1
    assert "chmod u+w" in done.out


def test_disk_refusing_writes_is_an_error(terminal: Terminal, tmp_path: Path) -> None:
    """A process limit simulates a full disk: the write fails in the same place."""
    terminal.ready()
    limited = "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, 500_000)); "
    limited += "from shiftwork.cli import main; main(sys.argv[1:])"
    line = [sys.executable, "-c", limited, "doctor", "--json", "--store", terminal.url]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    (finding,) = [finding for finding in json.loads(done.stdout) if finding["check"] == "disk"]
    assert finding["level"] == "error"
    assert f"1 MiB cannot be written into {tmp_path}: File too large" in finding["what"]
    assert {path.name for path in tmp_path.iterdir()} <= {f"queue.db{end}" for end in ("", "-wal", "-shm", ".turn")}


def test_nearly_full_disk_is_a_warning(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal.ready()
    assert findings(terminal, "disk")[0]["level"] == "ok"
    monkeypatch.setattr(doctor, "ENOUGH", 2**80)
    (finding,) = findings(terminal, "disk")
    assert finding["level"] == "warning"
    assert "MiB left" in finding["what"]


@pytest.mark.parametrize(
    ("value", "part"),
    [("cast(x'7b22ff' as text)", "is not UTF-8"), ("'{half'", "is not valid JSON")],
    ids=["text", "json"],
)
def test_damaged_row_is_found_by_doctor(terminal: Terminal, value: str, part: str) -> None:
    terminal.ready()
    assert [finding["level"] for finding in findings(terminal, "content")] == ["ok"]
    change(terminal.url, f"update bodies set body = {value}")
    (finding,) = findings(terminal, "content")
    assert finding["level"] == "error"
    assert part in finding["what"]
    assert "restore a snapshot or a copy" in finding["hint"]
    assert terminal.run("doctor").code == 1


def test_tasks_no_agent_can_take_are_found(terminal: Terminal) -> None:
    async def prepare(queue: Queue) -> None:
        needs = {"constraints": {"required_capabilities": ["gpu"], "model_preferences": ["opus"]}}
        await queue.submit_many([{"type": "train", "spec": needs}, {"type": "train", "spec": needs}, {"type": "code"}])
        await queue.submit(type="chat", target_agent_id="bob")
        await queue.agents.register(id="coder", types=["code"])

    terminal.on_queue(prepare)
    whats = [finding["what"] for finding in findings(terminal, "waiting")]
    assert whats == [
        "2 tasks (train): no registered agent can take them: they need type train, capability gpu",
        "1 task (code): agents with free slots can take it",
        "1 task (chat): no registered agent can take it: it needs type chat, being agent bob",
    ]


def test_spent_day_is_found(terminal: Terminal) -> None:
    async def prepare(queue: Queue) -> None:
        await queue.settings.set("budget.daily_usd", 1.0)
        await queue.agents.register(id="coder", max_concurrent_tasks=5)
        await queue.submit_many([{"type": "code", "estimated_cost_usd": 1.0}] * 2)
        await queue.claim("coder", start=True)

    terminal.on_queue(prepare)
    (finding,) = findings(terminal, "waiting")
    assert (finding["level"], finding["hint"]) == ("warning", "Raise budget.daily_usd, or wait for the next day (UTC).")
    assert finding["what"].startswith("1 task (code): the day's budget has too little left for it, until ")


def test_types_with_all_agents_away_are_found(terminal: Terminal) -> None:
    async def prepare(queue: Queue) -> None:
        await queue.submit(type="code")
        await queue.agents.register(id="coder", types=["code"])
        await queue.agents.set_status("coder", "draining")

    terminal.on_queue(prepare)
    (finding,) = findings(terminal, "waiting")
    hint = "Set one active: shiftwork agents activate coder."
    assert (finding["level"], finding["hint"]) == ("warning", hint)


def test_missing_dependencies_are_found_with_a_working_hint(terminal: Terminal) -> None:
    task = terminal.waiting()
    (finding,) = findings(terminal, "dependencies")
    assert finding["level"] == "warning"
    assert f"{task} for not-yet" in finding["what"]
    terminal.text(*finding["hint"].partition("shiftwork ")[2].split(" "))
    assert findings(terminal, "dependencies")[0]["level"] == "ok"


def test_missing_maintenance_is_found(terminal: Terminal) -> None:
    async def prepare(queue: Queue) -> None:
        await queue.submit(type="code")
        await queue.claim("coder", start=True)

    terminal.on_queue(prepare)
    assert findings(terminal, "maintenance")[0]["level"] == "warning"
    terminal.text("maintenance", "--run")
    assert findings(terminal, "maintenance")[0]["level"] == "ok"


def test_clock_difference_is_found(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal.ready()
    monkeypatch.setattr("shiftwork.cli.doctor.CLOCK_OFF_SEC", 0.0)
    assert findings(terminal, "clock")[0]["level"] == "warning"


def test_old_transactions_are_found_by_doctor(postgres_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shiftwork.cli.doctor.OLD_TRANSACTION_SEC", 0)
    terminal = Terminal(postgres_dsn)
    terminal.text("migrate")

    async def look_while_one_is_open() -> list[dict[str, Any]]:
        connection = await asyncpg.connect(postgres_dsn)
        await connection.execute("begin; select 1")
        try:
            return await asyncio.to_thread(findings, terminal, "transactions")
        finally:
            await connection.close()

    found = asyncio.run(look_while_one_is_open())
    assert any("idle in transaction" in finding["what"] for finding in found)
    assert all("pg_terminate_backend" in finding["hint"] for finding in found)


def test_store_password_is_not_shown(postgres_dsn: str) -> None:
    terminal = Terminal(postgres_dsn)
    terminal.text("migrate")
    with_password = postgres_dsn.replace("@", ":geheim@", 1) if "@" in postgres_dsn else postgres_dsn
    assert "geheim" not in terminal.text("doctor", "--store", with_password)


def change(url: str, statement: str) -> None:
    """Change the database directly."""
    if url.startswith("sqlite"):
        apsw.Connection(url.removeprefix("sqlite:///")).execute(statement)
        return

    async def run() -> None:
        connection = await asyncpg.connect(url)
        await connection.execute(statement)
        await connection.close()

    asyncio.run(run())


def test_missing_index_is_found_with_its_create_statement(each_terminal: Terminal) -> None:
    each_terminal.text("migrate")
    assert findings(each_terminal, "indexes")[0]["level"] == "ok"
    name = next(iter(migrate.indexes("sqlite")))
    change(each_terminal.url, f"drop index {name}")
    (found,) = findings(each_terminal, "indexes")
    assert found["level"] == "error"
    assert name in found["what"]
    change(each_terminal.url, found["hint"].removeprefix("Recreate them: "))
    assert findings(each_terminal, "indexes")[0]["level"] == "ok"


def test_configured_redis_is_checked_and_outage_found(terminal: Terminal, redis_url: str) -> None:
    terminal.text("migrate")

    def found(url: str) -> dict[str, Any]:
        stated = json.loads(terminal.run("doctor", "--json", SHIFTWORK_REDIS_URL=url).out)
        return next(finding for finding in stated if finding["check"] == "redis")

    assert found(redis_url)["level"] == "ok"
    away = found("redis://:geheim@127.0.0.1:1/0")
    assert away["level"] == "error"
    assert "geheim" not in away["what"]


def test_silent_bridge_with_entries_under_way_is_found(
    terminal: Terminal, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal.text("migrate")
    terminal.text("submit", "mail", "--idempotency-key", "mail-1")
    terminal.text("bridge", "redis", "--redis-url", redis_url, "--once")
    assert findings(terminal, "bridges") == []
    monkeypatch.setattr("shiftwork.cli.doctor.BRIDGE_SILENT_SEC", -1.0)
    (away,) = findings(terminal, "bridges")
    assert "1 open entries" in away["what"]


def test_clock_that_went_back_is_found(each_terminal: Terminal) -> None:
    async def run_ahead(queue: Queue) -> None:
        clock = MovedClock(time.time() + 3600)
        async with Queue.open(queue.url, clock=clock) as ahead:
            await run_once(ahead.engine)

    each_terminal.ready()
    each_terminal.on_queue(run_ahead)
    (finding,) = findings(each_terminal, "clock")
    assert finding["level"] == "error"
    assert "the clock went back" in finding["what"]
    each_terminal.on_queue(lambda queue: run_once(queue.engine))
    ok, step = findings(each_terminal, "clock")
    assert (ok["level"], step["level"]) == ("ok", "warning")
    assert "went back by 3" in step["what"]


def test_late_maintenance_job_is_found(terminal: Terminal) -> None:
    async def let_one_fail(queue: Queue) -> None:
        await run_once(queue.engine, force=True)
        file = apsw.Connection(queue.url.removeprefix("sqlite:///"))
        file.execute("update duties set due_at = due_at - 700 where name = 'retention'")

    terminal.ready()
    terminal.on_queue(let_one_fail)
    (finding,) = findings(terminal, "maintenance")
    assert finding["level"] == "warning"
    assert "late: retention (6" in finding["what"]
    assert "s late" in terminal.text("maintenance")


def test_counts_that_differ_from_the_rows_are_corrected(terminal: Terminal) -> None:
    terminal.done()
    terminal.run("maintenance", "--run")
    assert [finding["level"] for finding in findings(terminal, "counts")] == ["ok"]
    with apsw.Connection(terminal.url.removeprefix("sqlite:///")) as connection:
        connection.execute("insert into count_sums values ('default', 'tasks', 'made-up', 'completed', 2, 7)")
    (found,) = findings(terminal, "counts")
    assert (found["level"], found["hint"]) == ("warning", "They were corrected.")
    assert "by 7" in found["what"]
    assert [finding["level"] for finding in findings(terminal, "counts")] == ["ok"]
