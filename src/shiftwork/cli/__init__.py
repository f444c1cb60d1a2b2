"""The command line: every command calls a verb of the queue and shows its answer, as text or as JSON."""

from shiftwork.cli.root import main

__all__ = ["main"]
