"""`shiftwork prove` injects faults into a fleet, and its ledger would show any loss."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

import shiftwork
from shiftwork import Queue
from shiftwork.prove.ledger import Ledger, Story, Thought, count
from shiftwork.prove.run import Plan, prove
from tests.conformance.steps import sql

STORY = Story(
    submitted=["a", "b"],
    statuses={"a": "completed", "b": "completed"},
    accepted={"a": 1, "b": 1},
    attempts=3,
    world=["act-a", "act-b"],
    thoughts=[Thought("a", 1, "begun"), Thought("a", 1, "kept"), Thought("b", 2, "begun"), Thought("b", 2, "kept")],
    late_accepted=0,
    costs={"a": 0.01, "b": 0.02},
    attempt_costs=0.03,
    kills=1,
    freezes=0,
    floods=2,
    took_sec=1.0,
)


@pytest.mark.requirement("C-249")
@pytest.mark.timeout(240)
async def test_killed_and_frozen_fleet_loses_and_repeats_nothing(store_url: str) -> None:
    seen: list[str] = []
    plan = Plan(tasks=80, agents=3, longest_sec=150, fault_every_sec=0.5, seed=11)
    found = await prove(store_url, plan, seen.append)
    assert found.clean, found
    assert found.completed == found.submitted == 80
    assert found.kills + found.freezes > 0
    assert seen
    async with Queue.open(store_url) as queue:
        (workspace,) = [each for each in await _workspaces(queue) if each.startswith("prove-")]
        proven = queue.in_workspace(workspace)
        assert (await proven.tasks.list()).tasks == []
        assert await proven.effects.list() == []
        assert {setting.source for setting in await proven.settings.list()} == {"default"}


async def _workspaces(queue: Queue) -> list[str]:
    return [row["name"] for row in await sql(queue, "select name from workspaces")]


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        ({"statuses": {"a": "completed"}}, "lost"),
        ({"statuses": {"a": "completed", "b": "running"}}, "stuck"),
        ({"statuses": {"a": "completed", "b": "dead_lettered"}}, "failed"),
        ({"accepted": {"a": 2, "b": 1}}, "done_twice"),
        ({"world": ["act-a", "act-b", "act-b"]}, "acted_twice"),
        ({"world": ["act-a"]}, "not_acted"),
        ({"late_accepted": 1}, "late_accepted"),
        ({"thoughts": [*STORY.thoughts, Thought("a", 2, "begun")]}, "thought_twice"),
        ({"costs": {"a": 0.03, "b": 0.0}}, "not_booked"),
        ({"attempt_costs": 0.02}, "misbooked_usd"),
    ],
)
def test_ledger_names_each_violation(change: dict[str, Any], wrong: str) -> None:
    good = count(STORY)
    assert good.clean
    found: Ledger = count(msgspec.structs.replace(STORY, **change))
    assert not found.clean
    assert getattr(found, wrong) > 0
    assert getattr(good, wrong) == 0


def test_late_begin_of_a_completed_step_is_not_a_violation() -> None:
    thoughts = [Thought("a", 2, "begun"), Thought("a", 2, "kept"), Thought("a", 1, "begun")]
    assert count(msgspec.structs.replace(STORY, thoughts=thoughts)).clean


BROKEN = {
    "late_accepted": [
        ("engine/fence.py", 'row["fence"] == token.fence and row["status"] in allowed', 'row["status"] in allowed'),
        ("engine/fence.py", ' or row["fence"] != token.fence', ""),
        ("engine/sql/finish.sql", "tasks.fence = items.fence and ", ""),
    ],
    "not_booked": [("worker/context.py", "noted = self._usage_total.used", "noted = Usage()")],
    "thought_twice": [("worker/durable.py", "(stored := await self._stored.find(numbered)) is not None", "False")],
}


@pytest.mark.timeout(240)
@pytest.mark.parametrize("wrong", BROKEN)
def test_broken_build_is_detected_by_prove(sqlite_url: str, tmp_path: Path, wrong: str) -> None:
    """In a copy of the package: fences are ignored, costs are dropped, completed steps are repeated."""
    package = tmp_path / "shiftwork"
    shutil.copytree(Path(shiftwork.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__", "dashboard"))
    for name, right, mutated in BROKEN[wrong]:
        text = (package / name).read_text()
        assert right in text
        (package / name).write_text(text.replace(right, mutated).replace("return await self._result_of(stored)", "..."))
    line = ["--store", sqlite_url, "--json", "prove", "--tasks", "60", "--agents", "2", "--every", "0.5", "--seed", "3"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-m", "shiftwork", *line], env=environment, capture_output=True, check=False)
    assert done.returncode == 1, done.stderr.decode()
    assert json.loads(done.stdout)[wrong] > 0


@pytest.mark.timeout(120)
def test_run_without_faults_is_not_a_proof(sqlite_url: str) -> None:
    line = ["--store", sqlite_url, "--json", "prove", "--tasks", "5", "--agents", "1", "--every", "1000"]
    done = subprocess.run([sys.executable, "-m", "shiftwork", *line], capture_output=True, check=False)
    assert done.returncode == 7, done.stderr.decode()
    assert b"proves nothing" in done.stderr
    assert json.loads(done.stdout)["faults"] == 0
