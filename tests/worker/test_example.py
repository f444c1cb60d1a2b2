"""The example fleet does what it says, on both stores, as a program and as a target of `shiftwork work`."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from shiftwork import Queue
from shiftwork.worker.load_worker import load

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def test_example_fleet_runs_to_the_end(store_url: str, tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLES / "fleet.py"), store_url]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "page    completed  attempts failed: 1  result: https://example.org/page" in done.stdout
    assert "survey  completed  attempts failed: 0  result: 14" in done.stdout
    assert "watch   cancelled  because: seen enough" in done.stdout
    assert "The DAG is completed: 8 of 8 tasks, 0.04 USD." in done.stdout
    asyncio.run(look_at_what_is_left(store_url))


async def look_at_what_is_left(url: str) -> None:
    async with Queue.open(url) as queue:
        assert (await queue.status()).counts == {"completed": 8, "cancelled": 1}
        (watch,) = (await queue.tasks.list(type="watch")).tasks
        assert watch.cost_usd == 0.01


def test_example_declares_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(EXAMPLES)
    assert sorted(load("fleet:worker").handlers) == ["ask", "publish", "research", "survey", "watch", "write"]
