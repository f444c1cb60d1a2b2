"""Typed tasks under mypy and pyright: correct code passes, each mistake is found."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
HEAD = """
from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import assert_type

import msgspec

from shiftwork import Client, Context, NewTask, Queue, SyncQueue, Worker

worker = Worker()


@dataclass
class Summary:
    text: str


class Job(msgspec.Struct):
    url: str


@worker.task
async def summarise(text: str, words: int = 100) -> Summary:
    return Summary(text)


@worker.task(type="jobs.fetch", max_attempts=5, retry={"strategy": "fixed"}, concurrency=3)
async def fetch(ctx: Context, job: Job) -> list[int]:
    return [len(job.url)]


@worker.task
def plain(ctx: Context, n: int) -> str:
    return str(n)


@worker.task
def plainer(n: int) -> str:
    return str(n)


@worker.lifespan
async def prices() -> AsyncIterator[dict[str, float]]:
    yield {}
"""
RIGHT = """
async def produce(queue: Queue, client: Client) -> None:
    assert_type(await (await summarise.submit("a", words=3)).result(timeout=3), Summary)
    assert_type(await (await fetch.on(queue).submit(Job("u"))).result(), list[int])
    assert_type(await (await plain.on(client).submit(n=1)).result(), str)
    assert_type(await (await plainer.with_options(priority=3, tags=["a"]).submit(1)).result(), str)
    assert_type(summarise.new("a"), NewTask)
    await queue.submit_many([summarise.new("a"), fetch.new(Job("u"))])


def produce_blocking(queue: SyncQueue) -> None:
    assert_type(summarise.on(queue).with_options(key="a").submit("a").result(), Summary)


async def handle(ctx: Context) -> None:
    assert_type(prices.of(ctx), dict[str, float])
    assert_type(await ctx.map(summarise, ["a", "b"]), list[Summary])
"""
WRONG = """
async def produce(queue: Queue) -> None:
    await summarise.submit(txt="a")  # wrong
    await summarise.submit("a", words="many")  # wrong
    await summarise.submit("a", priority=3)  # wrong
    await summarise.submit()  # wrong
    await fetch.submit("u")  # wrong
    await plain.on(queue).submit("n")  # wrong
    summarise.with_options(prioirty=3)  # wrong
    summarise.with_options(priority="high")  # wrong
    summarise.new(3)  # wrong
    number: int = await (await plain.submit(1)).result()  # wrong


def produce_blocking(queue: SyncQueue) -> None:
    summarise.on(queue).submit(3)  # wrong


worker.task(max_attempt=3)  # wrong
worker.task(max_attempts="many")  # wrong
"""
ENVIRONMENT = {key: value for key, value in os.environ.items() if not key.startswith("MYPY")}


def mypy(file: Path) -> set[int]:
    """Return the lines with errors of mypy."""
    options = ["--strict", "--cache-dir", str(file.parent / "cache"), "--output", "json", "--follow-imports", "silent"]
    command = [sys.executable, "-m", "mypy", "--config-file", os.devnull, *options, str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=ENVIRONMENT)
    assert done.returncode in {0, 1}, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {each["line"] for each in found if each["severity"] == "error"}


def pyright(file: Path) -> set[int]:
    """The same for pyright."""
    (file.parent / "pyrightconfig.json").write_text(
        json.dumps({"typeCheckingMode": "strict", "reportUnusedImport": False})
    )
    command = [sys.executable, "-m", "basedpyright", "--pythonpath", sys.executable, "--outputjson"]
    done = subprocess.run([*command, str(file)], capture_output=True, text=True, check=False, cwd=file.parent)
    found = json.loads(done.stdout)["generalDiagnostics"]
    return {each["range"]["start"]["line"] + 1 for each in found if each["severity"] == "error"}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("checker", [mypy, pyright])
def test_type_checkers_accept_what_is_right_and_find_every_mistake(checker: object, tmp_path: Path) -> None:
    assert callable(checker)
    file = tmp_path / "app.py"
    file.write_text(HEAD + RIGHT)
    assert checker(file) == set()
    text = HEAD + WRONG
    file.write_text(text)
    wrong = {number for number, line in enumerate(text.splitlines(), 1) if line.endswith("# wrong")}
    assert len(wrong) == 13
    assert checker(file) == wrong


@pytest.mark.timeout(600)
@pytest.mark.parametrize("checker", [mypy, pyright])
def test_type_checkers_accept_the_typed_example(checker: Callable[[Path], set[int]], tmp_path: Path) -> None:
    file = tmp_path / "newsletter.py"
    file.write_text((EXAMPLES / "newsletter.py").read_text(encoding="utf-8"))
    assert checker(file) == set()
