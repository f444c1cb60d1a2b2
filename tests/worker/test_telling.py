"""What is told of a command keeps nobody waiting."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from shiftwork.worker import telling
from shiftwork.worker.output import Transcript


async def test_a_command_that_is_silent_at_its_end_waits_for_no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telling, "PAUSE_SEC", 60.0)
    context: Any = SimpleNamespace(task=SimpleNamespace(work_dir="/here"))
    teller = telling.Teller(context, Transcript("text"), "/here")
    ending = asyncio.create_task(teller.tell_until_stopped())
    await asyncio.sleep(0)  # it waits for news, and its end is the first
    teller.stop()
    async with asyncio.timeout(10):
        await ending
