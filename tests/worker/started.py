"""Processes that a test has started, all of which are ended with it."""

import os
import signal
import subprocess
from pathlib import Path

from tests.worker.steps import PATIENCE_SEC


class Started:
    """Each has a session of its own, with its children in it, and all write into one log."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        self._log = folder / "log"
        self._started: list[subprocess.Popen[bytes]] = []

    def spawn(self, command: list[str], cwd: Path) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            process = subprocess.Popen(command, cwd=cwd, stdout=log, stderr=log, start_new_session=True)
        self._started.append(process)
        return process

    def log(self) -> str:
        return self._log.read_text()

    def end(self) -> None:
        for process in self._started:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
            finally:
                process.wait(PATIENCE_SEC)
