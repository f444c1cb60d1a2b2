"""Clean environments: a wheel built once a run, installed with the versions of `constraints.txt`, without an index.

Dependencies are downloaded once and kept in `.servers/wheels/`, so that a new environment takes seconds.
"""

import fcntl
import hashlib
import os
import subprocess
import sys
import tomllib
import venv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.services.programs import FETCHED, REPOSITORY, fetching

CONSTRAINTS = REPOSITORY / "constraints.txt"
FRAMEWORKS = {"claude-agent-sdk", "langgraph", "openai-agents", "pydantic-ai"}
"""Extras that `all` leaves out: half a gigabyte together."""
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-qq"]


def run(line: Sequence[str | Path], **options: object) -> str:
    """Run a program, which must succeed; return its output."""
    words = [str(word) for word in line]
    done = subprocess.run(words, capture_output=True, text=True, check=False, **options)  # type: ignore[call-overload]  # as subprocess takes them
    assert done.returncode == 0, f"{' '.join(words)}\n{done.stdout}{done.stderr}"
    return str(done.stdout)


def built_wheel(folder: Path) -> Path:
    """The wheel of this repository, built by the first process of the run that asks for it."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = list(folder.glob("*.whl"))
        if not found:
            run([*PIP, "wheel", "--no-deps", "--no-build-isolation", "-w", folder, REPOSITORY])
            found = list(folder.glob("*.whl"))
    (wheel,) = found
    return wheel


def wheelhouse() -> Path:
    """Download every dependency of every extra except the agent frameworks, in the versions of `constraints.txt`."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    left_out = {"all", *FRAMEWORKS}
    extras = [
        each for name, group in project["optional-dependencies"].items() if name not in left_out for each in group
    ]
    wanted = sorted({*project["dependencies"], *extras})
    key = hashlib.sha256(repr((wanted, CONSTRAINTS.read_text(encoding="utf-8"), sys.version_info[:2])).encode())
    house = FETCHED / "wheels" / f"dependencies-{key.hexdigest()[:12]}"
    with fetching(house) as fresh:
        if fresh is not None:
            run([*PIP, "wheel", "-c", CONSTRAINTS, "-w", fresh, *wanted])
    return house


@dataclass(frozen=True)
class Environment:
    """A virtual environment with the wheel and some of its extras, and nothing else."""

    folder: Path

    @classmethod
    def made(cls, folder: Path, wheel: Path, *extras: str) -> "Environment":
        venv.create(folder, with_pip=False, symlinks=True)
        named = f"{wheel}[{','.join(extras)}]" if extras else str(wheel)
        into = ["--python", str(folder / "bin" / "python"), "install"]
        run([*PIP, *into, "--no-index", "--find-links", wheelhouse(), "-c", CONSTRAINTS, named])
        return cls(folder)

    def program(self, name: str) -> Path:
        return self.folder / "bin" / name

    def run(self, name: str, *arguments: str | Path, cwd: Path) -> str:
        """Run a program of the environment outside of this repository; return its output."""
        return run([self.program(name), *arguments], cwd=cwd, env=self.variables())

    def variables(self) -> dict[str, str]:
        """No Python path, no store and no token of the process that runs the tests."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("SHIFTWORK_", "PYTHON"))}
        return {**kept, "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}"}

    def distributions(self) -> set[str]:
        code = "import importlib.metadata as m; print(*(d.name.lower().replace('_', '-') for d in m.distributions()))"
        return set(self.run("python", "-c", code, cwd=self.folder).split())
