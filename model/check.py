"""Runs spin on a model: explores every interleaving, until an assertion fails or all states have been visited."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

from tests.services.programs import ServiceError, Wanted, find

FOLDER = Path(__file__).resolve().parent
MODELS = sorted(file.stem for file in FOLDER.glob("*.pml"))
SPIN = Wanted(component="spin", variable="SHIFTWORK_TEST_SPIN", names=("spin",), debian="spin", says_version="-V")
MAX_DEPTH = 1_000_000
"""The longest path in steps. A longer one is an error, so the search never ends early unnoticed."""

_VARIANT = re.compile(r"^ \*   -D(\w+) +(.+)$", re.MULTILINE)


class Verdict(NamedTuple):
    """The result of the checker."""

    states: int
    error: str | None
    """The first assertion that failed, or a state from which nothing can continue."""


def variants(model: str) -> dict[str, str]:
    """Return the deliberate mistakes that the model's header declares, with their meanings."""
    return dict(_VARIANT.findall((FOLDER / f"{model}.pml").read_text(encoding="utf-8")))


def check(model: str, folder: Path, variant: str | None = None) -> Verdict:
    """Explore a model, or a broken variant of it, in an empty folder."""
    spin = find(SPIN)
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise ServiceError("The model checker compiles the model with a C compiler, which was not found: install gcc.")
    options = [f"-D{variant}"] if variant else []
    _run([str(spin.file), *options, "-a", str(FOLDER / f"{model}.pml")], folder)
    _run([compiler, "-O2", "-w", "-DSAFETY", "-o", "pan", "pan.c"], folder)
    found = _run(["./pan", f"-m{MAX_DEPTH}"], folder)
    if (states := re.search(r"(\d+) states, stored", found)) is None or "max search depth too small" in found:
        raise ServiceError(f"spin did not search all of {model}: {found[:500]}")
    failed = re.search(r"^pan:\d+: (.+) \(at depth \d+\)", found, re.MULTILINE)
    return Verdict(int(states[1]), failed[1] if failed else None)


def _run(command: list[str], folder: Path) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ServiceError(f"{Path(command[0]).name} failed: {(done.stdout + done.stderr)[:1000]}")
    return done.stdout
