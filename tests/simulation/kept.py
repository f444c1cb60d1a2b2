"""Seeds that once found a bug. They run with every change; a comment names the bug."""

KEPT: dict[int, str] = {}
