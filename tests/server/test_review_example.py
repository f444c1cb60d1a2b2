"""The example of a review triggered by GitHub, run against its own server."""

import subprocess
import sys
from pathlib import Path

from tests.client.serving import served

REVIEW = Path(__file__).resolve().parents[2] / "examples" / "review" / "review.py"


def test_recorded_pull_request_is_reviewed(tmp_path: Path) -> None:
    with served(f"sqlite:///{tmp_path}/queue.db") as running:
        command = [sys.executable, str(REVIEW), running.url]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "check-style completed {'commit': '6f1ed002ab5595859014ebf0951522d9d2f0a1c3', 'complaints': 0}",
        "review-code completed {'commit': '6f1ed002ab5595859014ebf0951522d9d2f0a1c3', 'verdict': 'looks good'}",
        "comment completed commented on acme/shop#42",
    ]
