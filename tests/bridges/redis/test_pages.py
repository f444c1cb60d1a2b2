"""The commands on the pages about Redis work as they are written there."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.services.common import free_port
from tests.services.redis import Redis

DOCS = Path(__file__).resolve().parents[3] / "docs"
_COMMANDS = re.compile(r"```sh\n(.*?)```", re.DOTALL)


@pytest.mark.parametrize(
    ("page", "says"),
    [("howto/redis.md", "task.published"), ("documents/redis.md", "task.succeeded")],
)
def test_the_commands_of_a_page_run_one_after_the_other(
    page: str, says: str, own_server: Redis, tmp_path: Path
) -> None:
    text = (DOCS / page).read_text(encoding="utf-8")
    script = "\n".join(block for block in _COMMANDS.findall(text) if "pip install" not in block)
    script = script.replace("redis://localhost:6379/0", own_server.url).replace("8080", str(free_port()))
    script = f"trap 'kill $(jobs -p) 2> /dev/null || true' EXIT\n{script}"
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
    assert says in done.stdout
