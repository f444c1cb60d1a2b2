"""The command line: every command calls a verb of the queue and shows its answer, as text or as JSON."""

import sys

try:
    from shiftwork.cli.root import main
except KeyboardInterrupt:  # a person who did not wait for the program to be loaded wants no traceback
    sys.exit(130)

__all__ = ["main"]
