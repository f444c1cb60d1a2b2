"""A process that has imported a module and forks children, which call its functions: `... fork_server MODULE`.

A process that imports the whole program takes most of a second to start, and tests that kill it need hundreds. Each
line of standard input is a call as JSON: a function of the module and its arguments. The reply is `started PID`, then
what the child prints, then `ended CODE`, where the code is negative if the child was killed.
"""

import importlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, Self


def serve(module: str) -> None:
    functions = importlib.import_module(module)
    for line in sys.stdin:
        name, *args = json.loads(line)
        child = os.fork()
        if child == 0:
            threading.Thread(target=_end_with_the_test, daemon=True).start()
            _print(f"started {os.getpid()}")
            try:
                getattr(functions, name)(*args)
            except BaseException:  # noqa: BLE001 -- whatever it is, the child must not go on as the server
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        _print(f"ended {os.waitstatus_to_exitcode(status)}")


def _print(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _end_with_the_test() -> None:
    """When the test run is killed, our standard input is closed and nothing else ends us."""
    closed = select.poll()
    closed.register(0, select.POLLHUP)
    closed.poll()
    os.kill(os.getpid(), signal.SIGKILL)


class Child:
    """A call that runs in a process of its own."""

    def __init__(self, pid: int, lines: Iterator[str]) -> None:
        self.pid = pid
        self._lines = lines
        self._code: int | None = None

    def read_line(self) -> str:
        """The next line that it prints; empty once it has ended."""
        if self._code is None:
            line = next(self._lines)
            if not line.startswith("ended "):
                return line
            self._code = int(line.removeprefix("ended "))
        return ""

    def wait(self) -> int:
        """Its exit code, or the negative number of the signal that killed it. It must not print anything more."""
        assert not (line := self.read_line()), line
        assert self._code is not None
        return self._code

    def end(self) -> None:
        """Kill it if it still runs, and read all that it has printed, so that nothing is left for the next call."""
        if self._code is None:
            with suppress(ProcessLookupError):  # it has just ended
                os.kill(self.pid, signal.SIGKILL)
        while self.read_line():
            pass


class ForkServer:
    """The program above, seen by a test: one child at a time, and none is left when its block ends."""

    def __init__(self, module: str, **environment: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.crashes.fork_server", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
            start_new_session=True,
        )

    @contextmanager
    def start(self, function: str, *args: Any) -> Iterator[Child]:
        """Call a function of the module in a new process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([function, *args]) + "\n")
        self._process.stdin.flush()
        lines = (line.rstrip("\n") for line in self._process.stdout)
        word, pid = next(lines).split()
        assert word == "started"
        child = Child(int(pid), lines)
        try:
            yield child
        finally:
            child.end()

    def run(self, function: str, *args: Any) -> int:
        """Call a function of the module in a new process; its exit code."""
        with self.start(function, *args) as child:
            return child.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()


if __name__ == "__main__":
    serve(sys.argv[1])
