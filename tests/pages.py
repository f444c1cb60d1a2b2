"""Runs the commands on a page of docs/ as a reader would."""

import os
import re
import subprocess
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parents[1] / "docs"
_COMMANDS = re.compile(r"```sh\n(.*?)```", re.DOTALL)


def commands_of(page: str) -> list[str]:
    return _COMMANDS.findall((DOCS / page).read_text(encoding="utf-8"))


def run_commands(script: str, folder: Path) -> str:
    """Run them one after the other and return their output; each must succeed."""
    programs = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-e", "-m", "-c", script],
        cwd=folder,
        env={"PATH": programs, "HOME": str(folder)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
