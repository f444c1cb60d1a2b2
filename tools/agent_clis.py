"""Fetches the agent programs that the tests run, by name and exact version: `python -m tools.agent_clis`.

npm installs each into its own folder of `.servers/agents`, together about 1.2 GB; nothing else on the machine changes.
A program counts as installed when it starts and prints its version.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Program:
    """The npm package of a program, and its script that installs the binary for this platform."""

    package: str
    version: str
    script: str | None = None


PROGRAMS = {
    "claude": Program("@anthropic-ai/claude-code", "2.1.326", "install.cjs"),
    "codex": Program("@openai/codex", "0.169.0"),
    "gemini": Program("@google/gemini-cli", "0.61.0"),
    "opencode": Program("opencode-ai", "1.18.33", "postinstall.mjs"),
}
"""The versions that docs/howto/cli-agents.md names."""

FOLDER = Path(__file__).resolve().parents[1] / ".servers" / "agents"
INSTALL_SEC = 600
START_SEC = 60
# Other npm scripts compile parts that no program here needs. Without a registry, npm fails in seconds, not minutes.
_NPM = ("--ignore-scripts", "--no-package-lock", "--no-audit", "--no-fund", "--loglevel=error")
_RETRIES = ("--fetch-retries=2", "--fetch-retry-mintimeout=1000", "--fetch-retry-maxtimeout=5000")


class NotInstallableError(Exception):
    """A program cannot be installed here; the message says why."""


def bin_folder(name: str) -> Path:
    """Return the folder of an installed program's executable."""
    return _place(name) / "node_modules" / ".bin"


def fetch(name: str) -> None:
    """Install a program into its folder, unless it is already there and starts."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            _check(name)
        except NotInstallableError:
            shutil.rmtree(_place(name), ignore_errors=True)
            _install(name)
            _check(name)


def _place(name: str) -> Path:
    return FOLDER / f"{name}-{PROGRAMS[name].version}"


def _install(name: str) -> None:
    npm = shutil.which("npm")
    if npm is None:
        raise NotInstallableError("npm is not on the PATH; it comes with Node.js 20 or newer")
    program, place = PROGRAMS[name], _place(name)
    place.mkdir(parents=True)
    (place / "package.json").write_text('{"private": true}', encoding="utf-8")
    _run([npm, "install", *_NPM, *_RETRIES, f"{program.package}@{program.version}"], place, INSTALL_SEC)
    if program.script is not None:
        _run(["node", program.script], place / "node_modules" / program.package, INSTALL_SEC)


def _check(name: str) -> None:
    place = _place(name)
    printed = _run([str(bin_folder(name) / name), "--version"], place, START_SEC, HOME=str(place))
    if PROGRAMS[name].version not in printed:
        raise NotInstallableError(f"{name} --version prints {printed.strip()!r}")


def _run(line: Iterable[str], folder: Path, timeout_sec: int, **environment: str) -> str:
    command = [*line]
    words = f"{Path(command[0]).name} {command[1]}"
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=timeout_sec,
        )
    except subprocess.TimeoutExpired as error:
        raise NotInstallableError(f"{words} has not ended in {timeout_sec} s") from error
    except OSError as error:
        raise NotInstallableError(f"{words} does not start: {error.strerror}") from error
    if done.returncode:
        printed = (done.stderr or done.stdout).strip().splitlines()
        raise NotInstallableError(f"{words} ended with {done.returncode}: {printed[0] if printed else 'no output'}")
    return done.stdout


def main() -> None:
    """Fetch the programs and print their paths."""
    missing = False
    for name, program in PROGRAMS.items():
        try:
            fetch(name)
        except NotInstallableError as error:
            missing = True
            print(f"{name} {program.version} cannot be fetched: {error}")
        else:
            print(f"{name} {program.version} {bin_folder(name)}")
    raise SystemExit(int(missing))


if __name__ == "__main__":
    main()
