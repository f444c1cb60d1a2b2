"""Reporting a command's output delays nothing."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from shiftwork.worker import live_report
from shiftwork.worker.output import Transcript


async def test_silent_command_ends_without_waiting_for_the_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_report, "PAUSE_SEC", 60.0)
    context: Any = SimpleNamespace(task=SimpleNamespace(work_dir="/here"))
    teller = live_report.ProgressReporter(context, Transcript("text"), "/here")
    ending = asyncio.create_task(teller.report_until_stopped())
    await asyncio.sleep(0)  # it waits for news, and its end is the first
    teller.stop()
    async with asyncio.timeout(10):
        await ending
