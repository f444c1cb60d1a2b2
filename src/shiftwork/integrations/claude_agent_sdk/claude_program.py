"""Ends Claude Code with its worker: an agent left behind would continue to spend money and change files."""

from __future__ import annotations

import dataclasses
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import claude_agent_sdk
from claude_agent_sdk import ClaudeAgentOptions

_TIE = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""


@contextmanager
def tied_to_this_process(options: ClaudeAgentOptions) -> Iterator[ClaudeAgentOptions]:
    """Options under which Linux kills the program when this process dies. On other systems they are unchanged."""
    program = _program(options)
    if sys.platform != "linux" or program is None:
        yield options
        return
    with tempfile.TemporaryDirectory(prefix="shiftwork-claude-") as folder:
        script = Path(folder) / "claude"
        line = shlex.join([sys.executable, "-ISc", _TIE, str(os.getpid()), program])
        script.write_text(f'#!/bin/sh\nexec {line} "$@"\n')
        script.chmod(0o700)
        yield dataclasses.replace(options, cli_path=script)


def _program(options: ClaudeAgentOptions) -> str | None:
    """The program named in the options, bundled with the SDK, or on the PATH. If None, the SDK reports the error."""
    bundled = Path(claude_agent_sdk.__file__).parent / "_bundled" / "claude"
    if options.cli_path is not None:
        return str(options.cli_path)
    return str(bundled) if bundled.exists() else shutil.which("claude")
