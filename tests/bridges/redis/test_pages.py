"""The commands on the pages about Redis work as written."""

from pathlib import Path

import pytest

from tests.pages import commands_of, run_commands
from tests.services.common import free_port
from tests.services.redis import Redis


@pytest.mark.parametrize(
    ("page", "says"),
    [("howto/redis.md", "task.published"), ("documents/redis.md", "task.succeeded")],
)
def test_commands_of_a_page_run_in_sequence(page: str, says: str, own_server: Redis, tmp_path: Path) -> None:
    script = "\n".join(block for block in commands_of(page) if "pip install" not in block)
    script = script.replace("redis://localhost:6379/0", own_server.url).replace("8080", str(free_port()))
    assert says in run_commands(f"trap 'kill $(jobs -p) 2> /dev/null || true' EXIT\n{script}", tmp_path)
