"""The code of the last release, unpacked from the repository's history."""

import os
import subprocess
import tarfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
COMMIT = "43426a7"
"""The last state of the project before the schema that this version's promise begins with. After a release: its tag."""


def unpack(folder: Path) -> Path:
    """Where its package is, for PYTHONPATH."""
    archive = folder / "released.tar"
    command = ["git", "-C", str(ROOT), "archive", "--output", str(archive), COMMIT, "src"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(
            f"This test runs the last release, commit {COMMIT}, which git cannot read here ({done.stderr.strip()}): "
            "run it in a full clone of the repository."
        )
    with tarfile.open(archive) as unpacking:
        unpacking.extractall(folder, filter="data")
    return folder / "src"


def environment(package: Path | None, **more: str) -> dict[str, Any]:
    """Return the environment for that code; None means this version."""
    return {**os.environ, **({"PYTHONPATH": str(package)} if package else {}), **more}
