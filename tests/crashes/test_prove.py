"""`shiftwork prove` injects faults and its ledger would show any loss; `shiftwork soak` would show a leak."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import apsw
import asyncpg
import msgspec
import pytest

import shiftwork
from bench.endurance import replicated, tables
from shiftwork import Queue
from shiftwork.prove import svg
from shiftwork.prove.faults import FAULTS, excludes
from shiftwork.prove.fleet import Member
from shiftwork.prove.ledger import Act, Occurrence, Records, TaskRow, Thought, accepted_acts, count
from shiftwork.prove.process import Controls
from shiftwork.prove.soak import SoakLedger, SoakPlan, Verdict, judge

RECORDS = Records(
    acknowledged={"key-1": "a", "key-2": "b"},
    unanswered=0,
    tasks=[
        TaskRow("a", "plain", "completed", 10_000, None),
        TaskRow("b", "parent", "completed", 20_000, None),
        TaskRow("c", "steps", "completed", 10_000, "b"),
        TaskRow("d", "steps", "completed", 10_000, "b"),
    ],
    accepted_twice=0,
    attempts=5,
    tasks_cost=50_000,
    attempts_cost=50_000,
    budgets_misbooked=0,
    acts=[Act("act", "c/act", 1), Act("act", "d/act", 2)],
    thoughts=[Thought("c", 1, "begun"), Thought("c", 1, "kept"), Thought("d", 2, "begun"), Thought("d", 2, "kept")],
    late_writes=2,
    late_accepted=0,
    took_sec=10.0,
    chosen=["kill"],
    occurrences=[Occurrence("kill", 1.0, 0.1, 1, 2.5)],
)


def ledger(**change: Any) -> Any:
    return count(msgspec.structs.replace(RECORDS, **change), with_effects=frozenset({"steps"}), subtasks=2)


def with_task(place: int, **change: Any) -> list[TaskRow]:
    tasks = list(RECORDS.tasks)
    tasks[place] = tasks[place]._replace(**change)
    return tasks


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        ({"acknowledged": {**RECORDS.acknowledged, "key-3": "gone"}}, "lost"),
        ({"tasks": RECORDS.tasks[:3]}, "lost"),
        ({"tasks": with_task(0, status="running")}, "stuck"),
        ({"tasks": with_task(0, status="dead_lettered")}, "failed"),
        ({"acknowledged": {"key-1": "a"}}, "created_twice"),
        ({"tasks": [*RECORDS.tasks, TaskRow("e", "steps", "ready", 0, "b")]}, "created_twice"),
        ({"accepted_twice": 1}, "done_twice"),
        ({"acts": [*RECORDS.acts, Act("act", "c/act", 2)]}, "effects_twice"),
        ({"acts": list(RECORDS.acts)[:1]}, "effects_missing"),
        ({"late_accepted": 1}, "late_accepted"),
        ({"thoughts": [*RECORDS.thoughts, Thought("c", 2, "begun")]}, "steps_repeated"),
        ({"tasks": with_task(0, cost=0)}, "not_booked"),
        ({"attempts_cost": 40_000}, "misbooked_usd"),
        ({"tasks_cost": 40_000}, "misbooked_usd"),
        ({"budgets_misbooked": 10_000}, "misbooked_usd"),
    ],
)
def test_ledger_names_each_violation(change: dict[str, Any], wrong: str) -> None:
    assert ledger().violations == {}
    assert ledger(**change).violations[wrong] > 0


def test_ledger_says_how_much_of_the_work_was_not_plain() -> None:
    assert (ledger().subtasks, ledger().effects) == (2, 2)


def test_ledgers_of_runs_become_tables_of_a_page() -> None:
    found = {name: {**msgspec.to_builtins(ledger(chosen=["kill", "cut"]))} for name in ("SQLite", "PostgreSQL")}
    found["PostgreSQL"]["faults"] = []
    lines = tables(found).splitlines()
    assert "| completed | 4 | 4 |" in lines
    assert "| **lost** | 0 | 0 |" in lines
    assert "| `kill` | 1 | 1 | 2.5 s, 2.5 s | - | - | - |" in lines


def test_fault_that_affected_nothing_is_not_proven() -> None:
    assert ledger().unproven == []
    assert ledger(chosen=["kill", "cut"]).unproven == ["cut"]
    assert ledger(occurrences=[Occurrence("kill", 1.0, 0.1, 0, 2.5)]).unproven == ["kill"]


def test_recovery_times_of_a_fault_are_in_its_row() -> None:
    found = ((1.0, 2.0, 1.5), (5.0, 4.0, 2.5), (9.0, None, None))
    times = [Occurrence("kill", at, 0.1, 1, recovered, freed) for at, recovered, freed in found]
    (row,) = ledger(occurrences=times).faults
    assert row.freed_median_sec == 2.0
    assert (row.times, row.recovery_median_sec, row.recovery_max_sec, row.not_recovered) == (3, 3.0, 4.0, 1)


def test_faults_before_the_recovery_from_another_are_counted_as_overlapping() -> None:
    times = [Occurrence("kill", at, 0.1, affected, 4.0) for at, affected in ((1.0, 1), (2.0, 1), (4.5, 0), (7.0, 1))]
    assert ledger(occurrences=times).overlapping == 1
    assert ledger(occurrences=[*times, Occurrence("cut", 4.0, 0.1, 1, 1.0)]).overlapping == 2
    assert ledger().overlapping == 0


def test_same_fault_and_moves_of_one_server_do_not_overlap() -> None:
    assert excludes("kill", "kill")
    assert excludes("restart", "failover")
    assert excludes("failover", "restart")
    assert not excludes("kill", "freeze")


def test_late_begin_of_a_stored_step_is_not_a_violation() -> None:
    thoughts = [Thought("c", 2, "begun"), Thought("c", 2, "kept"), Thought("c", 1, "begun")]
    assert ledger(thoughts=thoughts).violations == {}


def test_act_of_a_claim_older_than_a_look_is_refused_outside() -> None:
    acts = [Act("look", "x", 2), Act("act", "x", 1), Act("act", "x", 2)]
    assert accepted_acts(acts) == {"x": 1}
    assert accepted_acts([Act("act", "x", 1), Act("look", "x", 2), Act("act", "x", 2)]) == {"x": 2}


def run(store: str, *line: str, path: Path | None = None) -> subprocess.CompletedProcess[bytes]:
    environment = {**os.environ, "PYTHONPATH": str(path)} if path else None
    command = [sys.executable, "-m", "shiftwork", "--store", store, "--json", *line]
    return subprocess.run(command, env=environment, capture_output=True, check=False)


SHORT = ("--minutes", "0.01", "--every", "0", "--workers", "2", "--seed", "11")
MET = {"sqlite": "kill,lose-answers,repeat,clock,disk-full", "postgresql": "freeze,cut,reorder,slow,clock"}


@pytest.mark.requirement("C-249")
@pytest.mark.timeout(300)
async def test_faults_lose_and_repeat_nothing_and_leave_nothing_behind(store_url: str, tmp_path: Path) -> None:
    async with Queue.open(store_url) as queue:
        mine = await queue.submit(type="prove")
        before = await leftovers(store_url)
    faults = MET[store_url.partition(":")[0]]
    done = run(store_url, "prove", *SHORT, "--faults", faults, "--picture", str(tmp_path / "p.svg"))
    assert done.returncode == 0, done.stderr.decode()
    found = json.loads(done.stdout)
    assert found["completed"] == found["submitted"] > 0
    assert {row["fault"]: row["affected"] > 0 for row in found["faults"]} == dict.fromkeys(faults.split(","), True)
    assert found["overlapping"] > 0
    assert "tasks completed per second" in (tmp_path / "p.svg").read_text()
    async with Queue.open(store_url) as queue:
        assert [task.id for task in (await queue.tasks.list()).tasks] == [mine.id]
    assert await leftovers(store_url) == before


async def leftovers(url: str) -> list[str]:
    """Return what is left where a run creates its scratch store: files next to the user's, or schemas."""
    if url.startswith("sqlite"):
        return sorted(path.name for path in Path(url.removeprefix("sqlite:///")).parent.glob(".shiftwork-prove*"))
    connection = await asyncpg.connect(url)
    try:
        return [row[0] for row in await connection.fetch("select nspname from pg_namespace where nspname !~ '^pg_'")]
    finally:
        await connection.close()


@pytest.mark.timeout(300)
def test_permitted_restart_and_failover_really_happen() -> None:
    with replicated() as (_, store, *options):
        done = run(store, "prove", *SHORT, "--faults", "restart,failover", *options)
    assert done.returncode == 0, done.stderr.decode()
    assert [row["times"] for row in json.loads(done.stdout)["faults"]] == [1, 1]


CALLED = "result = await threads.call(function, effect, name=effect.key)"
LOSING = "[to_insert(row) for row in rows]", "[to_insert(row) for row in rows[: max(1, len(rows) - 1)]]"
"""The last task of a batch is not written, and the batch is answered as if it were."""
BROKEN = {
    "lost": [("engine/submit.py", *LOSING)],
    "effects_twice": [
        ("worker/durable.py", CALLED, f"{CALLED}\n{16 * ' '}{CALLED}"),
    ],
    "late_accepted": [
        ("engine/fence.py", 'row["fence"] == token.fence and row["status"] in allowed', 'row["status"] in allowed'),
        ("engine/fence.py", ' or row["fence"] != token.fence', ""),
        ("engine/sql/finish.sql", "tasks.fence = items.fence and ", ""),
    ],
    "not_booked": [("worker/context.py", "noted = self._noted.used", "noted = Usage()")],
    "steps_repeated": [
        ("worker/durable.py", "(stored := await self._stored.find(numbered)) is not None", "False"),
        ("worker/durable.py", "return await self._result_of(stored)", "..."),
    ],
}  # fmt: skip


@pytest.fixture
def package(tmp_path: Path) -> Iterator[Path]:
    """A copy of the package, to be broken."""
    copy = tmp_path / "copy" / "shiftwork"
    shutil.copytree(Path(shiftwork.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    yield copy
    shutil.rmtree(copy)


def change(package: Path, name: str, right: str, wrong: str) -> None:
    text = (package / name).read_text()
    assert right in text
    (package / name).write_text(text.replace(right, wrong))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("wrong", BROKEN)
def test_broken_build_is_detected_by_prove(sqlite_url: str, package: Path, wrong: str) -> None:
    """Broken builds lose tasks, repeat effects, ignore fences, drop costs, or repeat stored steps."""
    for name, right, mutated in BROKEN[wrong]:
        change(package, name, right, mutated)
    done = run(sqlite_url, "prove", *SHORT, "--tasks", "1600", "--faults", "freeze", path=package.parent)
    assert done.returncode == 1, done.stderr.decode()
    assert json.loads(done.stdout)[wrong] > 0
    assert wrong in done.stderr.decode()


@pytest.mark.timeout(120)
def test_run_without_faults_is_not_a_proof(sqlite_url: str) -> None:
    done = run(sqlite_url, "prove", "--tasks", "5", "--workers", "1", "--every", "1000", "--faults", "kill,cut")
    assert done.returncode == 7, done.stderr.decode()
    assert b"These faults did not happen: kill, cut. This run is no proof." in done.stderr


@pytest.mark.parametrize(
    ("faults", "words"),
    [("kill,flood", "there is no fault 'flood'"), ("restart", "It needs PostgreSQL with --restart-command.")],
)
def test_fault_that_cannot_be_injected_is_refused(sqlite_url: str, faults: str, words: str) -> None:
    done = run(sqlite_url, "prove", "--faults", faults)
    assert done.returncode == 2
    assert words in done.stderr.decode()


def test_list_of_faults_says_which_apply(sqlite_url: str) -> None:
    listed = json.loads(run(sqlite_url, "prove", "--list-faults").stdout)
    assert [row["fault"] for row in listed] == list(FAULTS)
    assert {row["fault"] for row in listed if not row["applies"]} == {"restart", "failover"}


@pytest.mark.timeout(120)
@pytest.mark.parametrize("signal_", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_run_ends_its_processes_and_removes_its_store(tmp_path: Path, signal_: signal.Signals) -> None:
    url = f"sqlite:///{tmp_path}/work.db"
    command = [sys.executable, "-m", "shiftwork", "--store", url, "prove", "--minutes", "5"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert process.stderr.readline().startswith("0 s: ")
        process.send_signal(signal_)
        process.communicate()
    assert process.returncode == 130
    assert list(tmp_path.iterdir()) == []
    assert [line for line in command_lines() if "shiftwork.prove.process" in line and str(tmp_path) in line] == []


@pytest.mark.timeout(60)
async def test_process_that_two_faults_end_is_started_once(tmp_path: Path) -> None:
    world = str(tmp_path / "world")
    member = Member("one", ["work", "one", world], f"sqlite:///{tmp_path}/work.db", tmp_path, Controls(tmp_path / "c"))
    await asyncio.gather(member.replace(), member.replace(), member.start_if_ended())
    try:
        assert len([line for line in command_lines() if world in line]) == 1
    finally:
        await member.kill()


def command_lines() -> Iterator[str]:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            yield path.read_text()


def test_chart_marks_the_faults() -> None:
    drawn = svg.charts("x < y", [svg.Series("tasks", [(0, 0), (10, 5)])], [svg.Mark(2, 3, "kill")])
    assert "<title>x &lt; y</title>" in drawn
    assert ">kill</text>" in drawn
    assert "polyline" in drawn


def test_series_that_grows_after_the_warm_up_is_not_flat() -> None:
    name = "memory of the server, MiB"
    warms_up = [(float(at), 50.0 + min(at, 30)) for at in range(100)]
    leaks = [(float(at), 50.0 + at) for at in range(100)]
    assert judge(name, warms_up, 33).flat
    assert not judge(name, leaks, 33).flat
    assert judge(name, leaks, 33).growth == pytest.approx(66, abs=1)
    assert judge(name, leaks, 33).per_hour == pytest.approx(3600, abs=1)


def test_soak_is_judged_once_retention_removes_as_much_as_is_added() -> None:
    hour = SoakPlan(minutes=60, rate=300, workers=2, keep_sec=600, sample_sec=5)
    assert hour.warm_up_sec(sqlite=True) == hour.warm_up_sec(sqlite=False) == 1800
    assert hour._replace(keep_sec=900).warm_up_sec(sqlite=True) == 1860
    assert hour._replace(keep_sec=900).warm_up_sec(sqlite=False) == 1980


def test_growth_in_a_run_that_is_too_short_is_ignored() -> None:
    grows = Verdict(series="size of the store, MiB", mean=50, growth=40, allowed=10, per_hour=2400)
    soaked = SoakLedger(submitted=1, lost=0, stuck=0, took_sec=100, tasks_per_sec=1, warm_up_sec=50, verdicts=[grows])
    assert (soaked.too_short, soaked.violations) == (False, ["size of the store, MiB"])
    short = msgspec.structs.replace(soaked, warm_up_sec=80)
    assert (short.too_short, short.violations) == (True, [])
    assert msgspec.structs.replace(short, lost=1).violations == ["lost"]


SOAK = ("soak", "--minutes", "0.25", "--rate", "40", "--keep", "3", "--sample", "0.5")


@pytest.mark.timeout(120)
def test_soak_loses_nothing_and_retention_removes_what_is_old(store_url: str) -> None:
    done = run(store_url, *SOAK)
    found = json.loads(done.stdout)
    assert (found["lost"], found["stuck"]) == (0, 0), done.stderr.decode()
    assert ("too short to judge" in done.stderr.decode()) == store_url.startswith("postgres")
    tables = next(each for each in found["verdicts"] if each["series"] == "tasks in the tables")
    assert tables["mean"] < found["submitted"] / 2


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("file", "right", "wrong", "word"),
    [
        (
            "prove/fleet_handlers.py",
            "async def soak(context: Context) -> int:  # noqa: ARG001  # every handler gets it\n",
            "async def soak(context: Context, leak: list[bytes] = []) -> int:\n        leak.append(b'x' * 400_000)\n",
            "memory of the workers",
        ),
        ("engine/submit.py", *LOSING, "lost"),
    ],
    ids=["leak", "loss"],
)  # fmt: skip
def test_planted_leak_and_loss_are_detected_by_soak(
    sqlite_url: str, package: Path, file: str, right: str, wrong: str, word: str
) -> None:
    change(package, file, right, wrong)
    done = run(sqlite_url, *SOAK, path=package.parent)
    assert done.returncode == 1, done.stderr.decode()
    assert word in done.stderr.decode()


def test_scratch_file_of_sqlite_does_not_touch_the_store(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/work.db"
    with closing(apsw.Connection(f"{tmp_path}/work.db")) as connection:
        connection.execute("create table mine (a)")
    before = (tmp_path / "work.db").read_bytes()
    assert run(url, "soak", "--minutes", "0.05", "--rate", "5", "--sample", "0.2").returncode in {0, 1}
    assert (tmp_path / "work.db").read_bytes() == before
