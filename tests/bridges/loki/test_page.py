"""The commands on the pages about `.loki` folders work in their order."""

import re
import subprocess
import sys
from pathlib import Path

from tests.services import tools

PAGE = Path(__file__).resolve().parents[3] / "docs" / "howto" / "loki-folders.md"


def test_guide_page_works_as_written(tmp_path: Path) -> None:
    known = tools.environment()
    known["PATH"] = f"{Path(sys.executable).parent}:{known['PATH']}"
    outputs = []
    for code in re.findall(r"```sh\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL):
        line = [tools.bash(), "-e", "-c", code]
        done = subprocess.run(line, cwd=tmp_path, env=known, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        outputs.append(done.stdout)
    shown, worked = outputs
    assert shown.endswith("8 eng-backend\n5 eng-frontend\n")
    assert "script-1 eng-backend\ncoder-1 eng-frontend\n" in worked
