"""Which queue a command means: options, the environment, shiftwork.toml, the default; and what is wrong with a file."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from shiftwork import Queue, SyncQueue, config, open_queue
from shiftwork.config import Chosen
from shiftwork.model.errors import InvalidConfig
from tests.cli.terminal import Run, Terminal
from tests.client.serving import served

NEW = "Created sqlite:///shiftwork.db in {folder}; set --store, SHIFTWORK_STORE or shiftwork.toml to use another.\n"


@pytest.fixture(autouse=True)
def _nothing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in config.VARIABLES.values():
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a file, and the current folder two levels below it."""
    folder = tmp_path / "project"
    (folder / "src" / "deep").mkdir(parents=True)
    monkeypatch.chdir(folder / "src" / "deep")
    return folder


def write(project: Path, text: str) -> Path:
    file = project / "shiftwork.toml"
    file.write_text(text, encoding="utf-8")
    return file


def shiftwork(*line: str, **environment: str) -> Run:
    """As a person types it: the environment of the tests names no store."""
    words = [sys.executable, "-m", "shiftwork", *line]
    done = subprocess.run(words, capture_output=True, text=True, check=False, env={**os.environ, **environment})
    return Run(done.returncode, done.stdout, done.stderr)


def test_two_folders_below_one_file_share_a_queue(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(project, 'store = "sqlite:///queue.db"\n')
    assert shiftwork("submit", "code", "--id", "shared").err == ""
    monkeypatch.chdir(project)
    assert "code" in shiftwork("show", "shared").out
    assert [each.name for each in project.rglob("*.db")] == ["queue.db"]


def test_nearest_file_is_used(project: Path) -> None:
    write(project, 'store = "sqlite:///far.db"\n')
    near = write(project / "src", 'store = "sqlite:///near.db"\n')
    assert config.address().store == Chosen(f"sqlite:///{project}/src/near.db", str(near))


def test_options_come_before_the_environment_and_the_environment_before_the_file(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(project, 'store = "postgresql://ada:secret@host/queue"\nworkspace = "team"\n')
    assert _sources() == {"store": str(file), "workspace": str(file)}
    assert "secret" not in shiftwork("config").out
    monkeypatch.setenv("SHIFTWORK_WORKSPACE", "other")
    assert _sources() == {"store": str(file), "workspace": "SHIFTWORK_WORKSPACE"}
    monkeypatch.setenv("SHIFTWORK_STORE", "sqlite:///env.db")
    assert _sources()["store"] == "SHIFTWORK_STORE"
    assert _sources("--store", "sqlite:///typed.db")["store"] == "--store"


def _sources(*options: str) -> dict[str, str]:
    found = json.loads(shiftwork("config", "--json", *options).out)
    return {key: found[key]["source"] for key in ("store", "workspace")}


def test_workspace_and_token_of_a_file_are_not_used_for_another_store(project: Path) -> None:
    (project / "token").write_text("sw_secret", encoding="utf-8")
    write(project, 'store = "http://127.0.0.1:1"\nworkspace = "team"\ntoken_file = "token"\n')
    assert config.address().token.value == "sw_secret"
    found = config.address(Chosen("http://127.0.0.1:2", "--store"))
    assert (found.workspace.value, found.token.value) == (None, None)


def test_broken_file_is_not_read_if_the_store_is_named(project: Path) -> None:
    write(project, "store =")
    assert shiftwork("submit", "code", "--store", f"sqlite:///{project}/named.db").code == 0
    shown = shiftwork("config", "--store", f"sqlite:///{project}/named.db")
    assert "not used: --store names the store" in shown.out


@pytest.mark.parametrize(
    ("text", "line", "what", "hint"),
    [
        ('stor = "sqlite:///a.db"', 1, "there is no key `stor`", "Did you mean `store`?"),
        ('\n\ntokenfile = "a"', 3, "there is no key `tokenfile`", "Did you mean `token_file`?"),
        ("[retry]\nmax_attempts = 3", 1, "there is no key `retry`", "The keys are `store`, `workspace`, `token_file`."),
        ("# queue\nstore = 5", 2, "`store` must be non-empty text in quotes", None),
        ('workspace = " "', 1, "`workspace` must be non-empty text in quotes", None),
        ('store = "a\\u0000b"', 1, "`store` must be non-empty text in quotes", None),
        ('store = "queue.db"', 1, "`store` is 'queue.db', which is not an address", None),
        ('workspace = "a"\nstore = sqlite', 2, "not TOML: Invalid value", None),
        ('store = "a://b"\nstore = "a://b"', 2, "not TOML: Cannot overwrite a value", None),
    ],
)
def test_bad_file_is_named_with_line_and_key(project: Path, text: str, line: int, what: str, hint: str | None) -> None:
    file = write(project, text)
    done = shiftwork("list", "--json")
    error = json.loads(done.err)
    assert (done.code, done.out, error["code"]) == (2, "", "invalid_config")
    assert (error["what"], error["where"]) == (what, f"{file}, line {line}")
    assert error["hint"]
    assert hint is None or error["hint"] == hint
    assert list(project.rglob("*.db")) == []


def test_binary_file_is_refused(project: Path) -> None:
    (project / "shiftwork.toml").write_bytes(b"store = '\xff'")
    assert "the file is not UTF-8 text" in shiftwork("list").err


def test_file_of_another_user_is_refused(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(project, 'store = "http://127.0.0.1:1"')
    monkeypatch.setattr(Path, "stat", lambda *_, **__: os.stat_result((0o100644, 1, 1, 1, 4711, 4711, 1, 0, 0, 0)))
    with pytest.raises(InvalidConfig, match="belongs to another user"):
        config.found_file()


@pytest.mark.parametrize(
    ("content", "what"), [(None, "cannot be read"), (b"", "is empty"), (b"\xff", "is not UTF-8 text")]
)
def test_unusable_token_file_is_refused(project: Path, content: bytes | None, what: str) -> None:
    if content is not None:
        (project / "token").write_bytes(content)
    write(project, 'store = "http://127.0.0.1:1"\ntoken_file = "token"')
    assert f"the token file {project}/token {what}" in shiftwork("list").err


def test_token_is_read_from_a_file(project: Path, sqlite_url: str) -> None:
    with served(sqlite_url, tokens=True) as server:
        secret = Terminal(sqlite_url).json("tokens", "create", "me", "--scope", "admin")["secret"]
        (project / "token").write_text(f"{secret}\n", encoding="utf-8")
        write(project, f'store = "{server.url}"\n')
        assert "unauthorized" in shiftwork("list", "--json").err
        assert shiftwork("list", SHIFTWORK_TOKEN_FILE=str(project / "token")).code == 0
        write(project, f'store = "{server.url}"\ntoken_file = "token"\n')
        assert shiftwork("list").code == 0


def test_new_default_file_is_announced_once(project: Path) -> None:
    first, second = shiftwork("submit", "code"), shiftwork("submit", "code")
    assert first.err == NEW.format(folder=project / "src" / "deep")
    assert second.err == ""


def test_reading_command_creates_no_file_and_says_how_to_name_a_store(project: Path) -> None:
    done = shiftwork("list")
    assert "Name another with --store, SHIFTWORK_STORE or shiftwork.toml" in done.err
    assert list(project.rglob("*.db")) == []


def test_doctor_says_where_the_store_comes_from(project: Path) -> None:
    file = write(project, 'store = "sqlite:///queue.db"\n')
    shiftwork("submit", "code")
    found = json.loads(shiftwork("doctor", "--json").out)
    assert (found[0]["check"], found[0]["what"]) == ("address", f"sqlite:///{project}/queue.db, from {file}")


async def test_python_has_the_same_default_queue(project: Path) -> None:
    write(project, 'store = "sqlite:///queue.db"\nworkspace = "team"\n')
    async with open_queue() as queue:
        assert (queue.url, queue.workspace) == (f"sqlite:///{project}/queue.db", "team")
    async with Queue.open() as database:
        assert database.url == f"sqlite:///{project}/queue.db"


def test_blocking_queue_has_the_same_default_queue(project: Path) -> None:
    write(project, 'store = "sqlite:///queue.db"\n')
    with SyncQueue.open() as queue:
        assert queue.url == f"sqlite:///{project}/queue.db"
