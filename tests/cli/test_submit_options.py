"""`submit` takes a payload as pairs or as JSON, a prompt, and how the task is retried."""

from pathlib import Path
from typing import Any

import pytest

from tests.cli.terminal import Terminal


def submitted(terminal: Terminal, *options: str, stdin: str | None = None) -> Any:
    made = terminal.json("submit", "code", *options, stdin=stdin)
    return terminal.json("show", made["id"])


@pytest.mark.parametrize(
    ("options", "payload"),
    [
        (["name=Ada"], {"name": "Ada"}),
        (["count=5", "url=http://a/?b=c", "empty="], {"count": "5", "url": "http://a/?b=c", "empty": ""}),
        (["count:=5", "on:=true", 'tags:=["a", "b"]'], {"count": 5, "on": True, "tags": ["a", "b"]}),
        (['{"a": {"b": 1}}'], {"a": {"b": 1}}),
        (['{"a": 1}', "b=2"], {"a": 1, "b": "2"}),
        (["at::=1"], {"at:": 1}),
        (["text=@words.txt", "data:=@data.json"], {"text": "Grüße\n", "data": [1]}),
    ],
)
def test_payload_is_pairs_or_json(
    terminal: Terminal,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: list[str],
    payload: dict[str, Any],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "words.txt").write_text("Grüße\n", encoding="utf-8")
    (tmp_path / "data.json").write_text("[1]", encoding="utf-8")
    given = [word for option in options for word in ("--payload", option)]
    assert submitted(terminal, *given)["payload"] == payload


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (["name"], "'name' is neither key=value nor key:=JSON"),
        (["=5"], "'=5' is neither key=value"),
        ([":=5"], "':=5' has no key before :="),
        (["count:=five"], "count: not JSON: Expecting value, line 1 column 1; write count=... for text"),
        (["a=1", "a=2"], "'a' is given twice"),
        (['{"a": 1}', "a=2"], "'a' is given twice"),
        (['{"a": 1'], "not JSON"),
        (["a=@missing.txt"], "missing.txt cannot be read"),
    ],
)
def test_unreadable_payload_submits_nothing(terminal: Terminal, options: list[str], error: str) -> None:
    done = terminal.run("submit", "code", *[word for option in options for word in ("-p", option)])
    assert done.code == 2
    assert error in done.err
    assert terminal.run("list").code == 5  # not even the queue was made


def test_prompt_is_part_of_the_payload(terminal: Terminal) -> None:
    made = submitted(terminal, "--prompt", "Say hello", "--payload", "to=Ada")
    assert made["payload"] == {"to": "Ada", "prompt": "Say hello"}
    assert submitted(terminal, "--prompt", "-", stdin="From a pipe")["payload"] == {"prompt": "From a pipe"}


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (["--prompt", "a", "--payload", "prompt=b"], "give the prompt once"),
        (["--prompt", " "], "--prompt must not be empty"),
    ],
)
def test_prompt_that_is_empty_or_given_twice_is_refused(terminal: Terminal, options: list[str], error: str) -> None:
    done = terminal.run("submit", "code", *options)
    assert (done.code, error in done.err) == (2, True)


def test_retry_is_set_for_one_task(terminal: Terminal) -> None:
    made = terminal.json(
        "submit", "code", "--retry", "strategy=fixed", "--retry", "initial_delay_sec=2", "--retry", '{"jitter": false}'
    )
    terminal.run("claim", "--agent", "ada", "--start")
    terminal.run("fail", made["id"], "--agent", "ada", "--reason", "timeout")
    task = terminal.on_queue(lambda queue: queue.get(made["id"]))
    assert task.available_at is not None
    assert task.available_at - task.failure_history[-1].at == pytest.approx(2)


def test_unknown_retry_setting_is_refused(terminal: Terminal) -> None:
    done = terminal.run("submit", "code", "--retry", "stratgy=fixed")
    assert done.code == 2
    assert "stratgy" in done.err
