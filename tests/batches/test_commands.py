"""`shiftwork batches` and `submit --urgency batch`, as a person types them."""

import asyncio
import json

import pytest
from click.testing import CliRunner

from shiftwork import Queue
from shiftwork.batches.model import Batch
from shiftwork.cli.root import main
from shiftwork.testing import MovedClock
from tests.batches.fake_provider import FakeProvider
from tests.batches.steps import GATHER_SEC, task, turn


def typed(*words: str) -> str:
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.output
    return done.output


async def sent(url: str, clock: MovedClock) -> tuple[str, Batch]:
    async with Queue.open(url, clock=clock) as queue:
        made = (await queue.submit(task("one"))).id
        await turn(queue, clock, GATHER_SEC)
        (batch,) = await queue.batches.list()
    return made, batch


def test_batches_are_listed_and_shown(
    sqlite_url: str, clock: MovedClock, fake: FakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHIFTWORK_STORE", sqlite_url)
    made, batch = asyncio.run(sent(sqlite_url, clock))
    (external,) = fake.batches
    shown = json.loads(typed("batches", "show", batch.id, "--json"))
    assert (shown["external_id"], shown["tasks"]) == (external, [{"task_id": made, "status": "open"}])
    assert batch.id in typed("batches")
    assert "posted" in typed("batches", "list", "--status", "posted")


def test_task_is_submitted_for_a_batch(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHIFTWORK_STORE", sqlite_url)
    payload = json.dumps(task("one")["payload"])
    made = json.loads(typed("submit", "ask", "--urgency", "batch", "-p", payload, "--json"))
    assert json.loads(typed("show", made["id"], "--json"))["urgency"] == "batch"
    assert "it waits to be sent to anthropic in a batch" in typed("explain", made["id"])
