"""The commands on the pages about the server work as they are written there."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.services.common import free_port

DOCS = Path(__file__).resolve().parents[2] / "docs"
_COMMANDS = re.compile(r"```sh\n(.*?)```", re.DOTALL)


@pytest.mark.parametrize("page", ["howto/serve.md"])
def test_the_commands_of_a_page_run_one_after_the_other(page: str, tmp_path: Path) -> None:
    script = "\n".join(_COMMANDS.findall((DOCS / page).read_text(encoding="utf-8")))
    script = script.replace("8080", str(free_port()))
    programs = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-e", "-m", "-c", script],
        cwd=tmp_path,
        env={"PATH": programs, "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert '"data":{"text":"Hello, Ada"}' in done.stdout
