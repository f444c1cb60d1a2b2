"""`submit --wait` and `result`: progress on standard error, the result on standard output, the outcome as exit code."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from shiftwork import Assignment, Queue
from tests.cli.terminal import Terminal
from tests.cli.test_over_http import Remote
from tests.client.serving import served

Work = Callable[[Queue, Assignment], Awaitable[Any]]
DAG = {"tasks": [{"type": "code", "key": "a"}, {"type": "code", "key": "b", "dependencies": ["a"]}]}


@pytest.fixture(params=["sqlite", "postgres", "http"])
def anywhere(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Terminal]:
    """The command line on each store and through a server."""
    if request.param != "http":
        yield Terminal(request.getfixturevalue(f"{request.param}_url"), tmp_path)
        return
    url = request.getfixturevalue("sqlite_url")
    with served(url, maintenance=False) as server:
        yield Remote(tmp_path, url, server.url)


@contextmanager
def working(terminal: Terminal, *works: Work) -> Iterator[None]:
    """Run an agent in another thread, with its own queue, that handles the next tasks like this."""

    async def work() -> None:
        async with Queue.open(terminal.url) as queue:
            for do in works:
                while not (claimed := await queue.claim("mule", start=True, wait=25)):
                    pass
                await do(queue, claimed[0])

    with ThreadPoolExecutor(1) as thread:
        done = thread.submit(asyncio.run, work())
        yield
        done.result(60)


async def _complete(queue: Queue, task: Assignment) -> None:
    await queue.claims.progress(task.token, "half way")
    await queue.complete(task.token, {"lines": 7})


async def _fail(queue: Queue, task: Assignment) -> None:
    await queue.fail(task.token, "crash", "boom", retry=False)


async def _cancel(queue: Queue, task: Assignment) -> None:
    await queue.cancel(task.id, "not needed")


def test_submit_waits_shows_progress_and_prints_the_result(anywhere: Terminal) -> None:
    with working(anywhere, _complete):
        done = anywhere.run("submit", "code", "--wait")
    assert (done.code, json.loads(done.out)) == (0, {"lines": 7})
    assert "half way" in done.err
    assert "completed  by agent:mule" in done.err


def test_result_of_a_waited_submit_is_one_json_document(anywhere: Terminal) -> None:
    with working(anywhere, _complete):
        done = anywhere.run("submit", "code", "--wait", "60", "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["data"] == {"lines": 7}


@pytest.mark.parametrize(("work", "code", "words"), [(_fail, 8, "failed: boom"), (_cancel, 9, "cancelled: not needed")])
def test_exit_code_says_how_the_task_ended(anywhere: Terminal, work: Work, code: int, words: str) -> None:
    with working(anywhere, work):
        done = anywhere.run("submit", "code", "--wait", "1m")
    assert (done.code, done.out) == (code, "")
    assert words in done.err


def test_timeout_has_its_own_exit_code(anywhere: Terminal) -> None:
    done = anywhere.run("submit", "code", "--wait", "0.1")
    assert (done.code, done.out) == (10, "")
    assert "has not ended: it is ready" in done.err
    (task,) = anywhere.json("list")["tasks"]
    again = anywhere.run("result", task["id"], "--json")
    assert (again.code, json.loads(again.err)["code"]) == (10, "result_timeout")


def test_result_waits_for_a_task_submitted_before(anywhere: Terminal) -> None:
    task_id = anywhere.json("submit", "code")["id"]
    with working(anywhere, _complete):
        assert json.loads(anywhere.text("result", task_id, "--wait")) == {"lines": 7}
    assert json.loads(anywhere.text("result", task_id)) == {"lines": 7}


def test_text_is_printed_unchanged(terminal: Terminal) -> None:
    async def write(queue: Queue, task: Assignment) -> None:
        await queue.complete(task.token, text="a poem\nof two lines")

    task_id = terminal.json("submit", "code")["id"]
    with working(terminal, write):
        assert terminal.text("result", task_id, "--wait") == "a poem\nof two lines\n"


def test_dag_prints_the_outcome_of_each_task(anywhere: Terminal) -> None:
    with working(anywhere, _complete, _fail):
        done = anywhere.run("submit", "--file", "-", "--wait", "60", stdin=json.dumps(DAG))
    assert done.code == 8
    assert {tuple(line.split()[1:4]) for line in done.out.splitlines()[2:]} >= {("completed", "code", '{"lines":7}')}
    assert "boom" in done.out
    dag_id = done.out.split()[0]
    found = json.loads(anywhere.run("result", dag_id, "--json").out)
    assert (found["status"], [task["status"] for task in found["tasks"]]) == ("failed", ["completed", "dead_lettered"])


def test_list_ends_with_the_code_of_its_first_failure(anywhere: Terminal) -> None:
    with working(anywhere, _fail, _complete):
        line = ("submit", "--file", "-", "--wait", "60", "--json")
        done = anywhere.run(*line, stdin=json.dumps([{"type": "code"}, {"type": "code"}]))
    ends = sorted(task["status"] for task in json.loads(done.out)["tasks"])
    assert (done.code, ends) == (8, ["completed", "dead_lettered"])


@pytest.mark.parametrize("wait", ["soon", "5x", "nan"])
def test_invalid_wait_is_refused_and_nothing_is_submitted(terminal: Terminal, wait: str) -> None:
    terminal.text("migrate")
    done = terminal.run("submit", "code", f"--wait={wait}")
    assert (done.code, done.out) == (2, "")
    assert "--wait" in done.err
    assert terminal.json("list")["tasks"] == []


def test_result_of_an_unknown_task_is_not_found(terminal: Terminal) -> None:
    terminal.text("migrate")
    assert terminal.run("result", "nothing", "--wait").code == 3
