"""Prometheus' own checker of rules and metrics, found as the servers are."""

import functools
import subprocess
from pathlib import Path

from tests.services.programs import Program, Wanted, find

WANTED = Wanted(
    component="promtool",
    variable="SHIFTWORK_TEST_PROMTOOL",
    names=("promtool",),
    debian="prometheus",
)


@functools.cache
def promtool() -> Program:
    return find(WANTED)


def run(*arguments: str | Path, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Run promtool; return its output and whether it succeeded."""
    program = promtool()
    command = [str(program.file), *map(str, arguments)]
    return subprocess.run(command, input=stdin, env=program.environment(), capture_output=True, check=False)
