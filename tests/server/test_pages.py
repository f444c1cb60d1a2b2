"""The commands on the pages about the server work as written."""

from pathlib import Path

import pytest

from tests.pages import commands_of, run_commands
from tests.services.common import free_port


@pytest.mark.parametrize("page", ["howto/serve.md"])
def test_commands_of_a_page_run_in_sequence(page: str, tmp_path: Path) -> None:
    script = "\n".join(commands_of(page)).replace("8080", str(free_port()))
    assert '"data":{"text":"Hello, Ada"}' in run_commands(script, tmp_path)
