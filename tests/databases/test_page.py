"""The commands of docs/howto/many-databases.md, one after the other, on two real databases."""

import os
import re
import subprocess
import sys
from pathlib import Path

from shiftwork.databases.map_file import read_map

PAGE = Path(__file__).resolve().parents[2] / "docs" / "howto" / "many-databases.md"


def test_the_commands_of_many_databases_md_run_in_sequence(map_url: str, tmp_path: Path) -> None:
    text = PAGE.read_text("utf-8")
    for name, address in read_map(map_url).databases.items():
        text = text.replace(f"postgresql://app@127.0.0.1/shop_{name}", address)
    script = "\n".join(re.findall(r"```sh\n(.*?)```", text, re.DOTALL))
    known = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    done = subprocess.run(
        ["bash", "-e", "-c", script], cwd=tmp_path, env=known, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"billing +a ", done.stdout)
    assert '"database":"b"' in done.stdout.replace(" ", "")
    assert "billing: b to a" in done.stdout
