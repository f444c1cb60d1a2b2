"""`batches`: tasks sent to a provider in batches."""

from __future__ import annotations

from shiftwork.cli.groups import listing


@listing("batches")
def batches() -> None:
    """Show tasks that were sent to a provider in batches. Without a subcommand: the list."""
