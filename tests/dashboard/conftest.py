"""One server with a filled queue, and one browser, for all tests of the dashboard."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from shiftwork import Queue
from shiftwork.testing import MovedClock
from tests.dashboard.sample import LASTS_SEC, fill
from tests.services.chromium import chromium

T = TypeVar("T")


@dataclass
class Site:
    """A running server."""

    url: str
    store: str
    pid: int


@dataclass
class Heard:
    """The errors that a browser logged, and the hosts that it contacted."""

    complaints: list[str] = field(default_factory=list)
    refusal: str = ""
    """The status of a refusal that is meant here: a browser complains of each."""
    asked: list[str] = field(default_factory=list)


def finish(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in a separate thread, since the browser's driver runs a loop in this one."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()


async def make(store: str) -> None:
    clock = MovedClock(time.time() - LASTS_SEC)
    async with Queue.open(store, clock=clock, seed=7) as queue:
        await fill(queue, clock)


@contextmanager
def served(store: str, *options: str) -> Iterator[Site]:
    command = [sys.executable, "-m", "shiftwork", "serve", "--store", store, "--port", "0", "--json"]
    command += ["--private-sinks", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        try:
            yield Site(json.loads(process.stdout.readline())["url"], store, process.pid)
        finally:
            process.terminate()


@contextmanager
def opened_browser() -> Iterator[Browser]:
    program = chromium()
    environment = {**os.environ, **program.environment(), "HOME": os.environ.get("HOME", "")}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=str(program.file), args=["--no-sandbox"], env={**environment}, timeout=60_000
        )
        yield browser
        browser.close()


@pytest.fixture(scope="package")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    store = f"sqlite:///{tmp_path_factory.mktemp('dashboard') / 'queue.db'}"
    finish(make(store))
    with served(store) as running:
        yield running


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """The browser, closed before other tests begin, because its driver runs a loop in this thread."""
    with opened_browser() as found:
        yield found


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
def page(browser: Browser, site: Site, heard: Heard) -> Iterator[Page]:
    """A tab on the filled queue. Any error in the browser fails the test."""
    context = browser.new_context(base_url=site.url, viewport={"width": 1360, "height": 860})
    tab = context.new_page()
    listen(tab, heard)
    yield tab
    context.close()
    assert [stated for stated in heard.complaints if not heard.refusal or heard.refusal not in stated] == []


def listen(tab: Page, heard: Heard) -> None:
    tab.on("console", lambda message: heard.complaints.append(message.text) if message.type == "error" else None)
    tab.on("pageerror", lambda error: heard.complaints.append(str(error)))
    tab.on("request", lambda request: heard.asked.append(request.url))
