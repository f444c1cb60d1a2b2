"""Bears processes that were already told everything they need to know: `python -m tests.crashes.mother`.

A process that must import the whole program takes most of a second to start, and hundreds are needed. Each line of
standard input orders one life of `ten_steps`, as JSON: its name and its arguments. Whatever it prints comes through;
when it has ended, that is told as `ended CODE`, negative where it was killed.
"""

import json
import os
import select
import signal
import subprocess
import sys
import threading
import traceback
from types import TracebackType
from typing import Any, Self


def bear() -> None:
    from tests.crashes import ten_steps  # noqa: PLC0415 -- the test's own process need not know the lives

    for line in sys.stdin:
        name, *args = json.loads(line)
        child = os.fork()
        if child == 0:
            threading.Thread(target=_end_with_the_test, daemon=True).start()
            try:
                getattr(ten_steps, name)(*args)
            except BaseException:  # noqa: BLE001 -- whatever it is, this life must not continue as its mother
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        sys.stdout.write(f"ended {os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


def _end_with_the_test() -> None:
    """A test run that was killed has let go of our standard input: no one is left to end us."""
    closed = select.poll()
    closed.register(0, select.POLLHUP)
    closed.poll()
    os.kill(os.getpid(), signal.SIGKILL)


class Mother:
    """The program above, from outside: one life at a time."""

    def __init__(self, **environment: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.crashes.mother"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
            start_new_session=True,
        )

    def order(self, *life: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(life) + "\n")
        self._process.stdin.flush()

    def hear(self) -> str:
        """The next line that a life prints, or how it ended."""
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def live(self, *life: Any) -> str:
        """Order a life and hear how it ended."""
        self.order(*life)
        return self.hear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)  # with a life that is still going on
        self._process.communicate()


if __name__ == "__main__":
    bear()
