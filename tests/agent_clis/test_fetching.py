"""How the agent programs are fetched, with an npm of this test."""

import os
from pathlib import Path

import pytest

from tools import agent_clis

VERSION = agent_clis.PROGRAMS["codex"].version
NPM = """#!/bin/sh
echo fetched >> "$(dirname "$0")/calls"
mkdir -p node_modules/.bin
printf '#!/bin/sh\\n%s\\n' "{body}" > node_modules/.bin/codex
chmod +x node_modules/.bin/codex
"""


@pytest.fixture(autouse=True)
def own_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(agent_clis, "FOLDER", tmp_path / "agents")


def npm(monkeypatch: pytest.MonkeyPatch, folder: Path, body: str) -> Path:
    """Make an npm whose codex runs `body`. The file lists its calls."""
    folder.mkdir(exist_ok=True)
    program = folder / "npm"
    program.write_text(NPM.replace("{body}", body))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return folder / "calls"


def test_program_is_fetched_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls = npm(monkeypatch, tmp_path / "bin", f"echo codex-cli {VERSION}")
    agent_clis.fetch("codex")
    agent_clis.fetch("codex")
    assert calls.read_text() == "fetched\n"


def test_half_installed_program_is_fetched_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls = npm(monkeypatch, tmp_path / "bin", f"echo codex-cli {VERSION}")
    half = agent_clis.bin_folder("codex") / "codex"
    half.parent.mkdir(parents=True)
    half.write_text("#!/bin/sh\necho 'native binary not installed' >&2\nexit 1\n")
    half.chmod(0o755)
    agent_clis.fetch("codex")
    assert calls.read_text() == "fetched\n"
    assert VERSION in half.read_text()


def test_program_that_does_not_start_is_not_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    npm(monkeypatch, tmp_path / "bin", "echo no such platform >&2; exit 1")
    with pytest.raises(agent_clis.NotInstallableError, match="codex --version ended with 1: no such platform"):
        agent_clis.fetch("codex")


def test_failing_npm_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    npm(monkeypatch, tmp_path / "bin", "").with_name("npm").write_text("#!/bin/sh\necho 'no registry' >&2\nexit 1\n")
    with pytest.raises(agent_clis.NotInstallableError, match="npm install ended with 1: no registry"):
        agent_clis.fetch("codex")


def test_missing_npm_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(agent_clis.NotInstallableError, match="npm is not on the PATH"):
        agent_clis.fetch("codex")
