"""The command line: every command calls an operation of the queue and prints its answer as text or JSON."""

import sys

try:
    from shiftwork.cli.root import main
except KeyboardInterrupt:  # no traceback if the program is interrupted while it loads
    sys.exit(130)

__all__ = ["main"]
