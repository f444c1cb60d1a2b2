"""Runs Python programs of the documentation in children of a fork server, which has imported what they import."""

import os
import sys
import types

import shiftwork.client
import shiftwork.queue
import shiftwork.testing
import shiftwork.worker  # noqa: F401  # loaded once for all programs


def run(program: str, folder: str, output: str) -> None:
    """Run a program as `python -c` would, in this folder; what it prints is in the file `output`."""
    os.chdir(folder)
    file = os.open(output, os.O_WRONLY | os.O_CREAT)
    os.dup2(file, 1)
    os.dup2(file, 2)
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    sys.argv, sys.path[0] = ["-c"], ""
    try:
        exec(compile(program, "<string>", "exec"), main.__dict__)  # noqa: S102  # a program of this repository
    finally:
        sys.stdout.flush()
