"""`shiftwork prove` hurts a fleet and counts; and its ledger would say so if something had been lost."""

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
async def test_a_fleet_that_is_killed_and_frozen_loses_nothing_and_does_nothing_twice(store_url: str) -> None:
    told: list[str] = []
    plan = Plan(tasks=80, agents=3, longest_sec=150, fault_every_sec=0.5, seed=11)
    found = await prove(store_url, plan, told.append)
    assert found.clean, found
    assert found.completed == found.submitted == 80
    assert found.kills + found.freezes > 0
    assert told
    async with await Queue.open(store_url) as queue:
        (workspace,) = [each for each in await _workspaces(queue) if each.startswith("prove-")]
        proven = queue.in_workspace(workspace)
        assert (await proven.tasks()).tasks == []
        assert await proven.effects() == []
        assert {setting.source for setting in await proven.settings()} == {"default"}


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
def test_the_ledger_names_what_went_wrong(change: dict[str, Any], wrong: str) -> None:
    good = count(STORY)
    assert good.clean
    found: Ledger = count(msgspec.structs.replace(STORY, **change))
    assert not found.clean
    assert getattr(found, wrong) > 0
    assert getattr(good, wrong) == 0


def test_a_zombie_that_begins_what_another_has_kept_breaks_nothing() -> None:
    thoughts = [Thought("a", 2, "begun"), Thought("a", 2, "kept"), Thought("a", 1, "begun")]
    assert count(msgspec.structs.replace(STORY, thoughts=thoughts)).clean


# -- builds in which something is broken ---------------------------------------------------------------------------

BROKEN = {
    "late_accepted": [
        ("queue/fence.py", 'row["fence"] == token.fence and row["status"] in allowed', 'row["status"] in allowed'),
        ("queue/fence.py", ' or row["fence"] != token.fence', ""),
        ("store/sql/finish.sql", "tasks.fence = items.fence and ", ""),
    ],
    "not_booked": [("worker/context.py", "noted = self._purse.used", "noted = purse.NOTHING")],
    "thought_twice": [("worker/durable.py", "(stored := await self._stored.find(numbered)) is not None", "False")],
}


@pytest.mark.timeout(240)
@pytest.mark.parametrize("wrong", BROKEN)
def test_a_build_that_is_broken_is_noticed(sqlite_url: str, tmp_path: Path, wrong: str) -> None:
    """In a copy of the package: fences are not looked at, costs are dropped, kept steps are done again."""
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
def test_a_run_in_which_no_process_was_hurt_is_no_proof(sqlite_url: str) -> None:
    line = ["--store", sqlite_url, "--json", "prove", "--tasks", "5", "--agents", "1", "--every", "1000"]
    done = subprocess.run([sys.executable, "-m", "shiftwork", *line], capture_output=True, check=False)
    assert done.returncode == 7, done.stderr.decode()
    assert b"proves nothing" in done.stderr
    assert json.loads(done.stdout)["faults"] == 0
